"""Plain ONNX Runtime, and fastembed, with Optimum's graph of an encoder-only model.

Plain ONNX Runtime adds only tokenization and mean pooling, the minimum for an encoder. Both load
without PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .interface import Encode, import_library, load_tokenizer, mean_vectors, session_options

MEASURED = "measured"
"""The name under which fastembed knows the model."""


def load_onnxruntime(directory: Path, threads: int) -> Encode:
    """Load a directory with `model.onnx` and `tokenizer.json` into ONNX Runtime.

    All optimizations are on, which is the default.
    """
    library = import_library("onnxruntime")
    session = library.InferenceSession(
        str(directory / "model.onnx"), session_options(threads), providers=["CPUExecutionProvider"]
    )
    names = [put.name for put in session.get_inputs()]
    tokenize = load_tokenizer(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenize(texts)
        hidden = session.run(["last_hidden_state"], {name: inputs[name] for name in names})[0]
        return mean_vectors(hidden, inputs["attention_mask"])

    return encode


def load_fastembed(directory: Path, threads: int) -> Encode:
    """Load a directory with `model.onnx` and its tokenizer into fastembed; embeddings are means."""
    library = import_library("fastembed")
    description = import_library("fastembed.common.model_description")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    library.TextEmbedding.add_custom_model(
        MEASURED,
        pooling=description.PoolingType.MEAN,
        normalization=True,
        sources=description.ModelSource(hf=MEASURED),  # never downloaded
        dim=config["hidden_size"],
        model_file="model.onnx",
    )
    model = library.TextEmbedding(MEASURED, threads=threads, specific_model_path=str(directory))

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack(list(model.embed(texts, batch_size=len(texts))))

    return encode
