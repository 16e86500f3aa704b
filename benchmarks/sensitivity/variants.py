"""Copies of a model's graphs in which only some products are in the precision, in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir
import onnxruntime

from dragoman.optimize.graph_pass import GraphPass
from dragoman.optimize.in_memory import InMemorySession
from dragoman.optimize.precision.products import RoundedProduct
from dragoman.optimize.precision.weights import QuantizeWeights
from dragoman.optimize.recipe import Graphs
from dragoman.optimize.target_bundle import with_types
from dragoman.runtime.backends.onnxruntime.cpu.backend import OnnxRuntimeBackend, session_options
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Manifest


class Variant(OnnxRuntimeBackend):
    """The backend of a bundle on a processor, of graphs that are in memory.

    Attributes:
        exact: names of the graphs that have no product in the precision
        weight_bytes: of all weights, those that graphs share once
    """

    def __init__(
        self, manifest: Manifest, graphs: Mapping[str, Loaded], exact: Collection[str]
    ) -> None:
        specs = {name: graph.spec for name, graph in graphs.items()}
        self.manifest = replace(manifest, graphs=manifest.graphs | specs)
        self.exact = frozenset(exact)
        self._graphs = graphs
        self.sessions = {name: graph.session.session for name, graph in graphs.items()}

    @property
    def weight_bytes(self) -> int:
        sizes: dict[str, int] = {}
        for graph in self._graphs.values():
            sizes |= graph.sizes
        return sum(sizes.values())


class Loaded:
    """A graph that is ready to run.

    Attributes:
        spec: the contract's view of it, with the types that it has
        sizes: bytes of each weight, by name
    """

    def __init__(
        self, model: ir.Model, spec: GraphSpec, options: onnxruntime.SessionOptions
    ) -> None:
        self.spec = with_types(model, spec)
        self.session = InMemorySession(model, options)
        self.sizes = {
            name: value.const_value.nbytes
            for name, value in model.graph.initializers.items()
            if value.const_value is not None
        }


class Variants:
    """
    Args:
        manifest: of the bundle that the graphs are from, in fp32
        graphs: after the target's passes that keep fp32
        passes: that quantize the weights of each
        caches: that quantize the caches of each, after weights
        products: of all graphs
        threads: of a session; None: all cores
    """

    def __init__(
        self,
        manifest: Manifest,
        graphs: Graphs,
        passes: Mapping[str, QuantizeWeights],
        caches: Mapping[str, Sequence[GraphPass]],
        products: Collection[RoundedProduct],
        threads: int | None,
    ) -> None:
        self._manifest, self._graphs, self._passes = manifest, graphs, passes
        self._caches, self._products, self._threads = caches, products, threads
        self._exact: dict[str, Loaded] = {}

    def quantized(self, graph: str, products: Collection[RoundedProduct]) -> ir.Model:
        """A copy of a graph in which these products are in the precision."""
        kept = {p.weight for p in self._products} - {p.weight for p in products}
        model = self._graphs[graph][0].clone()
        replace(self._passes[graph], kept=frozenset(kept)).apply(model)
        for step in self._caches.get(graph, ()):
            step.apply(model)
        return model

    def open(self, products: Collection[RoundedProduct]) -> Variant:
        """All graphs, with these products in the precision. Graphs without any of them are opened
        once.
        """
        changed = {graph for product in products for graph in product.graphs}
        loaded = {
            graph: self._load(graph, self.quantized(graph, products))
            if graph in changed
            else self._opened(graph)
            for graph in self._graphs
        }
        return Variant(self._manifest, loaded, self._graphs.keys() - changed)

    def _opened(self, graph: str) -> Loaded:
        if graph not in self._exact:
            self._exact[graph] = self._load(graph, self._graphs[graph][0])
        return self._exact[graph]

    def _load(self, graph: str, model: ir.Model) -> Loaded:
        spec = self._graphs[graph][1]
        return Loaded(model, spec, session_options(self._threads))
