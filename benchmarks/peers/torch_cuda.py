"""PyTorch on a GPU: the reference model, and transformers, which can compile the decoding step."""

from __future__ import annotations

from pathlib import Path

import torch

from dragoman.errors import DragomanError
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import greedy_cached

from .hugging_face import generator
from .interface import Generate, import_library


def load(directory: Path, threads: int, *, tool: str, dtype: str) -> Generate:
    """Load a checkpoint on the GPU, with its end token disabled.

    float32, which serves as the reference, runs on the CPU if PyTorch finds no GPU.

    Args:
        tool: "PyTorch": the reference model; "transformers"; or "transformers compiled", which
            decodes with a static cache, for which transformers compiles the step
        dtype: name of a torch dtype, such as "float16"

    Raises:
        DragomanError: PyTorch finds no GPU, and dtype is not float32; or there is no transformers.
    """
    if not torch.cuda.is_available() and dtype != "float32":
        raise DragomanError("PyTorch finds no GPU")
    device, kind = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, dtype)
    if tool != "PyTorch":
        library = import_library("transformers", group="gpu-peers").AutoModelForSeq2SeqLM
        theirs = library.from_pretrained(directory, dtype=kind).to(device).eval()
        if tool == "transformers compiled":
            theirs.generation_config.cache_implementation = "static"
        return generator(theirs)
    model = load_hugging_face(directory).to(device, kind).eval()
    torch.set_default_device(device)
    torch.set_default_dtype(kind)
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf
    return lambda batch: greedy_cached(model, batch.sources, batch.new_tokens)
