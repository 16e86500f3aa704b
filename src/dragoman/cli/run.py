"""The command `dragoman run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from dragoman.errors import DragomanError
from dragoman.files.text_lines import Line, source_of
from dragoman.runtime import (
    GenerationOptions,
    Manifest,
    Model,
    RejectedError,
    Result,
    UnfinishedError,
    load,
)
from dragoman.runtime.decoding.strategies import strategies

from .run_output import (
    Aligner,
    Output,
    best,
    check_aligned_options,
    json_of_speech,
    json_of_texts,
    timed,
)
from .shared.decoding_options import decoding_options, for_bundle, output
from .shared.options import SectionedCommand, backend_option, option_names, threads_option
from .shared.terminal import arriving_lines, in_parts

RECORDINGS = 32
"""The most recordings that are decoded before results are written."""


@click.command(cls=SectionedCommand)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@decoding_options
@output("--scores", is_flag=True, help="Write the score and a tab before each output.")
@output(
    "--json",
    "as_json",
    is_flag=True,
    help="Write a JSON object for each line: outputs, scores, error.",
)
@output("--stream", is_flag=True, help="Write tokens as soon as they are selected; without beams.")
@output(
    "--alignments",
    is_flag=True,
    help="Write a tab and the word alignment (0-0 1-2) after each output.",
)
@output(
    "--replace-unknown",
    is_flag=True,
    help="Replace unknown tokens by the source words aligned with them.",
)
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
    **given_options: Any,
) -> int:
    """Generate a line of text for each of TEXTS, or of the lines of standard input.

    A speech model reads paths of audio files. A rejected line is empty, and the exit status is 1.

    \b
    dragoman run bundles/en-de "Where is the dragoman?" --beams 4 --n-best 3 --scores
    """
    _check_forms(given_options, scores=scores, as_json=as_json, stream=stream)
    check_aligned_options(
        given_options, stream=stream, alignments=alignments, replace=replace_unknown
    )
    if alignments and as_json:
        raise click.UsageError("--alignments and --json exclude each other")
    with option_names(context.command):
        options = GenerationOptions(**given_options)
    groups: Iterable[Sequence[Line]] = [texts]
    if not texts:
        groups = arriving_lines(sys.stdin.buffer) if sys.stdin else []  # None if closed
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
                _stream(model, lines, options, results)
            else:
                _generate(model, lines, options, results, aligner)
            sys.stdout.flush()
    return 1 if results.rejected else 0


def _check_forms(
    given_options: dict[str, Any], *, scores: bool, as_json: bool, stream: bool
) -> None:
    """Check that the output options can be combined."""
    if stream:
        for name, given in (
            ("--json", as_json),
            ("--timestamps", given_options["timestamps"]),
            ("--scores", scores),
            ("--n-best", given_options["num_return_sequences"] > 1),
        ):
            if given:
                raise click.UsageError(f"--stream and {name} exclude each other")
        given_options["timestamps"] = False
    if given_options["alternatives"] and not as_json:
        raise click.UsageError("--alternatives: expected with --json, which has a place for them")


def _check(model: Model, options: GenerationOptions, *, stream: bool) -> None:
    """Check the options against the bundle, before the first line arrives."""
    model.generate([], options)
    if stream:
        beams = strategies(options, model.manifest)[0].width
        if beams > 1:
            raise click.UsageError(
                f"--stream: expected --beams 1, found {beams} beams, whose tokens are not final "
                "until the end"
            )


def _form(
    manifest: Manifest, options: GenerationOptions, *, scores: bool, as_json: bool
) -> Callable[[Result], Iterable[str]]:
    """Return the function that formats a result as lines."""
    speech = manifest.speech
    if as_json:
        return json_of_texts if speech is None else json_of_speech
    by_default = speech is not None and speech.default_timestamps
    if not (by_default if options.timestamps is None else options.timestamps):
        return best(options.num_return_sequences, scores=scores)
    if scores:
        raise click.UsageError("--scores: expected --no-timestamps: segments have no scores")
    return timed


def _generate(
    model: Model,
    lines: Sequence[Line],
    options: GenerationOptions,
    output: Output,
    aligner: Aligner | None = None,
) -> None:
    """Decode lines and write their results; if the device fails, unfinished lines are rejected."""
    sources = [_source(model, line) for line in lines]
    good = [source for source in sources if not isinstance(source, DragomanError)]
    lost = None
    try:
        results = model.generate(good, options)
    except UnfinishedError as error:
        lost = error
        undone = _rejected(model, "not decoded: the device failed")
        results = [error.finished.get(index, undone) for index in range(len(good))]
    following = iter(results)
    for source in sources:
        if isinstance(source, DragomanError):
            output.write(_rejected(model, str(source)))
        elif aligner is None:
            output.write(next(following))
        else:
            result, pairs = aligner.replaced(source, next(following)), None
            if aligner.alignments:
                result, pairs = aligner.aligned(source, result)
            output.write(result, pairs)
    if lost is not None:
        raise lost


def _stream(
    model: Model, lines: Sequence[Line], options: GenerationOptions, output: Output
) -> None:
    """Write the tokens of each line as soon as they are selected."""
    for line in lines:
        output.number += 1
        source = _source(model, line)
        try:
            if isinstance(source, DragomanError):
                raise RejectedError(str(source))
            for index, token in enumerate(model.stream(source, options)):
                piece = f"{' ' if index else ''}{token.id}" if token.text is None else token.text
                click.echo(piece, nl=False)
                sys.stdout.flush()
        except RejectedError as error:
            output.reject(str(error))
        click.echo()


def _source(model: Model, line: Line) -> str | list[int] | DragomanError:
    return source_of(line, takes_text=_takes_words(model))


def _takes_words(model: Model) -> bool:
    return model.manifest.tokenizers is not None or model.manifest.speech is not None


def _rejected(model: Model, reason: str) -> Result:
    return Result("" if _takes_words(model) else None, (), 0.0, "rejected", reason)
