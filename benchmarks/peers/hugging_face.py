"""Hugging Face's `generate`, for its own models and for those of tools that build on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .interface import Batch, Generate, Rows
from .library import import_library


def load(directory: Path, threads: int) -> Generate:
    """Load a Marian checkpoint in fp32."""
    torch.set_num_threads(threads)
    model = import_library("transformers").MarianMTModel.from_pretrained(directory).float().eval()
    return generator(model)


def load_language_model(directory: Path, threads: int, *, dtype: str = "float32") -> Generate:
    """Load the checkpoint of a decoder alone.

    Args:
        dtype: name of a torch dtype, such as "bfloat16"
    """
    torch.set_num_threads(threads)
    library = import_library("transformers")
    model = library.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    return generator(model.eval())


def generator(model: Any) -> Generate:
    """Decode with a model's `generate`. The sources of a batch must have the same length."""
    alone = not model.config.is_encoder_decoder

    def generate(batch: Batch) -> Rows:
        source = torch.tensor(batch.sources)
        ranking = {"length_penalty": 1.0, "early_stopping": False} if batch.num_beams > 1 else {}
        with torch.inference_mode():
            rows: torch.Tensor = model.generate(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                num_beams=batch.num_beams,
                do_sample=False,
                min_new_tokens=batch.new_tokens,
                max_new_tokens=batch.new_tokens,
                **ranking,
            )
        generated: Rows = rows[:, source.shape[1] if alone else 1 :].tolist()
        return generated

    return generate
