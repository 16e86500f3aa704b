"""The reference model on a GPU: plain PyTorch, or with its decoding step in a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from dragoman.errors import DragomanError
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import KeyValueCache, Transformer, greedy_cached, pad

from .interface import Batch, Generate, Rows

WARM_UPS = 3
"""Runs on a side stream that PyTorch requires before it captures a graph."""


def load(directory: Path, threads: int, *, dtype: str, graphs: bool) -> Generate:
    """Load a Marian checkpoint on the GPU, with its end token disabled.

    float32, which serves as the reference, runs on the CPU if PyTorch finds no GPU.

    Args:
        dtype: name of a torch dtype, such as "float16"
        graphs: whether to capture the step in a CUDA graph, once per batch shape

    Raises:
        DragomanError: PyTorch finds no GPU, and dtype is not float32.
    """
    if not torch.cuda.is_available() and dtype != "float32":
        raise DragomanError("PyTorch finds no GPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_hugging_face(directory).to(device, getattr(torch, dtype)).eval()
    torch.set_default_device(device)
    torch.set_default_dtype(getattr(torch, dtype))
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf
    if graphs:
        return _Captured(model)
    return lambda batch: greedy_cached(model, batch.sources, batch.new_tokens)


class _Captured:
    """The captured steps, one per batch shape."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.steps: dict[tuple[int, int, int], _Step] = {}

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Rows:
        source, mask = pad(batch.sources, self.model.config.pad_token_id)
        shape = (*source.shape, batch.new_tokens)
        if shape not in self.steps:
            self.steps[shape] = _Step(self.model, source, mask, batch.new_tokens)
        return self.steps[shape].decode(source, mask)


class _Step:
    """A captured decoding step, whose inputs and outputs keep their addresses."""

    def __init__(self, model: Transformer, source: Tensor, mask: Tensor, capacity: int) -> None:
        self.model, self.mask, self.capacity = model, mask, capacity
        self.cache = KeyValueCache(model.config, len(source), capacity)
        self.cross = [(key.clone(), value.clone()) for key, value in model.encode(source, mask)]
        self.token = torch.full((len(source),), model.config.start_token_id)
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UPS):
                self.cache.position.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(side_stream)
        self.cache.position.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def decode(self, source: Tensor, mask: Tensor) -> Rows:
        self.mask.copy_(mask)
        for cached, encoded in zip(self.cross, self.model.encode(source, mask), strict=True):
            for cached_tensor, tensor in zip(cached, encoded, strict=True):
                cached_tensor.copy_(tensor)
        self.cache.position.zero_()
        self.token.fill_(self.model.config.start_token_id)
        tokens = []
        for _ in range(self.capacity):
            self.graph.replay()
            tokens.append(self.token.clone())
        rows: Rows = torch.stack(tokens, dim=1).tolist()
        return rows

    def _step(self) -> None:
        logits = self.model.decode(
            self.token[:, None], self.cache.position, self.mask, self.cross, self.cache
        )
        self.token.copy_(logits[:, -1].argmax(-1))
        self.cache.position.add_(1)
