"""sentence-transformers: PyTorch, and its backends ONNX Runtime and OpenVINO."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from . import openvino
from .interface import Encode, Text, encoder_kind, import_library, session_options, silence

TORCH_MODES, ONNX_MODES = ("fp32", "bf16", "int8"), ("fp32", "int8")
"""int8 of PyTorch: linear layers by its dynamic quantization."""


def prepare(
    source: Path, directory: Path, *, mode: str, backend: str, prepare_graph: Callable[..., Path]
) -> Path:
    """Write a directory for the backend "onnx" or "openvino", with a graph for the weights."""
    graph = prepare_graph(source, directory.with_name(f"{directory.name}-graph"), mode=mode)
    weights = shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx")
    shutil.copytree(source, directory, ignore=weights)
    (directory / backend).mkdir()
    for file in graph.iterdir():
        if file.suffix in (".onnx", ".xml", ".bin"):
            shutil.copyfile(file, directory / backend / file.name)
    return directory


def load_torch(directory: Path, threads: int, *, mode: str = "fp32") -> Encode:
    """Load a checkpoint into PyTorch."""
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    return _load(directory, threads, quantized=mode == "int8", model_kwargs={"dtype": dtype})


def load_onnx(directory: Path, threads: int) -> Encode:
    """Load what `prepare` wrote for the backend "onnx"."""
    settings = {"provider": "CPUExecutionProvider", "session_options": session_options(threads)}
    return _load(directory, threads, backend="onnx", model_kwargs=settings)


def load_openvino(directory: Path, threads: int, *, mode: openvino.Mode) -> Encode:
    """Load what `prepare` wrote for the backend "openvino"."""
    settings = {"ov_config": openvino.configuration(threads, mode, calibrated=True)}
    return _load(directory, threads, backend="openvino", model_kwargs=settings)


def _load(directory: Path, threads: int, *, quantized: bool = False, **options: Any) -> Encode:
    silence()
    torch.set_num_threads(threads)
    library = import_library("sentence_transformers")
    embeds = encoder_kind(directory) == "FeatureExtraction"
    model_class = library.SentenceTransformer if embeds else library.CrossEncoder
    model = model_class(str(directory), device="cpu", **options)
    if quantized:
        quantization: Any = torch.ao.quantization
        model = quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    call = model.encode if embeds else model.predict

    def encode(texts: Sequence[Text], batch_size: int = 0) -> NDArray[np.float32]:
        found: NDArray[np.float32] = call(
            list(texts), batch_size=batch_size or len(texts), show_progress_bar=False
        )
        return found

    return encode
