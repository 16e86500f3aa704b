"""Rounds each product by itself, each layer by itself, and all products but the worst.

Variants of the model with some products in the precision are made in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.optimize.graph_pass import GraphPass
from dragoman.optimize.precision.calibration import calibration_batches
from dragoman.optimize.precision.plan import (
    RoundedProduct,
    cache_passes,
    rounded_products,
    weight_passes,
)
from dragoman.optimize.precision.weights import ProductError, QuantizeWeights
from dragoman.optimize.running import InMemorySession
from dragoman.optimize.target_bundle import fused_graphs, with_types
from dragoman.optimize.targets import Graphs, find_target
from dragoman.progress import Progress
from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Bundle, Model
from dragoman.runtime.backends import open_backend
from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend, session_options
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE
from dragoman.verification.checks.distances import DistanceMeter
from dragoman.verification.checks.encoders import cosines, encoded_batches, logits_of
from dragoman.verification.checks.tokens import bundle_outputs, greedy_results
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.inputs.sources import Sources
from dragoman.verification.oracle import forced_batches, oracle_for

from . import Effect, Keeping, LayerSensitivity, Measure, ProductSensitivity, Sensitivity


class Variant(OnnxRuntimeBackend):
    """The backend of a bundle on a processor, with graphs in memory.

    Attributes:
        exact: names of the graphs that have no product in the precision
    """

    def __init__(
        self, manifest: Manifest, graphs: Mapping[str, LoadedGraph], exact: Collection[str]
    ) -> None:
        specs = {name: graph.spec for name, graph in graphs.items()}
        self.manifest = replace(manifest, graphs=manifest.graphs | specs)
        self.exact = frozenset(exact)
        self._graphs = graphs
        self.sessions = {name: graph.session.session for name, graph in graphs.items()}

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights; shared ones count once."""
        return sum(dict(s for graph in self._graphs.values() for s in graph.sizes.items()).values())


class LoadedGraph(NamedTuple):
    """A graph that is ready to run."""

    spec: GraphSpec
    """Its specification, with the types that it has."""
    session: InMemorySession
    sizes: dict[str, int]
    """Bytes of each weight, by name."""


@dataclass(frozen=True)
class Variants:
    """Makes variants of a bundle."""

    manifest: Manifest
    """The manifest of the bundle in fp32."""
    graphs: Graphs
    """The graphs after the target's passes that keep fp32."""
    passes: Mapping[str, QuantizeWeights]
    caches: Mapping[str, Sequence[GraphPass]]
    """The passes that quantize the caches of each graph, after weights."""
    products: Collection[RoundedProduct]
    threads: int | None
    _exact: dict[str, LoadedGraph] = field(default_factory=dict)

    def quantized(self, graph: str, products: Collection[RoundedProduct]) -> ir.Model:
        """Copy a graph with these products in the precision."""
        kept = {p.weight for p in self.products} - {p.weight for p in products}
        model = self.graphs[graph][0].clone()
        replace(self.passes[graph], kept=frozenset(kept)).apply(model)
        for step in self.caches.get(graph, ()):
            step.apply(model)
        return model

    def open(self, products: Collection[RoundedProduct]) -> Variant:
        """Load graphs with these products in reduced precision; those without are shared."""
        changed = {graph for product in products for graph in product.graphs}
        loaded = {}
        for graph, (model, _) in self.graphs.items():
            if graph in changed:
                loaded[graph] = self._load(graph, self.quantized(graph, products))
                continue
            if graph not in self._exact:
                self._exact[graph] = self._load(graph, model)
            loaded[graph] = self._exact[graph]
        return Variant(self.manifest, loaded, self.graphs.keys() - changed)

    def _load(self, graph: str, model: ir.Model) -> LoadedGraph:
        values = model.graph.initializers.items()
        return LoadedGraph(
            with_types(model, self.graphs[graph][1]),
            InMemorySession(model, session_options(self.threads)),
            {name: v.const_value.nbytes for name, v in values if v.const_value is not None},
        )


LONGEST = 64
"""The most new tokens along which predictions are compared."""


class DecodingProbe:
    """Compares distributions of the next token along the model's own greedy outputs."""

    measure: Measure = "divergence"

    def __init__(
        self, neutral: Model, reference: AutoregressiveModel, sources: Sequence[EncoderInput]
    ) -> None:
        oracle, language = oracle_for(reference, neutral.manifest)
        limit = min(LONGEST, neutral.manifest.default_max_new_tokens)
        outputs = bundle_outputs(greedy_results(neutral, sources, limit, language))
        # Only the logits where a token is chosen are kept, [positions, V].
        self._outputs = [
            replace(batch, cross=(), scored=np.zeros(0), logits=batch.logits[batch.chosen_mask])
            for batch in forced_batches(neutral, oracle, sources, outputs)
        ]
        self.positions = sum(len(batch.logits) for batch in self._outputs)

    def effect(self, variant: Variant) -> Effect:
        """Measure how far a variant is from the trained model."""
        meter = DistanceMeter()
        for batch in self._outputs:
            encoded: Mapping[str, NDArray[Any]] = batch.encoded
            if encoded and "encoder" not in variant.exact:
                encoded = variant.encode(batch.source, batch.source_mask)
            found = variant.score(encoded, batch.source_mask, batch.read)
            meter.add(batch.logits, found[batch.chosen_mask])
        return _effect(meter)


class EncoderProbe:
    """Compares an encoder-only model's distributions of labels or tokens, or its embeddings."""

    def __init__(self, neutral: Model, reference: EncoderModel, inputs: ParityInputs) -> None:
        assert neutral.manifest.head is not None
        self._head = neutral.manifest.head
        self._graph = neutral.manifest.graphs["encoder"]
        vectors = self._head.task == "embedding"
        self.measure: Measure = "cosine distance" if vectors else "divergence"
        sources = [list(map(int, source)) for source in inputs.sources]
        types = None if inputs.lines is None else [line.tokens.types for line in inputs.lines]
        batches = encoded_batches(neutral, reference, None, sources, types, lambda count: None)
        self._batches = [*batches]
        self.positions = sum(
            len(batch.source) if vectors else sum(len(e) for e, *_ in logits_of(batch, self._head))
            for batch in self._batches
        )

    def effect(self, variant: Variant) -> Effect:
        """Measure how far a variant is from the trained model."""
        meter, distances = DistanceMeter(), list[float]()
        for batch in self._batches:
            encoded = variant.encode(batch.source, batch.mask, batch.types)
            outputs = {tensor.role: encoded[tensor.name] for tensor in self._graph.outputs}
            if self.measure == "cosine distance":
                same = cosines(batch.expected["embedding"], outputs["embedding"])
                distances += [1 - cosine for cosine in same]
                continue
            for expected, found, _ in logits_of(replace(batch, found=outputs), self._head):
                meter.add(expected, found)
        if distances:
            return Effect(float(np.mean(distances)), max(distances), None)
        return _effect(meter)


def _effect(meter: DistanceMeter) -> Effect:
    found = meter.result()
    return Effect(found.mean, found.largest, found.same_choice)


Probe = DecodingProbe | EncoderProbe


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
        if isinstance(reference, EncoderModel):
            probe: Probe = EncoderProbe(exact, reference, inputs)
        else:
            probe = DecodingProbe(exact, reference, inputs.sources)
    variants = Variants(neutral.manifest, graphs, passes, caches, products, threads)
    quantized = [product for product in products if errors[product.weight].suffices]
    kept = set(manifest.keep_fp32)
    rounded = [product for product in quantized if not kept.issuperset(product.modules)]
    differing = _differing(bundle, variants, rounded)
    layers: dict[str, list[RoundedProduct]] = {}
    for product in quantized:
        layers.setdefault(_layer(product), []).append(product)
    powers = [2**n for n in range(len(quantized).bit_length()) if 2**n < len(quantized)]
    counts = [*dict.fromkeys([0, *powers, len(quantized)])]
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
