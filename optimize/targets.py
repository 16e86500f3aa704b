"""Which targets there are, what each offers, and the fusions that make it."""

from __future__ import annotations

from dragoman.errors import DragomanError
from dragoman.runtime.format.manifest import Precision, Target

from .cpu.attention import ATTENTION
from .cpu.bias_gelu import BIAS_GELU
from .cpu.greedy_choice import GREEDY_CHOICE
from .cpu.layer_norm import LAYER_NORM
from .cpu.packed_projections import PACKED_PROJECTIONS
from .cpu.query_scale import QUERY_SCALE
from .cpu.self_attention import SELF_ATTENTION
from .cpu.tied_output import TIED_OUTPUT
from .graph_pass import GraphPass
from .tidy import Tidy

CPU_FUSIONS: tuple[GraphPass, ...] = (
    SELF_ATTENTION,
    ATTENTION,
    PACKED_PROJECTIONS,
    QUERY_SCALE,
    LAYER_NORM,
    BIAS_GELU,
    GREEDY_CHOICE,
    Tidy(),
)
CPU_FP32: tuple[GraphPass, ...] = (TIED_OUTPUT,)
"""Last, and only where weights stay as they are."""

ALL: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
PRECISIONS: dict[Target, tuple[Precision, ...]] = {
    "neutral": ALL,
    "cpu": ("fp32", "int8", "int4"),
    "tensorrt-rtx": ALL,
    "tensorrt": ALL,
}
"""What each target offers. int8 and int4 are weights only, but for the cpu; for TensorRT what they
are multiplied with is fp16."""


def check_precision(target: Target, precision: Precision) -> None:
    """
    Raises:
        DragomanError: the target has no such precision.
    """
    if precision not in PRECISIONS[target]:
        raise DragomanError(
            f"target {target}: expected precision {', '.join(PRECISIONS[target])}, found "
            f"{precision}"
        )
