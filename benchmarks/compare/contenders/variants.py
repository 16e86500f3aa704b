"""Contenders with a shortlist or a recurrent decoder, besides those that they are made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...peers import ctranslate2_runtime, fxtranslate
from ..rounds import Contender, Prepare
from .text import AS_MANY_ROWS, CTRANSLATE2, DRAGOMAN, peers

SHORTLIST = ", shortlist"
"""Added to the name of a contender that decodes with a shortlist."""
Several = Sequence[Contender[Any, Any]]
LISTED, ALWAYS = 60, 100
"""Target tokens that each source token lists, and those that every source allows."""


def with_shortlists(
    contenders: Several, mean_length: int | None = None
) -> list[Contender[Any, Any]]:
    """Return contenders, and Dragoman's and CTranslate2's in int8 with the same shortlist besides.

    The lists are random, and some tokens are in many of them, as in those of texts (Zipf's law).
    Outputs end after `mean_length` tokens, see `random_checkpoint.end_outputs`, if it is given.
    """
    prepare = partial(prepared_with_shortlist, mean_length=mean_length)
    tools = (DRAGOMAN, CTRANSLATE2, FXTRANSLATE)
    return [*contenders, *_prepared_otherwise(contenders, tools, SHORTLIST, prepare)]


def _prepared_otherwise(
    contenders: Several, tools: tuple[str, ...], ending: str, prepare: Callable[..., Path]
) -> list[Contender[Any, Any]]:
    """Return contenders of some tools in int8, prepared in another way."""
    return [
        replace(one, name=one.name + ending, prepare=partial(prepare, prepare=one.prepare))
        for one in contenders
        if one.precision.startswith("int8") and one.name.startswith(tools)
        if AS_MANY_ROWS not in one.name
    ]


def prepared_with_shortlist(
    checkpoint: Path, directory: Path, *, prepare: Prepare, mean_length: int | None = None
) -> Path:
    """Prepare a contender, and add the shortlist in its form."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    vocabulary = config.get("vocab_size") or config["target_vocab_size"]
    generator = np.random.default_rng(0)
    ranked = generator.permutation(vocabulary)
    chances = 1 / np.arange(1, vocabulary + 1)
    drawn = generator.choice(vocabulary, (vocabulary, LISTED), p=chances / chances.sum())
    lists = [np.unique(ranked[row]).tolist() for row in drawn]
    always = ranked[:ALWAYS].tolist()
    if mean_length is not None:
        from ...models.random_checkpoint import end_outputs

        checkpoint = Path(shutil.copytree(checkpoint, directory / "ending"))
        directory = directory / "prepared"
        end_outputs(
            *(checkpoint, vocabulary, mean_length),
            lambda source: np.unique(np.r_[always, *(lists[s] for s in source)]).astype(np.int32),
        )
    prepared = prepare(checkpoint, directory)
    if (prepared / fxtranslate.VOCABULARY).exists():  # which lacks the last token
        known = [[token for token in listed if token < vocabulary - 1] for listed in lists[:-1]]
        fxtranslate.write_shortlist(known, ALWAYS, prepared)
        return prepared
    if not (prepared / "manifest.json").exists():
        sources = [*ctranslate2_runtime.source_names(range(vocabulary)), ""]
        targets = (" ".join(ctranslate2_runtime.target_names(each)) for each in (*lists, always))
        text = "".join(f"{s}\t{t}\n" for s, t in zip(sources, targets, strict=True))
        (prepared / ctranslate2_runtime.SHORTLIST).write_text(text, encoding="utf-8")
        return prepared
    from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
    from dragoman.runtime import read_bundle
    from dragoman.runtime.format.writing import write_manifest
    from dragoman.runtime.texts.shortlist import Shortlist

    bundle = read_bundle(prepared)
    manifest, arrays = bundle.manifest, [np.array(listed, np.int32) for listed in lists]
    shortlist = Shortlist({(s,): a for s, a in enumerate(arrays)}, np.array(always, np.int32))
    suppressed = manifest.generation.suppressed_token_ids
    added = add_shortlist(bundle, shortlist.with_always(manifest.end_tokens, suppressed))
    write_manifest(added.manifest, prepared)
    return prepared


RECURRENT = ", recurrent"
"""Added to the name of a contender whose decoder is recurrent."""
FXTRANSLATE = "fxtranslate"


def with_recurrent(contenders: Several, *, shortlist: bool) -> list[Contender[Any, Any]]:
    """Return contenders, and Dragoman and fxtranslate in int8 with a recurrent decoder besides.

    fxtranslate's outputs have 2 * S + 6 tokens for a source of S, so that it fails for others.
    """
    students: Several = peers(FXTRANSLATE, ["int8"], fxtranslate.prepare, fxtranslate.load)
    students = [*contenders, *(with_shortlists(students) if shortlist else students)]
    tools = (DRAGOMAN, FXTRANSLATE)
    return [*contenders, *_prepared_otherwise(students, tools, RECURRENT, prepared_recurrent)]


def prepared_recurrent(checkpoint: Path, directory: Path, *, prepare: Prepare) -> Path:
    """Prepare a contender with a checkpoint whose decoder is recurrent."""
    from dragoman.export.families import FAMILIES
    from dragoman.reference_model import save_checkpoint

    from ...models.random_checkpoint import random_model

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    of_attention = FAMILIES[config["model_type"]].config(config)
    recurrent = directory / "checkpoint"
    save_checkpoint(random_model(of_attention.replace(decoder_kind="ssru"), seed=1), recurrent)
    return prepare(recurrent, directory / "bundle")
