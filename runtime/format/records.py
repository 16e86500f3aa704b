"""What was proven of a bundle, and what made its graphs: the records in its manifest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorParity:
    """Teacher-forced tensors beside the oracle's. `difference` is the largest absolute difference
    divided by max(1, the largest absolute value of the oracle's tensor). Where some positions are
    excused, they are those that differ most, and the largest is that of the others;
    `positions_beyond` are all that differ by more than the tolerance."""

    name: str
    largest_absolute: float
    largest_relative: float
    difference: float
    tolerance: float
    passed: bool
    positions: int = 0
    positions_beyond: int = 0


@dataclass(frozen=True)
class Divergence:
    """The first step at which a sequence leaves the oracle's; `margin` is the oracle's logit of
    its own choice less that of the other token."""

    input: int
    step: int
    expected_token: int
    found_token: int
    margin: float


@dataclass(frozen=True)
class TokenParity:
    """Free-running greedy sequences beside the oracle's."""

    sequences: int
    identical: int
    divergences: tuple[Divergence, ...]
    passed: bool


@dataclass(frozen=True)
class TaskParity:
    """The model's own metric, of the oracle and of the bundle, on the same references."""

    metric: str
    oracle: float
    bundle: float
    passed: bool


@dataclass(frozen=True)
class Parity:
    """The outcome of `dragoman verify`: what was compared, with what, and the figures."""

    passed: bool
    oracle: str
    inputs: str
    backend: str
    tensors: tuple[TensorParity, ...]
    tokens: TokenParity
    task: TaskParity | None = None


@dataclass(frozen=True)
class Refusal:
    """A node that a pass was there to replace and left alone, and why.

    `matched`: whether a pattern matched whole and was found unfit; else none did.
    """

    node: str
    operator: str
    reason: str
    matched: bool = True


@dataclass(frozen=True)
class PassRecord:
    """What one pass did to one graph.

    Attributes:
        graph: "encoder" or "decoder"; of a lone ONNX file its name
        matches: how many times it changed something
        nodes_before, nodes_after: of the graph
        difference: the largest that it caused in any output, divided by max(1, the output's largest
            absolute value), measured with the runtime's own optimizations off; None: not measured
        tolerance: what was allowed
    """

    name: str
    graph: str
    matches: int
    refusals: tuple[Refusal, ...]
    nodes_before: int
    nodes_after: int
    difference: float | None
    tolerance: float
