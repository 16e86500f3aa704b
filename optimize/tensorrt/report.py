"""What an engine is made of, as far as it can be known without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.engines import EngineReport

FUSED = re.compile(rb"function=\{ name=\"?(_\w*mha\w*)")
"""Kernels of fused attention in the readable part of a TensorRT-RTX engine. That format is not
documented: this is a diagnosis, not a contract."""


def report(package: Package, network: Any, graph: Path, plan: bytes) -> EngineReport:
    """
    Args:
        network: INetworkDefinition, from the graph
        plan: the serialized engine
    """
    trt = package.module
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type).rpartition(".")[2].lower() for layer in layers)
    fused = Counter(name.decode() for name in FUSED.findall(plan))
    return EngineReport(
        layers=dict(sorted(kinds.items())),
        weights=_weights(graph),
        attentions=sum(layer.type == trt.LayerType.ATTENTION_INPUT for layer in layers),
        fused=dict(sorted(fused.items())) if package.name == "tensorrt-rtx" else None,
    )


def lost_attention(found: EngineReport, profiles: int) -> str | None:
    """In words, how many attentions are not one kernel; None: all are, or nobody can say."""
    if found.fused is None:
        return None
    fused = sum(found.fused.values())
    expected = found.attentions * profiles
    return None if fused >= expected else f"{expected - fused} of {expected} attentions not fused"


def _weights(graph: Path) -> dict[str, int]:
    """Bytes by number format."""
    sizes: Counter[str] = Counter()
    for value in ir.load(graph).graph.initializers.values():
        if value.const_value is not None:
            sizes[value.const_value.dtype.numpy().name] += value.const_value.nbytes
    return dict(sorted(sizes.items()))
