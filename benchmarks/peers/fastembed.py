"""fastembed with a graph that Optimum exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .interface import Encode
from .library import import_library

NAME = "measured"


def load(directory: Path, threads: int) -> Encode:
    """Load a directory with `model.onnx` and the files of its tokenizer; vectors are means."""
    library = import_library("fastembed")
    description = import_library("fastembed.common.model_description")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    library.TextEmbedding.add_custom_model(
        NAME,
        pooling=description.PoolingType.MEAN,
        normalization=True,
        sources=description.ModelSource(hf=NAME),  # never asked
        dim=config["hidden_size"],
        model_file="model.onnx",
    )
    model = library.TextEmbedding(NAME, threads=threads, specific_model_path=str(directory))

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack(list(model.embed(texts, batch_size=len(texts))))

    return encode
