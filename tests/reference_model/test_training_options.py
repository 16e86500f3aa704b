"""The effects of training options."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dragoman import DragomanError
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.reference_model.training import Epoch, TrainingOptions, train
from dragoman.reference_model.training import run as run_module
from dragoman.reference_model.training.loss import (
    Pair,
    TokenPairs,
    negative_log_likelihood,
    predictions,
)

MakeConfig = Callable[..., ModelConfig]

END = 2
PAIRS = [([3, 4, END], [4, 3, END]), ([5, END], [5, END]), ([6, 3, 5, END], [5, 3, 6, END])] * 6
SMALL = {
    "source_vocab_size": 9,
    "target_vocab_size": 9,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 24,
}
OPTIONS = TrainingOptions(epochs=2, batch_tokens=8, warmup_steps=10, average_epochs=1)


def trained(
    make_config: MakeConfig,
    directory: Path,
    options: TrainingOptions,
    dropout: float = 0.0,
    pairs: Sequence[Pair] | TokenPairs = PAIRS,
    changes: dict[str, Any] | None = None,
) -> tuple[Transformer, list[Epoch]]:
    torch.manual_seed(0)
    model = Transformer(make_config(**SMALL, dropout=dropout))
    result = train(
        model,
        pairs,
        PAIRS[:3],
        options,
        directory,
        evaluate=lambda _: 0.0,
        metric_name="nothing",
        changes=changes,
    )
    return model, result.epochs


def test_accumulated_batches_are_one_large_batch(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a step is that of all its tokens, however they are batched."""
    gradients: list[torch.Tensor] = []
    step = torch.optim.Adam.step

    def record(optimizer: torch.optim.Adam) -> None:
        gradients.append(optimizer.param_groups[0]["params"][0].grad.clone())
        step(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", record)
    one = replace(OPTIONS, epochs=1, batch_tokens=8, accumulate=100)
    _, (many,) = trained(make_config, tmp_path / "many", one)
    _, (whole,) = trained(
        make_config, tmp_path / "whole", replace(OPTIONS, epochs=1, batch_tokens=999)
    )
    assert many.step == whole.step == 1
    torch.testing.assert_close(gradients[0], gradients[1])
    assert many.loss == pytest.approx(whole.loss, rel=1e-6)


def test_an_epoch_of_accumulated_batches_has_fewer_steps(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    _, single = trained(make_config, tmp_path / "1", OPTIONS)
    _, several = trained(make_config, tmp_path / "3", replace(OPTIONS, accumulate=4))
    assert several[0].step == -(-single[0].step // 4)


def test_the_validation_loss_is_not_smoothed(make_config: MakeConfig, tmp_path: Path) -> None:
    model, epochs = trained(make_config, tmp_path, OPTIONS)
    nats = tokens = 0.0
    for pair in PAIRS[:3]:
        logits, right = predictions(model, [pair])
        nats += F.cross_entropy(logits, right, reduction="sum").item()
        tokens += len(right)
    assert epochs[-1].validation_loss == pytest.approx(nats / tokens, rel=1e-5)
    assert negative_log_likelihood(model, PAIRS[:3]) == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_narrow_products_learn_the_same(
    make_config: MakeConfig, tmp_path: Path, precision: Literal["bf16", "fp16"]
) -> None:
    options = replace(OPTIONS, epochs=12)
    _, exact = trained(make_config, tmp_path / "fp32", options)
    model, rounded = trained(make_config, tmp_path / "16", replace(options, precision=precision))
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert rounded[0].validation_loss == pytest.approx(exact[0].validation_loss, rel=0.05)
    assert rounded[0].loss == pytest.approx(exact[0].loss, rel=0.05)
    assert rounded[0].validation_loss != exact[0].validation_loss
    assert rounded[-1].validation_loss < 0.5 * rounded[0].validation_loss


def test_the_scale_of_the_loss_adapts_and_is_resumed(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient of the scaled loss that overflows changes no weight, and halves the scale."""
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**20, growth_interval=5)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    options = replace(OPTIONS, epochs=3, precision="fp16")
    whole, epochs = trained(make_config, tmp_path / "whole", options)
    scales = torch.load(tmp_path / "whole" / "state.pt")["scaler"]
    assert 1 < scales["scale"] < 2**20
    assert epochs[-1].validation_loss < epochs[0].validation_loss
    trained(make_config, tmp_path / "parts", replace(options, epochs=1))
    parts, _ = trained(make_config, tmp_path / "parts", options)
    assert torch.load(tmp_path / "parts" / "state.pt")["scaler"] == scales
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_by_their_norm(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: Literal["fp32", "fp16"],
) -> None:
    gradients: list[list[torch.Tensor]] = []
    step = torch.optim.Adam.step

    def record(optimizer: torch.optim.Adam) -> None:
        parameters = optimizer.param_groups[0]["params"]
        gradients.append([parameter.grad.clone() for parameter in parameters])
        step(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", record)
    options = replace(OPTIONS, epochs=1, batch_tokens=999, precision=precision)
    trained(make_config, tmp_path / "free", options)
    for limit in (0.25, 1e6):
        trained(make_config, tmp_path / f"{limit}", replace(options, clip_norm=limit))
    free, clipped, loose = gradients
    norm = torch.cat([gradient.flatten() for gradient in free]).norm()
    assert 0.25 < norm < 1e6
    for one, other, third in zip(free, clipped, loose, strict=True):
        torch.testing.assert_close(other, one * 0.25 / norm)
        assert torch.equal(one, third)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_last_step_is_the_last_before_zero(
    make_config: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Literal["linear", "cosine"],
) -> None:
    """Whether the training is interrupted or not, the rate depends on the number of all steps."""
    rates: list[float] = []
    take = run_module.Run.take_step

    def record(run: Any) -> Any:
        figures = take(run)
        rates.append(figures.learning_rate)
        return figures

    monkeypatch.setattr(run_module.Run, "take_step", record)
    options = replace(OPTIONS, schedule=schedule, learning_rate=1e-3, epochs=3)
    _, epochs = trained(make_config, tmp_path, options)
    steps = epochs[-1].step
    line = np.interp(np.arange(1, steps + 1), [0, 10, steps + 1], [0, 1, 0])
    if schedule == "cosine":
        line[10:] = (1 - np.cos(np.pi * line[10:])) / 2
    np.testing.assert_allclose(rates, 1e-3 * line, rtol=1e-9)
    with pytest.raises(DragomanError, match="expected epochs 4, found 3"):
        trained(make_config, tmp_path, replace(options, epochs=4))


def test_training_ends_when_the_validation_loss_has_not_fallen_for_long(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 2.0, 2.5, 1.5, 1.5, 2.25, 1.0, 0.5])

    def scripted(model: object, pairs: list[object]) -> float:
        return next(losses) * sum(len(target) for _, target in PAIRS[:3])

    monkeypatch.setattr(run_module, "negative_log_likelihood", scripted)
    options = replace(OPTIONS, epochs=8, patience=2)
    _, epochs = trained(make_config, tmp_path, options)
    assert [epoch.validation_loss for epoch in epochs] == [3.0, 2.0, 2.5, 1.5, 1.5, 2.25]
    # It is over: the same command trains no further.
    _, again = trained(make_config, tmp_path, options)
    assert again == epochs


def test_a_training_that_began_elsewhere_is_not_resumed(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    model, _ = trained(make_config, tmp_path, OPTIONS)
    with pytest.raises(DragomanError, match="belongs to a training with other options or data"):
        train(
            model,
            PAIRS,
            PAIRS[:3],
            OPTIONS,
            tmp_path,
            evaluate=lambda _: 0.0,
            metric_name="nothing",
            initial_weights="other weights",
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0, "accumulate": 0}, "epochs: .* at least 1, found 0; accumulate: .* found 0"),
        ({"epochs": 1, "patience": 0}, "patience: expected at least 1, found 0"),
        (
            {"epochs": 1, "label_smoothing": 1.0},
            "label_smoothing: expected 0 to below 1, found 1.0",
        ),
        ({"epochs": "many"}, "epochs must be an integer, found 'many'"),
        ({"epochs": 1, "adam_betas": (0.9,)}, "adam_betas must be 2 numbers"),
        ({"epochs": 1, "clip_norm": 0}, "clip_norm: expected more than 0, found 0"),
        ({"epochs": 1, "clip_norm": math.nan}, "clip_norm: expected more than 0, found nan"),
        ({"epochs": 1, "learning_rate": math.inf}, "learning_rate must be a number, found inf"),
        ({"epochs": 1, "learning_rate": -1.0}, "learning_rate: expected more than 0, found -1.0"),
        ({"epochs": 1, "precision": "fp8"}, "precision must be one of fp32, bf16, fp16, found"),
        ({"epochs": 1, "schedule": "step"}, "schedule must be one of inverse-square-root, linear"),
    ],
)
def test_every_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(DragomanError, match=message):
        TrainingOptions(**options)  # type: ignore[arg-type]


def test_a_training_that_diverges_is_an_error(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"diverged: the loss of step \d is (nan|inf)"):
        trained(make_config, tmp_path, replace(OPTIONS, learning_rate_scale=1e38))


def test_what_differs_of_another_training_is_named(make_config: MakeConfig, tmp_path: Path) -> None:
    trained(make_config, tmp_path, OPTIONS)
    with pytest.raises(DragomanError) as caught:
        trained(make_config, tmp_path, replace(OPTIONS, seed=2, batch_tokens=9), dropout=0.1)
    assert str(caught.value) == (
        f"{tmp_path / 'state.pt'} belongs to a training with other options or data: expected "
        "batch_tokens 9, found 8; seed 2, found 1; dropout 0.1, found 0.0; choose another "
        "directory, or delete the file to start over"
    )


def test_another_schedule_is_named_without_the_epochs_that_it_depends_on(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trained(make_config, tmp_path, replace(OPTIONS, schedule="linear"))
    with pytest.raises(DragomanError) as caught:
        trained(make_config, tmp_path, replace(OPTIONS, schedule="constant"))
    assert "data: expected schedule constant, found linear; " in str(caught.value)
    assert str(caught.value).endswith("with --change schedule=constant")


def test_a_schedule_that_was_changed_to_fall_to_0_ends_with_its_epochs(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trained(make_config, tmp_path, OPTIONS, changes={"schedule": "linear"})
    with pytest.raises(DragomanError, match=r"expected at most 2 epochs, .* --change epochs=N$"):
        trained(make_config, tmp_path, replace(OPTIONS, epochs=4))
    _, epochs = trained(make_config, tmp_path, OPTIONS, changes={"epochs": 4})
    assert len(epochs) == 4


def test_a_training_is_changed_to_fewer_epochs_but_not_to_fewer_than_are_done(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trained(make_config, tmp_path, OPTIONS)
    more = replace(OPTIONS, epochs=9)
    _, epochs = trained(make_config, tmp_path, more, changes={"epochs": 3})
    assert len(epochs) == 3
    with pytest.raises(DragomanError, match=r"epochs=2: expected at least the 3 epochs that are d"):
        trained(make_config, tmp_path, more, changes={"epochs": 2})


def test_an_epoch_without_pairs_is_an_error(make_config: MakeConfig, tmp_path: Path) -> None:
    pairs = TokenPairs.of(PAIRS)
    few = TokenPairs(pairs.tokens, pairs.lengths().reshape(-1), [(len(pairs), 0.001)])
    with pytest.raises(DragomanError, match="expected pairs in epoch 1, found none; choose larger"):
        trained(make_config, tmp_path, OPTIONS, pairs=few)


def test_a_training_of_more_epochs_is_not_one_of_fewer(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trained(make_config, tmp_path, OPTIONS)
    with pytest.raises(DragomanError, match="a training of at most 1 epochs, found 2"):
        trained(make_config, tmp_path, replace(OPTIONS, epochs=1))
