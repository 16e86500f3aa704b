"""What a target does to the graphs of a bundle, as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import onnx_ir as ir

from dragoman.progress import Progress
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.records import PassRecord

from .engine_options import EngineOptions
from .graph_pass import GraphPass
from .precision.observed import Observed
from .precision.weights import Scheme

Graphs = Mapping[str, tuple[ir.Model, GraphSpec]]
"""By name: a graph, and the contract's view of it."""


class Schemes(NamedTuple):
    """How the weights of products and of embeddings are quantized.

    Attributes:
        products: by name of the graph
        embedding: of tables that token ids are looked up in
    """

    products: Mapping[str, Scheme]
    embedding: Scheme


class BuiltEngines(NamedTuple):
    """
    Attributes:
        warnings: for whoever builds, a line each
    """

    bundle: Bundle
    warnings: tuple[str, ...]


class Finish(Protocol):
    """Turns the optimized graphs of a bundle into engines."""

    def __call__(
        self,
        graphs: Bundle,
        directory: Path,
        options: EngineOptions,
        *,
        progress: Progress | None = ...,
    ) -> BuiltEngines: ...


@dataclass(frozen=True)
class TargetRecipe:
    """The steps from a neutral fp32 bundle to a target's.

    Attributes:
        passes: of a graph by name, before weights and activations change their precision
        schemes: how int8 and int4 quantize graphs of these names, whose embeddings have these
            widths
        half_activations: the precision of activations beside quantized weights; None: fp32, or
            what the scheme itself makes of them
        check: whether the passes matched everything they are meant for. Called with the records of
            each graph, the number of Attention operators that each had before, and the model.
        file_passes: for a lone ONNX file, after `fusions.STANDARD_PASSES`; None: not possible
        caches: makes the pass that int8 and int4 quantize a decoder's caches with, from the graph
            before its weights are rounded and its observed inputs; None: caches stay as they are
        finish: None: the graphs are the result
        candidates: whether there is a graph that selects candidates, as on a GPU, which logits need
            not leave then; on a processor it would be slower
    """

    passes: Callable[[str, ModelSpec, Precision], Sequence[GraphPass]]
    schemes: Callable[[Precision, Collection[str], Collection[int]], Schemes]
    half_activations: Precision | None = None
    check: Callable[[Mapping[str, Sequence[PassRecord]], Mapping[str, int], ModelSpec], None] = (
        lambda records, attentions, model: None
    )
    file_passes: tuple[GraphPass, ...] | None = None
    caches: Callable[[ir.Model, Sequence[Observed]], GraphPass] | None = None
    finish: Finish | None = None
    candidates: bool = False
