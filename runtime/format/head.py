"""What an encoder alone gives: vectors, labels, tokens or answers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal[
    "embedding",
    "sequence-classification",
    "token-classification",
    "masked-language-model",
    "question-answering",
]


@dataclass(frozen=True)
class Head:
    """
    Attributes:
        outputs: components of an embedding; else logits: one for each label or token of the
            vocabulary, or two: that the answer begins and that it ends at a token
        d_model: components of a hidden state
        token_types: kinds of segments that the graph tells apart; 0: none
        labels: of a classification; one alone is a number that is estimated
        multi_label: each label of a text is true or not by itself
        mask_token_id: the token that stands where a masked language model finds one
    """

    task: Task
    outputs: int
    d_model: int
    token_types: int = 0
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    mask_token_id: int | None = None

    def problems(self, vocabulary: int) -> list[str]:
        """Values out of range for a source vocabulary of this size, a line each."""
        problems = [
            f"{name}: out of range, found {value}"
            for name, value, least in (
                ("outputs", self.outputs, 1),
                ("d_model", self.d_model, 1),
                ("token_types", self.token_types, 0),
            )
            if value < least
        ]
        classifies = self.task in ("sequence-classification", "token-classification")
        if len(self.labels) != (self.outputs if classifies else 0):
            problems.append(
                f"labels: expected {self.outputs if classifies else 0} for {self.task}, found "
                f"{len(self.labels)}"
            )
        fills = self.task == "masked-language-model"
        if fills != (self.mask_token_id is not None):
            problems.append(
                f"mask_token_id: expected {'one' if fills else 'none'} for {self.task}, found "
                f"{self.mask_token_id}"
            )
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < vocabulary:
            problems.append(
                f"mask_token_id: expected an id in [0, {vocabulary}), found {self.mask_token_id}"
            )
        for task, outputs in (("masked-language-model", vocabulary), ("question-answering", 2)):
            if self.task == task and self.outputs != outputs:
                problems.append(f"outputs: expected {outputs} for {task}, found {self.outputs}")
        return problems
