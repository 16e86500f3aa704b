"""Training as published: section 5 of "Attention Is All You Need"."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file

from dragoman.errors import DragomanError

from ..decoding import pad
from ..files import write_whole
from ..transformer import Transformer
from .batching import Pair, token_batches
from .history import Epoch, plot_history, write_history
from .schedule import cool_down, inverse_square_root

STATE_FILE = "state.pt"
STATE_EVERY = 200
"""Steps between two savings of the training state: what an interruption can cost at most."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train; the defaults are the paper's (section 5) but for the size of a batch."""

    epochs: int
    batch_tokens: int = 4096
    """The most tokens of a batch on either side, padding included."""
    warmup_steps: int = 4000
    learning_rate_scale: float = 1.0
    cool_down_epochs: int = 0
    """Over the last so many epochs the learning rate falls to zero; the paper has no such phase."""
    label_smoothing: float = 0.1
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_epsilon: float = 1e-9
    average_epochs: int = 5
    """The final weights are the mean of those after each of the last so many epochs."""
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


Evaluate = Callable[[Transformer], float]


def train(
    model: Transformer,
    pairs: Sequence[Pair],
    options: TrainingOptions,
    directory: Path,
    *,
    evaluate: Evaluate,
    metric_name: str,
) -> list[Epoch]:
    """Train the model in place, leaving it with the averaged weights.

    Everything needed to go on is kept in `directory` (state.pt, epoch-N.safetensors); calling
    again with the same arguments after an interruption goes on and gives the same weights as an
    uninterrupted run. `history.jsonl` and `curve.png` are written after every epoch.

    Args:
        pairs: source and target ids, each with its end token
        evaluate: the metric of the model on validation data
        metric_name: its name, for the curve

    Raises:
        DragomanError: the directory holds the state of a different training.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run = _Run(model, options, directory, pairs)
    run.resume()
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        while len(run.epochs) < options.epochs:
            epoch = len(run.epochs) + 1
            batches = token_batches(pairs, options.batch_tokens, seed=options.seed + epoch)
            task = progress.add_task(f"epoch {epoch}", total=len(batches), completed=run.batch)
            run.train_epoch(
                [[pairs[i] for i in batch] for batch in batches],
                lambda task=task: progress.advance(task),  # type: ignore[misc]
            )
            run.end_epoch(evaluate, metric_name)
            progress.remove_task(task)
            last = run.epochs[-1]
            progress.console.print(
                f"epoch {last.epoch}: loss {last.loss:.4f}, validation {metric_name} "
                f"{last.metric:.4f}, {last.seconds:.0f} s"
            )
    run.average()
    return run.epochs


class _Run:
    """The state of one training: what `resume` restores is what `save` kept."""

    def __init__(
        self,
        model: Transformer,
        options: TrainingOptions,
        directory: Path,
        pairs: Sequence[Pair],
    ) -> None:
        self.model = model
        self.options = options
        self.directory = directory
        self.data = hashlib.sha256(repr(pairs).encode()).hexdigest()
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=0.0, betas=options.adam_betas, eps=options.adam_epsilon
        )
        self.step = 0
        self.batch = 0
        self.loss_sum = 0.0
        self.token_count = 0
        self.seconds = 0.0
        self.epochs: list[Epoch] = []

    def train_epoch(self, batches: list[list[Pair]], advance: Callable[[], None]) -> None:
        self.model.train()
        started = time.monotonic()
        while self.batch < len(batches):
            done = len(self.epochs) + self.batch / len(batches)
            self._train_step(batches[self.batch], done)
            self.batch += 1
            advance()
            if self.step % STATE_EVERY == 0:
                self.seconds += time.monotonic() - started
                started = time.monotonic()
                self.save()
        self.seconds += time.monotonic() - started

    def _train_step(self, batch: list[Pair], epochs_done: float) -> None:
        config = self.model.config
        self.step += 1
        # Dropout depends on the seed and the step only, so that a resumed run repeats it.
        torch.manual_seed(self.options.seed * 1_000_003 + self.step)
        source, source_mask = pad([pair[0] for pair in batch], config.pad_token_id)
        target, target_mask = pad([pair[1] for pair in batch], config.pad_token_id)
        start = torch.full((len(batch), 1), config.start_token_id)
        logits = self.model(source, source_mask, torch.cat([start, target[:, :-1]], dim=1))
        loss = F.cross_entropy(
            logits[target_mask], target[target_mask], label_smoothing=self.options.label_smoothing
        )
        rate = inverse_square_root(
            self.step,
            d_model=config.d_model,
            warmup_steps=self.options.warmup_steps,
            scale=self.options.learning_rate_scale,
        ) * cool_down(
            epochs_done,
            epochs=self.options.epochs,
            cool_down_epochs=self.options.cool_down_epochs,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        tokens = int(target_mask.sum())
        self.loss_sum += loss.item() * tokens
        self.token_count += tokens

    def end_epoch(self, evaluate: Evaluate, metric_name: str) -> None:
        self.model.eval()
        number = len(self.epochs) + 1
        loss = self.loss_sum / max(self.token_count, 1)
        metric = evaluate(self.model)
        self.epochs.append(Epoch(number, self.step, loss, metric, round(self.seconds, 1)))
        weights = self._weights()
        write_whole(self._epoch_file(number), lambda path: save_file(weights, path))
        write_history(self.epochs, self.directory / "history.jsonl")
        plot_history(self.epochs, metric_name, self.directory / "curve.png")
        self.batch, self.loss_sum, self.token_count, self.seconds = 0, 0.0, 0, 0.0
        self.save()
        self._epoch_file(number - self.options.average_epochs).unlink(missing_ok=True)

    def average(self) -> None:
        """Checkpoint averaging: section 6.1."""
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
        state = {
            "what": self._identity(),
            "weights": self._weights(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "batch": self.batch,
            "loss_sum": self.loss_sum,
            "token_count": self.token_count,
            "seconds": self.seconds,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }
        write_whole(self.directory / STATE_FILE, lambda path: torch.save(state, path))

    def resume(self) -> None:
        path = self.directory / STATE_FILE
        if not path.exists():
            return
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises whatever its readers do
            raise DragomanError(f"{path} is damaged ({error}): delete it to start anew") from error
        if state["what"] != self._identity():
            raise DragomanError(
                f"{path} is of a training with other options or data: expected "
                f"{self._identity()}, found {state['what']}; choose another directory, or delete "
                "this one to start anew"
            )
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.batch = state["batch"]
        self.loss_sum = state["loss_sum"]
        self.token_count = state["token_count"]
        self.seconds = state["seconds"]
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]

    def _identity(self) -> str:
        options = asdict(self.options)
        if not self.options.cool_down_epochs:  # else the number of epochs matters from the start
            del options["epochs"]
        return repr((options, self.model.config.to_dict(), {"data": self.data}))

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def _epoch_file(self, number: int) -> Path:
        return self.directory / f"epoch-{number}.safetensors"
