"""The history of a training: figures of each epoch, and the training curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dragoman.files.regular_files import write_whole


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch.

    Attributes:
        epoch: counts from 1
        step: number of optimizer steps so far
        loss: mean training loss per target token: label-smoothed cross-entropy, in nats
        validation_loss: mean loss per target token of validation data: cross-entropy without label
            smoothing, in nats
        metric: the recipe's metric on validation data
        seconds: training time of the epoch
    """

    epoch: int
    step: int
    loss: float
    validation_loss: float
    metric: float
    seconds: float


def write_history(epochs: Sequence[Epoch], path: Path) -> None:
    """Write one JSON object per line for each epoch.

    Raises:
        DragomanError: the file cannot be written.
    """
    lines = "".join(json.dumps(asdict(e)) + "\n" for e in epochs)
    write_whole(path, lambda partial: partial.write_text(lines, encoding="utf-8"))


def plot_history(epochs: Sequence[Epoch], metric_name: str, path: Path) -> None:
    """Plot losses and metric over epochs to a PNG file.

    Raises:
        DragomanError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    loss_axis = figure.add_subplot()
    metric_axis = loss_axis.twinx()
    x = [e.epoch for e in epochs]
    loss_axis.plot(x, [e.loss for e in epochs], color="tab:blue", label="training")
    loss_axis.plot(x, [e.validation_loss for e in epochs], color="tab:green", label="validation")
    loss_axis.legend(title="loss (nats per token)", loc="upper center")
    metric_axis.plot(x, [e.metric for e in epochs], color="tab:orange")
    loss_axis.set_xlabel("epoch")
    loss_axis.set_ylabel("loss (nats per token)")
    metric_axis.set_ylabel(f"validation {metric_name}", color="tab:orange")
    loss_axis.grid(alpha=0.3)
    write_whole(path, lambda partial: figure.savefig(partial, format="png", dpi=120))
