"""Inputs of a model's graphs: random ones, and real ones recorded step by step.

Recorded inputs are also written as files for Polygraphy, NVIDIA's tool for comparing backends.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.runtime.audio import LogMel
from dragoman.runtime.backends import runs_on_gpus
from dragoman.runtime.backends.rows import unwritten
from dragoman.runtime.decoding.request import EncoderInput, as_batch
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import ROLES, GraphSpec, Owner, Slot
from dragoman.runtime.format.manifest import Manifest, Precision, Range, TensorRTEngines
from dragoman.runtime.format.writing import new_directory

if TYPE_CHECKING:
    from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend

Feed = Mapping[str, NDArray[Any]]
"""A value for each input of a graph, by name."""

ROWS = 2
"""The number of texts, all of equal length; speech models get one window, since it is large."""
LONGEST = 32
STEPS = 16
"""Tokens of a source, and steps that are decoded, if model and engines allow as many."""
PROMPT = 5
"""Tokens of a random prompt of a decoder-only model."""


@dataclass(frozen=True)
class StepInputs:
    """The inputs of graphs at some decoding steps."""

    rows: int
    encoder: Feed | None
    """The encoder's inputs; None for a decoder-only model."""
    decoder: Mapping[int, Feed]
    """The decoder's inputs by the index of the step, which reads one token; empty for an
    encoder-only model."""


def record_steps(
    graphs: Bundle, receiver: Bundle | None = None, sources: Sequence[EncoderInput] | None = None
) -> StepInputs:
    """Decode a few sources greedily on the CPU and record inputs of graphs.

    The first two steps, one in the middle and the last are recorded. Prompts are read by tokens;
    the sources of a decoder-only model are prompts.

    Args:
        graphs: ONNX graphs that ONNX Runtime runs, with an axis for the caches' capacity
        receiver: a bundle of the same model, whose types and sizes the inputs have; None: `graphs`
        sources: token ids or features; None: random ones. Some fitting sources of equal length are
            decoded, since values at padding, which no operator reads, may differ.

    Raises:
        DragomanError: no source fits, or the receiver's numbers are bfloat16.
    """
    receiver = receiver or graphs
    manifest, model = graphs.manifest, graphs.manifest.model
    graph_specs = receiver.manifest.model_graphs.values()
    if any(t.dtype == "bfloat16" for graph in graph_specs for t in (*graph.inputs, *graph.outputs)):
        raise DragomanError(
            f"{receiver.directory}: expected numbers that NumPy has, found bfloat16: take a bundle "
            "in fp32 or fp16"
        )
    rows, lengths, capacity = _sizes(receiver)
    if sources is None:
        sources = random_sources(manifest, [lengths.best] * rows, np.random.default_rng(0))
    source, mask = as_batch(_fitting(sources, rows, lengths), model)
    from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend

    backend = OnnxRuntimeBackend(graphs, threads=None)
    if not model.has_encoder:
        prompt = source[:, : capacity - 1]
        return StepInputs(rows, None, _decoder_feeds(backend, graphs, receiver, {}, prompt))
    if source.ndim == 2 and source.shape[1] < lengths.smallest:
        missing = ((0, 0), (0, lengths.smallest - source.shape[1]))
        source = np.pad(source, missing, constant_values=model.pad_token_id)
        mask = np.pad(mask, missing)
    values: dict[Slot, NDArray[Any]] = {Slot("source"): source, Slot("source_mask"): mask}
    if manifest.head is not None and manifest.head.token_types:
        # The second half is the second text of a pair.
        second = np.arange(source.shape[1]) >= source.shape[1] - source.shape[1] // 2
        values[Slot("token_type")] = np.where(mask, second, 0).astype(source.dtype)
    encoder_feed = _feed(receiver.manifest.graphs["encoder"], values)
    if not model.has_decoder:
        return StepInputs(rows, encoder_feed, {})
    encoded = backend.encode(source, mask)
    values |= {t.slot: encoded[t.name] for t in manifest.graphs["encoder"].outputs}
    prompt = np.array([[model.start_token_id, *manifest.generation.prompt]] * rows)
    steps = _decoder_feeds(backend, graphs, receiver, values, prompt)
    return StepInputs(rows, encoder_feed, steps)


def _decoder_feeds(
    backend: OnnxRuntimeBackend,
    graphs: Bundle,
    receiver: Bundle,
    encoded: Mapping[Slot, NDArray[Any]],
    prompt: NDArray[np.int64],
) -> dict[int, Feed]:
    rows, length = prompt.shape
    _, _, capacity = _sizes(receiver)
    spec = receiver.manifest.graphs["decoder"]
    decoder = graphs.manifest.graphs["decoder"]
    values = {**encoded, Slot("read"): np.zeros((rows, 1), np.int64)}
    values |= {
        tensor.slot: unwritten(tensor, rows, capacity)
        for tensor in decoder.inputs
        if tensor.owner is Owner.DECODER_ROW
    }
    steps = min(capacity, max(STEPS, length + 1))
    kept = {0, 1, steps // 2, steps - 1} & set(range(steps))
    feeds: dict[int, Feed] = {}
    token = prompt[:, :1]
    names = [tensor.name for tensor in decoder.outputs]
    for step in range(steps):
        values |= {Slot("token"): token, Slot("position"): np.full(rows, step)}
        if step in kept:
            feeds[step] = _feed(spec, values)
        outputs = backend.session("decoder").run(names, _feed(decoder, values))
        found = dict(zip(names, outputs, strict=True))
        values |= {t.memory: found[t.name] for t in decoder.outputs if ROLES[t.role].updates}
        chosen = found[decoder.output("next_token").name][:, None]
        token = prompt[:, step + 1 : step + 2] if step + 1 < length else chosen
    return feeds


def _sizes(bundle: Bundle) -> tuple[int, Range, int]:
    model, engines = bundle.manifest.model, bundle.manifest.executable
    rows = 1 if model.takes_audio else ROWS
    longest = min(LONGEST, model.input_positions)
    if not model.has_encoder:
        longest = min(longest, PROMPT)
    lengths = Range(1, longest, model.input_positions)
    if not isinstance(engines, TensorRTEngines):
        steps = max(STEPS, len(bundle.manifest.generation.prompt) + 2)
        if not model.has_decoder:
            steps = 0
        return rows, lengths, min(steps, model.max_target_positions)
    profile = engines.profiles[0]  # the default profile of engines
    rows = min(max(rows, profile.batch.smallest), profile.batch.largest)
    source = profile.source
    lengths = Range(source.smallest, min(longest, source.largest), source.largest)
    return rows, lengths, engines.capacity


def _fitting(sources: Sequence[EncoderInput], rows: int, lengths: Range) -> list[EncoderInput]:
    fitting = [s for s in sources if isinstance(s, np.ndarray) or len(s) <= lengths.largest]
    if not fitting:
        raise DragomanError(
            f"expected a source of at most {lengths.largest} tokens, found none among "
            f"{len(sources)}"
        )
    [(length, _)] = Counter(map(len, fitting)).most_common(1)
    alike = [source for source in fitting if len(source) == length]
    return [alike[row % len(alike)] for row in range(rows)]


def _feed(spec: GraphSpec, values: Mapping[Slot, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {t.name: values[t.slot].astype(t.dtype, copy=False) for t in spec.inputs}


COMMANDS = "commands.sh"
LARGEST_DIFFERENCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.05, "int8": 1.0, "int4": 2.0}
"""The largest absolute difference of any number, roughly as the formats allow.

Polygraphy prints the differences that it finds."""


@dataclass(frozen=True)
class PolygraphyFiles:
    """The files that were written for Polygraphy."""

    directory: Path
    rows: int
    """The number of rows of every input."""
    steps: tuple[int, ...]
    """The steps of the decoder whose inputs were written."""
    size: int
    """The size of all files in bytes."""


def write_polygraphy_files(
    bundle: Bundle,
    directory: Path,
    *,
    graphs: Bundle | None = None,
    sources: Sequence[EncoderInput] | None = None,
) -> PolygraphyFiles:
    """Write `<graph>-inputs.json` for each graph, and `commands.sh`.

    Args:
        directory: a path that does not exist yet; it appears whole or not at all
        graphs: ONNX graphs of the same model to compare with; needed if the bundle holds engines
        sources: see `record_steps`
    """
    from polygraphy.json import save_json

    inputs = record_steps(graphs or bundle, bundle, sources)
    feeds: dict[str, list[Feed]] = {}
    if inputs.encoder is not None:
        feeds["encoder"] = [inputs.encoder]
    if inputs.decoder:
        feeds["decoder"] = list(inputs.decoder.values())
    with new_directory(directory) as partial:
        for graph, iterations in feeds.items():
            save_json(list(map(dict, iterations)), str(partial / _inputs(graph)))
        script = partial / COMMANDS
        lines = _script(bundle, graphs, inputs)
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        script.chmod(0o755)
        size = sum(file.stat().st_size for file in partial.iterdir())
    return PolygraphyFiles(directory, inputs.rows, tuple(inputs.decoder), size)


def _script(bundle: Bundle, graphs: Bundle | None, inputs: StepInputs) -> Iterator[str]:
    manifest = bundle.manifest
    reference, what = (bundle, "BUNDLE") if graphs is None else (graphs, "GRAPHS")
    names = tuple(manifest.model_graphs)
    recorded = [] if inputs.encoder is None else ["the encoder"]
    if inputs.decoder:
        recorded.append(f"the decoder at the steps {', '.join(map(str, inputs.decoder))}")
    yield from (
        "#!/bin/sh",
        f"# Inputs of {inputs.rows} rows, recorded while {' '.join(manifest.name.split())} ran:",
        f"# those of {' and of '.join(recorded)}.",
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
    if not runs_on_gpus(manifest.target):
        found = f"the graphs of target {manifest.target} have operators that TensorRT does not have"
        yield f'echo "{found}" >&2'
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


def _compared(graph: str, precision: Precision) -> str:
    limit = f"{LARGEST_DIFFERENCE[precision]:g}"
    if graph == "decoder" and precision != "fp32":  # tokens may change where numbers do
        limit += " next_token:1e9"
    return (
        f"--load-inputs {_inputs(graph)} --load-outputs {_outputs(graph)} "
        f"--check-error-stat max --atol {limit} --rtol {limit}"
    )


def _shapes(graph: GraphSpec, feed: Feed, *, smallest: bool = False) -> str:
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
    return f"{graph}-outputs.json"


FORMANTS = ((250, 900), (850, 2500), (2300, 3500))
"""Ranges of the first three formants of most vowels, in hertz, roughly after Peterson & Barney
(1952)."""


def random_sound(generator: np.random.Generator, rate: int, samples: int) -> NDArray[np.float32]:
    """Make random sound: vowels and hisses with pauses, up to a random time, then near silence.

    It is [samples] in [-1, 1], with the loudness, spectrum and pauses of a voice: white noise would
    drive a trained encoder to values that it never reaches on speech.
    """
    signal = 1e-4 * generator.standard_normal(samples)
    end = int(samples * generator.uniform(0.2, 1))
    start = int(generator.uniform(0, min(0.5 * rate, 0.5 * end)))
    while start < end:
        length = min(int(rate * generator.uniform(0.06, 0.3)), samples - start)
        syllable = _vowel if generator.random() < 0.7 else _hiss
        loudness = 10 ** generator.uniform(-1.7, -0.5) * np.hanning(length)
        signal[start : start + length] += loudness * syllable(generator, rate, length)
        start += length + int(rate * generator.exponential(0.05))
    return np.clip(signal, -1, 1).astype(np.float32)


def _vowel(generator: np.random.Generator, rate: int, length: int) -> NDArray[np.float64]:
    pitch = generator.uniform(80, 250) * np.linspace(1, generator.uniform(0.8, 1.2), length)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    harmonics = np.arange(1, int(0.4 * rate / pitch.max()))
    hertz = harmonics * pitch.mean()
    strength = np.zeros(len(harmonics))
    for fall, (low, high) in zip((1, 0.5, 0.2), FORMANTS, strict=True):
        strength += fall / (1 + ((hertz - generator.uniform(low, high)) / 100) ** 2)
    sound = np.sin(phase[:, None] * harmonics) @ strength
    return np.asarray(sound / max(1e-9, np.abs(sound).max(initial=0)))


def _hiss(generator: np.random.Generator, rate: int, length: int) -> NDArray[np.float64]:
    return 0.3 * np.diff(generator.standard_normal(length + 1))


def random_sources(
    manifest: Manifest, lengths: Sequence[int], generator: np.random.Generator
) -> list[EncoderInput]:
    """Make sources or prompts of random tokens; for speech, as many windows of sound."""
    vocabulary = manifest.model.source_vocab_size
    if not manifest.model.has_encoder:
        vocabulary = manifest.model.target_vocab_size
    if vocabulary is not None:
        return [generator.integers(0, vocabulary, length).tolist() for length in lengths]
    assert manifest.audio is not None
    log_mel = LogMel.of(manifest.audio)
    return [
        log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
        for _ in lengths
    ]
