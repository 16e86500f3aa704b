"""How far a bundle may be from the oracle, by precision, and from itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.optimize.running import RESOLUTION
from dragoman.runtime.format.manifest import Precision

TOLERANCES: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": RESOLUTION[ir.DataType.FLOAT16],
    "bf16": RESOLUTION[ir.DataType.BFLOAT16],
    "int8": 0.15,
    "int4": 0.5,
}
"""The largest absolute difference of a tensor over max(1, largest absolute value of the oracle's).
Below fp32 no tensor is held to it, see `ROUNDING_MULTIPLES`. It says which tokens a difference can
explain, and from which difference on a tensor within a graph counts as different."""

ROUNDING_MULTIPLES: dict[Precision, float] = {"fp16": 2.0, "bf16": 2.5, "int8": 4.0, "int4": 2.0}
"""How far the distributions of the next token may be from the oracle's on average, as a multiple of
what rounding to nearest does to the oracle itself. Trained models (g2p-en, annalog, Whisper tiny.en
and base) reach 0.8, 1.3, 1.2 and 1.3, random ones 0.9, 1.6, 3.0 and 1.5. At fp32, tensors and
tokens decide."""

DIVERGENCE_LIMITS: dict[Precision, float] = {"fp16": 1e-4, "bf16": 0.005, "int8": 0.1, "int4": 0.3}
"""The same in nats, whatever rounding does, on inputs of the model's own kind. The trained models
above reach 2e-6, 0.0005, 0.011 and 0.072, and random ones 0.23 in int8. 0.1 nats are a perplexity
10 % higher."""

COSINE_LIMITS: dict[Precision, float] = {
    "fp32": 0.999999,
    "fp16": 0.9999,
    "bf16": 0.995,
    "int8": 0.98,
    "int4": 0.95,
}
"""The smallest mean cosine of the angle between embeddings and the oracle's, on inputs of the
model's own kind."""

NEGLIGIBLE = 1e-6
"""A mean divergence, in nats, that always passes: a millionth of a perplexity is nothing."""

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


LARGEST_OF_MEAN = 300.0
"""How many times the mean the divergence of one position may be. Right bundles reach 40."""


@dataclass(frozen=True)
class Slack:
    """How far a bundle's outputs may be from its own, computed in steps or in another batch.

    Attributes:
        channels: the largest difference of each logit; None below fp32, where activations that are
            rounded to one side or the other move whole distributions
        mean: nats of divergence on average: as much as the bundle is from the oracle
        of_size: the largest difference of other outputs, relative to their largest value
    """

    channels: NDArray[Any] | None
    mean: float = NEGLIGIBLE
    of_size: float = 3e-5

    @property
    def largest(self) -> float:
        """The largest divergence at one position, in nats."""
        return LARGEST_OF_MEAN * self.mean

    def mean_excess(self, divergences: Sequence[float]) -> float:
        """Compute the mean of some divergences as a multiple of what is allowed; 0 of none."""
        return float(np.mean(divergences)) / self.mean if divergences else 0.0
