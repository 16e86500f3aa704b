"""A quantized bundle of a trained model passes level 1, and damaged in its weights it does not.

The model is g2p-en, which loses little in 8 bits, and whose layers and heads all matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.benchmarks.models.bundles import MODEL, exported, opened
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle, Model, read_bundle
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import DistributionParity
from dragoman.verification.checks.distances import DistributionMeter
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.oracle import forced_batches, oracle_outputs, rounded_oracle
from dragoman.verification.parity import check_parity
from dragoman.verification.verdict import describe_failure

from .damage import Damage, damaged, head_zeroed, scales_off, three_bits

WORDS = 64
PRECISIONS: tuple[Precision, ...] = ("int8", "int4")
HEAD = 40
HEADS = {
    "a head of the encoder": head_zeroed("encoder.layers.2.self_attention", 2, HEAD),
    "a head of the decoder": head_zeroed("decoder.layers.0.self_attention", 0, HEAD),
    "a head of cross-attention": head_zeroed("decoder.layers.1.cross_attention", 1, HEAD),
}
DAMAGES: dict[Precision, dict[str, Damage]] = {
    "int8": {
        **{f"encoder {n} scaled": scales_off(f"encoder.layers.{n}", 1.1) for n in range(4)},
        "decoder 0 scaled": scales_off("decoder.layers.0", 1.1),
        "decoder 1 scaled": scales_off("decoder.layers.1", 0.9),
        **HEADS,
        "three bits": three_bits,
    },
    # Rounding to 4 bits itself moves every weight by a tenth on average: a tenth more in one layer
    # is within what it may do.
    "int4": {
        "encoder 2 scaled": scales_off("encoder.layers.2", 1.25),
        "decoder 0 scaled": scales_off("decoder.layers.0", 1.25),
        "decoder 1 scaled": scales_off("decoder.layers.1", 0.75),
        **HEADS,
        "three bits": three_bits,
    },
}


@pytest.fixture(scope="module")
def model() -> tuple[Transformer, ParityInputs]:
    checkpoint, inputs = opened(MODEL, Comparison(limit=WORDS))
    assert isinstance(checkpoint.model, Transformer)
    return checkpoint.model, inputs


@pytest.fixture(scope="module")
def expected(model: tuple[Transformer, ParityInputs]) -> list[list[int]]:
    reference, inputs = model
    return oracle_outputs(reference, inputs.sources, 32)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Bundle]:
    directory = tmp_path_factory.mktemp("g2p-en")
    neutral = read_bundle(exported(directory / "neutral"))
    made: dict[Precision, Bundle] = {}
    for precision in PRECISIONS:
        (directory / precision).mkdir()
        bundle = optimize_bundle(neutral, directory / precision, precision=precision)
        # Only graphs are damaged.
        manifest = dataclasses.replace(bundle.manifest, tokenizers=None)
        made[precision] = dataclasses.replace(bundle, manifest=manifest)
    return made


Measure = Callable[[Bundle], DistributionParity]


@pytest.fixture
def measured(model: tuple[Transformer, ParityInputs], expected: list[list[int]]) -> Measure:
    """What level 1 says of the distributions of a bundle."""
    reference, inputs = model

    def measure(bundle: Bundle) -> DistributionParity:
        rounded = rounded_oracle(reference, bundle.manifest)
        meter = DistributionMeter(bundle.manifest.precision, rounded)
        with Model(bundle, open_backend(bundle, "onnxruntime", 1)) as loaded:
            for batch in forced_batches(loaded, reference, inputs.sources, expected):
                meter.add(batch)
        return meter.result()

    return measure


@pytest.mark.parametrize(("precision", "most"), [("int8", 1.5), ("int4", 1.0)])
def test_a_sound_bundle_is_as_near_as_rounding_explains(
    precision: Precision, most: float, bundles: dict[Precision, Bundle], measured: Measure
) -> None:
    """The rounded oracle rounds only weights: in int8 activations are rounded, too; in int4 the
    scales are chosen better."""
    found = measured(bundles[precision])
    assert found.passed and found.rounded is not None
    assert 0 < found.bundle.mean < most * found.rounded.mean
    assert found.bundle.same_choice > 0.99


@pytest.mark.parametrize(
    ("precision", "damage"), [(p, damage) for p in PRECISIONS for damage in DAMAGES[p]]
)
def test_a_damaged_bundle_fails(
    precision: Precision,
    damage: str,
    bundles: dict[Precision, Bundle],
    measured: Measure,
    tmp_path: Path,
) -> None:
    found = measured(damaged(bundles[precision], tmp_path, DAMAGES[precision][damage]))
    assert not found.passed
    assert found.allowed is not None and found.bundle.mean > 1.1 * found.allowed


def test_the_whole_check_fails_and_says_so(
    model: tuple[Transformer, ParityInputs], bundles: dict[Precision, Bundle], tmp_path: Path
) -> None:
    reference, inputs = model
    tokens_only, bundle = ParityInputs(inputs.description, inputs.sources), bundles["int8"]
    for made, passes in (
        (bundle, True),
        (damaged(bundle, tmp_path, HEADS["a head of cross-attention"]), False),
    ):
        with Model(made, open_backend(made, "onnxruntime", 1)) as loaded:
            parity = check_parity(loaded, reference, tokens_only, backend="onnxruntime")
        assert parity.passed is passes
        assert parity.distributions is not None and parity.distributions.passed is passes
    found = parity.distributions
    assert found is not None and found.allowed is not None and found.rounded is not None
    message = describe_failure(dataclasses.replace(parity, checks=()))
    assert message.startswith(
        f"parity failed: the distributions of the next token are {found.bundle.mean:.3g} nats from "
        f"the oracle's on average, allowed {found.allowed:.3g} (rounding to nearest alone: "
        f"{found.rounded.mean:.3g}); a tolerance of "
    )
    stated = float(message.removesuffix(" would pass").rpartition(" ")[2])
    assert stated >= found.bundle.mean and stated == pytest.approx(found.bundle.mean, rel=5e-3)
