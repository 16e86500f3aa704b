"""Which passes make which target."""

from __future__ import annotations

from dragoman.runtime.manifest import Precision

from .cpu.attention import ATTENTION
from .cpu.greedy_choice import GREEDY_CHOICE
from .cpu.layer_norm import LAYER_NORM
from .cpu.packed_projections import PACKED_PROJECTIONS
from .cpu.self_attention import SELF_ATTENTION
from .cpu.tied_output import TIED_OUTPUT
from .graph_pass import GraphPass
from .precision.blocks import BlockQuantized
from .precision.int8 import Int8
from .precision.weights import Scheme
from .tidy import Tidy

CPU_FUSIONS: tuple[GraphPass, ...] = (
    SELF_ATTENTION,
    ATTENTION,
    PACKED_PROJECTIONS,
    LAYER_NORM,
    GREEDY_CHOICE,
    Tidy(),
)
CPU_FP32: tuple[GraphPass, ...] = (TIED_OUTPUT,)
"""Last, and only where weights stay as they are."""

PRECISIONS: tuple[Precision, ...] = ("fp32", "int8", "int4")
"""What the cpu target offers."""

BLOCK = 32
"""Inputs that share a scale in 4 bits."""

QUANTIZATION_TOLERANCE = 1.0
"""What quantization may change in an output, relative to its largest value: beyond it nothing of
the output is left. Each product is held to its scheme's `error`; whether the quality of the whole
is good enough is for parity to say, on the model's own task."""


def schemes(precision: Precision, d_model: int) -> tuple[Scheme, Scheme, Scheme]:
    """For the encoder's products, the decoder's, and embeddings.

    The encoder sees many tokens at once: there 8 bits are faster than 4.
    """
    int8, blocks = Int8(), BlockQuantized(4, BLOCK, error=0.2)
    if precision == "int8":
        return int8, int8, int8
    return int8, blocks, blocks if d_model % BLOCK == 0 else int8
