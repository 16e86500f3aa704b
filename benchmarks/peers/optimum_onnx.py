"""Optimum-ONNX: export, optimizer, quantizer and models.

The default fp32 export of a Marian checkpoint has one merged decoder graph for all steps. Optimizer
and quantizer do not accept a merged graph, so O2 and int8 have two decoders. Encoder-only and
decoder-only models are one graph.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .hugging_face import generator
from .interface import Encode, Generate, import_library, mean_vectors

Kind = Literal["CausalLM", "FeatureExtraction"]
"""The end of the model class's name, such as `ORTModelForCausalLM`."""

GraphVariant = Literal["fp32", "optimized", "int8"]
GRAPH_VARIANTS: tuple[GraphVariant, ...] = ("fp32", "optimized", "int8")
"""optimized: by ONNX Runtime's optimizer of Transformers, in Optimum's level O2."""

MODEL_FILE = "model.onnx"
EXPORTED = "optimum-fp32"

Variant = Literal["fp32", "O2", "int8"]
VARIANTS: tuple[Variant, ...] = ("fp32", "O2", "int8")


def prepare(source: Path, directory: Path, *, variant: Variant) -> Path:
    """Export a Marian checkpoint into a new directory, then optimize or quantize it.

    Warnings are silenced for the whole process, so use a separate one.

    Returns:
        `directory`
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    optimum = import_library("optimum.onnxruntime")
    export = optimum.ORTModelForSeq2SeqLM.from_pretrained
    if variant == "fp32":
        export(source, export=True, use_merged=True).save_pretrained(directory)
        return directory
    split = export(source, export=True, use_merged=False)
    if variant == "O2":
        configuration = import_library(
            "optimum.onnxruntime.configuration"
        ).AutoOptimizationConfig.O2()
        optimum.ORTOptimizer.from_pretrained(split).optimize(
            save_dir=directory, optimization_config=configuration, file_suffix=""
        )
    else:
        with tempfile.TemporaryDirectory() as exported:
            split.save_pretrained(exported)
            for file in sorted(Path(exported).glob("*.onnx")):
                optimum.ORTQuantizer.from_pretrained(exported, file_name=file.name).quantize(
                    save_dir=directory, quantization_config=dynamic_int8(), file_suffix=""
                )
    shutil.copyfile(source / "generation_config.json", directory / "generation_config.json")
    return directory


def load(directory: Path, threads: int) -> Generate:
    """Load what `prepare` wrote; silences warnings for the whole process."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    options = import_library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    model = import_library("optimum.onnxruntime").ORTModelForSeq2SeqLM.from_pretrained(
        directory, session_options=options
    )
    return generator(model)


def dynamic_int8() -> Any:
    """Return Optimum's recommended configuration for this processor, without calibration."""
    configurations = import_library("optimum.onnxruntime.configuration").AutoQuantizationConfig
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    recommended = configurations.avx512_vnni if "avx512_vnni" in flags else configurations.avx2
    return recommended(is_static=False, per_channel=False)


def prepare_graph(source: Path, directory: Path, *, kind: Kind, variant: GraphVariant) -> Path:
    """Export a checkpoint, then optimize or quantize the graph.

    The export is written once, as `optimum-fp32` next to `directory`, for all variants.
    Warnings are silenced for the whole process, so use a separate one.

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
    """Load a decoder-only model that `prepare_graph` wrote."""
    return generator(load_graph(directory, threads, kind="CausalLM"))


def load_graph(directory: Path, threads: int, *, kind: Kind) -> Any:
    """Load what `prepare_graph` wrote; silences warnings for the whole process."""
    silence()
    torch.set_num_threads(threads)
    options = import_library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    model_class = getattr(import_library("optimum.onnxruntime"), f"ORTModelFor{kind}")
    return model_class.from_pretrained(directory, session_options=options)


def silence() -> None:
    """Silence the warnings of this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def load_encoder(directory: Path, threads: int) -> Encode:
    """Load an encoder-only model that `prepare_graph` wrote."""
    model = load_graph(directory, threads, kind="FeatureExtraction")
    tokenizer = import_library("transformers").AutoTokenizer.from_pretrained(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
        return mean_vectors(hidden.numpy(), inputs["attention_mask"].numpy())

    return encode
