"""An interrupted and resumed training gives exactly the weights of an uninterrupted one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dragoman import DragomanError
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.reference_model.training import Epoch, TrainingOptions, train
from dragoman.reference_model.training import run as run_module
from dragoman.reference_model.training.options import learning_rate

MakeConfig = Callable[..., ModelConfig]
Evaluate = Callable[[Transformer], float]
Weights = dict[str, torch.Tensor]

OPTIONS = TrainingOptions(epochs=3, batch_tokens=24, warmup_steps=10, average_epochs=2)


def make_pairs(seed: int) -> list[tuple[list[int], list[int]]]:
    generator = random.Random(seed)
    return [
        (
            [generator.randrange(3, 17) for _ in range(generator.randrange(1, 7))],
            [generator.randrange(3, 19) for _ in range(generator.randrange(1, 7))],
        )
        for _ in range(24)
    ]


def measure(model: Transformer) -> float:
    """Any number that depends on the weights."""
    return float(model.output.weight.detach().abs().sum())


class Training:
    """Repeats the same training, from any initial weights."""

    def __init__(self, config: ModelConfig, directory: Path) -> None:
        self.config = config
        self.directory = directory

    def run(
        self,
        *,
        start: int,
        options: TrainingOptions = OPTIONS,
        evaluate: Evaluate = measure,
        data: int = 1,
    ) -> tuple[list[Epoch], Weights]:
        torch.manual_seed(start)
        model = Transformer(self.config)
        result = train(
            model,
            make_pairs(data),
            make_pairs(3)[:5],
            options,
            self.directory,
            evaluate=evaluate,
            metric_name="weight",
        )
        return result.epochs, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(autouse=True)
def plain_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here; test_training_learns checks the plot."""

    def touch(epochs: object, metric_name: str, path: Path) -> None:
        path.touch()

    monkeypatch.setattr(run_module, "plot_history", touch)


@pytest.fixture(scope="module")
def config(make_config: MakeConfig) -> ModelConfig:
    return make_config(dropout=0.2)


@pytest.fixture(scope="module")
def uninterrupted(
    config: ModelConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Epoch], Weights]:
    return Training(config, tmp_path_factory.mktemp("whole")).run(start=0)


@pytest.fixture
def training(config: ModelConfig, tmp_path: Path) -> Training:
    return Training(config, tmp_path)


def assert_same(
    found: tuple[list[Epoch], Weights], expected: tuple[list[Epoch], Weights], directory: Path
) -> None:
    epochs, weights = found
    assert [replace(epoch, seconds=0.0) for epoch in epochs] == [
        replace(epoch, seconds=0.0) for epoch in expected[0]
    ]
    assert all(torch.equal(weights[name], weight) for name, weight in expected[1].items())
    lines = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["metric"] for line in lines] == [e.metric for e in expected[0]]


@pytest.mark.parametrize("interrupted_epoch", [2, 3])
def test_interrupted_during_evaluation(
    training: Training, uninterrupted: tuple[list[Epoch], Weights], interrupted_epoch: int
) -> None:
    calls = 0

    def interrupt(model: Transformer) -> float:
        nonlocal calls
        calls += 1
        if calls == interrupted_epoch:
            raise KeyboardInterrupt
        return measure(model)

    with pytest.raises(KeyboardInterrupt):
        training.run(start=0, evaluate=interrupt)
    # With other initial weights, so that everything must come from the saved state.
    assert_same(training.run(start=5), uninterrupted, training.directory)


@pytest.mark.parametrize("state_every", [1, 2, 1000])
@pytest.mark.parametrize("share", [0.4, 0.9])
def test_interrupted_at_any_step(
    training: Training,
    uninterrupted: tuple[list[Epoch], Weights],
    monkeypatch: pytest.MonkeyPatch,
    state_every: int,
    share: float,
) -> None:
    steps = uninterrupted[0][-1].step
    last = int(steps * share)
    assert last % (steps // 3) != 0, "in the middle of an epoch"

    options = replace(OPTIONS, save_every=state_every)

    def interrupt(options: TrainingOptions, step: int, **more: int) -> float:
        if step > last:
            raise KeyboardInterrupt
        return learning_rate(options, step, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "learning_rate", interrupt)
        training.run(start=0, options=options)
    assert_same(training.run(start=5, options=options), uninterrupted, training.directory)


def test_interrupted_in_the_cool_down(
    config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(OPTIONS, cool_down_epochs=2, save_every=2)
    whole = Training(config, tmp_path / "whole").run(start=0, options=options)
    last = whole[0][-1].step * 5 // 6

    def interrupt(options: TrainingOptions, step: int, **more: int) -> float:
        if step > last:
            raise KeyboardInterrupt
        return learning_rate(options, step, **more)

    part = Training(config, tmp_path / "part")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "learning_rate", interrupt)
        part.run(start=0, options=options)
    assert_same(part.run(start=5, options=options), whole, part.directory)


def test_with_a_cool_down_the_number_of_epochs_cannot_change(training: Training) -> None:
    """The schedule depends on the number of epochs, so another number is another training."""
    options = replace(OPTIONS, epochs=1, cool_down_epochs=1)
    training.run(start=0, options=options)
    with pytest.raises(DragomanError, match="other options"):
        training.run(start=0, options=replace(options, epochs=2))


def test_interrupted_while_saving_the_state(
    training: Training, uninterrupted: tuple[list[Epoch], Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partially written state is not used."""
    save, calls = torch.save, 0

    def interrupt(state: object, path: Path) -> None:
        nonlocal calls
        calls += 1
        save(state, path)
        if calls == 2:
            path.write_bytes(path.read_bytes()[:1000])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch, "save", interrupt)
        training.run(start=0)
    assert_same(training.run(start=5), uninterrupted, training.directory)


@pytest.mark.parametrize("function", ["write_history", "plot_history"])
def test_interrupted_while_writing_the_last_record(
    training: Training, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    options = replace(OPTIONS, epochs=1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, function, interrupt)
        training.run(start=0, options=options)
    training.run(start=0, options=options)
    assert (training.directory / "history.jsonl").is_file()
    assert (training.directory / "curve.png").is_file()


def test_a_finished_training_is_not_repeated(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = training.run(start=0)

    def refuse(*arguments: object, **named: object) -> float:
        raise AssertionError("no step is left to do")

    monkeypatch.setattr(run_module, "learning_rate", refuse)
    assert_same(training.run(start=5), first, training.directory)


def test_more_epochs_continue_a_finished_training(
    training: Training, uninterrupted: tuple[list[Epoch], Weights]
) -> None:
    training.run(start=0, options=replace(OPTIONS, epochs=1))
    assert_same(training.run(start=5), uninterrupted, training.directory)


@pytest.mark.parametrize(
    "other",
    [
        replace(OPTIONS, seed=2),
        replace(OPTIONS, batch_tokens=25),
        replace(OPTIONS, label_smoothing=0.0),
    ],
)
def test_resuming_with_other_options_is_refused(training: Training, other: TrainingOptions) -> None:
    training.run(start=0, options=replace(OPTIONS, epochs=1))
    before = (training.directory / "state.pt").read_bytes()
    with pytest.raises(DragomanError, match=r"state\.pt belongs to a training with other options"):
        training.run(start=0, options=other)
    assert (training.directory / "state.pt").read_bytes() == before


def test_resuming_with_another_model_is_refused(training: Training) -> None:
    training.run(start=0, options=replace(OPTIONS, epochs=1))
    other = Training(training.config.replace(d_ff=41), training.directory)
    with pytest.raises(DragomanError, match="other options"):
        other.run(start=0)


def test_resuming_with_other_data_is_refused(training: Training) -> None:
    training.run(start=0, options=replace(OPTIONS, epochs=1))
    with pytest.raises(DragomanError):
        training.run(start=0, data=2)


def test_a_damaged_state_is_reported(training: Training) -> None:
    training.run(start=0, options=replace(OPTIONS, epochs=1))
    state = training.directory / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(DragomanError, match=r"state\.pt"):
        training.run(start=0)
