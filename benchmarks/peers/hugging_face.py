"""Decodes with Hugging Face's `generate`, also for tools that build on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from .interface import Batch, Generate, Rows, import_library, in_batches

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load(directory: Path, threads: int) -> Generate:
    """Load a Marian checkpoint in fp32."""
    return generator(load_model(directory, threads))


def load_model(directory: Path, threads: int) -> Any:
    """Load a Marian checkpoint in fp32 as a model of transformers."""
    torch.set_num_threads(threads)
    return import_library("transformers").MarianMTModel.from_pretrained(directory).float().eval()


def load_language_model(directory: Path, threads: int, *, mode: str = "fp32") -> Generate:
    """Load the checkpoint of a decoder-only model in fp32 or bf16."""
    torch.set_num_threads(threads)
    library = import_library("transformers")
    model = library.AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[mode])
    return generator(model.eval())


def generator(model: Any) -> Generate:
    """Return a function that decodes prompts of the same length with a model's `generate`."""

    def generate(batch: Batch) -> Rows:
        options: dict[str, Any] = {"num_beams": batch.num_beams}
        options |= dict.fromkeys(("min_new_tokens", "max_new_tokens"), batch.new_tokens)
        if batch.num_beams > 1:
            options |= {"length_penalty": 1.0, "early_stopping": False}
        return _generated(model, batch.sources, **options)

    return generate


def until_the_end(model: Any) -> Callable[[Sequence[list[int]], int, int], Rows]:
    """Return a function that decodes sources of any lengths greedily until the end token.

    It is a function of sources, maximum batch size and maximum new tokens, whose rows have no start
    and end token.
    """
    end = model.config.eos_token_id

    def generate(batch: list[list[int]], max_new_tokens: int) -> Rows:
        rows = _generated(model, batch, num_beams=1, max_new_tokens=max_new_tokens)
        return [row[: row.index(end)] if end in row else row for row in rows]

    return lambda sources, max_batch_size, max_new_tokens: in_batches(
        partial(generate, max_new_tokens=max_new_tokens), sources, max_batch_size
    )


def _generated(model: Any, sources: Sequence[list[int]], **options: Any) -> Rows:
    """Decode sources, padded to [B, S]; return rows without the start token, or the prompt."""
    tensors = [torch.tensor(source) for source in sources]
    source = pad_sequence(tensors, True, model.config.pad_token_id or 0).to(model.device)
    mask = pad_sequence([torch.ones_like(t) for t in tensors], True, 0).to(model.device)
    with torch.inference_mode():
        rows = model.generate(input_ids=source, attention_mask=mask, do_sample=False, **options)
    first = 1 if model.config.is_encoder_decoder else source.shape[1]
    generated: Rows = rows[:, first:].tolist()
    return generated
