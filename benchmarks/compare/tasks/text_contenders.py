"""Contenders that decode token ids: the reference, Dragoman's precisions, other tools.

This module does not import torch at the top, since contenders without PyTorch import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.errors import DragomanError

from ...models.bundles import Calibration, bundle_of_checkpoint
from ...peers import ctranslate2_runtime, openvino
from ...peers.interface import Batch, Generate, Rows
from ...processes import HERE, Interpreter
from ..rounds import Contender, Outcome, Perform, Work, unchanged

if TYPE_CHECKING:
    from dragoman.runtime import Model

REFERENCE = "Reference (PyTorch)"
DRAGOMAN = "Dragoman"
CTRANSLATE2 = "CTranslate2"

AS_MANY_ROWS = ", greedy, as many rows"
BEFORE = ", before"
"""Added to the name of a contender of Dragoman, name the one that it is compared with."""

TextContender = Contender[Batch, Rows]
Preparation = Callable[[Path, Path], Path]
Load = Callable[[Path, int], Perform[Work, Outcome]]


class BundleKind(NamedTuple):
    """The name, target and precision of a bundle."""

    contender: str
    target: str
    precision: str

    def preparation(self, calibration: Calibration = ()) -> Preparation:
        """Return the contender's `prepare`, with calibration sources."""
        return partial(
            bundle_of_checkpoint,
            target=self.target,
            precision=self.precision,
            calibration=() if self.precision == "fp32" else calibration,
        )


BUNDLES = tuple(
    BundleKind(f"{DRAGOMAN} {precision}", "cpu", precision)
    for precision in ("fp32", "int8", "int4")
)


def translators(
    num_beams: int = 1,
    *,
    calibration: Calibration = (),
    openvino_in: Interpreter = HERE,
    before: Interpreter | None = None,
) -> list[TextContender]:
    """Return contenders of encoder-decoder models: the reference first, peers last.

    Failures of missing tools are reported.

    Args:
        num_beams: number of beams; with several, Dragoman also decodes as many rows greedily
        calibration: calibration sources of Dragoman's bundles
        openvino_in: interpreter with Optimum-Intel
        before: interpreter with another version of Dragoman, to compare with
    """
    from ...peers import hugging_face, optimum_onnx

    ours = partial(dragoman_contenders, calibration=calibration)
    return [
        reference() if num_beams == 1 else judge(hugging_face.load),
        *ours(load_bundle),
        *(ours(load_as_many_rows, suffix=AS_MANY_ROWS) if num_beams > 1 else []),
        *(ours(load_bundle, interpreter=before, suffix=BEFORE) if before else []),
        *map(ctranslate2_contender, ctranslate2_compute_types()),
        *peers(
            "Hugging Face",
            ["fp32"],
            lambda _: unchanged,
            lambda _: hugging_face.load,
            needs_torch=True,
        ),
        *peers(
            "Optimum-ONNX",
            optimum_onnx.VARIANTS,
            lambda variant: partial(optimum_onnx.prepare, variant=variant),
            lambda variant: optimum_onnx.load,
            needs_torch=True,
        ),
        *openvino_contenders(openvino.load, openvino_in),
    ]


def language_models(
    *, openvino_in: Interpreter = HERE, before: Interpreter | None = None
) -> list[TextContender]:
    """Return contenders of decoder-only models, like `translators`."""
    from ...peers import hugging_face, onnxruntime_genai, optimum_onnx

    dtypes = {"fp32": "float32", "bf16": "bfloat16"}
    return [
        judge(hugging_face.load_language_model),
        *dragoman_contenders(load_bundle),
        *(dragoman_contenders(load_bundle, interpreter=before, suffix=BEFORE) if before else []),
        *peers(
            CTRANSLATE2,
            ctranslate2_compute_types(),
            lambda name: partial(ctranslate2_runtime.prepare_generator, compute_type=name),
            lambda name: partial(ctranslate2_runtime.load_generator, compute_type=name),
        ),
        *peers(
            "onnxruntime-genai",
            ("fp32", "int8"),
            lambda variant: partial(onnxruntime_genai.prepare, variant=variant),
            lambda variant: onnxruntime_genai.load,
        ),
        *peers(
            "Hugging Face",
            dtypes,
            lambda name: unchanged,
            lambda name: partial(hugging_face.load_language_model, dtype=dtypes[name]),
            needs_torch=True,
        ),
        *peers(
            "Optimum-ONNX",
            optimum_onnx.GRAPH_VARIANTS,
            lambda variant: partial(optimum_onnx.prepare_graph, kind="CausalLM", variant=variant),
            lambda variant: optimum_onnx.load_language_model,
            needs_torch=True,
        ),
        *openvino_contenders(openvino.load, openvino_in, kind="CausalLM"),
    ]


def peers(
    tool: str,
    modes: Iterable[Any],
    prepare: Callable[[Any], Preparation],
    load: Callable[[Any], Load[Work, Outcome]],
    **attributes: Any,
) -> list[Contender[Work, Outcome]]:
    """Return another tool in each of its modes.

    Args:
        prepare, load: functions of a contender, which take the mode
        attributes: attributes of each `Contender`
    """
    return [
        Contender(
            f"{tool} {mode}",
            prepare(mode),
            load(mode),
            precision=precision_of(mode),
            peer=True,
            **attributes,
        )
        for mode in modes
    ]


def reference() -> TextContender:
    """Return the reference model in fp32, whose greedy tokens all others are compared with."""
    return Contender(REFERENCE, unchanged, load_reference, needs_torch=True, required=True)


def judge(load: Callable[[Path, int], Generate]) -> TextContender:
    """Return Hugging Face's `generate` in fp32, whose tokens all others are compared with.

    It is not timed, since it is also a contender under its own name.
    """
    return Contender(REFERENCE, unchanged, load, needs_torch=True, required=True, timed=False)


def dragoman_contenders(
    load: Load[Work, Outcome],
    bundles: Iterable[BundleKind] = BUNDLES,
    *,
    calibration: Calibration = (),
    interpreter: Interpreter = HERE,
    suffix: str = "",
) -> list[Contender[Work, Outcome]]:
    """Return Dragoman's runtime with each bundle.

    Args:
        load: loads a bundle
        calibration: calibration sources
        interpreter: interpreter that exports, optimizes and runs
        suffix: suffix of the names
    """
    return [
        Contender(
            f"{bundle.contender}{suffix}",
            bundle.preparation(calibration),
            load,
            precision=bundle.precision,
            interpreter=interpreter,
        )
        for bundle in bundles
    ]


def openvino_contenders(
    load: Callable[..., Perform[Work, Outcome]],
    interpreter: Interpreter,
    *,
    kind: openvino.Kind = "Seq2SeqLM",
) -> list[Contender[Work, Outcome]]:
    """Return OpenVINO in each of its modes, decoding with Hugging Face's `generate`.

    Args:
        load: loads a model, given mode and kind
    """
    return peers(
        "OpenVINO",
        openvino.MODES,
        lambda mode: partial(openvino.prepare, mode=mode, kind=kind),
        lambda mode: partial(load, mode=mode, kind=kind),
        needs_torch=True,
        interpreter=interpreter,
    )


def ctranslate2_compute_types() -> list[str]:
    """Return the compute types that CTranslate2 supports on this processor, float32 first.

    If CTranslate2 is missing, one type is returned, whose preparation reports the failure.
    """
    from ...peers import ctranslate2

    try:
        return ctranslate2.compute_types()
    except DragomanError:
        return ["float32"]


def ctranslate2_contender(compute_type: str, *, device: str = "cpu") -> TextContender:
    """Return CTranslate2's translator."""
    return translator(compute_type, partial(ctranslate2_runtime.load, device=device))


def translator(
    compute_type: str, load: Callable[..., Perform[Work, Outcome]]
) -> Contender[Work, Outcome]:
    """Return CTranslate2 with an encoder-decoder model.

    Args:
        load: loads a model, given the compute type
    """
    from ...peers import ctranslate2

    return peers(
        CTRANSLATE2,
        [compute_type],
        lambda name: partial(ctranslate2.prepare, compute_type=name),
        lambda name: partial(load, compute_type=name),
    )[0]


def precision_of(mode: str) -> str:
    """Return the precision of a tool's mode."""
    return "fp32" if mode in ("float32", "f32", "O2", "optimized") else mode


def load_reference(directory: Path, threads: int) -> Generate:
    """Load a Marian checkpoint into the reference model, which decodes with a cache.

    The end token is disabled.
    """
    import torch

    from dragoman.export.families.hugging_face import load_hugging_face
    from dragoman.reference_model import greedy_cached

    torch.set_num_threads(threads)
    model = load_hugging_face(directory)
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf
    return lambda batch: greedy_cached(model, batch.sources, batch.new_tokens)


def load_bundle(directory: Path, threads: int, *, backend: str | None = None) -> Generate:
    """Load a bundle with Dragoman's runtime, by default on the backend that suits it."""
    from dragoman.runtime import load

    return generator(load(directory, threads=threads, backend=backend))


def load_as_many_rows(directory: Path, threads: int) -> Generate:
    """Load a bundle that greedily decodes as many rows as a batch has beams.

    Every source is repeated; the first row of each is returned.
    """
    greedy = load_bundle(directory, threads)

    def generate(batch: Batch) -> Rows:
        repeated = [source for source in batch.sources for _ in range(batch.num_beams)]
        return greedy(Batch(repeated, batch.new_tokens))[:: batch.num_beams]

    return generate


def generator(model: Model) -> Generate:
    """Return a function that decodes all sources as one batch."""

    def generate(batch: Batch) -> Rows:
        options: dict[str, Any] = {
            "max_new_tokens": batch.new_tokens,
            "max_batch_size": len(batch.sources) * batch.num_beams,
            "max_batch_tokens": 1 << 30,
        }
        if batch.num_beams > 1:  # the end token, which is never the best, could be among the beams
            options |= {
                "num_beams": batch.num_beams,
                "length_penalty": 1.0,
                "min_new_tokens": batch.new_tokens,
            }
        return [list(result.tokens) for result in model.generate(batch.sources, **options)]

    return generate
