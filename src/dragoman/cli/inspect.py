"""The command `dragoman inspect`."""

from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dragoman import api
from dragoman.files.text_lines import printable
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.backends import default_backend
from dragoman.runtime.format.bundle import read_known_answers
from dragoman.runtime.format.known_answers import record_of
from dragoman.runtime.format.manifest import Manifest, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.loading import has_passed, machine_of
from dragoman.verification.parity_rows import parity_rows
from dragoman.verification.report.manifest_facts import NOT_RUN, making_facts, model_facts

from .shared.options import PATH, bundle_argument, json_option
from .shared.tables import engine_table, outcome
from .shared.terminal import notify


@click.command()
@bundle_argument
@json_option(help="Print the manifest as JSON.")
@click.option(
    "--polygraphy",
    type=PATH,
    metavar="DIRECTORY",
    help="Instead write inputs of the graphs at several decoding steps, and the commands that run "
    "Polygraphy on them, to this directory.",
)
@click.option(
    "--graphs",
    type=PATH,
    metavar="BUNDLE",
    help="Polygraphy: bundle of the same model to compare with, in a form that ONNX Runtime runs; "
    "required for engines.",
)
@click.option(
    "--inputs",
    type=PATH,
    help="Polygraphy: file of texts, one per line, or directory of audio clips [random inputs].",
)
def inspect(
    bundle: Path, as_json: bool, polygraphy: Path | None, graphs: Path | None, inputs: Path | None
) -> None:
    """Check the files of BUNDLE, and show its model, graphs, parity and sizes.

    \b
    dragoman inspect bundles/g2p-en
    dragoman inspect bundles/g2p-en-rtx --polygraphy probe --graphs bundles/neutral
    """
    if polygraphy is not None:
        if as_json:
            raise click.UsageError("--json: expected without --polygraphy")
        written = api.write_polygraphy(bundle, polygraphy, graphs=graphs, inputs=inputs)
        steps = f", of the decoder at the steps {', '.join(map(str, written.steps))}"
        notify(
            f"Wrote {polygraphy}, {written.size / 1e6:.1f} MB: inputs of {written.rows} rows"
            f"{steps if written.steps else ''}. Next: sh {polygraphy}/commands.sh",
            err=False,
        )
        return
    if graphs is not None or inputs is not None:
        raise click.UsageError("--graphs and --inputs: expected with --polygraphy DIRECTORY")
    read = read_bundle(bundle)
    if as_json:
        click.echo(read.manifest.to_json(), nl=False)
    else:
        _print(read)


def _print(bundle: Bundle) -> None:
    manifest = bundle.manifest
    overview = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("bundle", f"{manifest.name} (schema {manifest.schema_version})"),
        *model_facts(manifest),
        ("parity", _parity(manifest.parity)),
        *_engines(manifest),
        ("known answers", _known_answers(bundle)),
        *making_facts(manifest),
    ):
        marked = name in ("parity", "engines")
        overview.add_row(f"[bold]{name}[/bold]", value if marked else _text(value))
    headings = ("graph", "", "role", "layers", "dtype", "shape")
    tensors = Table(*headings, title="tensors", title_justify="left")
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


def _engines(manifest: Manifest) -> list[tuple[str, str]]:
    engines = manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return []
    return [("engines", NOT_RUN if engines.parity is None else _parity(engines.parity))]


def _known_answers(bundle: Bundle) -> str:
    known, record = read_known_answers(bundle), record_of(bundle.manifest)
    if known is None or record is None:
        return "none"
    machine = machine_of(bundle, default_backend(bundle))
    here = "passed on this machine" if has_passed(bundle, machine) else "not checked here yet"
    return f"{len(known.answers)}, {len(known.at_load)} of them at load, {record.size:,} B; {here}"


def _text(value: str) -> str:
    return escape(printable(value))


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return "not verified"
    passed = outcome("passed" if parity.passed else "failed")
    rows = [row for row in parity_rows(parity) if row.level != "proof" or not row.passed]
    found = [f"{passed} ({_text(parity.inputs)}; {_text(parity.backend)})"]
    for row in rows:
        state = "" if row.passed and not row.undecided else f" {outcome(row.state)}"
        allowed = f" (allowed {row.allowed})" if row.allowed else ""
        found.append(_text(f"{row.what}: {row.found}{allowed}") + state)
    return "\n".join(found)


def _tensor_rows(bundle: Bundle) -> Iterator[tuple[str, ...]]:
    for graph, spec in bundle.manifest.graphs.items():
        for side, tensors in (("in", spec.inputs), ("out", spec.outputs)):
            for role in dict.fromkeys(tensor.role for tensor in tensors):
                same = [tensor for tensor in tensors if tensor.role == role]
                layers = f"{len(same)}" if same[0].layer is not None else ""
                shape = ", ".join(map(str, same[0].shape))
                yield graph, side, role, layers, same[0].dtype, rf"\[{shape}]"
