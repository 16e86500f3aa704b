"""Compares the target and the precision of a manifest with what the graphs show.

The number format of quantized weights tells the precision, and the operators tell the target.
Weights in fp32 among quantized ones are explained by a recorded refusal, or the user's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from dragoman.errors import shown
from dragoman.onnx_graphs.graph_files import module_of
from dragoman.optimize.graph_values import MICROSOFT
from dragoman.optimize.precision.plan import HALF, MODULE
from dragoman.optimize.precision.weights import KEPT
from dragoman.optimize.targets import TARGETS, Target
from dragoman.runtime.format.contract import ATTENTION_GRAPHS, OPTIONAL_GRAPHS, GraphSpec
from dragoman.runtime.format.manifest import Manifest, Precision

QUANTIZED: tuple[Precision, ...] = ("int8", "int4")

FORMATS: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.INT8: "int8",
    ir.DataType.UINT8: "int8",  # or, of operators with an attribute that says so, two int4
    ir.DataType.INT4: "int4",
}

PLACES: Mapping[tuple[str, str], int] = {
    ("", "Conv"): 1,
    ("", "Gather"): 0,
    ("", "Gemm"): 1,
    ("", "MatMul"): 1,
    (MICROSOFT, "FusedMatMul"): 1,
    (MICROSOFT, "GatherBlockQuantized"): 0,
    (MICROSOFT, "MatMulIntegerToFloat"): 1,
    (MICROSOFT, "MatMulNBits"): 1,
    (MICROSOFT, "QGemm"): 3,
}
"""The operators that read weights, and which of their inputs is the weight."""

LOOK_UPS = ("Gather", "GatherBlockQuantized")
NEVER_QUANTIZED = ("Conv", "Gemm")
BETWEEN = ("Cast", "DequantizeLinear", "Transpose")
"""What may be between a weight as it is stored and the node that reads it."""

QUANTIZING = "weights-"
"""How the names of passes that quantize weights begin."""


Finding = str
"""The outcome for one setting: a problem as a sentence, "" if the setting is right."""


@dataclass(frozen=True)
class WeightUse:
    """A weight where a node multiplies by it or looks rows up in it."""

    graph: str
    """Either "encoder" or "decoder"."""
    nodes: tuple[str, ...]
    """The names of the node and of those between the stored weight and the node."""
    weight: str
    """The name of the initializer."""
    modules: tuple[str, ...]
    format: str
    """Either "fp32", "fp16", "bf16", "int8" or "int4"."""
    quantizable: bool
    """Whether int8 and int4 round such a weight."""
    table: bool
    """Whether token ids look rows up in it, here or elsewhere."""
    dequantized: bool
    """Whether a `DequantizeLinear` is between."""


@dataclass
class _Graphs:
    names: tuple[str, ...]
    uses: list[WeightUse]
    for_processor: bool
    """Whether there are operators that only the target cpu writes."""
    width: int
    quantized_by: dict[str, str] = field(default_factory=dict)
    """The recorded passes that quantize weights, by graph."""
    refusals: dict[tuple[str, str], str] = field(default_factory=dict)
    """Recorded reasons of refusals, by graph and node."""
    wide: set[tuple[str, str, str]] = field(default_factory=set)
    """Nodes that a pass to 16 bits left in fp32: the pass, graph and node."""


def built_as(manifest: Manifest, models: Mapping[str, ir.Model], width: int) -> list[Finding]:
    """Compare the options of a build, as the manifest states them, with the graphs."""
    graphs = _Graphs(
        tuple(name for name in models if name not in OPTIONAL_GRAPHS),
        weight_uses(models, manifest.graphs),
        any(
            node.domain == MICROSOFT
            or node.op_type == "InstanceNormalization"
            or "q_num_heads" in node.attributes
            for model in models.values()
            for node in model.graph
        ),
        width,
    )
    for done in manifest.passes:
        if done.name.startswith(QUANTIZING):
            graphs.quantized_by[done.graph] = done.name
            graphs.refusals.update({(done.graph, r.node): r.reason for r in done.refusals})
        elif done.name in HALF:
            graphs.wide.update((done.name, done.graph, r.node) for r in done.refusals)
    return [*_options(manifest, graphs), *_kept(manifest, graphs)]


def plain_precision(manifest: Manifest) -> Precision:
    """The precision of what is not quantized, such as biases, logits and caches."""
    if manifest.precision not in QUANTIZED:
        return manifest.precision
    target = _target(manifest.target)
    return (None if target is None else target.recipe.half_activations) or "fp32"


def quantizes_caches(manifest: Manifest) -> bool:
    """Whether a bundle of this target and precision may have caches of integers."""
    target = _target(manifest.target)
    known = target is not None and target.recipe.caches is not None
    return known and manifest.precision in QUANTIZED


def weight_uses(models: Mapping[str, ir.Model], specs: Mapping[str, GraphSpec]) -> list[WeightUse]:
    """List the weights of rank 2 and more that the nodes of a bundle's graphs read."""
    ids = {
        name: {tensor.name for tensor in spec.inputs if tensor.role in ("source", "token")}
        for name, spec in specs.items()
    }
    reads = [
        (name, node, weight, between)
        for name, model in models.items()
        for node in model.graph
        for weight, between in _weights(node)
    ]
    tables = {
        _within(name, weight.name)[1]
        for name, node, weight, _ in reads
        if node.op_type in LOOK_UPS and getattr(node.inputs[1], "name", None) in ids[name]
    }
    uses = []
    for name, node, value, between in reads:
        graph, weight = _within(name, value.name)
        modules = MODULE.findall(weight) or [module_of(node)]
        table, looks_up = weight in tables, node.op_type in LOOK_UPS
        if table and not looks_up:  # the projection to logits that it is tied to
            modules.append(module_of(node))
        assert value.const_value is not None
        bits = node.attributes.get_int("bits", 0)
        # Quantization does not know products by a matrix for each head.
        matrix = bool(bits) or len(value.const_value.shape) == 2
        uses.append(
            WeightUse(
                graph,
                tuple(_within(name, part.name)[1] for part in (node, *between)),
                weight,
                tuple(dict.fromkeys(modules)),
                f"int{bits}" if bits else FORMATS[value.const_value.dtype],
                table if looks_up else matrix and node.op_type not in NEVER_QUANTIZED,
                table,
                any(part.op_type == "DequantizeLinear" for part in between),
            )
        )
    return uses


def _weights(node: ir.Node) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
    place, between = PLACES.get((node.domain, node.op_type)), list[ir.Node]()
    value = None if place is None or place >= len(node.inputs) else node.inputs[place]
    while value is not None and (made := value.producer()) is not None:
        if made.op_type not in BETWEEN:
            return
        between.append(made)
        value = made.inputs[0]
    tensor = None if value is None else value.const_value
    if value is None or tensor is None or len(tensor.shape) < 2 or tensor.dtype not in FORMATS:
        return
    yield value, between


def _within(graph: str, name: str | None) -> tuple[str, str]:
    """Find the graph of a node or weight, and its name, in copies without the prefix."""
    if graph not in ATTENTION_GRAPHS:
        return graph, name or ""
    part, _, own = (name or "").partition("/")
    return part, own


def _target(name: str) -> Target | None:
    return next((target for target in TARGETS if target.name == name), None)


def _options(manifest: Manifest, graphs: _Graphs) -> list[Finding]:
    stated = _target(manifest.target)
    if stated is None:
        names = ", ".join(target.name for target in TARGETS)
        return [f"target: expected one of {names}, found {shown(manifest.target)}"]
    passes = bool(manifest.passes)
    problems = _contradictions(graphs, stated, manifest.precision, passes)
    if not problems:
        return ["", ""]
    others = [target for target in TARGETS if target is not stated]
    options = [
        *((stated, precision) for precision in stated.precisions),
        *((target, manifest.precision) for target in others),
        *((target, precision) for target in others for precision in target.precisions),
    ]
    for target, precision in options:
        if not _contradictions(graphs, target, precision, passes):
            return [
                _differing("precision", precision, manifest.precision, "weights"),
                _differing("target", target.name, manifest.target, "operators"),
            ]
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return [f"precision: {problems[0]}{more}", ""]


def _differing(setting: str, expected: str, found: str, witnesses: str) -> Finding:
    if expected == found:
        return ""
    return f"{setting}: expected {expected} as the graphs' {witnesses} say, found {found}"


def _contradictions(
    graphs: _Graphs, target: Target, precision: Precision, passes: bool
) -> list[str]:
    if precision not in target.precisions:
        return [f"expected {', '.join(target.precisions)} of target {target.name}"]
    recipe, schemes, plain = target.recipe, None, precision
    if precision in QUANTIZED:
        schemes = recipe.schemes(precision, graphs.names, {graphs.width})
        plain = recipe.half_activations or "fp32"
    problems = list(_of_operators(graphs, target, passes))
    for name in graphs.names if passes else ():
        expected = f"{QUANTIZING}{schemes.products[name].name}" if schemes else "none"
        found = graphs.quantized_by.get(name, "none")
        if found != expected:
            problems.append(f"expected {expected} among the passes of the {name}, found {found}")
    for use in graphs.uses:
        expected = plain
        if schemes is not None and use.quantizable:
            scheme = schemes.embedding if use.table else schemes.products[use.graph]
            expected = f"int{scheme.bits}"
        if use.format != expected and not _is_explained(use, expected, plain, graphs):
            problems.append(
                f"expected {expected} in {'+'.join(use.modules)} of the {use.graph}, or a recorded "
                f"reason, found {use.format}"
            )
    # The graph that shows attention has the same weights once more.
    return list(dict.fromkeys(problems))


def _of_operators(graphs: _Graphs, target: Target, passes: bool) -> Iterator[str]:
    """List what operators say against a target; only cpu has ONNX Runtime's own."""
    if target.name != "cpu":
        if graphs.for_processor:
            yield f"expected standard operators of target {target.name}, found others"
    elif any(use.dequantized for use in graphs.uses):
        yield "expected products by integers of target cpu, found DequantizeLinear"
    elif not graphs.for_processor and not passes:
        yield "expected operators of ONNX Runtime of target cpu, found none"


def _is_explained(use: WeightUse, expected: str, plain: str, graphs: _Graphs) -> bool:
    if expected != plain:
        refused = any((use.graph, node) in graphs.refusals for node in use.nodes)
        return refused and use.format in ("fp32", plain)
    in_fp32 = any((plain, use.graph, node) in graphs.wide for node in use.nodes)
    return in_fp32 and use.format == "fp32"


def _kept(manifest: Manifest, graphs: _Graphs) -> Iterator[Finding]:
    uses = [use for use in graphs.uses if use.quantizable]
    allowed = {"fp32"}
    if manifest.precision in QUANTIZED:  # engines compute in 16 bits what is not quantized
        allowed.add(plain_precision(manifest))
    for module in manifest.keep_fp32:
        of_module = [use for use in uses if module in use.modules]
        rounded = next((use for use in of_module if use.format not in allowed), None)
        if not of_module:
            yield f"keep_fp32: expected modules with weights, found {shown(module)}"
        elif rounded is not None:
            yield (
                f"keep_fp32: expected fp32 weights of {module}, found {rounded.format} in the "
                f"{rounded.graph}"
            )
        else:
            yield ""
    places = {place for place, reason in graphs.refusals.items() if reason == KEPT}
    kept = [use for use in uses if any((use.graph, node) in places for node in use.nodes)]
    for module in dict.fromkeys(module for use in kept for module in use.modules):
        if module not in manifest.keep_fp32:
            yield f"keep_fp32: expected {module}, which a pass kept in fp32, found none"
