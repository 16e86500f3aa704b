"""The steps of a training, its epochs, and the weights that it delivers."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import DragomanError

from ..checkpoint import load_weights, read_safetensors
from ..models import AutoregressiveModel
from .history import (
    CURVE_FILE,
    HISTORY_FILE,
    Candidate,
    Epoch,
    plot_history,
    read_history,
    write_history,
)
from .loss import (
    Pair,
    TokenBatches,
    TokenPairs,
    hidden_states,
    negative_log_likelihood,
    projected_cross_entropy,
)
from .options import (
    FALLING_TO_ZERO,
    OF_BATCHES,
    WITHOUT_EFFECT_ON_STEPS,
    TrainingOptions,
    cool_down,
    learning_rate,
    with_changes,
)
from .processes import add_gradients, added, divided, from_process_0, rank
from .state import (
    STATE_FILE,
    check_same_training,
    epoch_file,
    epochs_to_finish,
    identity,
    kept_epochs,
    read_state,
    whole_epochs,
    write_epoch,
    write_state,
)

AnyModel = TypeVar("AnyModel", bound=AutoregressiveModel)


@dataclass(frozen=True)
class Judge(Generic[AnyModel]):
    """The metric of a training: a name, and what computes it on a CPU, on validation data."""

    evaluate: Callable[[AnyModel], float]
    name: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class StepFigures:
    """The loss per token, the learning rate, and the target tokens of a step."""

    loss: float
    learning_rate: float
    tokens: int


AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The type of matrix products by `TrainingOptions.precision`."""
PLAIN = (
    *("step", "done", "loss_sum", "token_count", "seconds"),
    *("changed", "changed_now", "validations", "batches"),
)
"""The attributes of a `Run` that a training state holds as they are."""


class Run(Generic[AnyModel]):
    """One training; `resume` restores what `save` saved.

    Attributes:
        options: the options as they are now, with all changes
        step: the number of steps taken
        done: the number of those in the present epoch
        epochs: the figures of the epochs that are complete
        steps: the first batch of each step of the present epoch, after `begin_epoch`
    """

    def __init__(
        self,
        model: AnyModel,
        options: TrainingOptions,
        directory: Path,
        pairs: Iterable[Pair],
        validation: Iterable[Pair],
        judge: Judge[AnyModel],
        initial_weights: str,
        device: torch.device,
    ) -> None:
        self.model = model
        self.options = options
        self.directory = directory
        self.pairs = TokenPairs.of(pairs)
        self.validation = TokenPairs.of(validation)
        self.judge = judge
        self.device = device
        model.to(self.device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=False)
        self.step = 0
        self.done = 0
        self.epochs: list[Epoch] = []
        self.steps = range(0)
        self._epoch: Sequence[NDArray[np.int32]] = ()
        self._given = options
        self._identity = identity(
            self._of_steps(options),
            model.config.to_dict(),
            self.pairs,
            self.validation,
            initial_weights,
        )
        self.loss_sum = 0.0
        self.token_count = 0
        self.seconds = 0.0
        self.changed: dict[str, Any] = {}
        self.changed_now: dict[str, Any] = {}
        self.validations: list[dict[str, float]] = []
        self.batches: dict[str, int] = {}

    @staticmethod
    def _of_steps(options: TrainingOptions) -> dict[str, Any]:
        without = set(WITHOUT_EFFECT_ON_STEPS)
        # Otherwise no epoch depends on their number, so more may be added later.
        if not options.cool_down_epochs and options.schedule not in FALLING_TO_ZERO:
            without.add("epochs")
        return {name: value for name, value in asdict(options).items() if name not in without}

    def resume(self, changes: Mapping[str, Any]) -> None:
        """Read the training state, if any, and change options from there on.

        Raises:
            DragomanError: the state is damaged or belongs to another training.
        """
        state = read_state(self.directory)
        if state is not None:
            path = self.directory / STATE_FILE
            check_same_training(path, self._identity, state["what"])
            if len(state["epochs"]) > self._given.epochs:
                raise DragomanError(
                    f"{path}: expected a training of at most {self._given.epochs} epochs, found "
                    f"{len(state['epochs'])}"
                )
            load_weights(self.model, state["weights"], origin=path)
            self.optimizer.load_state_dict(state["optimizer"])
            self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
            for name in PLAIN:
                setattr(self, name, state[name])
            planned = self.changed.get("epochs")
            if "epochs" in changes:
                if len(self.epochs) > changes["epochs"]:
                    raise DragomanError(
                        f"--change epochs={changes['epochs']}: expected at least the "
                        f"{len(self.epochs)} epochs that are done"
                    )
            elif planned is not None and self._given.epochs > planned:
                raise DragomanError(
                    f"{path}: expected at most {planned} epochs, which the training was changed "
                    f"to, found {self._given.epochs}; change them with --change epochs=N"
                )
        self._change(changes)
        scaled = self.options.precision == "fp16"
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=scaled)
        if scaled and state is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        for group in self.optimizer.param_groups:
            group["betas"], group["eps"] = self.options.adam_betas, self.options.adam_epsilon

    def _change(self, changes: Mapping[str, Any]) -> None:
        before = asdict(with_changes(self._given, self.changed))
        new = {name: value for name, value in changes.items() if before.get(name) != value}
        self.changed |= new
        self.options = with_changes(self._given, self.changed)
        if "epochs" in self._of_steps(self.options) and "epochs" not in self._of_steps(self._given):
            self.changed.setdefault("epochs", self.options.epochs)
        late = new.keys() - {*WITHOUT_EFFECT_ON_STEPS, "epochs"}
        if late and self.ended():
            raise DragomanError(
                f"{self.directory}: expected steps left for another {', '.join(sorted(late))}, "
                "found a training that has ended; change its epochs, too"
            )
        if new:
            self.changed_now |= new | {"from_step": self.step + 1}

    def resume_whole_epochs(self) -> None:
        """Take whole epochs in place of a training state.

        Raises:
            DragomanError: there are none.
        """
        whole = epochs_to_finish(self.directory)
        history = read_history(self.directory / HISTORY_FILE)
        self.epochs = history[: whole[-1]]
        file = epoch_file(self.directory, whole[-1])
        load_weights(self.model, read_safetensors(file), origin=file)
        self.step = self.epochs[-1].step

    def ended(self) -> bool:
        """Return whether all epochs are done, or the monitored figure stopped improving."""
        patience = self.options.patience
        if patience is not None and self.epochs:
            figures = [self._rank(epoch) for epoch in self.epochs]
            if len(figures) - 1 - figures.index(min(figures)) >= patience:
                return True
        return len(self.epochs) >= self.options.epochs

    def _rank(self, figures: Epoch | Candidate, monitor: str | None = None) -> float:
        """Return a figure, by default the monitored one, so that less is better."""
        if (monitor or self.options.monitor) == "loss":
            return figures.validation_loss
        return -figures.metric if self.judge.higher_is_better else figures.metric

    def begin_epoch(self) -> None:
        """Make the batches of the epoch."""
        if not self.done or not self.batches:
            self.batches = {name: getattr(self.options, name) for name in OF_BATCHES}
        seed = self.options.seed + len(self.epochs) + 1
        self._epoch = TokenBatches(self.pairs, self.batches["batch_tokens"], seed=seed)
        self.steps = range(0, len(self._epoch), self.batches["accumulate"])
        if not self.steps:
            raise DragomanError(
                f"corpora: expected pairs in epoch {len(self.epochs) + 1}, found none; choose "
                "larger weights"
            )

    def take_step(self) -> StepFigures:
        """Take the next step of the epoch.

        Raises:
            DragomanError: the loss is no longer a number.
        """
        started = time.monotonic()
        self.model.train()
        first = self.steps[self.done]
        batches = self._epoch[first : first + self.steps.step]
        rate = self._learning_rate(len(self.epochs) + self.done / len(self.steps))
        # Dropout depends on seed, step and process only, so that a resumed run repeats it.
        torch.manual_seed(self.options.seed * 1_000_003 + self.step + 1 + rank() * 2_654_435_761)
        tokens = sum(len(self.pairs[i][1]) for batch in batches for i in batch)
        self.optimizer.zero_grad()
        loss_of_step = 0.0
        scale = self._scaler.scale(torch.ones((), device=self.device)).item()
        for batch in divided(batches):
            loss = self._loss([self.pairs[i] for i in batch], tokens / scale)
            loss.backward()
            loss_of_step += loss.item() / scale
        loss_of_step = self._finite(added(loss_of_step), f"the loss of step {self.step + 1}")
        add_gradients(self.model.parameters())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._scaler.unscale_(self.optimizer)
        if self.options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.loss_sum += loss_of_step * tokens
        self.token_count += tokens
        self.step += 1
        self.done += 1
        self.seconds += time.monotonic() - started
        return StepFigures(loss_of_step, rate, tokens)

    def _learning_rate(self, epochs_done: float) -> float:
        left = (self.options.epochs - len(self.epochs)) * len(self.steps) - self.done
        width, steps = self.model.config.d_model, self.step + left
        return learning_rate(self.options, self.step + 1, d_model=width, steps=steps) * cool_down(
            epochs_done, epochs=self.options.epochs, cool_down_epochs=self.options.cool_down_epochs
        )

    def _finite(self, figure: float, what: str) -> float:
        """Return a figure; raise a `DragomanError` if it is no number."""
        if not math.isfinite(figure):
            raise DragomanError(
                f"the training diverged: {what} is {figure}; begin anew with a "
                f"learning_rate_scale of less than {self.options.learning_rate_scale}, or with "
                f"more than {self.options.warmup_steps} warmup_steps, or go on from the state "
                "before with --change learning_rate_scale=VALUE"
            )
        return figure

    def _loss(self, batch: list[Pair], tokens: float) -> Tensor:
        dtype = AUTOCAST[self.options.precision]
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            hidden, targets = hidden_states(self.model, batch)
            return projected_cross_entropy(
                hidden,
                self.model.output.weight,
                self.model.output.bias,
                targets,
                label_smoothing=self.options.label_smoothing,
                total=tokens,
            )

    def judged(self) -> tuple[float, float]:
        """Compute the validation loss and the metric.

        Raises:
            DragomanError: one of them is not a number.
        """
        self.model.eval()
        tokens = sum(len(target) for _, target in self.validation)
        loss = negative_log_likelihood(self.model, self.validation) / tokens
        self._finite(loss, f"the validation loss after step {self.step}")
        self.model.cpu()  # decoding runs there
        try:
            metric = self.judge.evaluate(self.model)
        finally:
            self.model.to(self.device)
        return loss, self._finite(metric, f"{self.judge.name} after step {self.step}")

    def validated(self, loss: float, metric: float) -> None:
        """Record validation loss and metric within an epoch."""
        self.validations.append({"step": self.step, "validation_loss": loss, "metric": metric})

    def end_epoch(self, validation_loss: float, metric: float) -> Epoch:
        """Write the weights, the history and the state after an epoch."""
        epoch = Epoch(
            epoch=len(self.epochs) + 1,
            step=self.step,
            loss=self.loss_sum / max(self.token_count, 1),
            validation_loss=validation_loss,
            metric=metric,
            seconds=round(self.seconds, 1),
            changed=dict(self.changed_now),
            validations=list(self.validations),
        )
        epochs = [*self.epochs, epoch]
        from_process_0(lambda: self._write(epochs))
        self.epochs = epochs
        self.done, self.loss_sum, self.token_count, self.seconds = 0, 0.0, 0, 0.0
        self.changed_now, self.validations, self.batches = {}, [], {}
        self.save()
        if not rank():
            for number in set(kept_epochs(self.directory)) - self._deliverable():
                epoch_file(self.directory, number).unlink(missing_ok=True)
        return epoch

    def _write(self, epochs: Sequence[Epoch]) -> None:
        write_epoch(self.directory, len(epochs), self._weights())
        write_history(epochs, self.directory / HISTORY_FILE)
        plot_history(epochs, self.judge.name, self.directory / CURVE_FILE)

    def _deliverable(self) -> set[int]:
        last = len(self.epochs)
        averaged = range(max(1, last - self.options.average_epochs + 1), last + 1)
        return {*averaged, *(self._best(monitor) for monitor in ("loss", "metric"))}

    def _best(self, monitor: str) -> int:
        """Return the number of the best epoch; of equal ones, that with the better other figure."""
        other = "metric" if monitor == "loss" else "loss"
        return min(
            self.epochs, key=lambda e: (self._rank(e, monitor), self._rank(e, other), -e.epoch)
        ).epoch

    def deliver(self) -> list[Candidate]:
        """Judge the average of the last epochs (section 6.1), the best and the last; load the best.

        Of equal candidates, the average is delivered, or else the best epoch.

        Raises:
            DragomanError: a figure is not a number.
        """
        weights: dict[str, dict[str, Tensor]] = {}
        candidates: list[Candidate] = []

        def add(name: str, source: str, values: dict[str, Tensor], known: Epoch | None) -> None:
            load_weights(self.model, values, origin=self.directory)
            loss, metric = self.judged() if known is None else (known.validation_loss, known.metric)
            weights[name] = values
            candidates.append(Candidate(name, source, loss, metric))

        last, count = self._weights(), len(self.epochs)
        numbers = [n for n in whole_epochs(self.directory) if n <= count]
        latest = range(count, count - self.options.average_epochs, -1)
        averaged = [*takewhile(numbers.__contains__, latest)][::-1]
        if len(averaged) > 1:
            place = f"epochs {averaged[0]} to {averaged[-1]}"
            add("average", place, self._mean(averaged), None)
        kept = [epoch for epoch in self.epochs if epoch.epoch in numbers]
        if kept:
            best = min(kept, key=lambda epoch: (self._rank(epoch), -epoch.epoch))
            if self.done or best.epoch != count:
                add("best", f"epoch {best.epoch}", self._epoch_weights(best.epoch), best)
        known = None if self.done or not self.epochs else self.epochs[-1]
        place = f"epoch {count}" if known else f"step {self.step}"
        add("last", place, last, known)
        chosen = min(candidates, key=self._rank)
        load_weights(self.model, weights[chosen.name], origin=self.directory)
        self.model.cpu().eval()
        return [dataclasses.replace(c, delivered=c is chosen) for c in candidates]

    def _mean(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        total = {name: torch.zeros_like(p.cpu()) for name, p in self.model.named_parameters()}
        for number in numbers:
            for name, value in self._epoch_weights(number).items():
                total[name] += value
        return {name: value / len(numbers) for name, value in total.items()}

    def _epoch_weights(self, number: int) -> dict[str, Tensor]:
        return read_safetensors(epoch_file(self.directory, number))

    def save(self) -> None:
        """Write the training state.

        Raises:
            DragomanError: a weight is not a number, or the file cannot be written.
        """
        from_process_0(self._save)

    def _save(self) -> None:
        weights = self._weights()
        for name, value in weights.items():
            if not torch.isfinite(value).all():
                self._finite(math.nan, f"weight {name} after step {self.step}")
        write_state(
            self.directory,
            {
                "what": self._identity,
                "weights": weights,
                "optimizer": self.optimizer.state_dict(),
                "epochs": [asdict(epoch) for epoch in self.epochs],
                **{name: getattr(self, name) for name in PLAIN},
                "scaler": self._scaler.state_dict(),
            },
        )

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().cpu().clone() for name, p in self.model.named_parameters()}
