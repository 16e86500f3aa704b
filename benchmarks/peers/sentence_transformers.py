"""sentence-transformers: PyTorch, and its backends ONNX Runtime and OpenVINO."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from . import openvino, optimum_onnx
from .interface import Encode, import_library

GRAPH_SUFFIXES = (".onnx", ".xml", ".bin")

TorchMode = Literal["fp32", "bf16", "int8"]
TORCH_MODES: tuple[TorchMode, ...] = ("fp32", "bf16", "int8")
"""int8: linear layers by PyTorch's dynamic quantization."""

ONNX_VARIANTS: tuple[optimum_onnx.GraphVariant, ...] = ("fp32", "int8")


Preparation = Callable[[Path, Path], Path]
Loading = Callable[[Path, int], Encode]


def backends(calibration: Sequence[str]) -> Iterator[tuple[str, str, Preparation, Loading]]:
    """Yield each backend and mode with its functions to prepare and load.

    Args:
        calibration: calibration texts for OpenVINO's int8
    """
    for mode in TORCH_MODES:
        yield "PyTorch", mode, prepare_torch, partial(load_torch, mode=mode)
    for variant in ONNX_VARIANTS:
        yield "ONNX", variant, partial(prepare_onnx, variant=variant), load_onnx
    for kind in openvino.MODES:
        prepare = partial(prepare_openvino, mode=kind, calibration=calibration)
        yield "OpenVINO", kind, prepare, partial(load_openvino, mode=kind)


def prepare_torch(source: Path, directory: Path) -> Path:
    """Return the checkpoint, which PyTorch loads as it is."""
    return source


def prepare_onnx(source: Path, directory: Path, *, variant: optimum_onnx.GraphVariant) -> Path:
    """Write a directory for the backend ONNX Runtime."""
    beside = directory.with_name(f"{directory.name}-graph")
    graph = optimum_onnx.prepare_graph(source, beside, kind="FeatureExtraction", variant=variant)
    return _with_graph(source, directory, "onnx", graph)


def prepare_openvino(
    source: Path, directory: Path, *, mode: openvino.Mode, calibration: Sequence[str]
) -> Path:
    """Write a directory for the backend OpenVINO."""
    beside = directory.with_name(f"{directory.name}-graph")
    graph = openvino.prepare_encoder(source, beside, mode=mode, calibration=calibration)
    return _with_graph(source, directory, "openvino", graph)


def load_torch(directory: Path, threads: int, *, mode: TorchMode) -> Encode:
    """Load a checkpoint into PyTorch."""
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    model = _load(directory, threads, model_kwargs={"dtype": dtype})
    if mode == "int8":
        quantization: Any = torch.ao.quantization
        model = quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    return _encoder(model)


def load_onnx(directory: Path, threads: int) -> Encode:
    """Load what `prepare_onnx` wrote."""
    options = import_library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    settings = {"provider": "CPUExecutionProvider", "session_options": options}
    return _encoder(_load(directory, threads, backend="onnx", model_kwargs=settings))


def load_openvino(directory: Path, threads: int, *, mode: openvino.Mode) -> Encode:
    """Load what `prepare_openvino` wrote."""
    settings = {"ov_config": openvino.encoder_configuration(threads, mode)}
    return _encoder(_load(directory, threads, backend="openvino", model_kwargs=settings))


def _load(directory: Path, threads: int, **options: Any) -> Any:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    library = import_library("sentence_transformers")
    return library.SentenceTransformer(str(directory), device="cpu", **options)


def _encoder(model: Any) -> Encode:
    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = model.encode(
            list(texts), batch_size=len(texts), show_progress_bar=False
        )
        return vectors

    return encode


def _with_graph(source: Path, directory: Path, backend: str, graph: Path) -> Path:
    """Write a directory of sentence-transformers with a graph in place of the weights."""
    weights = shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx")
    shutil.copytree(source, directory, ignore=weights)
    (directory / backend).mkdir()
    for file in graph.iterdir():
        if file.suffix in GRAPH_SUFFIXES:
            shutil.copyfile(file, directory / backend / file.name)
    return directory
