"""Optimum-ONNX with encoders alone, as its documentation runs them: Hugging Face's tokenizer,
tensors of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .interface import Encode
from .library import import_library
from .optimum_one_graph import load_model
from .sentences import mean_vectors


def load(directory: Path, threads: int) -> Encode:
    """Load what `optimum_one_graph.prepare` wrote."""
    model = load_model(directory, threads, kind="FeatureExtraction")
    tokenizer = import_library("transformers").AutoTokenizer.from_pretrained(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
        return mean_vectors(hidden.numpy(), inputs["attention_mask"].numpy())

    return encode
