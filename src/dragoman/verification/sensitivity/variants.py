"""Makes variants of a model in memory, with some products in the precision, and measures them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.optimize.graph_pass import GraphPass
from dragoman.optimize.precision.products import RoundedProduct
from dragoman.optimize.precision.weights import QuantizeWeights
from dragoman.optimize.running import InMemorySession
from dragoman.optimize.target_bundle import with_types
from dragoman.optimize.targets import Graphs
from dragoman.reference_model import AutoregressiveModel, EncoderModel, ReferenceModel
from dragoman.runtime import Model
from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend, session_options
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Manifest
from dragoman.verification.checks.distances import DistanceMeter
from dragoman.verification.checks.encoders import cosines, encoded_batches, logits_of
from dragoman.verification.checks.tokens import bundle_outputs, greedy_results
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.oracle import forced_batches, oracle_for

from .results import Effect, Measure


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


def probe_of(neutral: Model, reference: ReferenceModel, inputs: ParityInputs) -> Probe:
    """Make the probe for a kind of model."""
    if isinstance(reference, EncoderModel):
        return EncoderProbe(neutral, reference, inputs)
    return DecodingProbe(neutral, reference, inputs.sources)
