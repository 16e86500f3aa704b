"""How to train."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.errors import DragomanError


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Hyper-parameters of training; except for the batch size, the defaults are those of section 5
    of "Attention Is All You Need".

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    epochs: int
    batch_tokens: int = 4096
    """Maximum number of tokens per batch, padding included, on the source and target side each."""
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    cool_down_epochs: int = 0
    """The learning rate falls linearly to zero over this many final epochs; the paper has no such
    phase."""
    label_smoothing: float = 0.1
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_epsilon: float = 1e-9
    average_epochs: int = 5
    """The final weights are averaged over the checkpoints of this many last epochs."""
    seed: int = 1

    def __post_init__(self) -> None:
        problems = [
            f"{name}: expected at least 1, found {getattr(self, name)}"
            for name in ("epochs", "batch_tokens", "warmup_steps", "average_epochs")
            if getattr(self, name) < 1
        ]
        if self.cool_down_epochs < 0:
            problems.append(f"cool_down_epochs: expected at least 0, found {self.cool_down_epochs}")
        if problems:
            raise DragomanError("; ".join(problems))
