"""A neutral bundle -> a bundle for one target."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from dragoman.errors import DragomanError
from dragoman.runtime.backends.onnx_runtime import OnnxRuntimeBackend
from dragoman.runtime.bundle import Bundle, record_files, write_manifest
from dragoman.runtime.manifest import GraphSpec, Manifest, PassRecord, Precision, Target
from dragoman.runtime.model import Model
from dragoman.runtime.scheduling import batches, pad
from dragoman.stored_weights import store_weights

from .cpu.attention import ATTENTION
from .cpu.self_attention import SELF_ATTENTION
from .graph_pass import GraphPass, PassError
from .pipeline import apply_passes
from .precision.calibration import Calibration, calibrate
from .precision.rounding import Rounded
from .precision.weights import QuantizeWeights, Scheme, round_for
from .samples import Samples, samples_for_graph
from .targets import CPU_FP32, CPU_FUSIONS, PRECISIONS, QUANTIZATION_TOLERANCE, schemes
from .values import floats, users, weight

CALIBRATION_SOURCES = 96
CALIBRATION_LENGTH = 32
"""Random sources, and the most tokens of each, where none are given."""


def optimize_bundle(
    bundle: Bundle,
    directory: Path,
    *,
    target: Target = "cpu",
    precision: Precision = "fp32",
    calibration: Sequence[Sequence[int]] | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Write the bundle that a neutral fp32 bundle becomes for a target, into an existing directory.

    Args:
        precision: "fp32", "int8" (weights and activations) or "int4" (weights of the decoder; the
            encoder is int8)
        calibration: source token ids on which errors are weighed and measured; random if None
        progress: called with each stage as it begins

    Returns:
        the manifest, with a record of every pass, not verified

    Raises:
        DragomanError: the bundle is not neutral fp32, or the target has no such precision.
        PassError: a pass failed; names it.
    """
    manifest = bundle.manifest
    if (manifest.target, manifest.precision) != ("neutral", "fp32"):
        raise DragomanError(
            f"{bundle.directory}: expected a neutral bundle in fp32, found target "
            f"{manifest.target}, precision {manifest.precision}"
        )
    if precision not in PRECISIONS:
        raise DragomanError(
            f"target {target}: expected precision {', '.join(PRECISIONS)}, found {precision}"
        )
    graphs = {
        name: (ir.load(bundle.path(spec.file)), spec)
        for name, spec in (("encoder", manifest.encoder), ("decoder", manifest.decoder))
    }
    quantizing: dict[str, tuple[GraphPass, ...]] = dict.fromkeys(graphs, CPU_FP32)
    fused: dict[str, list[PassRecord]] = {}
    samples = {name: samples_for_graph(spec, manifest.model) for name, (_, spec) in graphs.items()}
    if precision != "fp32":
        progress("calibrating")
        observed = _observe(bundle, calibration)
    for name, (model, _) in graphs.items():
        fused[name] = apply_passes(
            model, CPU_FUSIONS, graph=name, samples=samples[name], progress=progress
        )
    _check_counts(fused["decoder"], manifest.model.decoder_layers)
    if precision != "fp32":
        models = {name: model for name, (model, _) in graphs.items()}
        progress("measuring the inputs of products")
        known = {name: calibrate(model, observed[name]) for name, model in models.items()}
        progress("rounding embeddings")
        quantizing = _quantization(models, known, precision)
    records: list[PassRecord] = []
    for name, (model, _) in graphs.items():
        records += fused[name]
        records += apply_passes(
            model, quantizing[name], graph=name, samples=samples[name], progress=progress
        )
    progress("writing weights")
    store_weights([model for model, _ in graphs.values()], directory)
    for model, spec in graphs.values():
        ir.save(model, directory / spec.file)
    for file in _tokenizer_files(manifest):
        shutil.copyfile(bundle.path(file), directory / file)
    optimized = dataclasses.replace(
        manifest,
        target=target,
        precision=precision,
        files=record_files(directory),
        tool_versions=manifest.tool_versions | {"onnxruntime": onnxruntime.__version__},
        passes=tuple(records),
        parity=None,
    )
    write_manifest(optimized, directory)
    return optimized


def _check_counts(records: Sequence[PassRecord], layers: int) -> None:
    """Every attention of a decoder is fused, or refused with a reason: none is overlooked.

    Raises:
        PassError: a fusion no longer finds what the exporter writes.
    """
    cached, attention = (
        next(record for record in records if record.name == step.name)
        for step in (SELF_ATTENTION, ATTENTION)
    )
    refused = len(cached.refusals)
    for record, what, found in (
        (cached, "self-attentions", cached.matches + refused),
        (attention, "cross-attentions", attention.matches + len(attention.refusals) - refused),
    ):
        if found != layers:
            raise PassError(
                f"decoder: pass {record.name} expected {layers} {what}, one for each layer, found "
                f"{found}"
            )


def _quantization(
    models: dict[str, ir.Model], known: dict[str, Calibration], precision: Precision
) -> dict[str, tuple[GraphPass, ...]]:
    """The quantizing pass of each graph. Tables are rounded once for both, by what the product that
    they are tied to needs."""
    tables: dict[str, Rounded] = {}
    values = {
        value.name: value
        for model in models.values()
        for node in model.graph
        if node.op_type == "Gather" and (value := node.inputs[0]) is not None and weight(value, 2)
        if ".tokens." in (value.name or "")
    }
    width = floats(next(iter(values.values()))).shape[1]
    encoder, decoder, embedding = schemes(precision, width)
    for name, value in values.items():
        assert name is not None
        x = _tied_input(models["decoder"], name)
        tables[name], _ = round_for(floats(value).T, x, embedding, known["decoder"])

    def step(scheme: Scheme, graph: str) -> tuple[GraphPass, ...]:
        return (QuantizeWeights(scheme, embedding, tables, known[graph], QUANTIZATION_TOLERANCE),)

    return {"encoder": step(encoder, "encoder"), "decoder": step(decoder, "decoder")}


def _tied_input(decoder: ir.Model, table: str) -> ir.Value | None:
    """What the table is multiplied by where it is the projection to logits too."""
    value = decoder.graph.initializers.get(table)
    if value is None:
        return None
    for node in users(value):
        if node.op_type == "Transpose":
            return users(node.outputs[0])[0].inputs[0]
    return None


def _observe(bundle: Bundle, sources: Sequence[Sequence[int]] | None) -> dict[str, list[Samples]]:
    """Inputs of both graphs as decoding the sources gives them, all target positions at once."""
    facts = bundle.manifest.model
    if sources is None:
        generator = np.random.default_rng(0)
        longest = min(CALIBRATION_LENGTH, facts.max_source_positions)
        lengths = generator.integers(1, longest + 1, CALIBRATION_SOURCES)
        sources = [generator.integers(0, facts.source_vocab_size, n).tolist() for n in lengths]
    backend = OnnxRuntimeBackend(bundle, device="cpu", threads=None)
    model = Model(bundle, backend)
    limit = min(CALIBRATION_LENGTH, bundle.manifest.default_max_new_tokens)
    targets = [list(r.tokens) for r in model.generate(sources, max_new_tokens=limit)]
    observed: dict[str, list[Samples]] = {"encoder": [], "decoder": []}
    lengths_ = [len(source) for source in sources]
    for batch in batches(lengths_, max_batch_size=32, max_batch_tokens=4096):
        source, mask = pad([sources[i] for i in batch], facts.pad_token_id)
        forced = [[facts.start_token_id, *targets[i]][:limit] for i in batch]
        tokens, _ = pad(forced, facts.pad_token_id)
        given = {"source": source, "source_mask": mask, "token": tokens}
        observed["encoder"].append(_named(bundle.manifest.encoder, given))
        cross = backend.encode(source, mask)
        shape = (len(batch), facts.num_heads, tokens.shape[1], facts.head_size)
        given |= {"position": np.zeros(len(batch), np.int64)}
        given |= {
            "past_key": np.zeros(shape, np.float32),
            "past_value": np.zeros(shape, np.float32),
        }
        observed["decoder"].append(_named(bundle.manifest.decoder, given) | cross)
    return observed


def _named(spec: GraphSpec, by_role: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {t.name: by_role[t.role] for t in spec.inputs if t.role in by_role}


def _tokenizer_files(manifest: Manifest) -> list[str]:
    files = manifest.tokenizers
    return [] if files is None else sorted({files.source, files.target})
