"""Optimum-ONNX: export, optimizer, quantizer and models.

The default fp32 export of a Marian checkpoint has one merged decoder graph for all steps. Optimizer
and quantizer do not accept a merged graph, so O2 and int8 have two decoders. Encoder-only and
decoder-only models are one graph.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from . import interface
from .hugging_face import generator
from .interface import Encode, Generate, Kind

MODES, GRAPH_MODES = ("fp32", "O2", "int8"), ("fp32", "optimized", "int8")
"""Modes of encoder-decoders, and of models of one graph, where "optimized" is Optimum's level O2 of
ONNX Runtime's optimizer of Transformers."""


def prepare(source: Path, directory: Path, *, mode: str, kind: Kind | None = "Seq2SeqLM") -> Path:
    """Export a checkpoint, then optimize or quantize its graphs.

    All modes share one export; of an encoder-decoder, fp32 is merged and the others are split.
    Warnings are silenced for the whole process, so use a separate one. Without a kind, the model is
    encoder-only, with the head that it has.
    """
    interface.silence()
    kind = kind or interface.encoder_kind(source)
    library = interface.import_library("optimum.onnxruntime")
    merged = {"use_merged": mode == "fp32"} if kind == "Seq2SeqLM" else {}
    split = merged.get("use_merged") is False
    exported = directory.with_name("optimum-split" if split else "optimum-fp32")
    if not exported.exists():
        model_class = getattr(library, f"ORTModelFor{kind}")
        model_class.from_pretrained(source, export=True, **merged).save_pretrained(exported)
        for file in [*source.glob("*token*"), *source.glob("vocab*")]:
            shutil.copyfile(file, exported / file.name)
    if mode == "fp32":
        return exported
    graphs = sorted(file.name for file in exported.glob("*.onnx"))
    settings = interface.import_library("optimum.onnxruntime.configuration")
    written: dict[str, Any] = {"save_dir": directory, "file_suffix": ""}
    if mode == "int8":  # as Optimum recommends for this processor, without calibration
        kinds, cpuinfo = settings.AutoQuantizationConfig, Path("/proc/cpuinfo")
        flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
        kind_of_int8 = kinds.avx512_vnni if "avx512_vnni" in flags else kinds.avx2
        config = kind_of_int8(is_static=False, per_channel=False)
        for graph in graphs:
            quantizer = library.ORTQuantizer.from_pretrained(exported, file_name=graph)
            quantizer.quantize(quantization_config=config, **written)
    else:
        optimizer = library.ORTOptimizer.from_pretrained(exported, file_names=graphs)
        config = settings.AutoOptimizationConfig.O2()
        optimizer.optimize(optimization_config=config, **written)
    for file in exported.iterdir():
        if file.suffix != ".onnx" and not (directory / file.name).exists():
            shutil.copyfile(file, directory / file.name)
    return directory


def load_model(directory: Path, threads: int, *, kind: Kind = "Seq2SeqLM") -> Any:
    """Load what `prepare` wrote; silences warnings for the whole process."""
    interface.silence()
    torch.set_num_threads(threads)
    model_class = getattr(interface.import_library("optimum.onnxruntime"), f"ORTModelFor{kind}")
    settings = interface.session_options(threads)
    return model_class.from_pretrained(directory, session_options=settings)


def load(directory: Path, threads: int, *, kind: Kind = "Seq2SeqLM") -> Generate:
    """Load what `prepare` wrote, decoding with Hugging Face's `generate`."""
    return generator(load_model(directory, threads, kind=kind))


def load_encoder(directory: Path, threads: int) -> Encode:
    """Load an encoder-only model that `prepare` wrote."""
    model = load_model(directory, threads, kind="FeatureExtraction")
    tokenizer = interface.import_library("transformers").AutoTokenizer.from_pretrained(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
        return interface.vectors_or_scores(hidden.numpy(), inputs["attention_mask"].numpy())

    return encode
