"""Real inputs of a bundle's graphs as files for Polygraphy, NVIDIA's tool for comparing inference
backends, and the commands that run it: an opinion on graphs and engines that is not ours.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.writing import new_directory

from .step_inputs import Feed, StepInputs, record_steps

COMMANDS = "commands.sh"
LARGEST_DIFFERENCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.05, "int8": 1.0, "int4": 2.0}
"""Absolute, of any number: roughly what the formats allow. Polygraphy prints what it finds."""


@dataclass(frozen=True)
class PolygraphyFiles:
    """
    Attributes:
        rows: of every input
        steps: of the decoder, whose inputs were written
        size: of all files, in bytes
    """

    directory: Path
    rows: int
    steps: tuple[int, ...]
    size: int


def write_polygraphy_files(
    bundle: Bundle,
    directory: Path,
    *,
    graphs: Bundle | None = None,
    sources: Sequence[Encodable] | None = None,
) -> PolygraphyFiles:
    """Write `<graph>-inputs.json` for each graph, and `commands.sh`.

    Args:
        directory: a path that does not exist yet; it appears whole or not at all
        graphs: ONNX graphs of the same model, which the bundle is compared with; needed if it holds
            engines, which run on a GPU only, with inputs that graphs have computed
        sources: see `record_steps`

    Raises:
        BackendError, DragomanError: see `record_steps` and `new_directory`.
    """
    from polygraphy.json import save_json

    inputs = record_steps(graphs or bundle, bundle, sources)
    feeds: dict[str, list[Feed]] = {}
    if inputs.encoder is not None:
        feeds["encoder"] = [inputs.encoder]
    if inputs.decoder:
        feeds["decoder"] = list(inputs.decoder.values())
    steps, rows = tuple(inputs.decoder), inputs.rows
    with new_directory(directory) as partial:
        for graph, iterations in feeds.items():
            save_json([dict(feed) for feed in iterations], str(partial / _inputs(graph)))
        script = partial / COMMANDS
        lines = _script(bundle, graphs, inputs)
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        script.chmod(0o755)
        size = sum(file.stat().st_size for file in partial.iterdir())
    return PolygraphyFiles(directory, rows, steps, size)


def _script(bundle: Bundle, graphs: Bundle | None, inputs: StepInputs) -> Iterator[str]:
    manifest = bundle.manifest
    reference, what = (bundle, "BUNDLE") if graphs is None else (graphs, "GRAPHS")
    names = tuple(manifest.model_graphs)
    yield from (
        "#!/bin/sh",
        f"# Inputs of {inputs.rows} rows, recorded while {_on_one_line(manifest.name)} ran:",
        f"# those of {' and of '.join(_recorded(inputs))}.",
        f"#   sh {COMMANDS}        what runs on every machine",
        f"#   sh {COMMANDS} gpu    what needs an NVIDIA GPU, afterwards",
        "set -eu",
        "status=0",
        'cd "$(dirname "$0")"',
        f"BUNDLE=${{BUNDLE:-{shlex.quote(str(bundle.directory.resolve()))}}}",
    )
    if graphs is not None:
        yield f"GRAPHS=${{GRAPHS:-{shlex.quote(str(graphs.directory.resolve()))}}}"
    yield 'if [ "${1-}" != gpu ]; then'
    for name in names:
        file = _file(what, reference.manifest.graphs[name].file)
        yield f"polygraphy inspect data {_inputs(name)}"
        yield f"polygraphy inspect model {file}"
        yield (
            f"polygraphy run {file} --onnxrt --load-inputs {_inputs(name)} --validate "
            f"--save-outputs {_outputs(name)}"
        )
    if graphs is not None and manifest.executable.format == "onnx":
        for name in names:
            run = _run(manifest.graphs[name].file)
            yield f"{run} --onnxrt {_compared(name, manifest.precision)} || status=1"
    yield "else"
    yield from _gpu_commands(bundle, inputs.encoder)
    yield "fi"
    yield 'exit "$status"'


def _recorded(inputs: StepInputs) -> Iterator[str]:
    if inputs.encoder is not None:
        yield "the encoder"
    if inputs.decoder:
        yield f"the decoder at the steps {', '.join(map(str, inputs.decoder))}"


def _gpu_commands(bundle: Bundle, encoder: Feed | None) -> Iterator[str]:
    manifest = bundle.manifest
    if manifest.target != "tensorrt":
        yield "export POLYGRAPHY_USE_TENSORRT_RTX=1"
    if manifest.executable.format == "tensorrt":
        for name, graph in manifest.model_graphs.items():
            yield f"polygraphy inspect model {_file('BUNDLE', graph.file)} --model-type engine"
            yield (
                f"{_run(graph.file)} --trt --model-type engine "
                f"{_compared(name, manifest.precision)} || status=1"
            )
        return
    if manifest.model.has_decoder:
        yield "# The decoder's caches need a fixed capacity: build engines, and compare these with"
        yield "#   dragoman inspect ENGINES --polygraphy DIRECTORY --graphs BUNDLE"
    if manifest.target == "cpu":
        yield 'echo "the graphs of target cpu have operators that TensorRT does not have" >&2'
        yield "exit 2"
        return
    if encoder is None:
        yield 'echo "the decoder needs engines: see above" >&2'
        yield "exit 2"
        return
    graph = manifest.graphs["encoder"]
    yield " \\\n  ".join(
        (
            f"{_run(graph.file)} --trt --decomposable-attentions",
            f"--trt-min-shapes {_shapes(graph, encoder, smallest=True)}",
            f"--trt-opt-shapes {_shapes(graph, encoder)}",
            f"--trt-max-shapes {_shapes(graph, encoder)}",
            _compared("encoder", manifest.precision),
        )
    )


def _run(file: str) -> str:
    return f"polygraphy run {_file('BUNDLE', file)}"


def _file(variable: str, name: str) -> str:
    return f'"${variable}"/{shlex.quote(name)}'


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _compared(graph: str, precision: Precision) -> str:
    limit = f"{LARGEST_DIFFERENCE[precision]:g}"
    if graph == "decoder" and precision != "fp32":  # tokens may change where numbers do
        limit += " next_token:1e9"
    return (
        f"--load-inputs {_inputs(graph)} --load-outputs {_outputs(graph)} "
        f"--check-error-stat max --atol {limit} --rtol {limit}"
    )


def _shapes(graph: GraphSpec, feed: Feed, *, smallest: bool = False) -> str:
    """In Polygraphy's notation, `name:[2,16]`; the smallest has 1 on every dynamic axis."""
    words = []
    for tensor in graph.inputs:
        sizes = feed[tensor.name].shape
        if smallest:
            sizes = tuple(1 if isinstance(d, str) else d for d in tensor.shape)
        words.append(shlex.quote(f"{tensor.name}:[{','.join(map(str, sizes))}]"))
    return " ".join(words)


def _inputs(graph: str) -> str:
    return f"{graph}-inputs.json"


def _outputs(graph: str) -> str:
    """ONNX Runtime's, which the commands write."""
    return f"{graph}-outputs.json"
