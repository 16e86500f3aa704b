"""The learning rate: equation 3 of the paper, other schedules, and a cool-down."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.reference_model.training import TrainingOptions
from dragoman.reference_model.training.options import (
    cool_down,
    inverse_square_root,
    learning_rate,
)

Schedule = Literal["inverse-square-root", "linear", "cosine", "constant"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        # d_model 16, so a factor 1/4; warm-up of 100 steps, so 100^-1.5 = 1/1000.
        (1, 0.25 / 1000),
        (2, 0.5 / 1000),
        (50, 0.0125),
        (100, 0.025),
        (400, 0.0125),
        (10_000, 0.0025),
    ],
)
def test_equation_3_matches_hand_computed_values(step: int, expected: float) -> None:
    rate = inverse_square_root(step, d_model=16, warmup_steps=100)
    assert rate == pytest.approx(expected, rel=1e-12)


def test_the_base_model_peaks_as_in_the_paper() -> None:
    # 512^-0.5 * 4000^-0.5
    rate = inverse_square_root(4000, d_model=512, warmup_steps=4000)
    assert rate == pytest.approx(6.98771e-4, rel=1e-5)


@pytest.mark.parametrize("warmup_steps", [1, 7, 100])
def test_the_peak_is_at_the_end_of_the_warm_up(warmup_steps: int) -> None:
    rates = [
        inverse_square_root(step, d_model=24, warmup_steps=warmup_steps) for step in range(1, 300)
    ]
    peak = rates.index(max(rates))
    assert peak + 1 == warmup_steps
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_scale_is_a_factor() -> None:
    plain = inverse_square_root(30, d_model=24, warmup_steps=10)
    scaled = inverse_square_root(30, d_model=24, warmup_steps=10, scale=2.5)
    assert scaled == pytest.approx(2.5 * plain, rel=1e-12)


@pytest.mark.parametrize(
    ("epochs_done", "expected"),
    [(0, 1.0), (5.9, 1.0), (6, 1.0), (7, 0.75), (8, 0.5), (8.5, 0.375), (9, 0.25), (10, 0.0)],
)
def test_cool_down_matches_hand_computed_values(epochs_done: float, expected: float) -> None:
    factor = cool_down(epochs_done, epochs=10, cool_down_epochs=4)
    assert factor == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("epochs_done", [0, 3.5, 10])
def test_without_a_cool_down_the_rate_is_the_paper_s(epochs_done: float) -> None:
    assert cool_down(epochs_done, epochs=10, cool_down_epochs=0) == 1.0


def test_a_cool_down_longer_than_the_training_starts_below_one() -> None:
    assert cool_down(0, epochs=2, cool_down_epochs=8) == 0.25


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("schedule", ["inverse-square-root", "linear", "cosine", "constant"])
def test_schedules_rise_to_the_peak_and_go_on_as_they_are_called(
    schedule: Schedule, scale: float
) -> None:
    options = TrainingOptions(
        epochs=1,
        schedule=schedule,
        learning_rate=3e-4,
        learning_rate_scale=scale,
        warmup_steps=7,
    )
    rates = [learning_rate(options, step, d_model=24, steps=40) for step in range(1, 41)]
    step = np.arange(1, 41)
    rise = np.minimum(step / 7, 1)
    line = np.interp(step, [7, 41], [1, 0])
    fall = {
        "inverse-square-root": np.sqrt(7 / np.maximum(step, 7)),
        "linear": line,
        "cosine": np.sin(np.pi / 2 * line) ** 2,
        "constant": np.ones(40),
    }
    np.testing.assert_allclose(rates, 3e-4 * scale * rise * fall[schedule], rtol=1e-9)


def test_without_a_learning_rate_the_peak_is_the_paper_s() -> None:
    options = TrainingOptions(epochs=1, schedule="constant", warmup_steps=4000)
    rate = learning_rate(options, 5000, d_model=512, steps=10_000)
    assert rate == pytest.approx(6.98771e-4, rel=1e-5)


def test_a_warm_up_longer_than_the_training_rises_to_its_end() -> None:
    options = TrainingOptions(epochs=1, schedule="linear", learning_rate=1.0, warmup_steps=100)
    assert learning_rate(options, 50, d_model=8, steps=50) == pytest.approx(0.5)
    assert learning_rate(options, 120, d_model=8, steps=50) == 0.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_that_falls_to_zero_has_no_cool_down(schedule: Schedule) -> None:
    with pytest.raises(DragomanError, match=f"expected 0 with the schedule {schedule}, which"):
        TrainingOptions(epochs=3, schedule=schedule, cool_down_epochs=1)
