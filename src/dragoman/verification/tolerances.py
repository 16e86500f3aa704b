"""Tolerances of parity by precision, and of a bundle's outputs compared with each other.

`Tally` counts what a check compares with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.optimize.running import RESOLUTION
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import Check

TOLERANCES: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": RESOLUTION[ir.DataType.FLOAT16],
    "bf16": RESOLUTION[ir.DataType.BFLOAT16],
    "int8": 0.15,
    "int4": 0.5,
}
"""The largest absolute difference of a tensor, divided by max(1, the largest value of the oracle).
Tensors are judged by it at fp32 only; below, see `ROUNDING_MULTIPLES`. In every precision it
defines ties between tokens, and which tensors within a graph count as different."""

ROUNDING_MULTIPLES: dict[Precision, float] = {"fp16": 2.0, "bf16": 2.5, "int8": 4.0, "int4": 2.0}
"""The largest mean divergence of next-token distributions from the oracle's, as a multiple of the
divergence of the rounded oracle. Trained models (g2p-en, annalog, Whisper tiny.en
and base) reach 0.8, 1.3, 1.2 and 1.3, random ones 0.9, 1.6, 3.0 and 1.5. At fp32, tensors and
tokens decide."""

DIVERGENCE_LIMITS: dict[Precision, float] = {"fp16": 1e-4, "bf16": 0.005, "int8": 0.1, "int4": 0.3}
"""The largest mean divergence in nats, but for default inputs. The trained models above reach 2e-6,
0.0005, 0.011 and 0.072, and random ones 0.23 in int8. A divergence of 0.1 nats raises perplexity by
10 %."""

COSINE_LIMITS: dict[Precision, float] = {
    "fp32": 0.999999,
    "fp16": 0.9999,
    "bf16": 0.995,
    "int8": 0.98,
    "int4": 0.95,
}
"""The smallest mean cosine between embeddings and the oracle's, on inputs that are not random."""

NEGLIGIBLE = 1e-6
"""A mean divergence in nats that always passes. It changes perplexity by a millionth."""

TASK_TOLERANCES: dict[Precision, float] = {
    "fp32": 0.0,
    "fp16": 0.003,
    "bf16": 0.003,
    "int8": 0.003,
    "int4": 0.007,
}
"""The largest loss of the task's metric, as a share."""

REFERENCE_TOLERANCES: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": 0.002,
    "bf16": 0.02,
    "int8": 0.08,
    "int4": 0.2,
}
"""The largest increase of the negative log-likelihood of references, in nats per token. It is twice
what was measured on g2p-en, Whisper tiny.en and Whisper base."""


LARGEST_OF_MEAN = 300.0
"""The largest divergence of one position, as a multiple of the mean. Right bundles reach 40."""


@dataclass(frozen=True)
class Slack:
    """The tolerance between outputs of a bundle in one pass, in steps and in other batches."""

    channels: NDArray[Any] | None
    """The largest difference of each logit; None below fp32, where activations that are rounded to
    one side or the other move whole distributions."""
    mean: float = NEGLIGIBLE
    """The mean divergence in nats, which is that of the bundle from the oracle."""
    of_size: float = 3e-5
    """The largest difference of other outputs, relative to their largest value."""

    @property
    def largest(self) -> float:
        """The largest divergence at one position, in nats."""
        return LARGEST_OF_MEAN * self.mean


@dataclass
class Tally:
    """What a check has compared so far, with the first and the largest difference."""

    compared: int = 0
    differing: int = 0
    worst: float = 0.0
    """The largest difference as a multiple of what is allowed."""
    problem: str = ""
    """The first difference beyond it as a sentence; empty: there is none."""

    def add(self, compared: int, differing: int, excess: float, problem: str) -> None:
        """Count more that was compared, with its largest difference and its problem, if any."""
        self.compared += compared
        self.differing += differing
        self.worst = max(self.worst, excess)
        self.problem = self.problem or problem

    def check(self, name: str, unit: str) -> Check:
        """Make the check, which passes if nothing differs and there is no problem."""
        passed = not (self.differing or self.problem)
        return Check(name, self.compared, unit, self.differing, passed, self.worst, self.problem)
