"""Training as published: section 5 of "Attention Is All You Need"."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file

from dragoman.errors import DragomanError
from dragoman.files.regular_files import check_regular, write_whole

from ..checkpoint import write_tensors
from ..models import AutoregressiveModel
from .loss import (
    Pair,
    hidden_states,
    negative_log_likelihood,
    projected_cross_entropy,
    token_batches,
)
from .options import TrainingOptions, cool_down, inverse_square_root


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


STATE_FILE = "state.pt"
STATE_EVERY = 200
"""Steps between saves of the training state; an interruption loses at most these."""

AnyModel = TypeVar("AnyModel", bound=AutoregressiveModel)


def train(
    model: AnyModel,
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    options: TrainingOptions,
    directory: Path,
    *,
    evaluate: Callable[[AnyModel], float],
    metric_name: str,
    initial_weights: str = "random weights",
) -> list[Epoch]:
    """Train a model in place, on a GPU if there is one, to its averaged weights.

    The training state is saved in `directory` (state.pt, epoch-N.safetensors). After an
    interruption, a call with the same arguments resumes; on a CPU the weights equal those of an
    uninterrupted run. `history.jsonl` and `curve.png` are written after every epoch.

    Args:
        model: the model on a CPU, with its initial weights
        pairs: source and target ids, each ending with its end token; a language model's sources are
            empty
        validation: pairs that the model is not trained on, for the validation loss
        directory: directory of the training state; created if it does not exist
        evaluate: computes the metric of a model, on a CPU, on validation data
        metric_name: the name of this metric, for progress and the training curve
        initial_weights: a name of the model's weights, so that no training resumes another one

    Returns:
        the figures of each epoch

    Raises:
        DragomanError: the directory holds a damaged state or that of another training, a file
            cannot be written, or the loss is no longer a number.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run = _Run(model, options, directory, pairs, validation, initial_weights)
    run.resume()
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        while not run.ended():
            epoch = len(run.epochs) + 1
            steps = _steps(pairs, options, seed=options.seed + epoch)
            task = progress.add_task(f"epoch {epoch}", total=len(steps), completed=run.done)
            run.train_epoch(
                steps,
                lambda task=task: progress.advance(task),  # type: ignore[misc]
            )
            run.end_epoch(evaluate, metric_name)
            progress.remove_task(task)
            last = run.epochs[-1]
            progress.console.print(
                f"epoch {last.epoch}: loss {last.loss:.4f}, validation loss "
                f"{last.validation_loss:.4f}, perplexity {math.exp(last.validation_loss):.2f}, "
                f"{metric_name} {last.metric:.4f}, {last.seconds:.0f} s"
            )
    run.average()
    return run.epochs


Step = list[list[Pair]]
"""The batches whose gradients are added up for one step of the optimizer."""


def _steps(pairs: Sequence[Pair], options: TrainingOptions, *, seed: int) -> list[Step]:
    batches = token_batches(pairs, options.batch_tokens, seed=seed)
    groups = range(0, len(batches), options.accumulate)
    return [
        [[pairs[i] for i in batch] for batch in batches[first : first + options.accumulate]]
        for first in groups
    ]


class _Run(Generic[AnyModel]):
    """The state of one training; `resume` restores what `save` saved."""

    def __init__(
        self,
        model: AnyModel,
        options: TrainingOptions,
        directory: Path,
        pairs: Sequence[Pair],
        validation: Sequence[Pair],
        initial_weights: str,
    ) -> None:
        self.model = model
        self.options = options
        self.directory = directory
        self.validation = validation
        self.data = hashlib.sha256(repr((pairs, validation)).encode()).hexdigest()
        self.initial_weights = initial_weights
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.to(self.device)
        self.optimizer = torch.optim.Adam(
            model.parameters(),
            lr=0.0,
            betas=options.adam_betas,
            eps=options.adam_epsilon,
            fused=True,
        )
        self.step = 0
        self.done = 0
        """Steps of the present epoch."""
        self.loss_sum = 0.0
        self.token_count = 0
        self.seconds = 0.0
        self.epochs: list[Epoch] = []

    def ended(self) -> bool:
        """Return whether all epochs are done, or the validation loss no longer falls."""
        losses = [epoch.validation_loss for epoch in self.epochs]
        patience = self.options.patience
        if patience is not None and losses:
            since_the_best = len(losses) - 1 - losses.index(min(losses))
            if since_the_best >= patience:
                return True
        return len(losses) >= self.options.epochs

    def train_epoch(self, steps: Sequence[Step], advance: Callable[[], None]) -> None:
        """Take the remaining steps of an epoch."""
        self.model.train()
        started = time.monotonic()
        while self.done < len(steps):
            self._train_step(steps[self.done], len(self.epochs) + self.done / len(steps))
            self.done += 1
            advance()
            if self.step % STATE_EVERY == 0:
                self.seconds += time.monotonic() - started
                started = time.monotonic()
                self.save()
        self.seconds += time.monotonic() - started

    def _train_step(self, batches: Step, epochs_done: float) -> None:
        self.step += 1
        # Dropout depends on seed and step only, so that a resumed run repeats it.
        torch.manual_seed(self.options.seed * 1_000_003 + self.step)
        tokens = sum(len(target) for batch in batches for _, target in batch)
        self.optimizer.zero_grad()
        for batch in batches:
            loss = self._loss(batch, tokens)
            loss.backward()
            self.loss_sum += self._finite(loss.item()) * tokens
        self.token_count += tokens
        rate = inverse_square_root(
            self.step,
            d_model=self.model.config.d_model,
            warmup_steps=self.options.warmup_steps,
            scale=self.options.learning_rate_scale,
        ) * cool_down(
            epochs_done,
            epochs=self.options.epochs,
            cool_down_epochs=self.options.cool_down_epochs,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise DragomanError(
                f"the training diverged: the loss of step {self.step} is {loss}; begin anew with a "
                f"learning_rate_scale of less than {self.options.learning_rate_scale}, or with "
                f"more than {self.options.warmup_steps} warmup_steps"
            )
        return loss

    def _loss(self, batch: list[Pair], tokens: int) -> torch.Tensor:
        """Compute the batch's share of the loss of a step of `tokens` tokens."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.mixed_precision):
            hidden, targets = hidden_states(self.model, batch)
            return projected_cross_entropy(
                hidden,
                self.model.output.weight,
                self.model.output.bias,
                targets,
                label_smoothing=self.options.label_smoothing,
                total=tokens,
            )

    def end_epoch(self, evaluate: Callable[[AnyModel], float], metric_name: str) -> None:
        """Evaluate the model, and write its weights, the history and the state."""
        self.model.eval()
        self.epochs.append(
            Epoch(
                epoch=len(self.epochs) + 1,
                step=self.step,
                loss=self.loss_sum / max(self.token_count, 1),
                validation_loss=self._validation_loss(),
                metric=self._metric(evaluate),
                seconds=round(self.seconds, 1),
            )
        )
        number = len(self.epochs)
        weights = self._weights()
        write_tensors(self._epoch_file(number), lambda path: save_file(weights, path))
        write_history(self.epochs, self.directory / "history.jsonl")
        plot_history(self.epochs, metric_name, self.directory / "curve.png")
        self.done, self.loss_sum, self.token_count, self.seconds = 0, 0.0, 0, 0.0
        self.save()
        self._epoch_file(number - self.options.average_epochs).unlink(missing_ok=True)

    def _validation_loss(self) -> float:
        tokens = sum(len(target) for _, target in self.validation)
        return negative_log_likelihood(self.model, self.validation) / tokens

    def _metric(self, evaluate: Callable[[AnyModel], float]) -> float:
        """Compute the metric on a CPU, since decoding runs there."""
        self.model.cpu()
        metric = evaluate(self.model)
        self.model.to(self.device)
        return metric

    def average(self) -> None:
        """Average the weights of the last epochs, as in section 6.1."""
        self.model.cpu()
        first = max(1, len(self.epochs) - self.options.average_epochs + 1)
        files = [self._epoch_file(n) for n in range(first, len(self.epochs) + 1)]
        total = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        for file in files:
            for name, value in load_file(file).items():
                total[name] += value
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(total[name] / len(files))
        self.model.eval()

    def save(self) -> None:
        """Write the training state."""
        state = {
            "what": self._identity(),
            "weights": self._weights(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "done": self.done,
            "loss_sum": self.loss_sum,
            "token_count": self.token_count,
            "seconds": self.seconds,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }
        write_tensors(self.directory / STATE_FILE, lambda path: torch.save(state, path))

    def resume(self) -> None:
        """Read the training state, if there is one."""
        path = self.directory / STATE_FILE
        if not path.exists():
            return
        check_regular(path)
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:  # torch.load raises many unrelated types
            raise DragomanError(f"{path} is damaged ({error}): delete it to start over") from error
        differing = _differing(self._identity(), state["what"])
        if differing:
            raise DragomanError(
                f"{path} belongs to a training with other options or data: expected "
                f"{'; '.join(differing)}; choose another directory, or delete the file to start "
                "over"
            )
        if len(state["epochs"]) > self.options.epochs:
            raise DragomanError(
                f"{path}: expected a training of at most {self.options.epochs} epochs, found "
                f"{len(state['epochs'])}"
            )
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.done = state["done"]
        self.loss_sum = state["loss_sum"]
        self.token_count = state["token_count"]
        self.seconds = state["seconds"]
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]

    def _identity(self) -> dict[str, object]:
        """Return the options and data that determine the weights, by name."""
        options = asdict(self.options)
        # Without a cool-down no epoch depends on their number, so more may be added later.
        if not self.options.cool_down_epochs:
            del options["epochs"]
        data = {"pairs (SHA-256)": self.data, "beginning": self.initial_weights}
        return options | self.model.config.to_dict() | data

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().cpu().clone() for name, p in self.model.named_parameters()}

    def _epoch_file(self, number: int) -> Path:
        return self.directory / f"epoch-{number}.safetensors"


def _differing(expected: Mapping[str, object], found: object) -> list[str]:
    """Return the differences from another training, such as "seed 1, found 2"."""
    if not isinstance(found, dict):
        return ["the state of this version, found another one's"]
    return [
        f"{name} {expected.get(name)}, found {found.get(name)}"
        for name in dict.fromkeys([*expected, *found])
        if expected.get(name) != found.get(name)
    ]
