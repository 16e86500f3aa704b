"""Decodes with Hugging Face's `generate`, also for tools that build on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .interface import Batch, Generate, Rows, import_library


def load(directory: Path, threads: int) -> Generate:
    """Load a Marian checkpoint in fp32."""
    torch.set_num_threads(threads)
    model = import_library("transformers").MarianMTModel.from_pretrained(directory).float().eval()
    return generator(model)


def load_language_model(directory: Path, threads: int, *, dtype: str = "float32") -> Generate:
    """Load the checkpoint of a decoder-only model.

    Args:
        dtype: name of a torch dtype, such as "bfloat16"
    """
    torch.set_num_threads(threads)
    library = import_library("transformers")
    model = library.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    return generator(model.eval())


def generator(model: Any) -> Generate:
    """Return a function that decodes with a model's `generate`.

    The sources of a batch must have the same length.
    """
    decoder_only = not model.config.is_encoder_decoder

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
        generated: Rows = rows[:, source.shape[1] if decoder_only else 1 :].tolist()
        return generated

    return generate


def until_the_end(model: Any) -> Callable[[Sequence[list[int]], int, int], Rows]:
    """Return a function that decodes sources of any lengths greedily until the end token.

    Args:
        model: an encoder-decoder with Hugging Face's `generate`

    Returns:
        a function of sources, maximum batch size and maximum new tokens, whose rows have no start
            and end token
    """
    pad, end = model.config.pad_token_id, model.config.eos_token_id

    def generate(sources: Sequence[list[int]], max_batch_size: int, max_new_tokens: int) -> Rows:
        rows: Rows = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        for first in range(0, len(order), max_batch_size):
            batch = order[first : first + max_batch_size]
            lengths = torch.tensor([len(sources[i]) for i in batch])
            source = torch.full((len(batch), int(lengths.max())), pad)
            for row, i in enumerate(batch):
                source[row, : len(sources[i])] = torch.tensor(sources[i])
            mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
            with torch.inference_mode():
                found = model.generate(
                    input_ids=source,
                    attention_mask=mask,
                    num_beams=1,
                    do_sample=False,
                    max_new_tokens=max_new_tokens,
                )
            for i, row in zip(batch, found[:, 1:].tolist(), strict=True):
                rows[i] = row[: row.index(end)] if end in row else row
        return rows

    return generate
