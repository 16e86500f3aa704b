"""Products that a user keeps in fp32: by which names, and that nothing else stays in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dragoman import DragomanError
from dragoman.optimize.precision.plan import RoundedProduct, rounded_products
from dragoman.optimize.precision.weights import KEPT
from dragoman.optimize.target_bundle import fused_graphs
from dragoman.optimize.targets import find_target
from dragoman.reference_model import ReferenceModel
from dragoman.runtime import Bundle, load
from dragoman.runtime.format.manifest import Manifest, Precision
from dragoman.verification.oracle import rounded_oracle

from .conftest import KINDS, Optimize, Trained

Make = Callable[[str], Trained]

PACKED = "decoder.layers.1.self_attention.query+key+value"
PARTS = tuple(f"decoder.layers.1.self_attention.{part}" for part in ("query", "key", "value"))
TIED = ("decoder.embedding.tokens", "output")


def products_of(bundle: Bundle, target: str = "cpu") -> list[RoundedProduct]:
    graphs, _ = fused_graphs(bundle, find_target(target), "int8", lambda stage: None)
    return rounded_products(graphs)


def rounded_modules(model: ReferenceModel, manifest: Manifest) -> set[str]:
    """By all names: the modules whose weights the rounded oracle has rounded."""
    rounded = rounded_oracle(model, manifest)
    weights = {
        name: getattr(module, "weight", None)
        for name, module in model.named_modules(remove_duplicate=False)
    }
    return {
        name
        for name, module in rounded.named_modules(remove_duplicate=False)
        if isinstance(weights[name], torch.Tensor) and not torch.equal(module.weight, weights[name])  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("target", ["cpu", "neutral"])
@pytest.mark.parametrize("kind", KINDS)
def test_products_name_the_modules_that_the_rounded_oracle_rounds(
    kind: str, target: str, trained: Make
) -> None:
    """It finds them in PyTorch. But for what bundles leave in fp32 anyway: tables of positions and
    segments, and heads that read a single token."""
    model, neutral = trained(kind)
    manifest = dataclasses.replace(neutral.manifest, precision="int8", target=target)
    products = products_of(neutral, target)
    modules = {module for product in products for module in product.modules}
    everything = {name for name in rounded_modules(model, manifest) if not is_left(name, kind)}
    assert modules <= everything and len(products) > 8
    keeping = dataclasses.replace(manifest, keep_fp32=tuple(modules))
    assert all(is_left(name, kind) for name in rounded_modules(model, keeping))
    one = products[-1]
    keeping = dataclasses.replace(manifest, keep_fp32=one.modules)
    assert everything - rounded_modules(model, keeping) == set(one.modules)


def is_left(name: str, kind: str) -> bool:
    return name.endswith((".positions", ".types")) or (
        kind == "labels" and name.startswith("head.")
    )


def test_names(trained: Make) -> None:
    products = products_of(trained("encoder-decoder").neutral)
    by_name = {product.name: product for product in products}
    assert by_name[PACKED].modules == PARTS
    assert by_name["decoder.embedding.tokens+output"].modules == TIED
    assert by_name["decoder.embedding.tokens+output"].parameters == 37 * 32
    assert by_name["decoder.layers.0.cross_attention.key"].graphs == ("encoder",)
    assert by_name["decoder.layers.0.cross_attention.query"].graphs == ("decoder",)
    tied = products_of(trained("all tied").neutral)[0]
    assert tied.name == "encoder.embedding.tokens+output"
    assert tied.graphs == ("encoder", "decoder")


# Each name, in each precision and for each target; int4 for processors is in the next test.
@pytest.mark.parametrize(("precision", "target"), [("int8", "cpu"), ("int4", "neutral")])
@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["decoder.layers.0.feed_forward.inner"], ("decoder.layers.0.feed_forward.inner",)),
        (["output"], TIED),
        (["decoder.embedding.tokens+output", "decoder.embedding"], TIED),
        (["encoder.embedding.tokens"], ("encoder.embedding.tokens",)),
    ],
)
def test_what_is_kept_and_nothing_else_is_in_fp32(
    names: list[str],
    kept: tuple[str, ...],
    precision: Precision,
    target: str,
    trained: Make,
    optimized: Optimize,
) -> None:
    bundle = optimized(
        trained("encoder-decoder").neutral, precision, target=target, keep_fp32=names
    )
    assert bundle.manifest.keep_fp32 == kept
    plain = optimized(trained("encoder-decoder").neutral, precision, target=target)
    assert matrices(bundle) - matrices(plain) == set(kept) - {"output"}
    reasons = [r.reason for p in bundle.manifest.passes for r in p.refusals]
    assert reasons.count(KEPT) == len(kept)


def matrices(bundle: Bundle) -> set[str]:
    """The modules whose weights are matrices of float32."""
    found = set()
    for graph in bundle.manifest.model_graphs:
        for name, value in ir.load(bundle.graph_path(graph)).graph.initializers.items():
            matrix = value.dtype == ir.DataType.FLOAT and len(value.shape or ()) == 2
            if matrix and not name.endswith((".table", ".scale")):
                found |= {part.partition(".weight")[0] for part in name.split("+")}
    return found


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("name", [PACKED, PARTS[1], "decoder.layers.1.self_attention"])
def test_what_is_packed_is_kept_together(
    name: str, precision: Precision, trained: Make, optimized: Optimize
) -> None:
    bundle = optimized(trained("encoder-decoder").neutral, precision, keep_fp32=[name])
    output = ("decoder.layers.1.self_attention.output",) if name.endswith("attention") else ()
    assert bundle.manifest.keep_fp32 == (*PARTS, *output)
    assert matrices(bundle) >= {*PARTS, *output}


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_that_keeps_everything_computes_what_fp32_does(
    kind: str, trained: Make, optimized: Optimize
) -> None:
    neutral = trained(kind).neutral
    kept = optimized(neutral, keep_fp32=[product.name for product in products_of(neutral)])
    exact = optimized(neutral, "fp32")
    generator = np.random.default_rng(1)
    tokens = generator.integers(3, 30, (3, 7))
    found, expected = (scores(bundle, tokens) for bundle in (kept, exact))
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, others, atol=1e-4)
    assert not np.allclose(scores(optimized(neutral), tokens)[0], expected[0], atol=1e-4)


def scores(bundle: Bundle, tokens: np.ndarray) -> list[np.ndarray]:
    """The outputs of a forced pass, or of an encoder-only model."""
    mask = np.ones(tokens.shape, bool)
    with load(bundle.directory, threads=1) as model:
        if bundle.manifest.head is not None:
            return [*model.backend.encode(tokens, mask, np.zeros_like(tokens)).values()]
        source = tokens if bundle.manifest.model.has_encoder else tokens[:, :0]
        return [model.backend.score(source, mask[:, : source.shape[1]], tokens[:, :5])]


def test_the_manifest_says_it_only_if_something_is_kept(trained: Make, optimized: Optimize) -> None:
    neutral = trained("encoder-decoder").neutral
    assert "keep_fp32" not in json.loads(optimized(neutral).manifest.to_json())
    kept = json.loads(optimized(neutral, keep_fp32=["output"]).manifest.to_json())
    assert kept["keep_fp32"] == [*TIED]


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("decoder.layers.9", "decoder.layers."),
        ("decoder.layers.1.feedforward.inner", "decoder.layers.1.feed_forward.inner"),
        ("", ""),
    ],
)
def test_an_unknown_name(name: str, close: str, trained: Make, optimized: Optimize) -> None:
    with pytest.raises(DragomanError) as caught:
        optimized(trained("encoder-decoder").neutral, keep_fp32=["output", name])
    message = str(caught.value)
    assert f"such as {close}" in message and f"found {name!r}" in message
    assert "dragoman sensitivity lists them" in message
