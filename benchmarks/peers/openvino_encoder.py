"""OpenVINO by itself with an encoder that Optimum-Intel exported. Loads without PyTorch."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .interface import Encode
from .library import import_library
from .openvino import GROUP
from .sentences import load_tokenizer, mean_vectors

Mode = Literal["f32", "bf16", "int8"]
MODES: tuple[Mode, ...] = ("f32", "bf16", "int8")
"""int8: weights and activations, calibrated; the rest in the precision that OpenVINO prefers on the
processor."""

CONFIGURATIONS: dict[Mode, dict[str, Any]] = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {},
}

MODEL_FILE = "openvino_model.xml"
EXPORTED = "openvino-encoder"


def prepare(source: Path, directory: Path, *, mode: Mode, calibration: Sequence[str]) -> Path:
    """Export a checkpoint; for int8, quantize it as NNCF does Transformers.

    f32 and bf16 run the same files, which are written once, beside `directory`. Silences warnings
    for the whole process, so use a separate one.

    Args:
        calibration: texts that the ranges of activations are taken from

    Returns:
        the directory to load
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    exported = directory.with_name(EXPORTED)
    if not exported.exists():
        library = import_library("optimum.intel", group=GROUP)
        library.OVModelForFeatureExtraction.from_pretrained(
            source, export=True, compile=False
        ).save_pretrained(exported)
        shutil.copyfile(source / "tokenizer.json", exported / "tokenizer.json")
    if mode != "int8":
        return exported
    openvino = import_library("openvino", group=GROUP)
    nncf = import_library("nncf", group=GROUP)
    tokenize = load_tokenizer(source)
    quantized = nncf.quantize(
        openvino.Core().read_model(exported / MODEL_FILE),
        nncf.Dataset([tokenize([text]) for text in calibration]),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(calibration),
    )
    directory.mkdir()
    openvino.save_model(quantized, directory / MODEL_FILE, compress_to_fp16=False)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(exported / name, directory / name)
    return directory


def configuration(threads: int, mode: Mode) -> dict[str, Any]:
    """For the lowest latency."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        **CONFIGURATIONS[mode],
    }


def load(directory: Path, threads: int, *, mode: Mode) -> Encode:
    """Load what `prepare` wrote."""
    openvino = import_library("openvino", group=GROUP)
    model = openvino.Core().compile_model(
        directory / MODEL_FILE, "CPU", configuration(threads, mode)
    )
    names = [name for put in model.inputs for name in put.get_names()]
    request = model.create_infer_request()
    tokenize = load_tokenizer(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenize(texts)
        outputs = request.infer({n: inputs[n] for n in names if n in inputs}, share_outputs=True)
        return mean_vectors(outputs["last_hidden_state"], inputs["attention_mask"])

    return encode
