"""The figures of a training: its history, its curve, and events for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.files.regular_files import write_whole

HISTORY_FILE = "history.jsonl"
CURVE_FILE = "curve.png"


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch."""

    epoch: int
    """Counts from 1."""
    step: int
    """Number of optimizer steps so far."""
    loss: float
    """Mean training loss per target token: label-smoothed cross-entropy, in nats."""
    validation_loss: float
    """Mean loss per target token of validation data: cross-entropy without label smoothing, in
    nats."""
    metric: float
    """The recipe's metric on validation data."""
    seconds: float
    """Training time of the epoch."""
    changed: Mapping[str, object] = field(default_factory=dict)
    """Options that changed in this epoch, with the first step that they applied to."""
    validations: Sequence[Mapping[str, float]] = field(default_factory=list)
    """Step, validation loss and metric of each validation within the epoch."""


@dataclass(frozen=True)
class Candidate:
    """Weights that a training may deliver, with their figures on validation data."""

    name: str
    """Either "average", "best" or "last"."""
    description: str
    """The epochs or the step that the weights are from."""
    validation_loss: float
    metric: float
    delivered: bool = False


def describe_candidates(candidates: Sequence[Candidate], metric_name: str) -> list[str]:
    """Return the lines of a table of candidates."""
    rows = [("weights", "from", "validation loss", metric_name, "")]
    rows += [
        (
            candidate.name,
            candidate.description,
            f"{candidate.validation_loss:.4f}",
            f"{candidate.metric:.4f}",
            "delivered" if candidate.delivered else "",
        )
        for candidate in candidates
    ]
    aligned = [
        [f"{cell:{side}{max(map(len, column))}}" for cell in column]
        for side, column in zip("<<>><", zip(*rows, strict=True), strict=True)
    ]
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def write_history(epochs: Sequence[Epoch], path: Path) -> None:
    """Write one JSON object per line for each epoch."""
    records = [
        {k: v for k, v in asdict(epoch).items() if v or k not in ("changed", "validations")}
        for epoch in epochs
    ]
    text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def read_history(path: Path) -> list[Epoch]:
    """Read the epochs of `write_history`; none if the file is missing or damaged."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [Epoch(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError):
        return []


def plot_history(epochs: Sequence[Epoch], metric_name: str, path: Path) -> None:
    """Plot losses and metric over epochs to a PNG file."""
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


def open_event_log(directory: Path, step: int = 0) -> Any:
    """Open a directory of TensorBoard events; return a `SummaryWriter` of tensorboardX.

    Events after `step`, from before an interruption, are hidden.

    Raises:
        DragomanError: tensorboardX is not installed, or the directory cannot be written.
    """
    check_event_library()
    from tensorboardX import SummaryWriter

    try:
        return SummaryWriter(str(directory), purge_step=step + 1)
    except OSError as error:
        raise DragomanError(f"cannot write {directory}: {error.strerror}") from error


def check_event_library() -> None:
    """Raise a `DragomanError` unless tensorboardX is installed."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise DragomanError(
            "events for TensorBoard need the package tensorboardX: pip install "
            "'dragoman[tensorboard]'"
        ) from error
