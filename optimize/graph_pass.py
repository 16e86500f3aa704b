"""What a pass is: it changes a graph in place, and says what it did and what it refused.

A pass states what it needs of a graph and what it leaves true. Fusions are rules for
`onnxscript.rewriter`; a `RulePass` applies some and finds out why others of their kind stayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir
from onnxscript.rewriter import (
    MatchingTracer,
    MatchResult,
    MatchStatus,
    RewriteRule,
    RewriteRuleSet,
)

from dragoman.errors import DragomanError
from dragoman.runtime.format.records import Refusal

Property = str
"""Something true of a graph, such as "opset 24" or "fused attention"."""


class PassError(DragomanError):
    """A pass met a graph that it cannot take; names the pass, and the node if it is one."""


@dataclass(frozen=True)
class Changes:
    """What one pass did to one graph.

    Attributes:
        matches: how many times it changed something
        refusals: what looked like its work and was left alone
        uncounted: whether it may have changed more than it counts
        rounding: the difference that so many changes may add up to, where that is more than the
            pass's tolerance
    """

    matches: int
    refusals: tuple[Refusal, ...] = ()
    uncounted: bool = False
    rounding: float = 0.0

    @property
    def any(self) -> bool:
        """Whether the graph may be another."""
        return self.uncounted or self.matches > 0


class GraphPass(Protocol):
    """A step from one graph to a better one.

    Attributes:
        name: as it stands in reports, such as "layer-norm"
        requires, ensures: properties of the graph before and after
        tolerance: the largest difference it may cause in any output, relative to the output's
            largest value or 1; see also `Changes.rounding`
    """

    @property
    def name(self) -> str: ...

    @property
    def requires(self) -> frozenset[Property]: ...

    @property
    def ensures(self) -> frozenset[Property]: ...

    @property
    def tolerance(self) -> float: ...

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""


ROUNDING = 1e-5
"""What a fusion may cause: the same sums in another order, fp32."""

ROUNDING_EACH, ROUNDING_MOST = 2e-6, 5e-5
"""Of a fusion that finds many: what each may cause, for in deep models they add up, and what all of
them may, half of what parity allows."""


@dataclass(frozen=True)
class RulePass:
    """Rewrite rules applied until none matches.

    Attributes:
        rules: makes the rules; fresh ones for each application
        candidate: whether a node, still there afterwards, is something that this pass is there to
            replace; each is a refusal
    """

    name: str
    rules: Callable[[], Sequence[RewriteRule]]
    candidate: Callable[[ir.Node], bool] = lambda node: False
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset()
    tolerance: float = ROUNDING

    def apply(self, model: ir.Model) -> Changes:
        rules = RewriteRuleSet(list(self.rules()))
        matches = 0
        while count := rules.apply_to_model(model):
            matches += count
        left = [node for node in model.graph.all_nodes() if self.candidate(node)]
        rounding = min(ROUNDING_EACH * matches, ROUNDING_MOST)
        if not left:
            return Changes(matches, rounding=rounding)
        tracer = _Refusals()
        rules.apply_to_model(model, tracer=tracer)
        refusals = tuple(tracer.refusal(node) for node in left)
        return Changes(matches, refusals, rounding=rounding)


MATCHED = 1_000_000
"""More than the nodes of any pattern."""


@dataclass
class _Refusals(MatchingTracer):
    """Remembers, for every node that took part in a failed match, the reason of the longest one."""

    reasons: dict[ir.Node, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def log(
        self,
        rule: RewriteRule,
        container: ir.Graph | ir.Function,
        node: ir.Node,
        match_result: MatchResult,
        status: MatchStatus,
    ) -> None:
        checked = status is MatchStatus.CONDITION_FAILED
        # A pattern that matched whole and was refused by its check says more than any that did not.
        score = len(match_result.nodes) + (MATCHED if checked else 0)
        reason = match_result.reason or "the pattern does not match"
        if not checked:
            reason = f"no known form; the nearest, {rule.name}, does not match: {reason}"
        for taking_part in {node, *match_result.nodes}:
            if score > self.reasons.get(taking_part, (-1, ""))[0]:
                self.reasons[taking_part] = (score, reason)

    def refusal(self, node: ir.Node) -> Refusal:
        score, reason = self.reasons.get(node, (0, "no known form begins or ends here"))
        return Refusal(node.name or "", node.op_type, " ".join(reason.split()), score >= MATCHED)
