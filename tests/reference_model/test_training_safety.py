"""What a training keeps, refuses and delivers, whatever happens to it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import DragomanError
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.reference_model.training import (
    TrainingOptions,
    TrainingResult,
    TrainingStoppedError,
    train,
    trainer,
)
from dragoman.reference_model.training import run as run_module
from dragoman.reference_model.training.loss import negative_log_likelihood
from dragoman.reference_model.training.options import inverse_square_root, learning_rate
from dragoman.reference_model.training.state import locked

MakeConfig = Callable[..., ModelConfig]
Weights = dict[str, torch.Tensor]

OPTIONS = TrainingOptions(epochs=3, batch_tokens=24, warmup_steps=10, average_epochs=2)


def make_pairs(seed: int, count: int) -> list[tuple[list[int], list[int]]]:
    generator = random.Random(seed)
    return [
        (
            [generator.randrange(3, 17) for _ in range(generator.randrange(1, 7))],
            [generator.randrange(3, 19) for _ in range(generator.randrange(1, 7))],
        )
        for _ in range(count)
    ]


def weights_of(model: torch.nn.Module) -> Weights:
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


class Training:
    """A small training, which can be repeated and interrupted.

    Attributes:
        seen: the weights at each evaluation
    """

    def __init__(self, config: ModelConfig, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.seen: list[Weights] = []

    def run(
        self,
        options: TrainingOptions = OPTIONS,
        metrics: Iterator[float] | None = None,
        evaluate: Callable[[], float] = lambda: 0.0,
        **more: Any,
    ) -> tuple[TrainingResult, Weights]:
        torch.manual_seed(0)
        model = Transformer(self.config)

        def measure(model: Transformer) -> float:
            self.seen.append(weights_of(model))
            return evaluate() if metrics is None else next(metrics)

        result = train(
            model,
            make_pairs(1, 24),
            make_pairs(3, 5),
            options,
            self.directory,
            evaluate=measure,
            metric_name="figure",
            **more,
        )
        return result, weights_of(model)

    def history(self) -> list[dict[str, Any]]:
        lines = (self.directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line, parse_constant=pytest.fail) for line in lines]


@pytest.fixture(autouse=True)
def plain_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here."""
    monkeypatch.setattr(run_module, "plot_history", lambda epochs, name, path: path.touch())


@pytest.fixture
def training(make_config: MakeConfig, tmp_path: Path) -> Training:
    return Training(make_config(dropout=0.2), tmp_path / "training")


@pytest.fixture
def other(training: Training, tmp_path: Path) -> Training:
    """The same training in another directory."""
    return Training(training.config, tmp_path / "other")


def same(one: Weights, other: Weights) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def interrupt_at(
    monkeypatch: pytest.MonkeyPatch, step: int, how: Callable[[], None]
) -> pytest.MonkeyPatch:
    """Call a function during a step."""

    def rate(options: TrainingOptions, number: int, **more: int) -> float:
        if number == step:
            how()
        return learning_rate(options, number, **more)

    monkeypatch.setattr(run_module, "learning_rate", rate)
    return monkeypatch


# --- Which weights are delivered ---


@pytest.mark.parametrize(
    ("metrics", "delivered", "evaluation"),
    [
        ([0.1, 0.9, 0.2, 0.3, 0.4], "best", 1),
        ([0.1, 0.2, 0.3, 0.5, 0.4], "last", 3),
        ([0.1, 0.2, 0.3, 0.4, 0.5], "average", 4),
        ([0.1, 0.5, 0.3, 0.4, 0.5], "average", 4),  # of equal ones
    ],
)
def test_the_best_of_average_best_and_last_is_delivered(
    training: Training, metrics: list[float], delivered: str, evaluation: int
) -> None:
    options = replace(OPTIONS, epochs=4, monitor="metric")
    result, weights = training.run(options, iter(metrics))
    assert [c.name for c in result.candidates if c.delivered] == [delivered]
    assert same(weights, training.seen[evaluation])
    average = result.candidates[0]
    assert (average.name, average.description, average.metric) == (
        "average",
        "epochs 3 to 4",
        metrics[4],
    )


def test_lower_is_better_for_errors_and_ends_the_training(training: Training) -> None:
    options = replace(OPTIONS, epochs=9, monitor="metric", patience=2)
    errors = iter([0.5, 0.1, 0.2, 0.3, 0.4])
    result, weights = training.run(options, errors, higher_is_better=False)
    assert len(result.epochs) == 4
    assert [c.description for c in result.candidates if c.delivered] == ["epoch 2"]
    assert same(weights, training.seen[1])
    kept = sorted(file.name for file in training.directory.glob("epoch-*"))
    assert kept[-2:] == ["epoch-3.safetensors", "epoch-4.safetensors"]
    assert "epoch-2.safetensors" in kept


def test_the_table_of_candidates_is_printed(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    training.run(replace(OPTIONS, monitor="metric"), iter([0.5, 0.1, 0.2, 0.3]))
    table = capsys.readouterr().err.splitlines()[-4:]
    assert [line.split()[0] for line in table] == ["weights", "average", "best", "last"]
    assert [line.endswith("delivered") for line in table] == [False, False, True, False]
    assert re.fullmatch(r"best     epoch 1 +\d\.\d{4}  0\.5000  delivered", table[2])


# --- Figures that are no numbers ---


def test_a_validation_loss_that_is_no_number_ends_the_training(
    training: Training, other: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, calls = negative_log_likelihood, 0

    def scripted(*arguments: Any) -> float:
        nonlocal calls
        calls += 1
        return float("nan") if calls == 2 else usual(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "negative_log_likelihood", scripted)
        with pytest.raises(DragomanError, match=r"diverged: the validation loss .* is nan; begin"):
            training.run()
    assert [row["epoch"] for row in training.history()] == [1]
    # What was saved before is whole.
    assert same(training.run()[1], other.run()[1])


def test_a_metric_that_is_no_number_ends_the_training(training: Training) -> None:
    with pytest.raises(DragomanError, match=r"diverged: figure after step \d+ is inf"):
        training.run(evaluate=lambda: float("inf"))


def test_a_perplexity_too_large_for_a_float_is_shown(
    training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "negative_log_likelihood", lambda model, pairs: 1e6)
    training.run(replace(OPTIONS, epochs=1))
    assert "perplexity inf" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [1e30, 1e300])
def test_a_learning_rate_too_high_is_one_line(training: Training, scale: float) -> None:
    with pytest.raises(DragomanError, match="diverged"):
        training.run(replace(OPTIONS, learning_rate_scale=scale))


# --- Two trainings in one directory ---


def hold(directory: Path, pipe: Connection) -> None:
    with locked(directory):
        pipe.send(os.getpid())
        pipe.recv()


def test_a_second_training_is_refused_until_the_first_is_dead(training: Training) -> None:
    ours, theirs = get_context("fork").Pipe()
    process = get_context("fork").Process(target=hold, args=(training.directory, theirs))
    process.start()
    holder = ours.recv()
    for _ in range(2):  # the refusal leaves the lock as it is
        with pytest.raises(DragomanError, match=f"found that of process {holder}; wait for it"):
            training.run()
    assert not (training.directory / "state.pt").exists()
    process.kill()
    process.join()
    training.run(replace(OPTIONS, epochs=1))


# --- Signals ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_the_training_goes_on(
    training: Training,
    other: Training,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch, pytest.raises(TrainingStoppedError) as stopped:
        interrupt_at(patch, 7, lambda: os.kill(os.getpid(), number)).setattr(
            trainer, "LINES_EVERY", 0
        )
        training.run()
    assert (stopped.value.signal, stopped.value.step) == (number, 7)
    assert signal.getsignal(number) is handler
    taken: list[int] = []
    interrupt_at(monkeypatch, 8, lambda: taken.append(8))
    assert same(training.run()[1], other.run()[1])
    assert taken == [8, 8]


def test_a_signal_does_not_wait_for_an_evaluation(training: Training, other: Training) -> None:
    calls = 0

    def evaluate() -> float:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the evaluation went on")
        return 0.0

    with pytest.raises(TrainingStoppedError):
        training.run(evaluate=evaluate)
    assert same(training.run()[1], other.run()[1])


def test_files_are_on_the_disk_before_they_are_renamed(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def sync(file: int) -> None:
        calls.append("sync")
        fsync(file)

    def name(partial: Path, path: Path) -> Path:
        calls.append("name")
        return rename(partial, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", name)
    training.run(replace(OPTIONS, epochs=1))
    assert calls and calls == ["sync", "name"] * (len(calls) // 2)


# --- What may change ---


def test_what_changes_no_step_may_change_on_resuming(
    training: Training, other: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TrainingStoppedError):
        interrupt_at(patch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        training.run(replace(OPTIONS, epochs=2))
    changed = replace(OPTIONS, patience=5, monitor="metric", average_epochs=3, save_every=3)
    changed = replace(changed, validate_every=2)
    training.run(changed)
    other.run(changed)
    state, expected = (t.directory / "epoch-3.safetensors" for t in (training, other))
    assert state.read_bytes() == expected.read_bytes()


def test_a_change_of_the_learning_rate_holds_from_the_epoch_at_hand(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: dict[int, float] = {}
    take = run_module.Run.take_step

    def record(run: Any) -> Any:
        figures = take(run)
        rates[run.step] = figures.learning_rate
        return figures

    monkeypatch.setattr(run_module.Run, "take_step", record)
    with monkeypatch.context() as patch, pytest.raises(TrainingStoppedError):
        interrupt_at(patch, 11, lambda: os.kill(os.getpid(), signal.SIGTERM))
        training.run()
    with monkeypatch.context() as patch, pytest.raises(TrainingStoppedError):
        interrupt_at(patch, 13, lambda: os.kill(os.getpid(), signal.SIGTERM))
        training.run(changes={"learning_rate_scale": 0.5})
    result, _ = training.run()  # it stays changed
    d_model = training.config.d_model
    for step, rate in rates.items():
        scale = 1.0 if step <= 11 else 0.5
        expected = inverse_square_root(step, d_model=d_model, warmup_steps=10, scale=scale)
        assert rate == pytest.approx(expected)
    assert max(rates) == result.step > 13
    changed = [row.get("changed") for row in training.history()]
    assert [row for row in changed if row] == [{"learning_rate_scale": 0.5, "from_step": 12}]
    assert result.options.learning_rate_scale == 0.5


def test_other_batches_begin_with_the_next_epoch(
    training: Training, other: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TrainingStoppedError):
        interrupt_at(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        training.run()
    steps = [epoch.step for epoch in training.run(changes={"batch_tokens": 999})[0].epochs]
    (first, *_) = (epoch.step for epoch in other.run(replace(OPTIONS, epochs=1))[0].epochs)
    assert steps == [first, first + 1, first + 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, "found seed; start another training"),
        ({"rate": 2}, "unknown field 'rate'"),
        ({"warmup_steps": "many"}, "warmup_steps must be an integer, found 'many'"),
        ({"label_smoothing": 2}, "label_smoothing: expected 0 to below 1, found 2"),
    ],
)
def test_changes_that_are_refused(
    training: Training, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DragomanError, match=re.escape(message)):
        training.run(changes=changes)


def test_what_has_ended_is_changed_with_more_epochs(training: Training) -> None:
    training.run(replace(OPTIONS, epochs=1))
    options = replace(OPTIONS, epochs=1, average_epochs=1)
    with pytest.raises(DragomanError, match="left for another clip_norm, found a training that"):
        training.run(options, changes={"clip_norm": 1.0, "patience": 3})
    assert training.run(options, changes={"patience": 3})[0].options.patience == 3
    result, _ = training.run(options, changes={"clip_norm": 1.0, "epochs": 2})
    assert len(result.epochs) == 2 and training.history()[1]["changed"]["clip_norm"] == 1.0


def test_an_option_in_the_file_is_not_changed_in_passing(training: Training) -> None:
    training.run(replace(OPTIONS, epochs=1))
    with pytest.raises(DragomanError, match=r"--change warmup_steps=20$"):
        training.run(replace(OPTIONS, warmup_steps=20))


# --- Finishing, and damage ---


def test_an_interrupted_training_is_finished(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TrainingStoppedError) as stopped:
        interrupt_at(patch, 14, lambda: os.kill(os.getpid(), signal.SIGTERM))
        training.run()
    state = (training.directory / "state.pt").read_bytes()
    monkeypatch.setattr(run_module.Run, "take_step", lambda run: pytest.fail("a step was taken"))
    result, weights = training.run(finish=True)
    done = len(result.epochs)
    assert 0 < done < 3 and result.step == stopped.value.step == 14
    names = {c.name: c.description for c in result.candidates}
    assert names["best"].startswith("epoch ") and names["last"] == "step 14"
    chosen = min(result.candidates, key=lambda candidate: candidate.validation_loss)
    assert chosen.delivered
    assert (training.directory / "state.pt").read_bytes() == state, "it can still go on"
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_nothing_to_finish(training: Training) -> None:
    with pytest.raises(DragomanError, match="expected a training to finish, found none"):
        training.run(finish=True)
    assert not training.directory.exists()


def test_a_damaged_state_says_what_can_still_be_used(training: Training) -> None:
    training.run()
    state = training.directory / "state.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1  # which torch.load reads without a word
    state.write_bytes(content)
    (training.directory / "epoch-2.safetensors").write_bytes(b"cut")
    with pytest.raises(DragomanError) as damaged:
        training.run()
    text = str(damaged.value)
    assert text.startswith(f"{state} is damaged (the checksum of ") and "\n" not in text
    assert "the weights of epoch 3 can be used; make a checkpoint of them with --finish" in text
    result, weights = training.run(finish=True)
    assert [c.description for c in result.candidates] == ["epoch 3"]
    assert same(weights, training.seen[2])


def test_a_damaged_state_without_an_epoch(training: Training) -> None:
    training.directory.mkdir()
    (training.directory / "state.pt").write_bytes(b"PK")
    with pytest.raises(DragomanError, match="no epoch's weights can be used; delete it to start"):
        training.run()


def test_weights_that_are_no_numbers_are_not_saved(
    training: Training, other: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the step was a number, that of the next one would not be."""
    step, calls = torch.optim.Adam.step, 0

    def poison(optimizer: torch.optim.Adam) -> None:
        nonlocal calls
        calls += 1
        step(optimizer)
        if calls == 4:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0].fill_(torch.nan)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", poison)
        with pytest.raises(DragomanError, match=r"diverged: weight \S+ after step 4 is nan"):
            training.run(replace(OPTIONS, save_every=2))
    assert same(training.run()[1], other.run()[1])
    assert len(training.history()) == 3


# --- Progress ---


def test_lines_of_progress_are_not_wrapped(
    training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(trainer, "LINES_EVERY", 0)
    result, _ = training.run(replace(OPTIONS, epochs=1))
    lines = capsys.readouterr().err.splitlines()[: result.step]
    total = result.step
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(
            rf"epoch 1, step {number} of {total}: loss \d\.\d{{4}}, learning rate [\d.e-]+, "
            r"[\d,]+ target tokens/s, 0:00:\d\d left",
            line,
        )


def test_validation_within_an_epoch_changes_nothing(
    training: Training, other: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    result, weights = training.run(replace(OPTIONS, validate_every=2))
    assert "step 2: validation loss" in capsys.readouterr().err
    assert same(weights, other.run()[1])
    (first, *_) = training.history()
    steps = [row["step"] for row in first["validations"]]
    assert steps == list(range(2, result.epochs[0].step, 2))
    assert "validations" not in other.history()[0]


def test_events_for_tensorboard(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    result, _ = training.run(log_directory=tmp_path / "log")
    found: dict[str, dict[int, float]] = {}
    for file in (tmp_path / "log").iterdir():
        content = file.read_bytes()
        while content:  # TFRecord: the length, its checksum, the event, its checksum
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    expected = {epoch.step: epoch.validation_loss for epoch in result.epochs}
    assert found["validation/loss"] == pytest.approx(expected)
    assert [*found["training/loss"]] == list(range(10, result.step + 1, 10))
    assert found.keys() == {
        "training/loss",
        "training/learning_rate",
        "training/target_tokens",
        "validation/loss",
        "validation/figure",
    }


def test_a_missing_library_of_events_is_named(
    training: Training, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(DragomanError, match=r"tensorboardX: pip install 'dragoman\[tensorboard\]'"):
        training.run(log_directory=tmp_path / "log")
