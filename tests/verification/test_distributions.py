"""Distances between distributions of the next token, and what they are held to."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence

from dragoman.cli.shared.tables import print_parity
from dragoman.reference_model import GenerationConfig, Transformer
from dragoman.runtime import Model
from dragoman.runtime.format.manifest import Manifest, Precision
from dragoman.verification.checks.distances import DistanceMeter, DistributionMeter, divergence
from dragoman.verification.inputs.parity_inputs import random_inputs
from dragoman.verification.oracle import (
    RoundedWeight,
    forced_batches,
    oracle_outputs,
    rounded_oracle,
)
from dragoman.verification.parity import check_parity
from dragoman.verification.tolerances import DIVERGENCE_LIMITS, ROUNDING_MULTIPLES
from dragoman.verification.verdict import describe_failure


def logits(seed: int, positions: int = 7, vocabulary: int = 11) -> torch.Tensor:
    return torch.randn(positions, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def test_the_divergence_of_a_coin() -> None:
    """The divergence of 1/2 and 1/2 from 1/4 and 3/4 is half the logarithm of 4/3."""
    fair, unfair = torch.tensor([[1.0, 1.0]]), torch.log(torch.tensor([[1.0, 3.0]]))
    assert float(divergence(fair, unfair)) == pytest.approx(math.log(4 / 3) / 2)
    assert float(divergence(fair, fair + 1000)) == 0


def test_the_divergence_is_that_of_torch() -> None:
    p, q = logits(1), logits(2)
    expected = kl_divergence(Categorical(logits=p), Categorical(logits=q))
    torch.testing.assert_close(divergence(p, q).float(), expected)
    assert not torch.allclose(divergence(q, p).float(), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_far(bad: float) -> None:
    found = logits(2)
    found[3, 5] = bad
    distances = divergence(logits(1), found)
    assert [float(d) > 1e200 for d in distances] == [i == 3 for i in range(7)]
    assert torch.isfinite(distances).all()  # JSON has no infinity


def test_figures_over_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.verification.checks.distances.CHUNK", 23)
    meter, everything = DistanceMeter(), []
    for seed, positions in ((1, 7), (3, 1), (5, 40)):
        p, q = logits(seed, positions), logits(seed + 1, positions)
        q[0] = p[0]
        meter.add(p.numpy(), q.numpy().astype(np.float16 if seed == 3 else np.float32))
        everything.append((p, q))
    p, q = (torch.cat(side) for side in zip(*everything, strict=True))
    distances = divergence(p, q).numpy()
    found = meter.result()
    assert meter.positions == 48
    assert found.mean == pytest.approx(distances.mean(), rel=1e-4)
    assert found.median == pytest.approx(np.median(distances), rel=1e-4)
    assert found.percentile_99 == pytest.approx(np.quantile(distances, 0.99), rel=1e-4)
    assert found.largest == pytest.approx(distances.max(), rel=1e-4)
    assert found.same_choice == float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert 0 < found.same_choice < 1


BEST, NEXT, OTHER = [1.00005, 1.0, 0.0], [1.0, 1.00001, 0.0], [1.0, 0.9, 1.1]


@pytest.mark.parametrize(
    ("expected", "found", "ties"),
    [
        ([BEST, BEST], [BEST, NEXT], 1),
        ([BEST, BEST], [BEST, OTHER], None),  # the oracle's third is not as good
        ([[1.01, 1.0, 0.0]], [NEXT], None),
        ([[100.005, 100.0, 0.0]], [[100.0, 100.001, 0.0]], 1),  # 5e-5 of the largest
        ([[0.0, 0.00005]], [[0.0, -0.00001]], 1),  # a label that is true or not by itself
    ],
)
def test_labels_may_differ_where_the_oracle_has_two_as_good(
    expected: list[list[float]], found: list[list[float]], ties: int | None
) -> None:
    meter = DistributionMeter("fp32", None)
    meter.add_logits(np.array(expected, np.float32), np.array(found, np.float32), None)
    result = meter.result(labels=True)
    assert result.passed == (ties is not None)
    assert result.ties == (ties or 0)
    assert result.bundle.same_choice == (len(expected) - 1) / len(expected)
    assert meter.result().ties == 0  # where tokens decide


def test_ties_are_shown_and_explain_no_other_difference(
    bundle: Model,
    reference: Transformer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parity = check_parity(bundle, reference, random_inputs(reference, 3), backend="")
    assert parity.distributions is not None
    distance = dataclasses.replace(parity.distributions.bundle, same_choice=0.25)
    found = dataclasses.replace(
        parity.distributions, positions=8, bundle=distance, ties=2, passed=False
    )
    failed = dataclasses.replace(parity, distributions=found)
    assert describe_failure(failed) == ("parity failed: 50.00% of 8 labels are not the oracle's")
    monkeypatch.setenv("COLUMNS", "200")
    print_parity(failed)
    assert "2 as good" in capsys.readouterr().out


def with_precision(manifest: Manifest, precision: Precision, target: str = "cpu") -> Manifest:
    return dataclasses.replace(manifest, precision=precision, target=target)


def to_nearest(weight: torch.Tensor, bits: int, block: int | None) -> torch.Tensor:
    return RoundedWeight.nearest(weight, bits, block).numbers()


def test_weights_are_rounded_to_the_nearest_integer() -> None:
    weight = torch.tensor([[0.0, 1.0, -3.9, 7.0, 2.4, 0.2], [0.0] * 6])
    # One scale, 7 / 7: integers. In blocks of four, the last of which is padded: 2.4 / 7.
    torch.testing.assert_close(
        to_nearest(weight, 4, None), torch.tensor([[0.0, 1, -4, 7, 2, 0], [0.0] * 6])
    )
    blocks = to_nearest(weight, 4, 4)
    torch.testing.assert_close(blocks[0], torch.tensor([0, 1, -4, 7, 2.4, 2.4 / 7]))
    torch.testing.assert_close(to_nearest(weight, 8, None)[0, 2], torch.tensor(-71 * 7 / 127))


def test_in_4_bits_a_largest_weight_is_clipped_for_the_others() -> None:
    weight = torch.tensor([[10.0, *[0.7] * 40]])
    rounded = to_nearest(weight, 4, None)[0]
    assert rounded[0] < 10
    assert float((rounded - weight).square().sum()) < 40 * 0.7**2  # what 0 instead of 0.7 costs
    assert to_nearest(weight, 8, None)[0, 0] == 10


@pytest.mark.parametrize(("bits", "block"), [(8, None), (4, None), (4, 4)])
def test_operators_read_rounded_weights_as_numbers(bits: int, block: int | None) -> None:
    torch.manual_seed(0)
    weight = RoundedWeight.nearest(torch.randn(7, 10), bits, block)
    numbers, x, bias = weight.numbers(), torch.randn(2, 3, 10), torch.randn(7)
    assert numbers.dtype == torch.float32 and type(numbers) is torch.Tensor
    product = nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(product, x @ numbers.T + bias)
    ids = torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(nn.functional.embedding(ids, weight), numbers[ids])
    assert torch.equal(weight[1], numbers[1])
    assert torch.equal(weight + 1, numbers + 1)
    assert weight.shape == (7, 10) and isinstance(weight, nn.Parameter)
    assert weight.dtype == torch.float32 and copy.deepcopy(weight) is weight
    torch.testing.assert_close(nn.functional.linear(x, weight=weight), product - bias)


def test_weights_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain, x = torch.randn(7, 10), torch.randn(2, 10)
    whole = RoundedWeight.nearest(plain, 4, 4)
    monkeypatch.setattr("dragoman.verification.oracle.NUMBERS_AT_ONCE", 25)
    parts = RoundedWeight.nearest(plain, 4, 4)
    assert torch.equal(parts.numbers(), whole.numbers())
    assert [len(part) for part in parts.parts()] == [2, 2, 2, 1]
    product = nn.functional.linear(x, parts)
    torch.testing.assert_close(product, x @ whole.numbers().T)


@pytest.mark.parametrize(
    ("target", "precision", "rounds_inputs"),
    [
        ("cpu", "int8", True),
        ("cpu", "int4", True),
        ("neutral", "int8", False),
        ("neutral", "int4", False),
    ],
)
def test_the_oracle_is_rounded_as_the_target_rounds(
    reference: Transformer, bundle: Model, target: str, precision: Precision, rounds_inputs: bool
) -> None:
    before = copy.deepcopy(reference.state_dict())
    rounded = rounded_oracle(reference, with_precision(bundle.manifest, precision, target))
    after = reference.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name, module in rounded.named_modules():
        original = dict(reference.named_modules())[name]
        if isinstance(module, nn.Linear | nn.Embedding):
            assert isinstance(original, nn.Linear | nn.Embedding)
            difference = (module.weight - original.weight).abs().max()
            assert 0 < difference < 0.2 * original.weight.abs().max(), name
        elif "norm" in name and hasattr(module, "gain"):
            assert torch.equal(module.gain, original.gain)
    assert torch.equal(rounded.output.weight, rounded.decoder.embedding.tokens.weight)
    x = torch.randn(2, 3, reference.config.d_model)
    linear: Any = dict(rounded.named_modules())["decoder.layers.0.feed_forward.inner"]
    exact = nn.functional.linear(x, linear.weight, linear.bias)
    assert torch.equal(linear(x), exact) is not rounds_inputs
    torch.testing.assert_close(linear(x), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_in_16_bits_every_module_returns_what_16_bits_hold(
    reference: Transformer, bundle: Model, precision: Precision, dtype: torch.dtype
) -> None:
    rounded = rounded_oracle(reference, with_precision(bundle.manifest, precision, "neutral"))
    seen: list[torch.Tensor] = []
    for module in rounded.modules():
        module.register_forward_hook(lambda _, __, output: seen.append(output))
    source = torch.tensor([[4, 5, 6]])
    found = rounded(source, torch.ones_like(source, dtype=torch.bool), torch.tensor([[1, 4]]))
    seen.append(found)
    tensors = [x for x in seen if isinstance(x, torch.Tensor)]
    assert len(tensors) > 30
    assert all(torch.equal(x, x.to(dtype).float()) for x in tensors)
    exact = reference(source, torch.ones_like(source, dtype=torch.bool), torch.tensor([[1, 4]]))
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0.1)


def test_what_16_bits_cannot_hold_stays(bundle: Model, reference: Transformer) -> None:
    large = copy.deepcopy(reference)
    with torch.no_grad():
        dict(large.named_parameters())["encoder.layers.0.feed_forward.outer.weight"].mul_(1e7)
    rounded = rounded_oracle(large, with_precision(bundle.manifest, "fp16", "neutral"))
    source = torch.tensor([[4, 5, 6]])
    found = rounded(source, torch.ones_like(source, dtype=torch.bool), torch.tensor([[1]]))
    assert torch.isfinite(found).all()


def test_engines_with_integer_weights_multiply_in_16_bits(
    reference: Transformer, bundle: Model
) -> None:
    rounded = rounded_oracle(reference, with_precision(bundle.manifest, "int8", "tensorrt-rtx"))
    gain = rounded.decoder.norm.gain
    assert isinstance(gain, torch.Tensor) and torch.equal(gain, gain.half().float())


def test_only_what_the_model_chooses_is_compared(bundle: Model, reference: Transformer) -> None:
    """A prompt of two, and a forced first token: the first that is predicted is the fourth read."""
    oracle = copy.copy(reference)
    oracle.generation = GenerationConfig(prompt=(5, 6), forced_first_token_id=7)
    sources: list[Any] = [[4, 5], [3] * 16, [9]]
    outputs = oracle_outputs(oracle, sources, 5)
    assert all(output[0] == 7 for output in outputs)
    predicted = 0
    for batch in forced_batches(bundle, oracle, sources, outputs):
        assert not batch.chosen_mask[:, :3].any()
        assert (batch.chosen_mask[:, 3:] == batch.read_mask[:, 3:]).all()
        predicted += int(batch.chosen_mask.sum())
    assert predicted == sum(len(output) - 1 for output in outputs)


def test_at_fp32_distances_are_recorded_and_tensors_decide(
    bundle: Model, reference: Transformer
) -> None:
    found = check_parity(bundle, reference, random_inputs(reference, 9), backend="").distributions
    assert found is not None and found.passed
    assert found.rounded is None and found.allowed is None
    assert 0 < found.bundle.mean <= found.bundle.largest < 1e-8
    assert found.bundle.same_choice == 1


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "int4"])
def test_the_limit_is_a_multiple_of_rounding_and_on_real_inputs_absolute_too(
    bundle: Model, reference: Transformer, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = random_inputs(reference, 9)
    manifest = with_precision(bundle.manifest, precision, "neutral")
    model = Model(dataclasses.replace(bundle.bundle, manifest=manifest), bundle.backend)
    found = check_parity(model, reference, inputs, backend="").distributions
    assert found is not None and found.passed and found.rounded is not None
    multiple = ROUNDING_MULTIPLES[precision] * found.rounded.mean
    assert found.allowed == pytest.approx(max(1e-6, multiple))
    monkeypatch.setitem(DIVERGENCE_LIMITS, precision, 1e-20)
    assert check_parity(model, reference, inputs, backend="").passed
    real = dataclasses.replace(inputs, random=False)
    parity = check_parity(model, reference, real, backend="")
    assert parity.distributions is not None and not parity.distributions.passed
    assert parity.distributions.allowed == 1e-20 and not parity.passed


def test_distributions_that_are_not_finite_fail(bundle: Model, reference: Transformer) -> None:
    manifest = with_precision(bundle.manifest, "int8")
    meter = DistributionMeter("int8", rounded_oracle(reference, manifest))
    sources: list[Any] = [[4, 5]]
    for batch in forced_batches(bundle, reference, sources, oracle_outputs(reference, sources, 3)):
        meter.add(dataclasses.replace(batch, scored=batch.scored * math.nan))
    found = meter.result()
    assert not found.passed
    parity = check_parity(bundle, reference, random_inputs(reference, 3), backend="")
    assert describe_failure(dataclasses.replace(parity, distributions=found)) == (
        "parity failed: the distributions of the next token are not finite"
    )
