"""Training learns, and records its history."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman import DragomanError
from dragoman.reference_model import ModelConfig, Transformer, greedy_cached
from dragoman.reference_model.training import TrainingOptions, train

MakeConfig = Callable[..., ModelConfig]

END = 2
REVERSING = {
    "source_vocab_size": 9,
    "target_vocab_size": 9,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 32,
    "num_heads": 4,
    "d_ff": 64,
    "norm_order": "pre",
}


def reversals(seed: int, count: int) -> list[tuple[list[int], list[int]]]:
    """Up to four letters, and the same letters reversed."""
    generator = random.Random(seed)
    words = [
        [generator.randrange(3, 9) for _ in range(generator.randrange(1, 5))] for _ in range(count)
    ]
    return [([*word, END], [*reversed(word), END]) for word in words]


def share_right(model: Transformer) -> float:
    pairs = reversals(99, 50)
    outputs = greedy_cached(model, [source for source, _ in pairs], 8)
    return sum(output == pair[1] for output, pair in zip(outputs, pairs, strict=True)) / 50


def test_a_tiny_model_learns_to_reverse(make_config: MakeConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Transformer(make_config(**REVERSING))
    assert share_right(model.eval()) < 0.1
    options = TrainingOptions(
        epochs=5,
        batch_tokens=60,
        warmup_steps=100,
        learning_rate_scale=0.3,
        cool_down_epochs=2,
        average_epochs=2,
    )
    result = train(
        model,
        reversals(1, 1000),
        reversals(99, 50),
        options,
        tmp_path,
        evaluate=share_right,
        metric_name="share right",
    )
    epochs = result.epochs
    losses = [epoch.loss for epoch in epochs]
    assert losses[-1] < losses[0] / 2
    # With label smoothing of 0.1 over 9 symbols, the loss is at least 0.4847 nats.
    assert losses[-1] > 0.4847
    assert epochs[-1].metric > 0.75
    assert share_right(model) > 0.75
    assert not model.training


def small_training(
    make_config: MakeConfig, directory: Path, options: TrainingOptions
) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(make_config(**REVERSING, dropout=0.1))
    train(
        model,
        reversals(1, 20),
        reversals(2, 7),
        options,
        directory,
        evaluate=lambda trained: float(trained.training),
        metric_name="in training",
    )
    return model


def test_the_final_weights_are_the_mean_of_the_last_epochs(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    # The metric is the same for all weights, so that the average is delivered.
    options = TrainingOptions(
        epochs=5, batch_tokens=40, warmup_steps=10, average_epochs=3, monitor="metric"
    )
    model = small_training(make_config, tmp_path, options)
    kept = [tmp_path / f"epoch-{number}.safetensors" for number in (3, 4, 5)]
    assert sorted(tmp_path.glob("epoch-*")) == kept
    files = [load_file(file) for file in kept]
    for name, parameter in model.named_parameters():
        values = torch.stack([file[name] for file in files])
        assert not torch.equal(values[0], values[2])
        torch.testing.assert_close(parameter.detach(), values.mean(dim=0), atol=1e-6, rtol=1e-6)


def test_averaging_over_more_epochs_than_there_are_uses_all(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    options = TrainingOptions(
        epochs=2, batch_tokens=40, warmup_steps=10, average_epochs=9, monitor="metric"
    )
    model = small_training(make_config, tmp_path, options)
    first, second = (load_file(tmp_path / f"epoch-{number}.safetensors") for number in (1, 2))
    for name, parameter in model.named_parameters():
        mean = (first[name] + second[name]) / 2
        torch.testing.assert_close(parameter.detach(), mean, atol=1e-6, rtol=1e-6)


def test_the_history_of_a_training(make_config: MakeConfig, tmp_path: Path) -> None:
    options = TrainingOptions(epochs=3, batch_tokens=40, warmup_steps=10)
    small_training(make_config, tmp_path / "new" / "work", options)
    lines = (tmp_path / "new" / "work" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = [json.loads(line) for line in lines]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    steps = [epoch["step"] for epoch in epochs]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    assert all(epoch["loss"] > 0 for epoch in epochs)
    assert [epoch["metric"] for epoch in epochs] == [0.0, 0.0, 0.0]  # evaluation mode each time
    picture = (tmp_path / "new" / "work" / "curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")


def test_training_is_determined_by_the_seed(make_config: MakeConfig, tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate((1, 1, 2)):
        options = TrainingOptions(epochs=1, batch_tokens=40, warmup_steps=10, seed=seed)
        weights.append(small_training(make_config, tmp_path / str(number), options).output.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_learning_rate_follows_the_schedule(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def record(optimizer: torch.optim.Adam) -> None:
        rates.extend(group["lr"] for group in optimizer.param_groups)
        step(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", record)
    model = Transformer(make_config(**REVERSING))
    # Eight pairs of five tokens, two per batch: four steps per epoch.
    pairs = [([3, 4, 5, 6, END], [6, 5, 4, 3, END])] * 8
    options = TrainingOptions(
        epochs=2, batch_tokens=10, warmup_steps=2, learning_rate_scale=0.5, cool_down_epochs=1
    )
    train(
        model, pairs, pairs, options, tmp_path, evaluate=lambda trained: 0.0, metric_name="nothing"
    )
    # The second epoch is the cool-down: factors 1, 3/4, 1/2, 1/4.
    peak = 0.5 / (32 * 2) ** 0.5
    falling = [peak * (2 / number) ** 0.5 for number in range(2, 9)]
    factors = [1, 1, 1, 1, 0.75, 0.5, 0.25]
    expected = [peak / 2, *(rate * factor for rate, factor in zip(falling, factors, strict=True))]
    assert rates == pytest.approx(expected, rel=1e-12)


def test_padding_does_not_enter_the_loss(make_config: MakeConfig, tmp_path: Path) -> None:
    """With pairs of unequal length in a batch, the loss is the mean over their tokens only."""
    model = Transformer(make_config(**REVERSING))
    pairs = [([3, END], [3, END]), ([3, 4, 5, 6, END], [6, 5, 4, 3, END])]
    expected = tokens = 0.0
    for source, target in pairs:
        logits = model(
            torch.tensor([source]),
            torch.ones(1, len(source)).bool(),
            torch.tensor([[model.config.start_token_id, *target[:-1]]]),
        )
        shares = logits[0].log_softmax(-1)
        for position, token in enumerate(target):
            # The definition of label smoothing (Szegedy et al. 2016).
            right, mean = shares[position, token].item(), shares[position].mean().item()
            expected -= 0.9 * right + 0.1 * mean
            tokens += 1
    options = TrainingOptions(epochs=1, batch_tokens=10, warmup_steps=10)
    (epoch,) = train(
        model, pairs, pairs, options, tmp_path, evaluate=lambda trained: 0.0, metric_name="nothing"
    ).epochs
    assert epoch.step == 1
    assert epoch.loss == pytest.approx(expected / tokens, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("average_epochs", 0),
        ("warmup_steps", 0),
        ("cool_down_epochs", -1),
    ],
)
def test_invalid_options_are_refused(
    make_config: MakeConfig, tmp_path: Path, name: str, value: int
) -> None:
    options: dict[str, Any] = {"epochs": 1, name: value}
    with pytest.raises(DragomanError):
        small_training(make_config, tmp_path, TrainingOptions(**options))
