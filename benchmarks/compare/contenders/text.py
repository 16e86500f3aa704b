"""Contenders that decode token ids, and the random sources that they decode."""

from __future__ import annotations

import inspect
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dragoman.errors import DragomanError

from ...models.bundles import Calibration, bundle_of_checkpoint
from ...peers import ctranslate2_runtime, openvino
from ...peers.interface import Batch, Generate, Kind, Rows
from ...processes import HERE, Interpreter
from ...processes.memory import peak_memory_mb
from ..rounds import Contender, Prepare, timed, unchanged

if TYPE_CHECKING:
    from dragoman.runtime import Model

REFERENCE = "Reference (PyTorch)"
DRAGOMAN = "Dragoman"
CTRANSLATE2 = "CTranslate2"

AS_MANY_ROWS = ", greedy, as many rows"
BEFORE = ", before"
"""Added to the name of a contender of Dragoman, name the one that it is compared with."""

CALIBRATION_SOURCES = 128
SOURCE_LENGTHS = (5, 60)
"""Tokens of the shortest and the longest of sentences of unequal length."""
MEAN_OUTPUT, LONGEST_OUTPUT = 32, 128
"""Tokens of their outputs, which end by themselves."""

INPUTS = 8
"""Inputs on which the proof of a large bundle compares outputs."""

TextContender = Contender[Batch, Rows]


@dataclass(frozen=True)
class Workload:
    """The batches of random sources to decode, and the number of rounds."""

    batch_sizes: tuple[int, ...]
    source_length: int
    """Tokens of every source, or the minimum."""
    new_tokens: int
    tokens: tuple[int, int]
    """Source tokens are drawn from range(*tokens)."""
    threads: tuple[int, ...]
    rounds: int
    longest_source: int | None = None
    """Maximum of random lengths; None: all sources have the same length."""
    num_beams: int = 1
    turn_seconds: float = 0
    """Shorter calls are repeated, see `Worker.perform`."""

    def batch(self, size: int) -> Batch:
        """Return the batch of a size, the same at every call."""
        return Batch(self._sources(size, size), self.new_tokens, self.num_beams)

    def calibration(self) -> list[list[int]]:
        """Return calibration sources of the same kind, which are in no batch."""
        return self._sources(CALIBRATION_SOURCES, [CALIBRATION_SOURCES])

    def _sources(self, count: int, seed: int | list[int]) -> list[list[int]]:
        lengths = self.source_length, self.longest_source or self.source_length
        return draw_sources(count, self.tokens, seed, lengths)


def draw_sources(
    count: int,
    tokens: tuple[int, int],
    seed: int | Sequence[int] = 15,
    lengths: tuple[int, int] = SOURCE_LENGTHS,
) -> list[list[int]]:
    """Return random sources of uniformly distributed lengths, the same for the same arguments.

    Tokens are drawn from range(*tokens); `lengths` are the shortest and the longest.
    """
    generator = np.random.default_rng(seed)
    drawn = generator.integers(lengths[0], lengths[1] + 1, count).tolist()
    return [generator.integers(*tokens, length).tolist() for length in drawn]


def peers(
    tool: str,
    modes: Iterable[str],
    prepare: Callable[..., Path],
    load: Callable[..., Any],
    *,
    adapt: Callable[..., Any] | None = None,
    **attributes: Any,
) -> list[Contender[Any, Any]]:
    """Return another tool in each of its modes, whose failure is reported if it is missing.

    Its functions get the mode as keyword argument if they take it. Where `load` does not return
    what works, `adapt` loads the contender and gets it.
    """

    def in_mode(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        takes_mode = "mode" in inspect.signature(function).parameters
        return partial(function, mode=mode) if takes_mode else function

    return [
        Contender(
            f"{tool} {mode}",
            in_mode(prepare, mode),
            partial(adapt, load=in_mode(load, mode)) if adapt else in_mode(load, mode),
            precision="fp32" if mode in ("float32", "f32", "O2", "optimized") else mode,
            peer=True,
            **attributes,
        )
        for mode in modes
    ]


class BundleKind(NamedTuple):
    """The name, target and precision of a bundle."""

    contender: str
    target: str
    precision: str


BUNDLES = tuple(
    BundleKind(f"{DRAGOMAN} {precision}", "cpu", precision)
    for precision in ("fp32", "int8", "int4")
)


def dragoman_contenders(
    load: Callable[[Path, int], Any],
    bundles: Iterable[BundleKind] = BUNDLES,
    *,
    calibration: Calibration = (),
    before: Interpreter | None = None,
    suffix: str = "",
) -> list[Contender[Any, Any]]:
    """Return Dragoman's runtime with each bundle, also of another version to compare with."""
    versions = [(HERE, suffix), *([(before, BEFORE)] if before else [])]
    return [
        Contender(
            f"{bundle.contender}{ending}",
            partial(
                bundle_of_checkpoint,
                target=bundle.target,
                precision=bundle.precision,
                calibration=() if bundle.precision == "fp32" else calibration,
            ),
            load,
            precision=bundle.precision,
            interpreter=interpreter,
        )
        for interpreter, ending in versions
        for bundle in bundles
    ]


def reference(load: Callable[[Path, int], Any], *, timed: bool = True) -> Contender[Any, Any]:
    """Return the contender in fp32 whose outcomes all others are compared with.

    One that is a contender under its own name is not timed.
    """
    return Contender(REFERENCE, unchanged, load, needs_torch=True, required=True, timed=timed)


def translators(
    num_beams: int = 1,
    *,
    calibration: Calibration = (),
    openvino_in: Interpreter = HERE,
    before: Interpreter | None = None,
) -> list[TextContender]:
    """Return contenders of encoder-decoder models: the reference first, peers last.

    With several beams, Dragoman also decodes as many rows greedily, and Hugging Face's `generate`
    is the reference.
    """
    from ...peers import hugging_face, optimum_onnx

    ours = partial(dragoman_contenders, calibration=calibration)
    on_torch = partial(peers, needs_torch=True)
    exported = optimum_onnx.prepare, optimum_onnx.load
    greedy = num_beams == 1
    return [
        reference(load_reference) if greedy else reference(hugging_face.load, timed=False),
        *ours(load_bundle, before=before),
        *([] if greedy else ours(load_as_many_rows, suffix=AS_MANY_ROWS)),
        *ctranslate2_translators(ctranslate2_runtime.load),
        *on_torch("Hugging Face", ["fp32"], unchanged, hugging_face.load),
        *on_torch("Optimum-ONNX", optimum_onnx.MODES, *exported),
        *openvino_contenders(openvino.load, openvino_in),
    ]


def language_models(
    *, openvino_in: Interpreter = HERE, before: Interpreter | None = None
) -> list[TextContender]:
    """Return contenders of decoder-only models, like `translators`."""
    from ...peers import hugging_face, onnxruntime_genai, optimum_onnx

    kind: Kind = "CausalLM"
    on_torch = partial(peers, needs_torch=True)
    load_theirs = hugging_face.load_language_model
    converted = ctranslate2_runtime.prepare_generator, ctranslate2_runtime.load_generator
    exported = partial(optimum_onnx.prepare, kind=kind), partial(optimum_onnx.load, kind=kind)
    described = onnxruntime_genai.prepare, onnxruntime_genai.load
    return [
        reference(load_theirs, timed=False),
        *dragoman_contenders(load_bundle, before=before),
        *peers(CTRANSLATE2, ctranslate2_compute_types(), *converted),
        *peers("onnxruntime-genai", ["fp32", "int8"], *described),
        *on_torch("Hugging Face", hugging_face.DTYPES, unchanged, load_theirs),
        *on_torch("Optimum-ONNX", optimum_onnx.GRAPH_MODES, *exported),
        *openvino_contenders(openvino.load, openvino_in, kind=kind),
    ]


def openvino_contenders(
    load: Callable[..., Any], interpreter: Interpreter, *, kind: Kind = "Seq2SeqLM"
) -> list[Contender[Any, Any]]:
    """Return OpenVINO in each of its modes, decoding with Hugging Face's `generate`."""
    functions = partial(openvino.prepare, kind=kind), partial(load, kind=kind)
    return peers("OpenVINO", openvino.MODES, *functions, needs_torch=True, interpreter=interpreter)


def ctranslate2_translators(
    load: Callable[..., Any], compute_types: Iterable[str] = ()
) -> list[Contender[Any, Any]]:
    """Return CTranslate2 with an encoder-decoder model in compute types, by default in each."""
    from ...peers import ctranslate2

    modes = compute_types or ctranslate2_compute_types()
    return peers(CTRANSLATE2, modes, ctranslate2.prepare, load)


def ctranslate2_compute_types() -> list[str]:
    """Return the compute types that CTranslate2 supports on this processor, float32 first.

    If it is missing, one type is returned, whose preparation reports the failure.
    """
    from ...peers import ctranslate2

    try:
        return ctranslate2.compute_types()
    except DragomanError:
        return ["float32"]


def load_reference(
    directory: Path, threads: int, *, device: str = "cpu", dtype: Any = None
) -> Generate:
    """Load a Marian checkpoint, with its end token disabled, into the reference model."""
    import torch

    from dragoman.export.families.hugging_face import load_hugging_face
    from dragoman.reference_model import greedy_cached

    if device == "cpu":
        torch.set_num_threads(threads)
    model = load_hugging_face(directory).to(device, dtype).eval().requires_grad_(False)
    assert model.output.bias is not None
    model.output.bias[model.config.end_token_id] = -torch.inf
    return lambda batch: greedy_cached(model, batch.sources, batch.new_tokens)


def load_bundle(directory: Path, threads: int, *, backend: str | None = None) -> Generate:
    """Load a bundle with Dragoman's runtime, by default on the backend that suits it."""
    from dragoman.runtime import load

    return generator(load(directory, threads=threads, backend=backend))


def build_bundle(checkpoint: Path, directory: Path, *, precision: str, threads: int) -> Path:
    """Build a bundle by `dragoman build`, with its proof."""
    given = {"output": directory, "precision": precision, "limit": INPUTS, "threads": threads}
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "dragoman", "build", str(checkpoint), *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DragomanError(next(iter(done.stderr.splitlines()[-1:]), "dragoman build failed"))
    return directory


def measured_preparation(
    prepare: Prepare, checkpoint: Path, directory: Path
) -> tuple[Path, float, float]:
    """Call `Contender.prepare`; return the directory, seconds, and the peak memory in MB.

    Memory is that of this process, or of one that it runs, whichever took more.
    """
    prepared, seconds = timed(prepare, checkpoint, directory)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    return prepared, seconds, max(peak_memory_mb(), children)


def prepared_before(checkpoint: Path, directory: Path, *, prepared: Path) -> Path:
    """Return a directory that is prepared: the `prepare` of a contender whose turns follow."""
    return prepared


def load_as_many_rows(directory: Path, threads: int) -> Generate:
    """Load a bundle that greedily decodes as many rows as a batch has beams."""
    greedy = load_bundle(directory, threads)

    def generate(batch: Batch) -> Rows:
        repeated = [source for source in batch.sources for _ in range(batch.num_beams)]
        return greedy(Batch(repeated, batch.new_tokens))[:: batch.num_beams]

    return generate


def generator(model: Model) -> Generate:
    """Return a function that decodes all sources as one batch."""

    def generate(batch: Batch) -> Rows:
        options: dict[str, Any] = {"max_batch_size": len(batch.sources) * batch.num_beams}
        options |= {"max_new_tokens": batch.new_tokens, "max_batch_tokens": 1 << 30}
        if batch.num_beams > 1:  # the end token, which is never the best, could be among the beams
            options |= {"num_beams": batch.num_beams, "length_penalty": 1.0}
            options["min_new_tokens"] = batch.new_tokens
        return [list(result.tokens) for result in model.generate(batch.sources, **options)]

    return generate
