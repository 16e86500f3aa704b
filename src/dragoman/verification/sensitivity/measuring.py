"""Rounds each product by itself, each layer by itself, and all products but the worst."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from dragoman.optimize.precision.calibration import calibration_batches
from dragoman.optimize.precision.plan import cache_passes, weight_passes
from dragoman.optimize.precision.products import RoundedProduct, rounded_products
from dragoman.optimize.precision.weights import ProductError
from dragoman.optimize.target_bundle import fused_graphs
from dragoman.optimize.targets import find_target
from dragoman.progress import Progress
from dragoman.reference_model import ReferenceModel
from dragoman.runtime import Bundle, Model
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.inputs.sources import Sources

from .results import Effect, Keeping, LayerSensitivity, ProductSensitivity, Sensitivity
from .variants import Probe, Variant, Variants, probe_of

LAYER = re.compile(r"\w+\.layers\.\d+")
BEYOND_ROUNDING = 0.01
"""The share of a weight's integers that may differ from the bundle's. Where sums are computed in
another order, as on another processor, some weights are rounded the other way."""


def measure_sensitivity(
    neutral: Bundle,
    bundle: Bundle,
    reference: ReferenceModel,
    inputs: ParityInputs,
    *,
    calibration: Sources | None,
    calibrated_on: str | None,
    threads: int | None,
    progress: Progress,
) -> Sensitivity:
    """Measure how the precision of a bundle changes the predictions of its trained model.

    Args:
        calibration: the calibration data of the bundle; None: random inputs
    """
    manifest = bundle.manifest
    target, precision = find_target(manifest.target), manifest.precision
    graphs, _ = fused_graphs(neutral, target, precision, progress.stage)
    products = rounded_products(graphs)
    progress.stage("decoding the calibration's sources")
    observed = calibration_batches(neutral, *(calibration or ()))
    progress.stage("rounding weights")
    passes = weight_passes(graphs, target.recipe, precision, observed)
    caches = cache_passes(graphs, target.recipe, observed)
    errors: dict[str, ProductError] = {}
    for name, (model, _) in graphs.items():
        errors |= passes[name].errors(model)
    progress.stage("predicting in fp32")
    with Model(neutral, open_backend(neutral, "onnxruntime", threads)) as exact:
        probe = probe_of(exact, reference, inputs)
    variants = Variants(neutral.manifest, graphs, passes, caches, products, threads)
    quantized = [product for product in products if errors[product.weight].suffices]
    kept = set(manifest.keep_fp32)
    rounded = [product for product in quantized if not kept.issuperset(product.modules)]
    differing = _differing(bundle, variants, rounded)
    layers: dict[str, list[RoundedProduct]] = {}
    for product in quantized:
        layers.setdefault(_layer(product), []).append(product)
    counts = _counts(len(quantized))
    progress.stage(f"measuring {len(quantized)} products, {len(layers)} layers")
    measured = _Measured(variants, probe, progress, len(quantized) + len(layers) + len(counts))
    effects = {product: measured.effect([product]) for product in quantized}
    ranked = sorted(
        quantized, key=lambda p: (effects[p].mean, errors[p.weight].found), reverse=True
    )
    weights = next((f.sha256 for f in manifest.files if f.path == WEIGHTS_FILE), "")
    return Sensitivity(
        bundle=manifest.name,
        target=manifest.target,
        precision=precision,
        weights_sha256=weights,
        measure=probe.measure,
        inputs=inputs.description,
        random=inputs.random,
        calibration=calibrated_on,
        positions=probe.positions,
        products=tuple(
            ProductSensitivity(
                name=product.name,
                modules=product.modules,
                layer=_layer(product),
                parameters=product.parameters,
                error=error.found if math.isfinite(error.found) else None,
                allowed=error.allowed,
                quantized=product in effects,
                kept=kept.issuperset(product.modules),
                alone=effects.get(product),
                extra_bytes=measured.extra_bytes(product),
            )
            for product in products
            for error in [errors[product.weight]]
        ),
        layers=tuple(
            LayerSensitivity(name, tuple(p.name for p in parts), measured.effect(parts))
            for name, parts in layers.items()
        ),
        keeping=tuple(
            Keeping(
                count,
                tuple(product.name for product in ranked[before:count]),
                measured.effect(ranked[count:]),
                measured.weight_bytes(ranked[count:]),
            )
            for before, count in zip([0, *counts], counts, strict=False)
        ),
        differing=differing,
    )


class _Measured:
    def __init__(self, variants: Variants, probe: Probe, progress: Progress, total: int) -> None:
        self._variants, self._probe = variants, probe
        self._progress, self._done, self._total = progress, 0, total
        self._effects: dict[frozenset[RoundedProduct], Effect] = {}
        self._sizes = {frozenset[RoundedProduct](): variants.open(()).weight_bytes}

    def effect(self, products: Collection[RoundedProduct]) -> Effect:
        """Measure a variant in which these products are in the precision."""
        chosen = frozenset(products)
        if chosen not in self._effects:
            variant: Variant = self._variants.open(chosen)
            self._effects[chosen] = self._probe.effect(variant)
            self._sizes[chosen] = variant.weight_bytes
        self._done += 1
        self._progress.advance(self._done, self._total)
        return self._effects[chosen]

    def weight_bytes(self, products: Collection[RoundedProduct]) -> int:
        return self._sizes[frozenset(products)]

    def extra_bytes(self, product: RoundedProduct) -> int:
        """The bytes that its weights need more in fp32; 0 if they are not quantized."""
        exact = self._sizes[frozenset()]
        return exact - self._sizes.get(frozenset([product]), exact)


def _counts(products: int) -> list[int]:
    powers = [2**n for n in range(products.bit_length()) if 2**n < products]
    return [*dict.fromkeys([0, *powers, products])]


def _layer(product: RoundedProduct) -> str:
    module = product.modules[0]
    found = LAYER.match(module)
    return found[0] if found else ".".join(module.split(".")[:2])


def _differing(
    bundle: Bundle, variants: Variants, products: Sequence[RoundedProduct]
) -> tuple[str, ...]:
    differing = set()
    for graph in bundle.manifest.model_graphs:
        made = variants.quantized(graph, products).graph.initializers
        stored = ir.load(bundle.graph_path(graph)).graph.initializers
        for product in products:
            for name in (f"{product.weight}.int8", f"{product.weight}.int4"):
                if name in made and _apart(made[name], stored.get(name)) > BEYOND_ROUNDING:
                    differing.add(product)
    return tuple(product.name for product in products if product in differing)


def _apart(made: ir.Value, stored: ir.Value | None) -> float:
    if stored is None or stored.const_value is None or made.const_value is None:
        return 1.0
    ours, theirs = made.const_value.numpy(), stored.const_value.numpy()
    return float(np.mean(ours != theirs)) if ours.shape == theirs.shape else 1.0
