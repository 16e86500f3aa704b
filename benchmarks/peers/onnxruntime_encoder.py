"""ONNX Runtime by itself, with a graph that Optimum exported: the least that running an encoder
takes. Loads without PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .interface import Encode
from .library import import_library
from .sentences import load_tokenizer, mean_vectors


def load(directory: Path, threads: int) -> Encode:
    """Load a directory with `model.onnx` and `tokenizer.json`; all optimizations are on, which is
    ONNX Runtime's default.
    """
    library = import_library("onnxruntime")
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    session = library.InferenceSession(
        str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    names = [put.name for put in session.get_inputs()]
    tokenize = load_tokenizer(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenize(texts)
        hidden = session.run(["last_hidden_state"], {name: inputs[name] for name in names})[0]
        return mean_vectors(hidden, inputs["attention_mask"])

    return encode
