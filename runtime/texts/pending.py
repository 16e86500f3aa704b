"""A text on its way to its result. See `front_end.Pending`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..decoding.loop import Decoding, Job
from ..decoding.rejection import NO_OUTPUT
from ..decoding.results import Result
from ..decoding.scheduling import Failed
from ..decoding.search import Draft
from .plan import TextPlan
from .results import nothing, result_of
from .tokenizer import TextCodec, TokenizerError


class PendingText:
    """All its jobs can be decoded at once: its search, or each of its samples.

    Args:
        source: token ids
        codec: None for a bundle without tokenizers

    Raises:
        RejectedError: see `TextPlan.request`.
    """

    def __init__(self, source: list[int], plan: TextPlan, codec: TextCodec | None) -> None:
        self.source, self.plan, self._codec = source, plan, codec
        request = plan.request(source)
        self.jobs = [Job(n, request, strategy) for n, strategy in enumerate(plan.strategies)]
        self._outcomes: dict[int, Decoding[Any] | Failed[Any]] = {}

    @property
    def given(self) -> Sequence[int]:
        return self.plan.given

    def add(self, number: int, outcome: Decoding[Any] | Failed[Any]) -> Result | None:
        self._outcomes[number] = outcome
        return self._result() if len(self._outcomes) == len(self.jobs) else None

    def _result(self) -> Result:
        drafts: list[Draft] = []
        for _, outcome in sorted(self._outcomes.items()):
            if isinstance(outcome, Failed):
                return self._rejected(outcome.reason)
            drafts += outcome.drafts
        if not drafts:
            return self._rejected(NO_OUTPUT)
        try:
            return result_of(drafts, self.given, self._codec)
        except TokenizerError as failure:
            return nothing("", "rejected", str(failure))

    def _rejected(self, reason: str) -> Result:
        return nothing(self._codec.decode(()) if self._codec else None, "rejected", reason)
