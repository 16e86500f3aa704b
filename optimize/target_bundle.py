"""Optimizing a neutral bundle for one target, in one precision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import onnx_ir as ir
import onnxruntime

from dragoman.onnx_graphs.graph_files import load_graph, write_graphs
from dragoman.onnx_graphs.optional_graphs import (
    alignment_graph,
    attention_graph,
    candidates_graph,
    candidates_spec,
)
from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.bundle import Bundle, without_shortlist
from dragoman.runtime.format.contract import DataType, GraphSpec, TensorSpec
from dragoman.runtime.format.manifest import PassRecord, Precision
from dragoman.runtime.format.writing import BundleWriter, write_manifest
from dragoman.runtime.texts.shortlist import read_shortlist

from .pipeline import apply_passes
from .precision.calibration import calibration_batches
from .precision.plan import kept_products, precision_passes, rounded_products
from .running import WINDOWS, is_large, samples_for_graph
from .targets import Graphs, Target, find_target

COMPARED_ROWS = 4
"""The number of calibration inputs on which the outputs before and after a pass are compared."""

Progress = Callable[[str], None]


def optimize_bundle(
    bundle: Bundle,
    directory: Path,
    *,
    target: str = "cpu",
    precision: Precision = "fp32",
    calibration: Sequence[EncoderInput] | None = None,
    calibration_types: Sequence[Sequence[int]] | None = None,
    keep_fp32: Collection[str] = (),
    writer: type[BundleWriter] = BundleWriter,
    progress: Progress = lambda stage: None,
) -> Bundle:
    """Optimize a neutral fp32 bundle for a target and write the result into an existing directory.

    For engines, the result holds the graphs that they are built from. The graphs that show
    attention are made again from the others; engines have none. The result is not verified.

    Args:
        calibration: token ids or features on which errors and ranges are measured; None: random
        calibration_types: token types for an encoder-only model; None: all 0
        keep_fp32: names of products, modules or layers whose weights int8 and int4 leave in fp32
        writer: how files are written; `ScratchWriter` for a temporary bundle
    """
    chosen = find_target(target)
    chosen.check_source(bundle, precision)
    listed, bundle = bundle, without_shortlist(bundle)
    graphs, records = fused_graphs(bundle, chosen, precision, progress)
    kept = kept_products(rounded_products(graphs), keep_fp32)
    if precision != "fp32":
        progress("decoding the calibration's sources")
        observed = calibration_batches(bundle, calibration, calibration_types)
        progress("measuring")
        weights = [product.weight for product in kept]
        passes = precision_passes(graphs, chosen.recipe, precision, observed, weights)
        for name, (model, _) in graphs.items():
            samples = observed[name][0].samples
            compared = {key: value[:COMPARED_ROWS] for key, value in samples.items()}
            records[name] += apply_passes(
                model, passes[name], graph=name, samples=compared, progress=progress
            )
    progress("writing weights")
    specs = {name: with_types(model, spec) for name, (model, spec) in graphs.items()}
    models = {name: model for name, (model, _) in graphs.items()}
    if chosen.recipe.candidates and "decoder" in specs:
        suppressed = bundle.manifest.generation.suppressed_token_ids
        specs["candidates"] = candidates_spec(specs["decoder"], suppressed)
        models["candidates"] = candidates_graph(specs["candidates"], suppressed)
    manifest = bundle.manifest
    if "attention" in manifest.graphs and chosen.executable == "onnx":
        models["attention"], specs["attention"] = attention_graph(
            models, specs, manifest.model, manifest.head
        )
    if "alignment" in manifest.graphs and chosen.executable == "onnx":
        models["alignment"], specs["alignment"] = alignment_graph(
            models, specs, manifest.model, manifest.generation.heads_that_align
        )
    optimized = replace(
        manifest,
        target=chosen.name,
        precision=precision,
        graphs=specs,
        tool_versions=manifest.tool_versions | {"onnxruntime": onnxruntime.__version__},
        passes=tuple(record for name in graphs for record in records[name]),
        keep_fp32=tuple(module for product in kept for module in product.modules),
        calibrated_on=0 if calibration is None else len(calibration),
        parity=None,
    )
    files = writer(directory)
    write_graphs(models, specs, files)
    files.copy_tokenizers(bundle)
    finished = files.finish(optimized)
    record = listed.manifest.shortlist
    if record is None:
        return finished
    shortlist = read_shortlist(listed.path(record.file), listed.manifest.model)
    finished = add_shortlist(finished, shortlist)
    write_manifest(finished.manifest, directory)
    return finished


def fused_graphs(
    bundle: Bundle, target: Target, precision: Precision, progress: Progress
) -> tuple[Graphs, dict[str, list[PassRecord]]]:
    """Return a neutral bundle's graphs after the target's fp32 passes, and the records of each."""
    manifest, recipe = bundle.manifest, target.recipe
    graphs = {
        name: (load_graph(bundle.path(spec.file)), spec)
        for name, spec in manifest.model_graphs.items()
    }
    attentions = {
        name: sum(node.op_type == "Attention" for node in model.graph)
        for name, (model, _) in graphs.items()
    }
    records: dict[str, list[PassRecord]] = {}
    for name, (model, spec) in graphs.items():
        passes = recipe.passes(name, manifest.model, precision)
        samples = None
        if passes:  # parity compares windows in batches; those of large models take seconds each
            windows = 1 if is_large(model) else WINDOWS
            samples = samples_for_graph(spec, manifest.model, windows=windows)
        records[name] = apply_passes(model, passes, graph=name, samples=samples, progress=progress)
    recipe.check(records, attentions, manifest.model)
    return graphs, records


def with_types(model: ir.Model, spec: GraphSpec) -> GraphSpec:
    """Return the specification of a graph with its present number formats."""
    types = {v.name: v.dtype for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype}

    def with_type(tensor: TensorSpec) -> TensorSpec:
        return replace(tensor, dtype=cast(DataType, types[tensor.name].numpy().name))

    return spec.map(with_type)
