"""Hugging Face transformers: greedy decoding by its own `generate`, in PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dragoman.errors import DragomanError


def load(directory: Path, threads: int) -> Callable[[list[list[int]], int], list[list[int]]]:
    """A Marian checkpoint in fp32."""
    torch.set_num_threads(threads)
    model = library("transformers").MarianMTModel.from_pretrained(directory).float().eval()
    return generator(model)


def generator(model: Any) -> Callable[[list[list[int]], int], list[list[int]]]:
    """What decodes sources of equal length to exactly so many tokens, the start token left out."""

    def generate(sources: list[list[int]], new_tokens: int) -> list[list[int]]:
        source = torch.tensor(sources)
        with torch.inference_mode():
            rows: torch.Tensor = model.generate(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                num_beams=1,
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
            )
        generated: list[list[int]] = rows[:, 1:].tolist()
        return generated

    return generate


def library(name: str) -> Any:
    """A library that is optional, and whose types are not read."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DragomanError(
            f"cannot import {name} ({error}): pip install 'dragoman[peers]'"
        ) from error
