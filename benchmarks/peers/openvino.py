"""OpenVINO by Optimum-Intel: its export of a Marian checkpoint or of a decoder alone, decoded by
Hugging Face's `generate`. The export of Whisper is for `.openvino_whisper`.

Optimum-Intel and Optimum-ONNX require different versions of Optimum, so it has an environment of
its own: `pip install --group peers-openvino`.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any, Literal

from .interface import Generate
from .library import import_library

Kind = Literal["Seq2SeqLM", "CausalLM", "SpeechSeq2Seq"]
"""Of the model class, such as `OVModelForCausalLM`."""

Mode = Literal["f32", "bf16", "int8"]
MODES: tuple[Mode, ...] = ("f32", "bf16", "int8")

CONFIGURATIONS: dict[Mode, dict[str, Any]] = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32},
}
"""int8: weights in 8 bits, activations quantized in groups of 32; the rest in the precision that
OpenVINO prefers on the processor."""

GROUP = "peers-openvino"
EXPORTED = "openvino-fp32"


def prepare(source: Path, directory: Path, *, mode: Mode, kind: Kind = "Seq2SeqLM") -> Path:
    """Export a checkpoint, with caches as states of the model.

    f32 and bf16 run the same files, which are written once, beside `directory`. Silences the many
    warnings of the export for the whole process, so use a separate one.

    Returns:
        the directory to load
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    quantized = mode == "int8"
    exported = directory if quantized else directory.with_name(EXPORTED)
    if not exported.exists():
        _model_class(kind).from_pretrained(
            source, export=True, compile=False, load_in_8bit=quantized
        ).save_pretrained(exported)
    return exported


def load(directory: Path, threads: int, *, mode: Mode, kind: Kind = "Seq2SeqLM") -> Generate:
    """Load what `prepare` wrote, for the lowest latency."""
    from .hugging_face import generator

    return generator(load_model(directory, threads, mode=mode, kind=kind))


def load_model(directory: Path, threads: int, *, mode: Mode, kind: Kind = "Seq2SeqLM") -> Any:
    """Load what `prepare` wrote, for the lowest latency, with Hugging Face's interface; silences
    warnings for the whole process too.
    """
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    configuration = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        **CONFIGURATIONS[mode],
    }
    return _model_class(kind).from_pretrained(directory, ov_config=configuration)


def _model_class(kind: Kind) -> Any:
    return getattr(import_library("optimum.intel", group=GROUP), f"OVModelFor{kind}")
