"""The options of a training, the learning rate that follows from them, and its interruption.

The learning rate is that of "Attention Is All You Need", equation 3, or another schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import Signals
from typing import Literal

from dragoman.errors import DragomanError, shown

from ..settings import check_settings, read_settings


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The hyper-parameters of a training.

    The defaults are those of "Attention Is All You Need", section 5, except for the batch size.

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    epochs: int
    """Maximum number of epochs; a checkpoint is written after each."""
    patience: int | None = None
    """Training ends early once the monitored figure has not improved for this many epochs; None:
    never."""
    monitor: Literal["loss", "metric"] = "loss"
    """The figure of the validation data that chooses the best epoch and the weights to deliver: the
    loss, or the first metric."""
    batch_tokens: int = 4096
    """Maximum number of tokens per batch, padding included, on the source and target side each."""
    accumulate: int = 1
    """Batches whose gradients are added up for one step of the optimizer."""
    schedule: Literal["inverse-square-root", "linear", "cosine", "constant"] = "inverse-square-root"
    """The learning rate after the warm-up, in which it rises linearly: it falls with the inverse
    square root of the step, falls to 0 at the end of the last epoch, on a line or on half a wave of
    a cosine, or stays as it is."""
    learning_rate: float | None = None
    """The learning rate at the end of the warm-up; None: the paper's, (d_model *
    warmup_steps)^-0.5."""
    learning_rate_scale: float = 1.0
    """A factor of the learning rate."""
    warmup_steps: int = 4000
    cool_down_epochs: int = 0
    """The learning rate falls linearly to zero over this many final epochs; the paper has no such
    phase."""
    clip_norm: float | None = None
    """Maximum norm of a step's gradient, over all weights; a larger one is scaled down (Pascanu et
    al. 2013). None: unlimited."""
    label_smoothing: float = 0.1
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_epsilon: float = 1e-9
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """The precision of matrix products; weights and their gradients stay fp32. With fp16, the loss
    is scaled so that gradients do not underflow, and a step whose gradient overflows is left out
    (Micikevicius et al. 2018)."""
    average_epochs: int = 5
    """Number of last epochs whose weights are averaged. The average is delivered unless the best or
    the last epoch is better on the validation data."""
    save_every: int = 200
    """Steps between saves of the training state."""
    validate_every: int | None = None
    """Steps between validations within an epoch, which are only recorded; None: validation at the
    end of each epoch."""
    seed: int = 1

    def __post_init__(self) -> None:
        check_settings(self, self._out_of_range)

    def _out_of_range(self) -> Iterator[str]:
        counts = ("epochs", "batch_tokens", "accumulate", "warmup_steps", "average_epochs")
        for name in (*counts, "save_every", "patience", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name}: expected at least 1, found {shown(value)}"
        if self.cool_down_epochs < 0:
            yield f"cool_down_epochs: expected at least 0, found {shown(self.cool_down_epochs)}"
        if self.cool_down_epochs > self.epochs > 0:
            yield (
                f"cool_down_epochs: expected at most {self.epochs}, the epochs of the training, "
                f"found {shown(self.cool_down_epochs)}"
            )
        if self.cool_down_epochs and self.schedule in FALLING_TO_ZERO:
            yield (
                f"cool_down_epochs: expected 0 with the schedule {self.schedule}, which falls to 0 "
                f"over all epochs, found {shown(self.cool_down_epochs)}"
            )
        for name in ("learning_rate", "learning_rate_scale", "clip_norm", "adam_epsilon"):
            value = getattr(self, name)
            if value is not None and not value > 0:  # NaN too
                yield f"{name}: expected more than 0, found {shown(value)}"
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            yield f"adam_betas: expected numbers from 0 to below 1, found {list(self.adam_betas)}"
        if not 0 <= self.seed < 2**32:
            yield f"seed: expected 0 to below 2^32, found {shown(self.seed)}"
        if not 0 <= self.label_smoothing < 1:
            yield f"label_smoothing: expected 0 to below 1, found {shown(self.label_smoothing)}"


FALLING_TO_ZERO = ("linear", "cosine")
"""The schedules that depend on the number of epochs."""

WITHOUT_EFFECT_ON_STEPS = ("patience", "monitor", "average_epochs", "save_every", "validate_every")
"""Options that change no step of a training, so that it resumes with others."""

OF_BATCHES = ("batch_tokens", "accumulate")
"""Options that determine the batches of an epoch, which are made at its beginning."""


def with_changes(options: TrainingOptions, changes: Mapping[str, object]) -> TrainingOptions:
    """Return options with other values for some fields.

    Raises:
        DragomanError: a field is unknown, is the seed, which a training keeps, or is out of range.
    """
    if "seed" in changes:
        raise DragomanError(
            "change of options: expected one that may change during a training, found seed; start "
            "another training in a new directory"
        )
    return read_settings(TrainingOptions, asdict(options) | dict(changes), "change of options")


class TrainingStoppedError(DragomanError):
    """A training that a signal stopped after a step, and whose state is saved in a directory."""

    def __init__(self, signal: int, directory: Path, step: int) -> None:
        self.signal, self.directory, self.step = signal, directory, step
        super().__init__(
            f"{Signals(signal).name}: the training stopped after step {step}, its state is saved "
            f"in {directory}"
        )


def learning_rate(options: TrainingOptions, step: int, *, d_model: int, steps: int) -> float:
    """Return the learning rate of a step, from 1 on, without the factor of a cool-down.

    `steps` is the number of steps of the whole training.
    """
    warmup, scale = options.warmup_steps, options.learning_rate_scale
    if options.learning_rate is not None:  # the peak of the paper's is (d_model * warmup)^-0.5
        scale *= options.learning_rate * (d_model * warmup) ** 0.5
    if step <= warmup or options.schedule == "inverse-square-root":
        return inverse_square_root(step, d_model=d_model, warmup_steps=warmup, scale=scale)
    peak = inverse_square_root(warmup, d_model=d_model, warmup_steps=warmup, scale=scale)
    if options.schedule == "constant":
        return peak
    done = min(1.0, (step - warmup) / max(steps + 1 - warmup, 1))
    return peak * (1 - done if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def inverse_square_root(step: int, *, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Return d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) * scale, for step >= 1."""
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def cool_down(epochs_done: float, *, epochs: int, cool_down_epochs: int) -> float:
    """Return a factor that falls linearly to 0 over the last epochs (Zhai et al. 2022, 3.5)."""
    left = epochs - epochs_done
    return min(1.0, left / cool_down_epochs) if cool_down_epochs else 1.0
