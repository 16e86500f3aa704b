"""What a precision changes in the graphs of a bundle: its passes, and the products that it rounds.

Products are named by the modules of the trained model, and may be one: query, key and value that
are packed, or an embedding and the projection to logits that it is tied to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dragoman.errors import DragomanError, shown
from dragoman.onnx_graphs.graph_files import module_of
from dragoman.runtime.format.contract import ROLES
from dragoman.runtime.format.manifest import Precision

from ..graph_pass import GraphPass
from ..graph_values import floats, is_weight, producer, users
from ..targets import Graphs, TargetRecipe
from .calibration import CalibrationBatch, calibrate
from .half import Half, largest_magnitudes
from .weights import (
    QUANTIZATION_TOLERANCE,
    QuantizeWeights,
    RoundedWeight,
    RoundedWeights,
    round_for,
)

HALF: dict[Precision, tuple[ir.DataType, float]] = {
    "fp16": (ir.DataType.FLOAT16, 0.05),
    "bf16": (ir.DataType.BFLOAT16, 0.4),
}
"""Number formats, and the largest difference that each may cause in an output.

The difference is relative to the output's largest value. Overflow causes a larger difference.
Untrained models with sharp attention differ by 0.016 in fp16. Parity decides about quality."""


def precision_passes(
    graphs: Graphs,
    recipe: TargetRecipe,
    precision: Precision,
    observed: Mapping[str, Sequence[CalibrationBatch]],
    kept: Collection[str] = (),
) -> dict[str, tuple[GraphPass, ...]]:
    """Return the precision passes of each graph.

    Args:
        observed: recorded inputs of each graph; see `calibration.calibration_batches`
        kept: names of weights that int8 and int4 leave in fp32
    """
    if precision in HALF:
        return {name: (half,) for name, half in _half(graphs, precision, observed).items()}
    quantization = weight_passes(graphs, recipe, precision, observed, kept)
    if recipe.half_activations is None:
        caches = cache_passes(graphs, recipe, observed)
        return {name: (step, *caches.get(name, ())) for name, step in quantization.items()}
    activations = _half(graphs, recipe.half_activations, observed)
    return {name: (quantization[name], activations[name]) for name in graphs}


def _half(
    graphs: Graphs, precision: Precision, observed: Mapping[str, Sequence[CalibrationBatch]]
) -> dict[str, Half]:
    dtype, tolerance = HALF[precision]
    passes = {}
    for name, (model, spec) in graphs.items():
        # The host writes features and reads probabilities, in float32, as are states.
        kept = {role for role, known in ROLES.items() if known.dtype == "float32"} | {"source"}
        in_fp32 = {t.name for t in (*spec.inputs, *spec.outputs) if t.role in kept}
        largest = largest_magnitudes(model, [batch.samples for batch in observed[name]])
        passes[name] = Half(dtype, largest, frozenset(in_fp32), tolerance)
    return passes


def cache_passes(
    graphs: Graphs, recipe: TargetRecipe, observed: Mapping[str, Sequence[CalibrationBatch]]
) -> dict[str, tuple[GraphPass, ...]]:
    """Return the passes with which int8 and int4 quantize caches, after weights."""
    if recipe.caches is None or "decoder" not in graphs:
        return {}
    return {"decoder": (recipe.caches(graphs["decoder"][0], observed["decoder"]),)}


def weight_passes(
    graphs: Graphs,
    recipe: TargetRecipe,
    precision: Precision,
    observed: Mapping[str, Sequence[CalibrationBatch]],
    kept: Collection[str] = (),
) -> dict[str, QuantizeWeights]:
    """Return the passes with which int8 and int4 quantize the weights of each graph.

    Embeddings are rounded once for all graphs, to suit the product that they are tied to.
    """
    schemes = recipe.schemes(precision, graphs, embedding_widths(graphs))
    known = {name: calibrate(model, observed[name]) for name, (model, _) in graphs.items()}
    # The graph whose product may be tied to an embedding: the logits'.
    last = "decoder" if "decoder" in graphs else "encoder"
    tables: dict[str, RoundedWeight] = {}
    for name, value in embedding_tables(graphs).items():
        x = tied_product_input(graphs[last][0], name)
        tables[name] = round_for(floats(value).T, x, schemes.embedding, known[last])
    return {
        name: QuantizeWeights(
            RoundedWeights(schemes.products[name], known[name]),
            schemes.embedding,
            tables,
            QUANTIZATION_TOLERANCE,
            frozenset(kept),
        )
        for name in graphs
    }


def embedding_tables(graphs: Graphs) -> dict[str, ir.Value]:
    """Return the tables in which token ids are looked up, by name, each once."""
    tables: dict[str, ir.Value] = {}
    for model, spec in graphs.values():
        ids = {t.name for t in spec.inputs if t.role in ("source", "token")}
        for node in model.graph:
            if node.op_type == "Gather" and node.inputs[1] is not None:
                table = node.inputs[0]
                if node.inputs[1].name in ids and table is not None and is_weight(table, 2):
                    tables.setdefault(table.name or "", table)
    return tables


def embedding_widths(graphs: Graphs) -> set[int]:
    """Return the widths of embeddings."""
    widths = set()
    for table in embedding_tables(graphs).values():
        assert table.shape is not None and isinstance(table.shape[1], int)
        widths.add(table.shape[1])
    return widths


def tied_product_input(decoder: ir.Model, table: str) -> ir.Value | None:
    """Return the factor of a table's product, if it is also the projection to logits."""
    value = decoder.graph.initializers.get(table)
    for node in [] if value is None else users(value):
        if node.op_type == "Transpose":
            return users(node.outputs[0])[0].inputs[0]
    return None


MODULE = re.compile(r"(?:^|\+)([^+]+?)\.weight(?=[.+]|$)")
"""The modules in the name of a weight, to which passes append what they made of it."""


@dataclass(frozen=True)
class RoundedProduct:
    """A weight that a precision rounds, for the products and lookups that read it."""

    weight: str
    """The weight's name in the graphs."""
    modules: tuple[str, ...]
    """Modules of the trained model, such as "decoder.layers.3.feed_forward.inner"."""
    graphs: tuple[str, ...]
    parameters: int

    @property
    def name(self) -> str:
        """The name for users: `a.b.query+key` for the modules a.b.query and a.b.key."""
        first, *others = self.modules
        parent = first.rpartition(".")[0] + "."
        return "+".join([first, *(module.removeprefix(parent) for module in others)])


def rounded_products(graphs: Graphs) -> list[RoundedProduct]:
    """Return the weights of graphs after the target's own passes, in the order of computation."""
    tables = set(embedding_tables(graphs))
    found: dict[str, tuple[list[str], list[str], int]] = {}
    for graph, (model, _) in graphs.items():
        for node in model.graph:
            for value, own in _weights(node, tables):
                assert value.const_value is not None
                size = value.const_value.size
                modules, within, _ = found.setdefault(value.name or "", ([], [], size))
                modules.extend(own)
                within.append(graph)
    return [
        RoundedProduct(name, tuple(dict.fromkeys(modules)), tuple(dict.fromkeys(within)), size)
        for name, (modules, within, size) in found.items()
    ]


def kept_products(
    products: Sequence[RoundedProduct], names: Collection[str]
) -> tuple[RoundedProduct, ...]:
    """Return the products with these names, or with modules of these names or within them."""
    kept = set()
    for name in names:
        meant = [p for p in products if name in (p.name, *p.modules)]
        if not meant:  # a layer, for example
            meant = [p for p in products if any(own.startswith(f"{name}.") for own in p.modules)]
        if not meant:
            raise DragomanError(_unknown(products, name))
        kept.update(meant)
    return tuple(product for product in products if product in kept)


def _weights(node: ir.Node, tables: Collection[str]) -> Iterator[tuple[ir.Value, Sequence[str]]]:
    if node.op_type == "Gather":
        table = node.inputs[0]
        if table is not None and table.name in tables:
            yield table, _modules(table, node)
    elif node.op_type == "MatMul":
        weight = node.inputs[1]
        transpose = producer(weight, "Transpose")
        table = None if transpose is None else transpose.inputs[0]
        if table is not None and table.name in tables:
            yield table, [*_modules(table, node), module_of(node)]
        elif weight is not None and is_weight(weight, 2):
            yield weight, _modules(weight, node)


def _modules(weight: ir.Value, node: ir.Node) -> list[str]:
    return MODULE.findall(weight.name or "") or [module_of(node)]


def _unknown(products: Sequence[RoundedProduct], name: str) -> str:
    parts = [module.split(".") for product in products for module in product.modules]
    known = dict.fromkeys(".".join(part[:n]) for part in parts for n in range(len(part), 0, -1))
    close, *_ = difflib.get_close_matches(name, known, n=1) or known
    return (
        f"keep-fp32: expected the name of a product, a module or a layer, such as {close}, found "
        f"{shown(name)}: dragoman sensitivity lists them"
    )
