"""Optimum-ONNX with models that are one graph: encoders alone and decoders alone."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any, Literal

import torch

from .hugging_face import generator
from .interface import Generate
from .library import import_library
from .optimum_onnx import dynamic_int8

Kind = Literal["CausalLM", "FeatureExtraction"]
"""Of the model class, such as `ORTModelForCausalLM`."""

Variant = Literal["fp32", "optimized", "int8"]
VARIANTS: tuple[Variant, ...] = ("fp32", "optimized", "int8")
"""optimized: by ONNX Runtime's optimizer of Transformers, in Optimum's level O2."""

MODEL_FILE = "model.onnx"
EXPORTED = "optimum-fp32"


def prepare(source: Path, directory: Path, *, kind: Kind, variant: Variant) -> Path:
    """Export a checkpoint, then optimize or quantize the graph.

    The export is written once, as `optimum-fp32` beside `directory`, and serves all variants.
    Silences the many warnings of the export for the whole process, so use a separate one.

    Returns:
        the directory to load
    """
    silence()
    exported = directory.with_name(EXPORTED)
    library = import_library("optimum.onnxruntime")
    if not exported.exists():
        model_class = getattr(library, f"ORTModelFor{kind}")
        model_class.from_pretrained(source, export=True).save_pretrained(exported)
        for file in [*source.glob("*token*"), *source.glob("vocab*")]:
            shutil.copyfile(file, exported / file.name)
    if variant == "fp32":
        return exported
    if variant == "optimized":
        configuration = import_library("optimum.onnxruntime.configuration")
        library.ORTOptimizer.from_pretrained(exported, file_names=[MODEL_FILE]).optimize(
            save_dir=directory,
            optimization_config=configuration.AutoOptimizationConfig.O2(),
            file_suffix="",
        )
    else:
        library.ORTQuantizer.from_pretrained(exported, file_name=MODEL_FILE).quantize(
            save_dir=directory, quantization_config=dynamic_int8(), file_suffix=""
        )
    for file in exported.iterdir():
        if file.name != MODEL_FILE and not (directory / file.name).exists():
            shutil.copyfile(file, directory / file.name)
    return directory


def load_language_model(directory: Path, threads: int) -> Generate:
    """Load what `prepare` wrote of a decoder alone."""
    return generator(load_model(directory, threads, kind="CausalLM"))


def load_model(directory: Path, threads: int, *, kind: Kind) -> Any:
    """Load what `prepare` wrote; silences warnings for the whole process too."""
    silence()
    torch.set_num_threads(threads)
    options = import_library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    model_class = getattr(import_library("optimum.onnxruntime"), f"ORTModelFor{kind}")
    return model_class.from_pretrained(directory, session_options=options)


def silence() -> None:
    """Leave out the many warnings of this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
