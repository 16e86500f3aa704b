"""Optimum-ONNX: its export of a Marian checkpoint, decoded by Hugging Face's `generate`.

fp32 is its default export, in which one merged decoder graph serves the first and all further
steps. Its optimizer and quantizer do not accept a merged graph, so O2 and int8 have two decoders.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

import torch

from .hugging_face import generator
from .interface import Generate
from .library import import_library

Variant = Literal["fp32", "O2", "int8"]
VARIANTS: tuple[Variant, ...] = ("fp32", "O2", "int8")


def prepare(source: Path, directory: Path, *, variant: Variant) -> Path:
    """Export a Marian checkpoint into a new directory, then optimize or quantize it.

    Silences the many warnings of the export for the whole process, so use a separate one.

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
    """Load what `prepare` wrote; silences warnings for the whole process too."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    options = import_library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    model = import_library("optimum.onnxruntime").ORTModelForSeq2SeqLM.from_pretrained(
        directory, session_options=options
    )
    return generator(model)


def dynamic_int8() -> Any:
    """Optimum's recommended configuration for this processor, without calibration."""
    configurations = import_library("optimum.onnxruntime.configuration").AutoQuantizationConfig
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    recommended = configurations.avx512_vnni if "avx512_vnni" in flags else configurations.avx2
    return recommended(is_static=False, per_channel=False)
