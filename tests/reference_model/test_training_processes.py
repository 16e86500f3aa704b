"""Several processes train as one does, validate, write and stop together."""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dragoman import DragomanError
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.reference_model.training import (
    TrainingOptions,
    TrainingResult,
    TrainingStoppedError,
    train,
)
from dragoman.reference_model.training import run as run_module
from dragoman.reference_model.training.processes import (
    ProcessError,
    divided,
    rank,
    training_device,
)

# With a large epsilon, rounding of gradients that are 0 but for rounding is not amplified.
OPTIONS = TrainingOptions(
    epochs=2, batch_tokens=24, warmup_steps=10, average_epochs=2, adam_epsilon=1e-3
)
EQUAL = {
    "plain": OPTIONS,
    "accumulated": replace(OPTIONS, accumulate=3),
    "whole batches": replace(OPTIONS, accumulate=2, batch_tokens=16, schedule="cosine"),
    "clipped": replace(OPTIONS, clip_norm=0.5, batch_tokens=64),
    "a batch a pair": replace(OPTIONS, epochs=1, batch_tokens=1),
    "fp16": replace(OPTIONS, precision="fp16"),
}
"""Trainings whose weights do not depend on the number of processes."""


@dataclass
class Found:
    """What a process found: the weights, the result or the error, and how often it evaluated."""

    weights: dict[str, torch.Tensor]
    result: TrainingResult | None
    error: BaseException | None
    evaluations: int


def trained(
    directory: Path,
    options: TrainingOptions,
    dropout: float = 0.0,
    evaluate: Callable[[], float] = lambda: 0.0,
) -> Found:
    generator = random.Random(1)
    pairs = [
        tuple([generator.randrange(3, 17) for _ in range(generator.randrange(1, 7))] for _ in "st")
        for _ in range(25)
    ]
    # Process 0's weights hold.
    torch.manual_seed(rank())
    values = {"source_vocab_size": 17, "target_vocab_size": 17, "d_model": 16, "num_heads": 2}
    sizes = {"d_ff": 24, "encoder_layers": 1, "decoder_layers": 1, "max_target_positions": 12}
    model = Transformer(ModelConfig.from_dict(values | sizes | {"dropout": dropout}))
    evaluations = 0

    def measure(model: Transformer) -> float:
        nonlocal evaluations
        evaluations += 1
        return evaluate()

    result, error = None, None
    try:
        result = train(
            model,
            pairs,  # type: ignore[arg-type]
            pairs[:5],  # type: ignore[arg-type]
            options,
            directory,
            evaluate=measure,
            metric_name="figure",
            device="cpu",
        )
    except (DragomanError, KeyboardInterrupt) as caught:
        error = caught
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Found(weights, result, error, evaluations)


def interrupted(directory: Path, options: TrainingOptions) -> Found:
    """Process 1 receives a signal in its third step."""
    take, taken = run_module.Run.take_step, 0

    def step(run: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 3 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(run)

    run_module.Run.take_step = step  # type: ignore[method-assign,assignment]
    try:
        return trained(directory, options, dropout=0.3)
    finally:
        run_module.Run.take_step = take  # type: ignore[method-assign]


def fail() -> float:
    raise DragomanError("no figure")


def stop() -> float:
    os.kill(os.getpid(), signal.SIGINT)
    return 0.0


def work(number: int, count: int, directory: Path) -> None:
    """Run all trainings in a process of a group."""
    torch.set_num_threads(1)
    setattr(dist, "broadcast_object_list", None)  # noqa: B010 - which would send pickles
    setattr(run_module, "plot_history", lambda epochs, name, path: path.touch())  # noqa: B010
    store = (directory / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=count)
    found = {name: trained(directory / name, options) for name, options in EQUAL.items()}
    found["dropout"] = trained(directory / "dropout", OPTIONS, dropout=0.3)
    found["interrupted"] = interrupted(directory / "interrupted", OPTIONS)
    found["resumed"] = trained(directory / "interrupted", OPTIONS, dropout=0.3)
    found["failed"] = trained(directory / "failed", OPTIONS, evaluate=fail)
    found["stopped"] = trained(directory / "stopped", OPTIONS, evaluate=stop)
    found["diverged"] = trained(directory / "diverged", replace(OPTIONS, learning_rate=1e38))
    found["refused"] = trained(directory / "plain", replace(OPTIONS, warmup_steps=11))
    (directory / f"found-{number}").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    """What two processes found."""
    directory = tmp_path_factory.mktemp("processes")
    context = get_context("spawn")
    processes = [context.Process(target=work, args=(n, 2, directory)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [pickle.loads((directory / f"found-{n}").read_bytes()) for n in range(2)]  # noqa: S301


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_are_one(found: list[dict[str, Found]], name: str, tmp_path: Path) -> None:
    one, (first, second) = trained(tmp_path, EQUAL[name]), (each[name] for each in found)
    assert one.result is not None and first.result is not None and second.result is not None
    for weight, value in one.weights.items():
        if name != "fp16":  # whose gradients are rounded in another order
            torch.testing.assert_close(first.weights[weight], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(first.weights[weight], second.weights[weight]), "of all processes"
    assert first.result.step == second.result.step == one.result.step
    for epoch, other in zip(one.result.epochs, first.result.epochs, strict=True):
        assert other.loss == pytest.approx(epoch.loss, rel=1e-2 if name == "fp16" else 1e-5)
    assert first.result.candidates == second.result.candidates
    assert (first.evaluations, second.evaluations) == (one.evaluations, 0)


def test_processes_draw_dropout_of_their_own_and_stay_the_same(
    found: list[dict[str, Found]], tmp_path: Path
) -> None:
    first, second = (each["dropout"].weights for each in found)
    one = trained(tmp_path, OPTIONS, dropout=0.3).weights
    assert all(torch.equal(first[name], second[name]) for name in one)
    assert not all(torch.allclose(first[name], one[name], atol=1e-3) for name in one)


def test_a_signal_to_one_process_stops_all_and_the_training_goes_on(
    found: list[dict[str, Found]],
) -> None:
    for each in found:
        error = each["interrupted"].error
        assert isinstance(error, TrainingStoppedError)
        assert (error.signal, error.step) == (signal.SIGTERM, 3)
        expected = each["dropout"].weights
        assert all(torch.equal(each["resumed"].weights[n], w) for n, w in expected.items())


def test_a_signal_during_validation_stops_all(found: list[dict[str, Found]]) -> None:
    errors = [each["stopped"].error for each in found]
    assert all(isinstance(e, TrainingStoppedError) and e.signal == signal.SIGINT for e in errors)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failed", "no figure"),
        ("diverged", "the training diverged: the loss of step"),
        ("refused", "expected warmup_steps 11, found 10"),
    ],
)
def test_an_error_ends_all_processes(
    found: list[dict[str, Found]], name: str, message: str
) -> None:
    first, second = (each[name].error for each in found)
    assert message in str(first)
    assert isinstance(second, ProcessError) or str(second) == str(first)


@pytest.mark.parametrize(
    ("batches", "parts"),
    [
        ([[1, 2, 3]], ([[1, 3]], [[2]])),
        ([[1]], ([[1]], [])),
        ([[1, 2], [3]], ([[1, 2]], [[3]])),
        ([[1, 2], [3], [4, 5]], ([[1], [3], [4]], [[2], [5]])),
    ],
)
def test_steps_are_divided(
    monkeypatch: pytest.MonkeyPatch,
    batches: list[list[int]],
    parts: tuple[list[list[int]], list[list[int]]],
) -> None:
    module = "dragoman.reference_model.training.processes"
    monkeypatch.setattr(f"{module}.world_size", lambda: 2)
    for number, part in enumerate(parts):
        monkeypatch.setattr(f"{module}.rank", lambda number=number: number)
        assert divided(batches) == part


@pytest.mark.parametrize(
    ("name", "gpus", "processes", "expected"),
    [
        ("cpu", 2, 2, "cpu"),
        (None, 0, 2, "cpu"),
        (None, 2, 1, "cuda:0"),
        ("cuda:1", 2, 1, "cuda:1"),
        (None, 2, 2, "cuda:1"),
        ("gpu", 2, 1, "device: expected cpu, cuda or cuda:N, found 'gpu'"),
        ("cuda", 0, 1, "device cuda: expected 1 GPU that PyTorch can use, found 0; choose"),
        ("cuda:2", 2, 1, "device cuda:2: expected 3 GPUs that PyTorch can use, found 2; choose"),
        ("cuda:1", 2, 2, "expected cpu or cuda for 2 processes, of which each has a GPU of its"),
        (None, 2, 3, "device cuda: expected 3 GPUs that PyTorch can use, found 2; choose"),
    ],
)
def test_devices(
    monkeypatch: pytest.MonkeyPatch, name: str | None, gpus: int, processes: int, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_RANK", str(processes - 1))
    try:
        assert str(training_device(name)) == expected
    except DragomanError as error:
        assert expected in str(error)
