"""`dragoman inspect`"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from dragoman.metrics import shown_figure
from dragoman.printable import printable

from .engine_table import engine_table

if TYPE_CHECKING:
    from dragoman.runtime import Bundle, Languages
    from dragoman.runtime.format.generation_settings import GenerationSettings
    from dragoman.runtime.format.head import Head
    from dragoman.runtime.format.manifest import Manifest
    from dragoman.runtime.format.records import Parity, PassRecord
    from dragoman.runtime.format.speech import SpeechTokens


SHOWN = 8
"""The most tokens of a setting that are listed."""


@click.command(short_help="Show what is in a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
@click.option(
    "--polygraphy",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Instead write real inputs of both graphs at several steps, and the commands that run "
    "Polygraphy on them.",
)
@click.option(
    "--graphs",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Polygraphy: a bundle of the same model to compare with, whose graphs ONNX Runtime can "
    "run; needed for engines.",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="Polygraphy: file of texts, one per line, or directory of audio clips [random inputs].",
)
def inspect(
    bundle: Path,
    as_json: bool,
    polygraphy: Path | None,
    graphs: Path | None,
    inputs: Path | None,
) -> None:
    """Check BUNDLE's files and show its model, graphs, parity and sizes.

    \b
    dragoman inspect bundles/g2p-en
    dragoman inspect bundles/g2p-en-rtx --polygraphy probe --graphs bundles/neutral
    """
    if polygraphy is not None:
        if as_json:
            raise click.UsageError("--json: expected without --polygraphy")
        _write_polygraphy(bundle, polygraphy, graphs, inputs)
        return
    if graphs is not None or inputs is not None:
        raise click.UsageError("--graphs and --inputs: expected with --polygraphy DIRECTORY")
    from dragoman.runtime import read_bundle

    read = read_bundle(bundle)
    if as_json:
        click.echo(read.manifest.to_json(), nl=False)
    else:
        _print(read)


def _write_polygraphy(
    bundle: Path, directory: Path, graphs: Path | None, inputs: Path | None
) -> None:
    from dragoman import api

    written = api.write_polygraphy(bundle, directory, graphs=graphs, inputs=inputs)
    steps = f", of the decoder at the steps {', '.join(map(str, written.steps))}"
    click.echo(
        f"Wrote {directory}, {written.size / 1e6:.1f} MB: inputs of {written.rows} rows"
        f"{steps if written.steps else ''}. Next: sh {directory}/commands.sh"
    )


def _print(bundle: Bundle) -> None:
    from rich.console import Console
    from rich.table import Table

    manifest, origin = bundle.manifest, bundle.manifest.origin
    overview = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    versions = ", ".join(f"{name} {version}" for name, version in manifest.tool_versions.items())
    for name, value in (
        ("bundle", f"{manifest.name} (schema {manifest.schema_version})"),
        *([("made from", f"{origin.model}, commit {origin.commit}")] if origin else []),
        ("target", f"{manifest.target}, {manifest.precision}"),
        *(_decoder(manifest) if manifest.head is None else _encoder(manifest, manifest.head)),
        ("tokenizers", "inside" if manifest.tokenizers else "none: token ids in and out"),
        *_speech(manifest),
        *([("languages", _languages(manifest.languages))] if manifest.languages else []),
        ("parity", _parity(manifest.parity)),
        ("passes", _passes(manifest.passes)),
        *([("in fp32", _kept(manifest.keep_fp32))] if manifest.keep_fp32 else []),
        ("made with", versions),
        *(("note", note) for note in manifest.notes),
    ):
        overview.add_row(f"[bold]{name}[/bold]", value if name == "parity" else _text(value))
    tensors = Table(title="tensors", title_justify="left")
    for heading in ("graph", "", "role", "layers", "dtype", "shape"):
        tensors.add_column(heading)
    for row in _tensor_rows(bundle):
        tensors.add_row(*row)
    files = Table(title="files, all intact", title_justify="left")
    files.add_column("file")
    files.add_column("bytes", justify="right")
    files.add_column("SHA-256")
    for file in manifest.files:
        files.add_row(_text(file.path), f"{file.size:,}", file.sha256[:16] + "…")
    console = Console(emoji=False)
    console.print(overview, tensors, files)
    if manifest.executable.format == "tensorrt":
        console.print(engine_table(bundle, manifest.executable))


def _decoder(manifest: Manifest) -> list[tuple[str, str]]:
    """What decodes, and how."""
    model = manifest.model
    heads = f"{model.num_heads} of size {model.head_size}"
    of_source = model.has_encoder and manifest.audio is None
    vocabularies = f"{model.source_vocab_size} source, " if of_source else ""
    positions = f"{model.max_source_positions} source, " if model.has_encoder else ""
    return [
        ("decoder", f"{model.decoder_layers} layers, heads: {heads}"),
        ("vocabulary", f"{vocabularies}{model.target_vocab_size} target"),
        ("positions", f"{positions}{model.max_target_positions} target"),
        ("decodes", _strategy(manifest.generation)),
        ("new tokens", f"at most {manifest.default_max_new_tokens} by default"),
        *_settings(manifest.generation),
    ]


def _encoder(manifest: Manifest, head: Head) -> list[tuple[str, str]]:
    """What an encoder alone gives."""
    model = manifest.model
    rows = [
        ("encoder", f"alone; heads: {model.num_heads} of size {model.head_size}"),
        ("vocabulary", f"{model.source_vocab_size}"),
        ("positions", f"{model.max_source_positions}"),
        ("gives", head.task.replace("-", " ") + f", {head.outputs} numbers"),
    ]
    return [*rows, ("labels", ", ".join(head.labels))] if head.labels else rows


def _text(value: str) -> str:
    """Text of the manifest, without effect on the table or the terminal."""
    return escape(printable(value))


def _speech(manifest: Manifest) -> list[tuple[str, str]]:
    """Audio and prompts of a speech model."""
    audio, speech = manifest.audio, manifest.speech
    if audio is None or speech is None:
        return []
    rate = f"{audio.sampling_rate} Hz, {audio.bins} mel bins"
    codes = ", ".join(sorted(speech.languages))
    default = speech.default_language or "detected"
    languages = f"{len(speech.languages)}: {codes} (default: {default})"
    return [
        ("audio", f"windows of {audio.chunk_seconds:g} s, {rate}"),
        ("languages", languages if speech.languages else "one"),
        ("tasks", ", ".join(sorted(speech.tasks)) or "transcribe"),
        ("timestamps", _timestamps(speech)),
    ]


BEAM_SETTINGS = ("length_penalty", "early_stopping")
SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p")


def _strategy(generation: GenerationSettings) -> str:
    """How outputs are searched for unless the caller says otherwise."""
    if generation.do_sample:
        return ", ".join(["samples", *_changed(generation, SAMPLING_SETTINGS)])
    if generation.num_beams > 1:
        early = str(generation.early_stopping).lower()
        penalty = f"length penalty {generation.length_penalty:g}"
        return f"{generation.num_beams} beams, {penalty}, early stopping {early}"
    return "greedily"


def _settings(generation: GenerationSettings) -> list[tuple[str, str]]:
    """Those that are not as everywhere, beside the strategy."""
    strategy: tuple[str, ...] = ("num_beams", "do_sample")
    if generation.do_sample:
        strategy += SAMPLING_SETTINGS
    elif generation.num_beams > 1:
        strategy += BEAM_SETTINGS
    names = [name for name in vars(generation) if name not in strategy]
    shown = "; ".join(_changed(generation, names))
    return [("settings", shown)] if shown else []


def _changed(generation: GenerationSettings, names: Iterable[str]) -> Iterator[str]:
    """The settings among these that are not as everywhere."""
    plain = type(generation)()
    for name in names:
        value = getattr(generation, name)
        if value == getattr(plain, name):
            continue
        if isinstance(value, tuple):
            value = f"{len(value)} tokens" if len(value) > SHOWN else [*value]
        yield f"{name} {value}"


def _timestamps(speech: SpeechTokens) -> str:
    if speech.no_timestamps_token_id is None:
        return "no"
    return "by default" if speech.default_timestamps else "on demand"


def _passes(passes: tuple[PassRecord, ...]) -> str:
    """What each pass did, in all graphs together."""
    counts: dict[str, tuple[int, int]] = {}
    for step in passes:
        matches, refusals = counts.get(step.name, (0, 0))
        counts[step.name] = matches + step.matches, refusals + len(step.refusals)
    return (
        ", ".join(
            f"{name} {matches}" + (f" ({refusals} refused)" if refusals else "")
            for name, (matches, refusals) in counts.items()
        )
        or "none"
    )


def _kept(modules: tuple[str, ...]) -> str:
    """What stayed in fp32 because the user wanted it."""
    return f"{', '.join(modules)}, as asked"


def _languages(languages: Languages) -> str:
    defaults = [
        f"default {side} {code}"
        for side, code in (
            ("source", languages.default_source),
            ("target", languages.default_target),
        )
        if code is not None
    ]
    codes = f"{len(languages.tokens)}: {', '.join(sorted(languages.tokens))}"
    return "; ".join([codes, *defaults])


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return "not verified"
    verdict = "[green]passed[/green]" if parity.passed else "[red]failed[/red]"
    compared = f"({_text(parity.inputs)}; {_text(parity.backend)})"
    text = f"{verdict} {compared}"
    tokens = parity.tokens
    if tokens.sequences:
        text = f"{verdict}: {tokens.identical} of {tokens.sequences} sequences identical {compared}"
    if parity.vectors is not None:
        cosines = parity.vectors.bundle
        text += f"; cosines of vectors {cosines.mean:.6f}, smallest {cosines.smallest:.6f}"
    if parity.beams is not None:
        beams = parity.beams
        text += f"; with {beams.beams} beams {beams.identical} of {beams.sequences} identical"
    if parity.distributions is not None:
        distance, rounded = parity.distributions.bundle, parity.distributions.rounded
        alone = "" if rounded is None else f" (rounding alone {rounded.mean:.2g})"
        text += (
            f"; distributions {distance.mean:.2g} nats apart{alone}, median "
            f"{distance.median:.2g}, 99 % below {distance.percentile_99:.2g}, largest "
            f"{distance.largest:.2g}, same choice at {distance.same_choice:.2%}"
        )
    for task in parity.tasks:
        bundle, oracle = (
            shown_figure(task.metric, figure) for figure in (task.bundle, task.oracle)
        )
        text += f"; {_text(task.metric)} {bundle}, oracle {oracle}"
    if parity.references is not None:
        references = parity.references
        text += (
            f"; references at {references.bundle:.4f} nats per token, oracle "
            f"{references.oracle:.4f} ({_text(references.references)})"
        )
    return text


def _tensor_rows(bundle: Bundle) -> list[tuple[str, ...]]:
    """A row for each role of each graph, layers taken together."""
    rows: list[tuple[str, ...]] = []
    for graph, spec in bundle.manifest.graphs.items():
        for side, tensors in (("in", spec.inputs), ("out", spec.outputs)):
            for role in dict.fromkeys(tensor.role for tensor in tensors):
                same = [tensor for tensor in tensors if tensor.role == role]
                layers = f"{len(same)}" if same[0].layer is not None else ""
                shape = ", ".join(map(str, same[0].shape))
                rows.append((graph, side, role, layers, same[0].dtype, rf"\[{shape}]"))
    return rows
