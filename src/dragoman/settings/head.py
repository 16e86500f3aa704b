"""Heads of encoder-only models: embeddings, labels, tokens or answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dragoman.errors import shown

Task = Literal[
    "embedding",
    "sequence-classification",
    "token-classification",
    "masked-language-model",
    "question-answering",
]


@dataclass(frozen=True)
class HeadTask:
    """The task of a head, shared by the trained model and the bundle."""

    task: Task
    labels: tuple[str, ...] = field(default=(), kw_only=True)
    """Labels of a classification; a single label means regression."""
    multi_label: bool = field(default=False, kw_only=True)
    """Whether labels have independent probabilities, so that several may be true."""

    @property
    def classifies(self) -> bool:
        """Whether the outputs are logits of labels."""
        return self.task in ("sequence-classification", "token-classification")


@dataclass(frozen=True)
class Head(HeadTask):
    """The head of an encoder-only model in a bundle."""

    outputs: int
    """Size of an embedding, or number of logits: one per label, one per token of the vocabulary, or
    two for the start and end of an answer."""
    d_model: int
    """Size of a hidden state."""
    token_types: int = 0
    """Number of token types; 0: none."""
    mask_token_id: int | None = None
    """Mask token of a masked language model."""

    @property
    def entailment(self) -> int | None:
        """The logit of entailment, as transformers finds it; None without such a label."""
        if self.task != "sequence-classification" or len(self.labels) < 2:
            return None
        found = (label.lower().startswith("entail") for label in self.labels)
        return next((number for number, is_it in enumerate(found) if is_it), None)

    def problems(self, vocabulary: int) -> list[str]:
        """Return the values out of range for a source vocabulary of this size, one line each."""
        problems = [
            f"{name}: out of range, found {shown(value)}"
            for name, value, least in (
                ("outputs", self.outputs, 1),
                ("d_model", self.d_model, 1),
                ("token_types", self.token_types, 0),
            )
            if value < least
        ]
        labels = self.outputs if self.classifies else 0
        if len(self.labels) != labels:
            problems.append(f"labels: expected {labels} for {self.task}, found {len(self.labels)}")
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
