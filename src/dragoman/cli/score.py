"""The command `dragoman score`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from dragoman.files.text_lines import IDS_EXPECTED, Line, token_ids, unreadable
from dragoman.runtime import DragomanError, Model, ScoredPair, ScoringOptions, load
from dragoman.runtime.scoring.interface import perplexity_of, rejected

from .shared.options import (
    PATH,
    bundle_argument,
    counted,
    json_option,
    loading_options,
    option_names,
    split_option,
)
from .shared.terminal import arriving_lines, in_parts, notify, standard_input


@click.command()
@bundle_argument
@click.argument("pairs", required=False, type=PATH)
@click.option(
    "--end-token/--no-end-token",
    default=None,
    help="Score the end token as well [yes; no for a decoder-only model].",
)
@click.option("--source-language", metavar="CODE", help="Language of the sources [the bundle's].")
@click.option("--target-language", metavar="CODE", help="Language of the targets [the bundle's].")
@click.option(
    "--language", metavar="CODE", help="Speech: spoken language, such as de or german [detected]."
)
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    help="Speech: targets are transcripts, or translations to English [the bundle's].",
)
@click.option(
    "--strict-audio",
    is_flag=True,
    help="Speech: refuse files that end early or are damaged, instead of a warning.",
)
@split_option
@counted(
    "--batch-size", default=64, show_default=True, help="Score at most this many lines at once."
)
@json_option(
    help="Write a JSON object for each line: tokens, their log-probabilities, the sum, the error."
)
@loading_options
@click.pass_context
def score(
    context: click.Context,
    /,
    bundle: Path,
    pairs: Path | None,
    batch_size: int,
    as_json: bool,
    loading: dict[str, Any],
    **asked: Any,
) -> int:
    """Compute the log-probability of targets that PAIRS, or standard input, gives.

    Each line is a source, a tab and a target. For each, the log-probability of the target (natural
    logarithm), a tab and its number of tokens are written. The perplexity of all targets goes to
    standard error.

    For a decoder-only model, a line is a prompt, a tab and its continuation, or just a text. For a
    speech model, sources are paths of audio files of at most one window. For a bundle without
    tokenizers, sources and targets are token ids. A line that is rejected gives an empty line and a
    message, and the exit status is 1.

    \b
    dragoman score bundles/g2p-en words.tsv
    printf 'dragoman\\tD R AE G AH M AH N\\n' | dragoman score bundles/g2p-en --json
    dragoman score bundles/verses-en --end-token < whole.txt
    """
    if pairs is not None and (not pairs.exists() or pairs.is_dir()):
        found = "a directory" if pairs.is_dir() else "nothing"
        raise DragomanError(f"expected a file of pairs, found {found} at {pairs}")
    options = ScoringOptions(**asked, max_batch_size=batch_size)
    writer = _Writer(as_json)
    with load(bundle, **loading) as model:
        with option_names(context.command):
            model.score([], options)  # checks the options before the first line arrives
        for lines in _groups(pairs):
            read = [_pair(model, line) for line in lines]
            scored = iter(
                model.score([pair for pair in read if not isinstance(pair, str)], options)
            )
            for pair in read:
                writer.write(rejected(pair) if isinstance(pair, str) else next(scored))
            sys.stdout.flush()
    writer.summarize()
    return 1 if writer.rejected else 0


GROUP = 4096
"""The most lines that are scored before results are written."""


def _groups(pairs: Path | None) -> Iterator[Sequence[Line]]:
    if pairs is None:
        yield from in_parts(standard_input(), GROUP)
        return
    with pairs.open("rb") as file:
        yield from in_parts(arriving_lines(file), GROUP)


class _Writer:
    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.number = self.rejected = self.tokens = 0
        self.log_probability = 0.0

    def write(self, scored: ScoredPair) -> None:
        self.number += 1
        if scored.error is not None:
            self.rejected += 1
            notify(f"line {self.number}: {scored.error}")
        self.tokens += len(scored.tokens)
        self.log_probability += scored.log_probability
        if self.as_json:
            values = dataclasses.asdict(scored)
            if scored.language is None:
                del values["language"]
            click.echo(json.dumps(values))
        elif scored.error is not None:
            click.echo()
        else:
            click.echo(f"{scored.log_probability:.4f}\t{len(scored.tokens)}")

    def summarize(self) -> None:
        if self.tokens:
            value = perplexity_of(self.log_probability, self.tokens)
            pairs = self.number - self.rejected
            notify(f"perplexity {value:.6g} over {self.tokens} tokens of {pairs} pairs")


def _pair(model: Model, line: Line) -> tuple[Any, Any] | str:
    if isinstance(line, UnicodeDecodeError):
        return unreadable(line)
    source, *targets = line.split("\t")
    if not targets and not model.manifest.model.has_encoder:
        source, targets = "", [source]
    if len(targets) != 1:
        return f"expected a source and a target with one tab between, found {len(targets)} tabs"
    if model.manifest.tokenizers is not None:
        return source, targets[0]
    speech = model.manifest.speech is not None
    pair = source if speech else token_ids(source), token_ids(targets[0])
    return IDS_EXPECTED if None in pair else pair
