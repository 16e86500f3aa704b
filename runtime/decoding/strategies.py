"""The strategies of a call: its options, or else what the model was published with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.errors import DragomanError

from ..format.manifest import Manifest
from .beam import Beam
from .constrained import ConstrainedBeam
from .greedy import Greedy
from .options import MOST_SAMPLES, GenerationOptions
from .required_phrases import RequiredPhrases, Ways
from .sampling import Sample
from .search import Strategy

OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
OF_BEAMS = ("length_penalty", "early_stopping")


def strategies(
    options: GenerationOptions, manifest: Manifest, required: Sequence[Ways] = ()
) -> Sequence[Strategy]:
    """How an input is decoded: with one strategy that returns all outputs or, to sample several,
    with one for each.

    Args:
        required: the phrases of `must_contain`

    Raises:
        DragomanError: options contradict each other, or the model cannot do what they ask.
    """
    settings = manifest.generation
    sampling = options.do_sample
    if sampling is None:
        sampling = settings.do_sample and (options.num_beams or 1) == 1
    beams = options.num_beams
    if beams is None:
        beams = 1 if sampling else settings.num_beams
    _check(options, manifest, beams, sampling=sampling)
    if sampling:
        return [
            Sample(
                options.seed,
                index,
                temperature=_or(options.temperature, settings.temperature),
                top_k=_or(options.top_k, settings.top_k),
                top_p=_or(options.top_p, settings.top_p),
                min_p=_or(options.min_p, settings.min_p),
            )
            for index in range(options.num_return_sequences)
        ]
    if beams == 1:
        return [Greedy()]
    beam = Beam(
        beams,
        length_penalty=float(_or(options.length_penalty, settings.length_penalty)),
        early_stopping=_or(options.early_stopping, settings.early_stopping),
        returned=options.num_return_sequences,
    )
    if required:
        return [ConstrainedBeam(**vars(beam), required=RequiredPhrases(required))]
    return [beam]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _check(options: GenerationOptions, manifest: Manifest, beams: int, *, sampling: bool) -> None:
    problems = []
    vocabulary, returned = manifest.model.target_vocab_size, options.num_return_sequences
    if beams > vocabulary:
        problems.append(f"num_beams: expected at most {vocabulary}, the vocabulary, found {beams}")
    if not sampling and returned > beams:
        problems.append(
            f"num_return_sequences: expected at most num_beams {beams}, found {returned}"
            + (": greedy search finds one" if beams == 1 else "")
        )
    if sampling and returned > MOST_SAMPLES:
        problems.append(
            f"num_return_sequences: expected at most {MOST_SAMPLES} samples, found {returned}"
        )
    if options.alternatives > vocabulary:
        problems.append(
            f"alternatives: expected at most {vocabulary}, the vocabulary, found "
            f"{options.alternatives}"
        )
    for names, used, words in (
        (OF_SAMPLING, sampling, "sampling: set do_sample"),
        (OF_BEAMS, beams > 1, "beam search: set num_beams"),
    ):
        given = [name for name in names if getattr(options, name) is not None]
        if given and not used:
            problems.append(f"{', '.join(given)}: for {words}, or leave it out")
    if options.must_contain and beams == 1:
        problems.append("must_contain: expected num_beams of more than 1: it needs beam search")
    if beams > 1 and not manifest.graphs["decoder"].shares_sources:
        problems.append(
            f"num_beams: expected 1, found {beams}: this bundle was built before Dragoman had "
            "beam search: build it again"
        )
    if problems:
        raise DragomanError("; ".join(problems))
