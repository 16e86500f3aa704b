"""`check_parity`: passes for a faithful bundle, fails at the right level for any other, by name."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.cli.shared.tables import print_parity
from dragoman.errors import DragomanError
from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import Model, load
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import NOT_FINITE, Parity
from dragoman.verification.checks.distances import DifferenceMeter
from dragoman.verification.inputs.parity_inputs import ParityInputs, random_inputs
from dragoman.verification.parity import check_parity
from dragoman.verification.tolerances import TOLERANCES
from dragoman.verification.verdict import describe_failure


def checked(bundle: Model, reference: Transformer, inputs: ParityInputs | None = None) -> Parity:
    inputs = inputs or random_inputs(reference, 24)
    return check_parity(bundle, reference, inputs, backend="onnxruntime")


def new_directory(path: Path) -> Path:
    path.mkdir()
    return path


def perturbed(reference: Transformer, name: str, change: float) -> Transformer:
    """A copy with one weight changed: the bundle is then one of other weights than its oracle's."""
    other = copy.deepcopy(reference)
    with torch.no_grad():
        dict(other.named_parameters())[name].add_(change)
    return other


def failed_tensors(parity: Parity) -> list[str]:
    return [tensor.name for tensor in parity.tensors if not tensor.passed]


@pytest.mark.parametrize(
    "settings",
    [
        {"forced_first_token_id": 5, "max_new_tokens": 1},
        {"forced_first_token_id": 5, "forced_last_token_id": 3, "max_new_tokens": 2},
    ],
    ids=["the only token", "both tokens"],
)
def test_outputs_whose_tokens_are_all_forced(
    settings: dict[str, Any], reference: Transformer, tmp_path: Path
) -> None:
    """The first is no choice, so that there are no distributions; all else is compared."""
    model = copy.deepcopy(reference)
    model.generation = dataclasses.replace(model.generation, **settings)
    export_bundle(model, tmp_path, name="forced")
    with load(tmp_path, threads=1) as bundle:
        parity = checked(bundle, model)
    assert parity.passed
    assert (parity.distributions is None) == (settings["max_new_tokens"] == 1)
    assert (parity.tokens.sequences, parity.tokens.identical) == (24, 24)
    assert [tensor.name for tensor in parity.tensors][-1] == "logits"
    print_parity(parity)


def test_rounded_weights_of_outputs_of_one_token(
    make_model: Callable[..., Transformer], tmp_path: Path
) -> None:
    """The decoder's first products have one input only, to which weights must not be fitted."""
    model = make_model(decoder_layers=2, seed=1)
    model.generation = dataclasses.replace(
        model.generation, forced_first_token_id=5, max_new_tokens=1
    )
    exported = export_bundle(model, new_directory(tmp_path / "exported"), name="forced")
    rounded = new_directory(tmp_path / "rounded")
    sources = random_inputs(model, 24).sources
    optimize_bundle(exported, rounded, target="cpu", precision="int8", calibration=sources)
    with load(rounded, threads=1) as bundle:
        parity = checked(bundle, model)
    assert parity.passed, describe_failure(parity)
    assert "products" in [check.name for check in parity.checks]


def test_a_faithful_bundle_passes_every_level(bundle: Model, reference: Transformer) -> None:
    advanced: list[int] = []
    inputs = random_inputs(reference, 24)
    parity = check_parity(bundle, reference, inputs, backend="onnxruntime", advance=advanced.append)
    assert parity.passed
    assert sum(advanced) == 24
    assert [tensor.name for tensor in parity.tensors] == [
        "cross_key_0",
        "cross_value_0",
        "cross_key_1",
        "cross_value_1",
        "logits",
    ]
    for tensor in parity.tensors:
        assert tensor.passed and tensor.tolerance == 1e-4
        assert 0 < tensor.difference <= tensor.largest_absolute < 1e-4
    assert (parity.tokens.sequences, parity.tokens.identical) == (24, 24)
    assert parity.tokens.passed and parity.tokens.divergences == ()
    assert parity.tasks == ()
    assert parity.backend == "onnxruntime"
    assert parity.inputs == "24 random sources (seed 0)"
    assert parity.oracle == f"reference_model, PyTorch {torch.__version__}, fp32, without a cache"


@pytest.mark.parametrize(
    ("weight", "names"),
    [
        ("decoder.layers.1.cross_attention.key.bias", {"cross_key_1"}),
        ("decoder.layers.0.cross_attention.value.weight", {"cross_value_0", "logits"}),
        ("decoder.layers.1.feed_forward.outer.bias", {"logits"}),
    ],
)
def test_the_tensors_that_differ_are_named(
    bundle: Model, reference: Transformer, weight: str, names: set[str]
) -> None:
    """A key's bias adds the same to all scores of a query, so that it shows in the keys only."""
    other = perturbed(reference, weight, 0.01)
    if weight.endswith("outer.bias"):
        # The same for all features is taken out again by the last LayerNorm.
        with torch.no_grad():
            dict(other.named_parameters())[weight][0].add_(0.05)
    parity = checked(bundle, other)
    assert not parity.passed
    assert set(failed_tensors(parity)) == names
    first = failed_tensors(parity)[0]
    assert f"weights: {weight}[" in describe_failure(parity)
    message = describe_failure(dataclasses.replace(parity, checks=()))
    assert message.startswith(f"parity failed: {first} differs by ")
    assert "\n" not in message


def test_the_tolerance_it_names_is_the_smallest_that_passes(
    bundle: Model, reference: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given that tolerance the tensor passes, given one digit less it does not."""
    other = perturbed(reference, "decoder.layers.0.cross_attention.key.bias", 0.003)
    before = checked(bundle, other)
    (name,) = failed_tensors(before)
    message = describe_failure(dataclasses.replace(before, checks=()))
    stated = float(message.removesuffix(" would pass").rpartition(" ")[2])
    (tensor,) = (t for t in before.tensors if t.name == name)
    assert stated == pytest.approx(tensor.difference, rel=5e-3)
    for tolerance, passes in ((stated, True), (stated * 0.99, False)):
        monkeypatch.setitem(TOLERANCES, "fp32", tolerance)
        assert (failed_tensors(checked(bundle, other)) == []) == passes


def test_tensors_within_tolerance_and_tokens_not(
    bundle: Model, reference: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At fp32 no divergence is excused, however wide the tolerance of the tensors."""
    other = perturbed(reference, "decoder.layers.1.feed_forward.outer.weight", 0.0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in other.decoder.layers[1].feed_forward.parameters():  # type: ignore[union-attr]
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    monkeypatch.setitem(TOLERANCES, "fp32", 10.0)
    parity = checked(bundle, other)
    assert failed_tensors(parity) == []
    tokens = parity.tokens
    assert not parity.passed and not tokens.passed
    assert tokens.identical == tokens.sequences - len(tokens.divergences) < tokens.sequences
    worst = max(tokens.divergences, key=lambda d: d.margin)
    assert describe_failure(dataclasses.replace(parity, checks=())) == (
        f"parity failed: {len(tokens.divergences)} of 24 sequences differ; the worst, random "
        f"source {worst.input + 1}, at step {worst.step}: expected token {worst.expected_token}, "
        f"found {worst.found_token}, margin {worst.margin:.3g}"
    )


def test_sources_of_one_token_and_of_all_positions(
    bundle: Model, reference: Transformer, make_sources: Callable[..., list[list[int]]]
) -> None:
    for lengths in ([1], [16], [1, 16]):
        parity = checked(bundle, reference, ParityInputs("lengths", make_sources(lengths)))
        assert parity.passed and parity.tokens.sequences == len(lengths)


def test_random_inputs_are_ragged_repeatable_and_the_models(reference: Transformer) -> None:
    inputs = random_inputs(reference, 40)
    lengths = [len(source) for source in inputs.sources]
    assert (min(lengths), max(lengths), len(lengths)) == (1, 16, 40)
    assert {token for source in inputs.sources for token in source} == set(range(17))
    assert random_inputs(reference, 40) == inputs
    assert random_inputs(reference, 40, seed=1) != inputs
    assert [len(source) for source in random_inputs(reference, 1).sources] == [1]


@pytest.mark.filterwarnings("ignore")
def test_a_trained_model_that_overflows(reference: Transformer, tmp_path: Path) -> None:
    """Not the bundle is at fault."""
    model = perturbed(reference, "encoder.layers.0.feed_forward.inner.weight", 3e38)
    export_bundle(model, tmp_path, name="overflows")
    with (
        load(tmp_path, threads=1) as bundle,
        pytest.raises(DragomanError, match=r"^the trained model itself gives values that are NaN"),
    ):
        checked(bundle, model)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_passes(bad: float) -> None:
    meter = DifferenceMeter()
    meter.add(np.array([1.0, bad], np.float16), np.array([1.0, 1.0], np.float32))
    meter.add(np.array([1.0]), np.array([1.0]))
    result = meter.result("logits", tolerance=1e30)
    assert not result.passed
    assert min(result.difference, result.largest_absolute, result.largest_relative) > 1e200


def test_differences_by_hand() -> None:
    """The largest of each, over all that was added; relative to the oracle's value there."""
    meter = DifferenceMeter()
    meter.add(np.array([1.5, -4.0]), np.array([1.0, -4.0]))
    meter.add(np.array([[0.3]]), np.array([[0.1]]))
    result = meter.result("logits", tolerance=0.125)
    assert result.largest_absolute == 0.5
    assert result.largest_relative == pytest.approx(2.0)
    assert result.difference == 0.125 and result.passed
    assert not meter.result("logits", tolerance=0.124).passed
    # Below 1 the scale is 1: values that are all small are not held to a stricter measure.
    small = DifferenceMeter()
    small.add(np.array([0.02]), np.array([0.01]))
    assert small.result("logits", tolerance=1.0).difference == pytest.approx(0.01)


@pytest.mark.parametrize("beyond", [0, 1, 21])
def test_positions_beyond_the_tolerance_are_counted(beyond: int) -> None:
    expected = np.ones((2000, 3, 2))
    found = expected + 0.125
    found[7 : 7 + beyond, 1, 1] += 100
    meter = DifferenceMeter()
    for part in range(0, 2000, 500):
        meter.add(found[part : part + 500], expected[part : part + 500])
    result = meter.result("cross_key_0", 0.25)
    assert result.passed is (beyond == 0)
    assert (result.positions, result.positions_beyond) == (2000, beyond)
    assert result.difference == (100.125 if beyond else 0.125)


def test_without_a_tolerance_values_need_only_be_finite() -> None:
    meter = DifferenceMeter()
    meter.add(np.array([100.0, 1.0]), np.ones(2))
    result = meter.result("cross_key_0", None)
    assert result.passed and result.difference == 99 and result.positions_beyond == 0
    meter.add(np.array([np.nan]), np.ones(1))
    assert not meter.result("cross_key_0", None).passed


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int4"])
def test_below_fp32_distributions_decide_in_place_of_tensors(
    bundle: Model, reference: Transformer, precision: Precision
) -> None:
    """Though the bundle is one of other weights than its oracle, every tensor passes."""
    other = perturbed(reference, "decoder.layers.1.cross_attention.value.weight", 0.5)
    manifest = dataclasses.replace(bundle.manifest, precision=precision)
    model = Model(dataclasses.replace(bundle.bundle, manifest=manifest), bundle.backend)
    parity = checked(model, other)
    assert failed_tensors(parity) == [] and {t.tolerance for t in parity.tensors} == {None}
    assert parity.distributions is not None and not parity.distributions.passed
    assert not parity.passed
    message = describe_failure(dataclasses.replace(parity, checks=()))
    assert message.startswith("parity failed: the distributions of the next token are ")
    random = dataclasses.replace(parity, checks=(), inputs="24 random sources (seed 0)")
    hint = "; these are default inputs: compare on texts or clips of your own, too (--inputs)"
    assert describe_failure(random).endswith(f"would pass{hint}")
    assert describe_failure(dataclasses.replace(random, inputs="a.txt")).endswith("would pass")
    distance = dataclasses.replace(parity.distributions.bundle, largest=NOT_FINITE)
    broken = dataclasses.replace(parity.distributions, bundle=distance)
    found = describe_failure(dataclasses.replace(random, distributions=broken))
    assert found.endswith("the distributions of the next token are not finite")
    assert checked(model, reference).passed


def test_positions_are_counted_where_parity_is_shown(
    bundle: Model, reference: Transformer, capsys: pytest.CaptureFixture[str]
) -> None:
    parity = checked(bundle, reference)
    key, value, *others = parity.tensors
    tensors = (
        dataclasses.replace(key, difference=0.1, positions=1000, positions_beyond=0),
        dataclasses.replace(value, difference=0.01, positions=1000, positions_beyond=7),
        *others,
    )
    print_parity(dataclasses.replace(parity, tensors=tensors))
    shown = " ".join(re.sub("[^\\w ]", " ", capsys.readouterr().out).split())
    assert "7 of 1000" in shown
