"""Optimum-ONNX: its export of a Marian checkpoint, decoding by Hugging Face's `generate`.

fp32 is what it exports by default, one decoder graph for the first step and all others. Its
optimizer and quantizer take no such graph, so O2 and int8 have two decoders.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from .hugging_face import generator, library

Variant = Literal["fp32", "O2", "int8"]


def prepare(source: Path, directory: Path, *, variant: Variant) -> Path:
    """Export a Marian checkpoint into a new directory, optimized or quantized; that directory.

    To be called in a process of its own: it silences warnings, of which exporting gives many.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    optimum = library("optimum.onnxruntime")
    exporting = optimum.ORTModelForSeq2SeqLM.from_pretrained
    if variant == "fp32":
        exporting(source, export=True, use_merged=True).save_pretrained(directory)
        return directory
    split = exporting(source, export=True, use_merged=False)
    if variant == "O2":
        configuration = library("optimum.onnxruntime.configuration").AutoOptimizationConfig.O2()
        optimum.ORTOptimizer.from_pretrained(split).optimize(
            save_dir=directory, optimization_config=configuration, file_suffix=""
        )
    else:
        with tempfile.TemporaryDirectory() as exported:
            split.save_pretrained(exported)
            for file in sorted(Path(exported).glob("*.onnx")):
                optimum.ORTQuantizer.from_pretrained(exported, file_name=file.name).quantize(
                    save_dir=directory, quantization_config=_dynamic_int8(), file_suffix=""
                )
    shutil.copyfile(source / "generation_config.json", directory / "generation_config.json")
    return directory


def load(directory: Path, threads: int) -> Callable[[list[list[int]], int], list[list[int]]]:
    """What `prepare` has written; in a process of its own, as `prepare`."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    options = library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    model = library("optimum.onnxruntime").ORTModelForSeq2SeqLM.from_pretrained(
        directory, session_options=options
    )
    return generator(model)


def _dynamic_int8() -> Any:
    """What Optimum advises for this processor."""
    configurations = library("optimum.onnxruntime.configuration").AutoQuantizationConfig
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    advised = configurations.avx512_vnni if "avx512_vnni" in flags else configurations.avx2
    return advised(is_static=False, per_channel=False)
