"""`dragoman score`"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .lines import IDS_EXPECTED, Line, arriving_lines, in_parts, token_ids, unreadable
from .messages import tell
from .option_names import option_names
from .options import backend_option, threads_option

if TYPE_CHECKING:
    from dragoman.runtime import Model, ScoredPair


@click.command(short_help="Give the probability of targets that are there already.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("pairs", required=False, type=click.Path(path_type=Path))
@click.option(
    "--end-token/--no-end-token",
    default=None,
    help="Whether to score the end token: no if targets are beginnings [yes; decoder alone: no].",
)
@click.option(
    "--source-language",
    metavar="CODE",
    help="Language of the sources, in multilingual models [the bundle's].",
)
@click.option("--target-language", metavar="CODE", help="Language of the targets [the bundle's].")
@click.option(
    "--language", metavar="CODE", help="Speech: spoken language, such as de or german [detected]."
)
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    help="Speech: what targets are, transcripts or translations to English [the bundle's].",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Lines to score together, at most.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object per line: tokens, their log-probabilities, the sum, the error.",
)
@backend_option
@threads_option
@click.pass_context
def score(
    context: click.Context,
    /,
    bundle: Path,
    pairs: Path | None,
    end_token: bool | None,
    source_language: str | None,
    target_language: str | None,
    language: str | None,
    task: str | None,
    batch_size: int,
    as_json: bool,
    backend: str | None,
    threads: int | None,
) -> int:
    """Score the lines of PAIRS, or of standard input, with BUNDLE: each a source, a tab, a target.

    Prints a line for each: the log-probability of the target (natural logarithm), a tab, and how
    many tokens that is, the end token included. The perplexity of all goes to standard error.

    For a decoder alone the end token is scored only with --end-token, and a line may also be just
    a text, which continues nothing.

    For a speech model, sources are paths of audio files of at most a window. For a bundle without
    tokenizers, sources and targets are token ids separated by spaces. A line that cannot be scored
    gives an empty line, a message on standard error and, at the end, exit status 1.

    \b
    dragoman score bundles/g2p-en words.tsv
    printf 'dragoman\\tD R AE G AH M AH N\\n' | dragoman score bundles/g2p-en --json
    dragoman score bundles/verses-en --end-token < whole.txt
    """
    from dragoman.runtime import DragomanError, ScoringOptions, load

    if pairs is not None and (not pairs.exists() or pairs.is_dir()):
        found = "a directory" if pairs.is_dir() else "nothing"
        raise DragomanError(f"expected a file of pairs, found {found} at {pairs}")
    options = ScoringOptions(
        end_token=end_token,
        source_language=source_language,
        target_language=target_language,
        language=language,
        task=task,
        max_batch_size=batch_size,
    )
    writer = _Writer(as_json)
    with load(bundle, threads=threads, backend=backend) as model:
        with option_names(context.command):
            model.score([], options)  # checks them before the first line arrives
        for lines in _groups(pairs):
            _score(model, lines, options, writer)
            sys.stdout.flush()
    writer.summarize()
    return 1 if writer.rejected else 0


GROUP = 4096
"""The most lines that are scored before results are written."""


def _groups(pairs: Path | None) -> Iterator[Sequence[Line]]:
    """The lines of a file or of standard input."""
    if pairs is not None:
        with pairs.open("rb") as file:
            yield from in_parts(arriving_lines(file), GROUP)
    elif sys.stdin:  # None: closed
        yield from in_parts(arriving_lines(sys.stdin.buffer), GROUP)


class _Writer:
    """Writes a line for each pair, and adds up what the summary needs."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.number = self.rejected = self.tokens = 0
        self.log_probability = 0.0

    def write(self, scored: ScoredPair) -> None:
        self.number += 1
        if scored.error is not None:
            self.rejected += 1
            tell(f"line {self.number}: {scored.error}")
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
            from dragoman.runtime.scoring.results import perplexity_of

            value = perplexity_of(self.log_probability, self.tokens)
            pairs = self.number - self.rejected
            tell(f"perplexity {value:.6g} over {self.tokens} tokens of {pairs} pairs")


def _score(model: Model, lines: Sequence[Line], options: Any, writer: _Writer) -> None:
    from dragoman.runtime.scoring.results import rejected

    pairs = [_pair(model, line) for line in lines]
    results = iter(model.score([pair for pair in pairs if not isinstance(pair, str)], options))
    for pair in pairs:
        writer.write(rejected(pair) if isinstance(pair, str) else next(results))


def _pair(model: Model, line: Line) -> tuple[Any, Any] | str:
    """The pair that a line states, or why it states none."""
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
