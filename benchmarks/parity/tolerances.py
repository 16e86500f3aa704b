"""How far a bundle may be from the oracle, by precision."""

from __future__ import annotations

import onnx_ir as ir

from dragoman.optimize.compare import RESOLUTION
from dragoman.runtime.format.manifest import Manifest, Precision

TOLERANCES: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": RESOLUTION[ir.DataType.FLOAT16],
    "bf16": RESOLUTION[ir.DataType.BFLOAT16],
    "int8": 0.15,
    "int4": 0.5,
}
"""Of tensors: largest absolute difference over max(1, largest absolute value of the oracle's)."""

TASK_TOLERANCES: dict[Precision, float] = {
    "fp32": 0.0,
    "fp16": 0.003,
    "bf16": 0.003,
    "int8": 0.003,
    "int4": 0.007,
}
"""How much worse the task's metric may be."""

REFERENCE_TOLERANCES: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": 0.002,
    "bf16": 0.02,
    "int8": 0.08,
    "int4": 0.2,
}
"""How much higher the negative log-likelihood of references may be, in nats per token: twice what
was measured on g2p-en and on Whisper tiny.en and base, whose few clips decide."""

QUANTIZED: frozenset[Precision] = frozenset({"int8", "int4"})

EXCUSED_OF_SPEECH = 0.05
"""The share of audio positions whose cross keys and values may exceed the tolerance in int8 and
int4. Trained speech encoders write numbers a hundred times larger than all others at a few
positions ("Massive Activations", Sun et al. 2024), mostly of silence. Which positions those are
depends on less than what rounding to 8 bits changes, however few products are rounded: in Whisper
base, 3 in a hundred move, without any effect on logits and words."""


def excused_share(manifest: Manifest, tensor: str) -> float:
    """The share of a tensor's positions that may exceed the tolerance."""
    speech = manifest.audio is not None and manifest.precision in QUANTIZED
    return EXCUSED_OF_SPEECH if speech and tensor != "logits" else 0.0
