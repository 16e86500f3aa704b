"""Checks the graphs that show attention, and the one that selects candidates on a GPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import Tensor

from dragoman.optimize.running import run
from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.reference_model.attention import MultiHeadAttention, attention_weights
from dragoman.runtime import Model
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import Role, Slot
from dragoman.runtime.format.neutral_graphs import aligning_layers
from dragoman.runtime.format.parity import NOT_FINITE, Check

from ..checks.distances import differences
from ..oracle import encoder_pass, oracle_pass
from ..tolerances import Tally
from .probes import Probe, batch_of

Array = NDArray[Any]

ATTENTION_TOLERANCE = 1e-4
"""The tolerance of attention weights in exact form. Sharp attention of random models loses 2e-5."""

SCORE_TOLERANCE = 1e-4
"""The tolerance of log-probabilities of candidates, in nats."""

KINDS: Mapping[str, Role] = {
    "encoder.self_attention": "encoder_attention",
    "decoder.self_attention": "self_attention",
    "decoder.cross_attention": "cross_attention",
}


def compare_attention(exact: Model, oracle: ReferenceModel, probe: Probe) -> Check | None:
    """Compare the weights of every attention with the oracle's."""
    if "attention" not in exact.manifest.graphs:
        return None
    spec = exact.manifest.model
    source, mask = batch_of([probe], spec)
    read = np.array([probe.read], np.int64).reshape(1, -1)
    types = np.zeros_like(mask, np.int64)
    inputs: dict[Role, Array] = {"source": source, "source_mask": mask, "token": read}
    found = exact.backend.attention(inputs | {"token_type": types})
    expected, _ = _oracle_attention(oracle, source, mask, read)
    return _compared("attention", {role: values[0] for role, values in found.items()}, expected)


def compare_alignment(exact: Model, oracle: ReferenceModel, probe: Probe) -> Check | None:
    """Compare logits and cross-attention of the graph that aligns words with the oracle's."""
    manifest = exact.manifest
    if "alignment" not in manifest.graphs:
        return None
    source, mask = batch_of([probe], manifest.model)
    read = np.array([probe.read], np.int64)
    encoded = exact.backend.encode(source, mask)
    outputs = {tensor.slot: encoded[tensor.name] for tensor in manifest.graphs["encoder"].outputs}
    logits, found = exact.backend.align({**outputs, Slot("source_mask"): mask}, read)
    expected, right = _oracle_attention(oracle, source, mask, read)
    layers = aligning_layers(manifest.model, manifest.generation.heads_that_align)
    role: Role = "cross_attention"
    check = _compared("alignment", {role: found[0]}, {role: expected[role][list(layers)]})
    apart = np.abs(logits[0].astype(np.float64) - right).max() / max(1.0, np.abs(right).max())
    if check.passed and not apart <= ATTENTION_TOLERANCE:
        problem = f"logits of the graph that aligns words differ by {apart:.3g} of the largest"
        return replace(check, differing=1, passed=False, problem=problem)
    return check


def _compared(name: str, found: Mapping[Role, Array], expected: Mapping[Role, Array]) -> Check:
    tally = Tally()
    for role, values in found.items():
        apart, problem = differences(values, expected[role]), ""
        beyond = apart > ATTENTION_TOLERANCE
        if beyond.any():
            layer, head, query, key = map(int, np.argwhere(beyond)[0])
            problem = (
                f"{role} of layer {layer}, head {head}, from {query} to {key}: expected "
                f"{expected[role][layer, head, query, key]:.4f}, found "
                f"{values[layer, head, query, key]:.4f}"
            )
        excess = float(apart.max()) / ATTENTION_TOLERANCE
        tally.add(apart.size, int(beyond.sum()), excess, problem)
    return tally.check(name, "weights")


def _oracle_attention(
    oracle: ReferenceModel, source: Array, mask: Array, read: NDArray[np.int64]
) -> tuple[dict[Role, Array], Array]:
    logits: Array = np.zeros((0, 0))  # of an encoder-only model
    with _recorded(oracle) as weights:
        if isinstance(oracle, EncoderModel):
            encoder_pass(oracle, source, mask)
        else:
            logits = oracle_pass(oracle, source, mask, read)[1][0]
    found: dict[Role, list[Array]] = {}
    for name, values in weights:
        kind = f"{name.split('.')[0]}.{name.rpartition('.')[2]}"
        found.setdefault(KINDS[kind], []).append(values[0].numpy())
    return {role: np.stack(layers) for role, layers in found.items()}, logits


@contextlib.contextmanager
def _recorded(oracle: ReferenceModel) -> Iterator[list[tuple[str, Tensor]]]:
    """Record the weights of each attention by module, at each call of a shared layer."""
    weights: list[tuple[str, Tensor]] = []

    def attend(
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        weights.append((name, attention_weights(query, key, mask, scale)))
        return weights[-1][1] @ value

    with contextlib.ExitStack() as changed:
        for name, module in oracle.named_modules():
            if isinstance(module, MultiHeadAttention):
                changed.callback(setattr, module, "attend", module.attend)
                module.attend = functools.partial(attend, name)
        yield weights


def compare_candidates(bundle: Bundle, logits: Array, suppressed: Sequence[int]) -> Check | None:
    """Compare what the graph of candidates selects with the logits that it selects from.

    Args:
        logits: [positions, V]
    """
    spec = bundle.manifest.graphs.get("candidates")
    if spec is None or bundle.manifest.executable.format != "onnx":
        return None
    given = spec.input("logits").name
    outputs = run(ir.load(bundle.graph_path("candidates")), {given: logits[:, None]})
    tokens: NDArray[np.int64] = outputs[spec.output("candidate_token").name].astype(np.int64)
    found = outputs[spec.output("candidate_log_probability").name].astype(np.float64)
    wide = logits.astype(np.float64)
    exact = wide - wide.max(axis=1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    exact[:, list(suppressed)] = -np.inf
    best = -np.sort(-exact, axis=1)[:, : tokens.shape[1]]
    known = (tokens >= 0) & (tokens < logits.shape[1])
    own = np.take_along_axis(exact, np.where(known, tokens, 0), 1)
    with np.errstate(invalid="ignore"):  # a suppressed token among too many
        apart = np.maximum(np.abs(own - best), np.abs(found - best))
    apart[~np.isfinite(apart) | ~known] = NOT_FINITE
    apart[[len(set(row.tolist())) < len(row) for row in tokens]] = NOT_FINITE  # repeated
    beyond, worst, problem = apart > SCORE_TOLERANCE, float(apart.max()) / SCORE_TOLERANCE, ""
    if beyond.any():
        row, place = map(int, np.argwhere(beyond)[0])
        problem = (
            f"candidate {place} is token {tokens[row, place]} with log-probability "
            f"{found[row, place]:.4f}, expected one with {best[row, place]:.4f}"
        )
    count = int(beyond.sum())
    return Check("candidates", apart.size, "candidates", count, not problem, worst, problem)
