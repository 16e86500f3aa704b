"""The reference model on a GPU: PyTorch as it is, and with its decoding step in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dragoman.errors import DragomanError
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import Transformer, greedy_cached
from dragoman.reference_model.decoding import KeyValueCache, pad

Generate = Callable[[list[list[int]], int], list[list[int]]]
WARM_UPS = 3
"""Runs before a capture, which PyTorch asks for."""


def load(directory: Path, threads: int, *, dtype: str, graphs: bool) -> Generate:
    """A Marian checkpoint on the GPU, that cannot choose its end token. In float32, which says what
    is right, on the processor if PyTorch sees no GPU.

    Args:
        dtype: such as "float16"
        graphs: capture the step once for each batch size, and replay it

    Raises:
        DragomanError: PyTorch sees no GPU, and the numbers are others.
    """
    if not torch.cuda.is_available() and dtype != "float32":
        raise DragomanError("PyTorch sees no GPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_hugging_face(directory).to(device, getattr(torch, dtype)).eval()
    torch.set_default_device(device)
    torch.set_default_dtype(getattr(torch, dtype))
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf
    if graphs:
        return _Captured(model)
    return lambda sources, new_tokens: greedy_cached(model, sources, new_tokens)


class _Captured:
    """Steps in memory that stays: of a batch size one graph."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.known: dict[tuple[int, int, int], _Step] = {}

    @torch.inference_mode()
    def __call__(self, sources: list[list[int]], new_tokens: int) -> list[list[int]]:
        source, mask = pad(sources, self.model.config.pad_token_id)
        key = (*source.shape, new_tokens)
        if key not in self.known:
            self.known[key] = _Step(self.model, source, mask, new_tokens)
        return self.known[key].decode(source, mask)


class _Step:
    def __init__(self, model: Transformer, source: Tensor, mask: Tensor, capacity: int) -> None:
        self.model, self.mask, self.capacity = model, mask, capacity
        self.cache = KeyValueCache(model.config, len(source), capacity)
        self.cross = [(key.clone(), value.clone()) for key, value in model.encode(source, mask)]
        self.token = torch.full((len(source),), model.config.start_token_id)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.cache.position.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.cache.position.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def decode(self, source: Tensor, mask: Tensor) -> list[list[int]]:
        self.mask.copy_(mask)
        for kept, layer in zip(self.cross, self.model.encode(source, mask), strict=True):
            for to, values in zip(kept, layer, strict=True):
                to.copy_(values)
        self.cache.position.zero_()
        self.token.fill_(self.model.config.start_token_id)
        tokens = []
        for _ in range(self.capacity):
            self.graph.replay()
            tokens.append(self.token.clone())
        rows: list[list[int]] = torch.stack(tokens, dim=1).tolist()
        return rows

    def _step(self) -> None:
        logits = self.model.decode(
            self.token[:, None], self.cache.position, self.mask, self.cross, self.cache
        )
        self.token.copy_(logits[:, -1].argmax(-1))
        self.cache.position.add_(1)
