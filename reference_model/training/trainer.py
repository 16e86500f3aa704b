"""Training as published: section 5 of "Attention Is All You Need"."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .history import Candidate, Epoch, describe_candidates, open_event_log
from .loss import Pair
from .options import TrainingOptions, TrainingStoppedError
from .processes import (
    Stopped,
    StopSignals,
    copy_from_process_0,
    from_process_0,
    largest,
    process_0_first,
    rank,
    training_device,
)
from .run import AnyModel, Judge, Run, StepFigures
from .state import DamagedStateError, has_training, locked

LINES_EVERY = 30.0
"""Seconds between lines of progress where standard error is no terminal."""
EVENTS_EVERY = 10
"""Steps between events for TensorBoard."""


@dataclass(frozen=True)
class TrainingResult:
    """What a training found."""

    epochs: list[Epoch]
    step: int
    """The number of steps taken."""
    options: TrainingOptions
    """The options with all changes."""
    candidates: list[Candidate]
    """The weights that were judged, with those that the model has now."""


def train(
    model: AnyModel,
    pairs: Iterable[Pair],
    validation: Iterable[Pair],
    options: TrainingOptions,
    directory: Path,
    *,
    evaluate: Callable[[AnyModel], float],
    metric_name: str,
    higher_is_better: bool = True,
    initial_weights: str = "random weights",
    changes: Mapping[str, Any] | None = None,
    finish: bool = False,
    log_directory: Path | None = None,
    device: str | None = None,
) -> TrainingResult:
    """Train a model in place to the weights that are best on validation.

    The average of the last epochs, the best epoch and the last one are judged. The training state
    is saved in `directory`. After an interruption, a call with the same arguments resumes; on a CPU
    the weights equal those of an uninterrupted run. SIGINT and SIGTERM stop the training after the
    present step, if it runs in the main thread.

    In a process group of `torch.distributed`, every process calls this, and all train one model.
    The others read the state of process 0 from the same directory.

    Args:
        model: the model on a CPU, with its initial weights
        pairs: source and target ids, each ending with its end token; a language model's sources are
            empty
        validation: pairs for the validation loss
        directory: directory of the training state; created if it does not exist
        evaluate, metric_name: see `Judge`
        initial_weights: a name of the model's weights, so that no training resumes another one
        changes: options that are different from here on; they stay so when the training resumes
        finish: whether to take no further step, and deliver what is there
        log_directory: directory of events for TensorBoard; None: none are written
        device: cpu, cuda or cuda:N; None: a GPU if there is one

    Raises:
        TrainingStoppedError: a signal stopped the training; its state is saved.
        DragomanError: the directory is in use, or holds a damaged state or that of another
            training; a file cannot be written; a loss is no longer a number; there is nothing to
            finish; or there is no such device.
    """
    judge = Judge(evaluate, metric_name, higher_is_better)
    place = training_device(device)
    copy_from_process_0(model.parameters())
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())

        def begin() -> Run[AnyModel]:
            has_training(directory, finish=finish)  # raises before the directory is made
            if not rank():
                stack.enter_context(locked(directory))
            run = Run(model, options, directory, pairs, validation, judge, initial_weights, place)
            try:
                run.resume(changes or {})
            except DamagedStateError:
                if not finish:
                    raise
            if finish and not run.step:
                run.resume_whole_epochs()
            return run

        def deliver() -> list[dict[str, Any]]:
            with signals.raised():
                return [asdict(candidate) for candidate in run.deliver()]

        run = process_0_first(begin)
        logged = None if rank() else log_directory
        reporter = _Reporter(metric_name, logged, run.step, quiet=bool(rank()))
        stack.callback(reporter.close)
        try:
            if not finish:
                _take_all_steps(run, reporter, signals)
            candidates = [Candidate(**candidate) for candidate in from_process_0(deliver)]
        except Stopped as stopped:
            raise TrainingStoppedError(stopped.signal, directory, run.step) from None
    model.cpu().eval()
    copy_from_process_0(model.parameters())
    for line in describe_candidates(candidates, metric_name):
        reporter.line(line)
    return TrainingResult(run.epochs, run.step, run.options, candidates)


def _take_all_steps(run: Run[AnyModel], reporter: _Reporter, signals: StopSignals) -> None:
    """Train until the run ends; raise `Stopped`, with the state saved, if a signal arrived."""
    while not run.ended():
        run.begin_epoch()
        reporter.begin(len(run.epochs) + 1, len(run.steps), run.done)
        while run.done < len(run.steps):
            reporter.step(run.step + 1, run.take_step())
            stopped = largest(signals.received)
            if stopped or run.step % run.options.save_every == 0:
                run.save()
            if stopped:
                raise Stopped(stopped)
            every = run.options.validate_every
            if every is not None and run.step % every == 0 and run.done < len(run.steps):
                figures = _judged(run, signals)
                run.validated(*figures)
                reporter.validated(run.step, *figures)
        reporter.epoch(run.end_epoch(*_judged(run, signals)))
        signals.check()


def _judged(run: Run[AnyModel], signals: StopSignals) -> tuple[float, float]:
    """Judge the model; a signal need not wait for it, and the state as it was is then saved."""

    def judge() -> tuple[float, float]:
        with signals.raised():
            return run.judged()

    try:
        loss, metric = from_process_0(judge)
        return loss, metric
    except Stopped:
        run.save()
        raise


class _Reporter:
    """Shows progress on standard error, unless it is quiet, and writes events for TensorBoard.

    A terminal shows a bar; otherwise there is a line every `LINES_EVERY` seconds.
    """

    def __init__(
        self, metric_name: str, log_directory: Path | None, step: int, *, quiet: bool
    ) -> None:
        self._metric_name = metric_name
        self._quiet = quiet
        self._log = None if log_directory is None else open_event_log(log_directory, step)
        self._epoch = self._total = self._done = self._first = 0
        self._began = self._shown = time.monotonic()
        self._since: list[StepFigures] = []
        self._since_event: list[StepFigures] = []
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not quiet:
            columns = (
                TextColumn("[progress.description]{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", figures="")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._log is not None:
            self._log.close()

    def line(self, text: str) -> None:
        """Print a line, which is never wrapped."""
        if self._bar is not None:
            self._bar.console.print(text, soft_wrap=True, markup=False, highlight=False)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def begin(self, epoch: int, total: int, done: int) -> None:
        self._epoch, self._total, self._done, self._first = epoch, total, done, done
        self._began = self._shown = time.monotonic()
        self._since = []
        if self._bar is not None:
            self._bar.reset(self._task, total=total, completed=done, description=f"epoch {epoch}")

    def step(self, step: int, figures: StepFigures) -> None:
        self._done += 1
        self._since.append(figures)
        self._since_event.append(figures)
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        if now - self._shown >= (LINES_EVERY if self._bar is None else 1.0):
            self._show(now)
        if step % EVENTS_EVERY == 0:
            self._write_events(step)

    def _show(self, now: float) -> None:
        figures = (
            f"loss {_loss(self._since):.4f}, learning rate {self._since[-1].learning_rate:.3g}, "
            f"{_tokens(self._since) / max(now - self._shown, 1e-9):,.0f} target tokens/s"
        )
        if self._bar is None:
            left = (now - self._began) / (self._done - self._first) * (self._total - self._done)
            self.line(
                f"epoch {self._epoch}, step {self._done} of {self._total}: {figures}, "
                f"{timedelta(seconds=round(left))} left"
            )
        else:
            self._bar.update(self._task, figures=figures)
        self._shown, self._since = now, []

    def _write_events(self, step: int) -> None:
        steps, self._since_event = self._since_event, []
        if self._log is not None:
            figures = (_loss(steps), steps[-1].learning_rate, _tokens(steps))
            for name, figure in zip(
                ("loss", "learning_rate", "target_tokens"), figures, strict=True
            ):
                self._log.add_scalar(f"training/{name}", figure, step)

    def validated(self, step: int, loss: float, metric: float) -> None:
        self.line(
            f"step {step}: validation loss {loss:.4f}, perplexity {_perplexity(loss)}, "
            f"{self._metric_name} {metric:.4f}"
        )
        self._write_validation(step, loss, metric)

    def _write_validation(self, step: int, loss: float, metric: float) -> None:
        if self._log is not None:
            self._log.add_scalar("validation/loss", loss, step)
            self._log.add_scalar(f"validation/{self._metric_name}", metric, step)
            self._log.flush()

    def epoch(self, epoch: Epoch) -> None:
        self.line(
            f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, validation loss "
            f"{epoch.validation_loss:.4f}, perplexity {_perplexity(epoch.validation_loss)}, "
            f"{self._metric_name} {epoch.metric:.4f}, {epoch.seconds:.0f} s"
        )
        self._write_validation(epoch.step, epoch.validation_loss, epoch.metric)


def _tokens(steps: Sequence[StepFigures]) -> int:
    return sum(step.tokens for step in steps)


def _loss(steps: Sequence[StepFigures]) -> float:
    return sum(step.loss * step.tokens for step in steps) / _tokens(steps)


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):.2f}" if loss < math.log(sys.float_info.max) else "inf"
