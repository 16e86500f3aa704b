"""The contenders: Hugging Face as the reference, Dragoman's precisions, other tools.

Nothing that imports torch is imported at the top: contenders that do without PyTorch load in
processes that import this module.
"""

from __future__ import annotations

from functools import partial

from dragoman.errors import DragomanError

from ..harness import HERE, Interpreter, unchanged
from ..peers import ctranslate2_generator, openvino
from ..text.contenders import BEFORE, CTRANSLATE2, REFERENCE, TextContender, dragoman_contenders

peer = partial(TextContender, peer=True)


def contenders(
    *, openvino_in: Interpreter = HERE, before: Interpreter | None = None
) -> list[TextContender]:
    """The reference first, peers last. Tools that are not installed are included: their failure is
    reported.

    Args:
        openvino_in: has Optimum-Intel
        before: has another version of Dragoman, which takes part
    """
    return [
        reference(),
        *dragoman_contenders(),
        *(dragoman_contenders(interpreter=before, suffix=BEFORE) if before else []),
        *ctranslate2_contenders(),
        *genai_contenders(),
        *hugging_face_contenders(openvino_in),
    ]


def reference() -> TextContender:
    """Hugging Face's `generate` in fp32, by whose tokens all others are judged."""
    from ..peers import hugging_face

    return TextContender(
        REFERENCE,
        unchanged,
        hugging_face.load_language_model,
        needs_torch=True,
        required=True,
        timed=False,  # it is a contender under its own name
        fp32=True,
    )


def ctranslate2_contenders() -> list[TextContender]:
    """CTranslate2 in each compute type that it supports on this processor."""
    from ..peers import ctranslate2

    try:
        compute_types = ctranslate2.compute_types()
    except DragomanError:
        compute_types = ["float32"]  # its preparation fails with the reason
    return [
        peer(
            f"{CTRANSLATE2} {compute_type}",
            partial(ctranslate2_generator.prepare, compute_type=compute_type),
            partial(ctranslate2_generator.load, compute_type=compute_type),
            fp32=compute_type == "float32",
        )
        for compute_type in compute_types
    ]


def genai_contenders() -> list[TextContender]:
    """ONNX Runtime's generate() API, with graphs that Optimum exported."""
    from ..peers import onnxruntime_genai

    return [
        peer(
            f"onnxruntime-genai {variant}",
            partial(onnxruntime_genai.prepare, variant=variant),
            onnxruntime_genai.load,
            fp32=variant == "fp32",
        )
        for variant in ("fp32", "int8")
    ]


def hugging_face_contenders(openvino_in: Interpreter) -> list[TextContender]:
    """Tools that decode by Hugging Face's `generate`."""
    from ..peers import hugging_face, optimum_one_graph

    with_torch = partial(peer, needs_torch=True)
    return [
        *(
            with_torch(
                f"Hugging Face {name}",
                unchanged,
                partial(hugging_face.load_language_model, dtype=dtype),
                fp32=name == "fp32",
            )
            for name, dtype in (("fp32", "float32"), ("bf16", "bfloat16"))
        ),
        *(
            with_torch(
                f"Optimum-ONNX {variant}",
                partial(optimum_one_graph.prepare, kind="CausalLM", variant=variant),
                optimum_one_graph.load_language_model,
                fp32=variant != "int8",
            )
            for variant in optimum_one_graph.VARIANTS
        ),
        *(
            with_torch(
                f"OpenVINO {mode}",
                partial(openvino.prepare, mode=mode, kind="CausalLM"),
                partial(openvino.load, mode=mode, kind="CausalLM"),
                interpreter=openvino_in,
                fp32=mode == "f32",
            )
            for mode in openvino.MODES
        ),
    ]
