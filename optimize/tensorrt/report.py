"""The contents of an engine, as far as they can be known without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.executables import EngineReport

# The readable part of a TensorRT-RTX engine. Its format is undocumented: findings are diagnostics,
# not facts to rely on.
FUSED = re.compile(rb"function=\{ name=\"?(_\w*mha\w*)")
"""Kernels of fused attention."""

DEQUANTIZATION = re.compile(rb"function=\{ name=\"?__myl_(?:Repl)?CastMulCast[\",} ]")
"""Kernels that only expand a weight to 16 bits, for another kernel to multiply: more memory traffic
than a 16-bit weight causes."""


def report(package: Package, network: Any, graph: Path, plan: bytes) -> EngineReport:
    """
    Args:
        network: INetworkDefinition, from the graph
        plan: the serialized engine
    """
    trt = package.module
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type).rpartition(".")[2].lower() for layer in layers)
    readable = package.name == "tensorrt-rtx"
    fused = Counter(name.decode() for name in FUSED.findall(plan))
    return EngineReport(
        layers=dict(sorted(kinds.items())),
        weights=_weights(graph),
        attentions=sum(layer.type == trt.LayerType.ATTENTION_INPUT for layer in layers),
        fused=dict(sorted(fused.items())) if readable else None,
        dequantizations=len(DEQUANTIZATION.findall(plan)) if readable else None,
    )


def losses(report: EngineReport, profiles: int) -> list[str]:
    """Warnings about fused kernels that an engine with this many profiles should have but lacks."""
    warnings = []
    if report.fused is not None:
        fused, expected = sum(report.fused.values()), report.attentions * profiles
        if fused < expected:
            warnings.append(
                f"{expected - fused} of {expected} attentions have no fused kernel (fp32 has none "
                "for several queries; 16 bits have them for heads whose size is a multiple of 8)"
            )
    if report.dequantizations:
        warnings.append(
            f"{report.dequantizations} weights are dequantized by a separate kernel in every "
            "run, which takes longer than reading them in fp16"
        )
    return warnings


def _weights(graph: Path) -> dict[str, int]:
    """Bytes by number format."""
    sizes: Counter[str] = Counter()
    for value in ir.load(graph).graph.initializers.values():
        if value.const_value is not None:
            sizes[value.const_value.dtype.numpy().name] += value.const_value.nbytes
    return dict(sorted(sizes.items()))
