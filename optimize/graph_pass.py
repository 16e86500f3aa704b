"""Graph passes, which change a graph in place and report what they changed and refused.

A `RulePass` applies rules of `onnxscript.rewriter` and reports why other candidates stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import (
    MatchingTracer,
    MatchResult,
    MatchStatus,
    RewriteRule,
    RewriteRuleClassBase,
    RewriteRuleSet,
)

from dragoman.errors import DragomanError
from dragoman.runtime.format.manifest import Choice, Refusal

from .graph_values import UnsupportedPatternError

Property = str
"""A property of a graph, such as "opset 24" or "fused attention"."""


class PassError(DragomanError):
    """A pass cannot be applied to a graph, or changes its outputs too much."""


@dataclass(frozen=True)
class Changes:
    """The changes that a pass made to a graph."""

    matches: int
    refusals: tuple[Refusal, ...] = ()
    """Candidates that were left unchanged, with reasons."""
    uncounted: bool = False
    """Whether the graph may have changed in ways that `matches` does not count."""
    rounding: float = 0.0
    """The difference that this number of changes may add up to, relative to an output's largest
    value or 1; it applies where it exceeds the pass's tolerance."""
    choices: tuple[Choice, ...] = ()

    @property
    def any(self) -> bool:
        """Whether the graph may have changed."""
        return self.uncounted or self.matches > 0


ROUNDING = 1e-5
"""The tolerance of a fusion, which computes the same sums in another order, in fp32."""


class GraphPass:
    """A transformation of a graph."""

    name: str
    """The name in reports and records, such as "layer-norm"."""
    requires: frozenset[Property] = frozenset()
    """The properties that a graph must have."""
    ensures: frozenset[Property] = frozenset()
    """The properties that a graph has afterwards."""
    tolerance: float = ROUNDING
    """The largest difference in any output, relative to its largest value or 1; see also
    `Changes.rounding`."""

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
        raise NotImplementedError


ROUNDING_EACH, ROUNDING_MOST = 2e-6, 5e-5
"""The tolerance for each match of a fusion, and the limit of their sum.

Differences add up in deep models. The limit is half of what parity allows."""


class FusionRule(RewriteRuleClassBase):
    """A rewrite rule that leaves nodes with other readers and says what it does not support."""

    name = ""

    def __init__(self, name: str = "") -> None:
        super().__init__(name or self.name, remove_nodes=False)

    @classmethod
    def rules(cls) -> Sequence[RewriteRule]:
        """Make the rule of a class that has one form only."""
        return [cls.rule()]

    def check(self, context: Any, **bound: Any) -> MatchResult:
        """Check what the pattern cannot express, see `refusal`."""
        result = MatchResult()
        try:
            reason = self.refusal(context, **bound)
        except UnsupportedPatternError as error:
            reason = str(error)
        return result.fail(reason) if reason else result

    def refusal(self, context: Any, **bound: Any) -> str:
        """Return why a match is not rewritten; "" if it is."""
        return ""


@dataclass(frozen=True)
class RulePass(GraphPass):
    """A pass that applies rewrite rules until none matches."""

    name: str
    rules: Callable[[], Sequence[RewriteRule]]
    """Creates the rules, once for each application."""
    candidate: Callable[[ir.Node], bool] = lambda node: False
    """Whether the pass should replace a node; remaining candidates are reported as refusals."""
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset()
    tolerance: float = ROUNDING

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
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
        refusals = tuple(map(tracer.refusal, left))
        return Changes(matches, refusals, rounding=rounding)


MATCHED = 1_000_000
"""The score of a complete match, greater than the number of nodes in any pattern."""


class _Refusals(MatchingTracer):
    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[ir.Node, tuple[int, str]] = {}

    def log(
        self,
        rule: RewriteRule,
        container: ir.Graph | ir.Function,
        node: ir.Node,
        match_result: MatchResult,
        status: MatchStatus,
    ) -> None:
        checked = status is MatchStatus.CONDITION_FAILED
        # A complete match that a rule's check rejects explains more than any partial match.
        score = len(match_result.nodes) + (MATCHED if checked else 0)
        reason = match_result.reason or "the pattern does not match"
        if not checked:
            reason = f"no supported pattern matches; the closest is {rule.name}: {reason}"
        for participant in {node, *match_result.nodes}:
            if score > self.reasons.get(participant, (-1, ""))[0]:
                self.reasons[participant] = (score, reason)

    def refusal(self, node: ir.Node) -> Refusal:
        score, reason = self.reasons.get(node, (0, "no supported pattern starts or ends here"))
        return Refusal(node.name or "", node.op_type, " ".join(reason.split()), score >= MATCHED)
