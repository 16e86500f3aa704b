"""A neutral bundle -> a bundle for one target, in one precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import onnx_ir as ir
import onnxruntime

from dragoman.errors import DragomanError
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import (
    TENSORRT_TARGETS,
    DataType,
    GraphSpec,
    Manifest,
    Precision,
    Target,
    TensorSpec,
)
from dragoman.runtime.format.records import PassRecord
from dragoman.runtime.decoding.batching import Encodable

from .cpu.attention import ATTENTION
from .cpu.greedy_choice import GREEDY_CHOICE
from .cpu.packed_projections import PACKED_PROJECTIONS
from .cpu.self_attention import SELF_ATTENTION
from .graph_pass import GraphPass, PassError
from .pipeline import apply_passes
from .precision.observed import observe
from .precision.plan import precision_passes
from .samples import Samples, samples_for_graph
from .targets import CPU_FP32, CPU_FUSIONS, check_precision
from .tensorrt.attention import PRIMITIVE_ATTENTION, needs_primitives
from .tidy import Tidy
from .written import write_graphs

COMPARED_ROWS = 4
"""Of the real inputs: those that a precision pass is compared on."""


def optimize_bundle(
    bundle: Bundle,
    directory: Path,
    *,
    target: Target = "cpu",
    precision: Precision = "fp32",
    calibration: Sequence[Encodable] | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Write the bundle that a neutral fp32 bundle becomes for a target, into an existing directory.

    Args:
        target: "cpu", or "neutral": standard operators, another precision
        precision: of the target; see `targets.PRECISIONS`. int8 of the cpu target is weights and
            activations; int4 is the weights of the decoder, the encoder is int8
        calibration: source token ids on which errors are weighed and measured, and ranges looked
            for; random if None
        progress: called with each stage as it begins

    Returns:
        the manifest, with a record of every pass, not verified

    Raises:
        DragomanError: the bundle is not neutral fp32, or the target has no such precision.
        PassError: a pass failed; names it.
    """
    manifest = bundle.manifest
    _check(bundle, target, precision)
    graphs = {
        name: (ir.load(bundle.path(spec.file)), spec)
        for name, spec in (("encoder", manifest.encoder), ("decoder", manifest.decoder))
    }
    records: dict[str, list[PassRecord]] = {name: [] for name in graphs}
    if target == "cpu":
        attentions = {
            name: sum(node.op_type == "Attention" for node in model.graph)
            for name, (model, _) in graphs.items()
        }
        last = CPU_FP32 if precision == "fp32" else ()
        for name, (model, spec) in graphs.items():
            records[name] += apply_passes(
                model,
                (*CPU_FUSIONS, *last),
                graph=name,
                samples=samples_for_graph(spec, manifest.model),
                progress=progress,
            )
        _check_counts(records, attentions, manifest.model.decoder_layers)
    elif _needs_primitives(manifest, target, precision):
        encoder, spec = graphs["encoder"]
        records["encoder"] += apply_passes(
            encoder,
            (PRIMITIVE_ATTENTION, Tidy()),
            graph="encoder",
            samples=samples_for_graph(spec, manifest.model),
            progress=progress,
        )
    if precision != "fp32":
        progress("decoding the calibration's sources")
        observed = observe(bundle, calibration)
        progress("measuring")
        passes = precision_passes(graphs, target, precision, observed)
        for name, (model, _) in graphs.items():
            real = _rows(observed[name][0].samples)
            records[name] += apply_passes(
                model, passes[name], graph=name, samples=real, progress=progress
            )
    progress("writing weights")
    optimized = dataclasses.replace(
        manifest,
        target=target,
        precision=precision,
        encoder=_with_types(*graphs["encoder"]),
        decoder=_with_types(*graphs["decoder"]),
        tool_versions=manifest.tool_versions | {"onnxruntime": onnxruntime.__version__},
        passes=(*records["encoder"], *records["decoder"]),
        parity=None,
    )
    models = {name: model for name, (model, _) in graphs.items()}
    return write_graphs(optimized, models, bundle, directory)


def _check(bundle: Bundle, target: Target, precision: Precision) -> None:
    found = (bundle.manifest.target, bundle.manifest.precision)
    if found != ("neutral", "fp32"):
        raise DragomanError(
            f"{bundle.directory}: expected a neutral bundle in fp32, found target {found[0]}, "
            f"precision {found[1]}"
        )
    check_precision(target, precision)
    if (target, precision) == found:
        raise DragomanError(f"{bundle.directory} is neutral and in fp32 already")


def _needs_primitives(manifest: Manifest, target: Target, precision: Precision) -> bool:
    engines = target in TENSORRT_TARGETS and precision != "fp32"
    return engines and needs_primitives(manifest.model.head_size)


def _check_counts(
    records: Mapping[str, Sequence[PassRecord]], attentions: Mapping[str, int], layers: int
) -> None:
    """Everything that the exporter writes is found: fused, or refused because of what it is.

    Args:
        attentions: how many there were in each graph
        layers: of the decoder

    Raises:
        PassError: a fusion no longer finds what it is there for.
    """
    cached = _record(records["decoder"], SELF_ATTENTION)
    for graph, step, expected, excused in (
        ("decoder", SELF_ATTENTION, layers, 0),
        # The cached ones that stayed are looked at again, and are of no form that it knows.
        ("decoder", ATTENTION, attentions["decoder"] - cached.matches, len(cached.refusals)),
        ("decoder", PACKED_PROJECTIONS, cached.matches, 0),
        ("decoder", GREEDY_CHOICE, 1, 0),
        ("encoder", ATTENTION, attentions["encoder"], 0),
    ):
        record = _record(records[graph], step)
        known = record.matches + sum(refusal.matched for refusal in record.refusals) + excused
        if known != expected:
            reasons = "; ".join(sorted({r.reason for r in record.refusals})) or "none refused"
            raise PassError(
                f"{graph}: pass {step.name} expected to know {expected} of what it is for, found "
                f"{known}: {reasons}"
            )


def _record(records: Sequence[PassRecord], step: GraphPass) -> PassRecord:
    return next(record for record in records if record.name == step.name)


def _rows(samples: Samples) -> Samples:
    return {name: value[:COMPARED_ROWS] for name, value in samples.items()}


def _with_types(model: ir.Model, spec: GraphSpec) -> GraphSpec:
    """The contract's view of a graph, with the number formats that it has now."""
    types = {v.name: v.dtype for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype}

    def now(tensor: TensorSpec) -> TensorSpec:
        return dataclasses.replace(tensor, dtype=cast(DataType, types[tensor.name].numpy().name))

    return spec.map(now)
