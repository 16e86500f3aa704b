"""The command itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..lines import Line, arriving_lines, in_parts
from ..option_names import option_names
from ..options import backend_option, threads_option
from ..sections import SectionedCommand
from . import decoding
from .alignments import Aligner, check_alone
from .options import decoding_options, for_bundle, output
from .output import Output, best, json_of_speech, json_of_texts, timed

if TYPE_CHECKING:
    from dragoman.runtime import GenerationOptions, Manifest, Model, Result

RECORDINGS = 32
"""The most recordings that are decoded before results are written."""


@click.command(cls=SectionedCommand, short_help="Decode texts or audio with a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@decoding_options
@output("--scores", is_flag=True, help="Put the score and a tab in front of each line.")
@output(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object for each line: outputs, scores, error.",
)
@output("--stream", is_flag=True, help="Print tokens as soon as they are chosen. Not with beams.")
@output("--alignments", is_flag=True, help="Add a tab and aligned words, as in 0-0 1-2.")
@output("--replace-unknown", is_flag=True, help="Put source words in place of unknown tokens.")
@backend_option
@threads_option
@click.pass_context
def run(
    context: click.Context,
    /,
    bundle: Path,
    texts: tuple[str, ...],
    scores: bool,
    as_json: bool,
    stream: bool,
    alignments: bool,
    replace_unknown: bool,
    backend: str | None,
    threads: int | None,
    **asked: Any,
) -> int:
    """Decode TEXTS, or lines of standard input (of speech, paths; without tokenizers, token ids), a
    line out for each. One that cannot be decoded is empty, with a message and exit status 1.

    \b
    dragoman run bundles/en-de "Where is the dragoman?" --beams 4 --n-best 3 --scores
    dragoman run bundles/whisper-tiny talk.flac --language de --timestamps
    """
    from dragoman.runtime import GenerationOptions, load

    _check_forms(asked, scores=scores, as_json=as_json, stream=stream)
    check_alone(asked, stream=stream, alignments=alignments, replace=replace_unknown)
    if alignments and as_json:
        raise click.UsageError("--alignments and --json exclude each other")
    with option_names(context.command):
        options = GenerationOptions(**asked)
    groups: Iterable[Sequence[Line]] = [texts]
    if not texts:
        groups = arriving_lines(sys.stdin.buffer) if sys.stdin else []  # None: closed
    with load(bundle, threads=threads, backend=backend) as model:
        with option_names(context.command):
            options = for_bundle(options, model.manifest)
            _check(model, options, stream=stream)
        aligner = None
        if alignments or replace_unknown:
            aligner = Aligner(model, options, alignments=alignments, replace=replace_unknown)
            aligner.check()
        results = Output(_form(model.manifest, options, scores=scores, as_json=as_json))
        if model.manifest.speech is not None:
            groups = in_parts(groups, RECORDINGS)
        for lines in groups:
            if stream:
                decoding.stream(model, lines, options, results)
            else:
                decoding.generate(model, lines, options, results, aligner)
            sys.stdout.flush()
    return 1 if results.rejected else 0


def _check_forms(asked: dict[str, Any], *, scores: bool, as_json: bool, stream: bool) -> None:
    """Check that the forms of output that are asked for can be had together."""
    if stream:
        for name, given in (
            ("--json", as_json),
            ("--timestamps", asked["timestamps"]),
            ("--scores", scores),
            ("--n-best", asked["num_return_sequences"] > 1),
        ):
            if given:
                raise click.UsageError(f"--stream and {name} exclude each other")
        asked["timestamps"] = False
    if asked["alternatives"] and not as_json:
        raise click.UsageError("--alternatives: expected with --json, which has a place for them")


def _check(model: Model, options: GenerationOptions, *, stream: bool) -> None:
    """Check what is asked for against the bundle, before the first line arrives."""
    model.generate([], options)
    if stream:
        from dragoman.runtime.decoding.strategies import strategies

        beams = strategies(options, model.manifest)[0].width
        if beams > 1:
            raise click.UsageError(
                f"--stream: expected --beams 1, found {beams} beams, whose tokens are not final "
                "until the end"
            )


def _form(
    manifest: Manifest, options: GenerationOptions, *, scores: bool, as_json: bool
) -> Callable[[Result], Iterable[str]]:
    """What is written for a result."""
    speech = manifest.speech
    if as_json:
        return json_of_texts if speech is None else json_of_speech
    by_default = speech is not None and speech.default_timestamps
    if not (by_default if options.timestamps is None else options.timestamps):
        return best(options.num_return_sequences, scores=scores)
    if scores:
        raise click.UsageError("--scores: expected --no-timestamps: segments have no scores")
    return timed
