"""Compares the outputs of a faulty bundle with those of the right one, bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.contract import GraphSpec, Owner
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.texts.codecs.tokenizer_file import panics_as_errors, read_tokenizer
from dragoman.runtime.texts.shortlist import read_shortlist

from ..many_texts import TEXTS as MANY_TEXTS
from ..many_texts import random_texts
from .checkpoints import TEXTS

BATCHES = (1, 2, 3, 5, 8, 33, 65)
MOST_STEPS = 300
"""Cached steps that are compared; all positions of all models but T5."""

Values = dict[str, NDArray[Any]]


def same_behaviour(right: Bundle, directory: Path) -> bool:
    """Whether all outputs of all graphs, all settings and all tokens are the same.

    Sources have every length and every token id, batches the sizes `BATCHES`; decoders read targets
    of up to all positions in one pass, and step by step through their caches.
    """
    faulty = read_bundle(directory)
    return (
        _settings(right.manifest) == _settings(faulty.manifest)
        and _same_tokenizers(right, faulty)
        and _same_shortlists(right, faulty)
        and all(_same_graph(right, faulty, name) for name in right.manifest.graphs)
    )


def _settings(manifest: Manifest) -> Manifest:
    """The fields that tell how a bundle behaves."""
    nothing: dict[str, Any] = {"parity": None, "shortlist": None, "tool_versions": {}}
    return dataclasses.replace(manifest, files=(), passes=(), notes=(), architecture={}, **nothing)


def _same_shortlists(right: Bundle, faulty: Bundle) -> bool:
    """Whether every source allows the same tokens."""
    record, ends = right.manifest.shortlist, right.manifest.end_tokens
    if record is None:
        return True
    ours, theirs = (read_shortlist(b.path(record.file), b.manifest.model) for b in (right, faulty))
    return all(
        np.array_equal(ours.allowed(source, ends), theirs.allowed(source, ends))
        for source in {(), *ours.entries, *theirs.entries}
    )


def _same_tokenizers(right: Bundle, faulty: Bundle) -> bool:
    tokenizers = right.manifest.tokenizers
    return all(
        right.path(name).read_bytes() == faulty.path(name).read_bytes()
        or _same_tokens(right.path(name), faulty.path(name))
        for name in (() if tokenizers is None else tokenizers.files)
    )


def _same_tokens(right: Path, faulty: Path) -> bool:
    try:
        with panics_as_errors():
            return _same_calls(read_tokenizer(right), read_tokenizer(faulty))
    except Exception:  # the library raises no narrower type
        return False


def _same_calls(ours: Tokenizer, theirs: Tokenizer) -> bool:
    size = ours.get_vocab_size()
    generator = np.random.default_rng(0)
    rows = [[token] for token in range(size)]
    rows += [generator.integers(0, size, 12).tolist() for _ in range(500)]
    pieces = [ours.decode([token], skip_special_tokens=False) for token in range(size)]
    texts = [*TEXTS, *MANY_TEXTS, *random_texts(300), *pieces, *(f" {p}" for p in pieces)]
    return all(ours.encode(text).ids == theirs.encode(text).ids for text in texts) and all(
        ours.decode(row, skip_special_tokens=special)
        == theirs.decode(row, skip_special_tokens=special)
        for row in rows
        for special in (False, True)
    )


def _same_graph(right: Bundle, faulty: Bundle, name: str) -> bool:
    if right.graph_path(name).read_bytes() == faulty.graph_path(name).read_bytes() and all(
        a.sha256 == b.sha256
        for a, b in zip(right.manifest.files, faulty.manifest.files, strict=True)
        if a.path.endswith((".bin", ".data", ".weights"))
    ):
        return True
    runs = [_session(bundle.graph_path(name)) for bundle in (right, faulty)]
    spec, model = right.manifest.graphs[name], right.manifest.model
    if name == "decoder":
        return all(_same(runs, spec, feed) for feed in _passes(spec, model)) and _same_steps(
            runs, spec, model
        )
    return all(_same(runs, spec, feed) for feed in _feeds(spec, model))


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _same(runs: list[Any], spec: GraphSpec, feed: Values) -> bool:
    return _outputs(runs, spec, feed) is not None


def _outputs(runs: list[Any], spec: GraphSpec, feed: Values) -> Values | None:
    """The outputs of two sessions; None if they differ where they mean something."""
    names = [tensor.name for tensor in spec.outputs]
    try:
        ours, theirs = (run.run(names, feed) for run in runs)
    except Exception:  # the library raises a dozen types that share no other base
        return None
    mask = next((feed[t.name] for t in spec.inputs if t.owner is Owner.MASK), None)
    for tensor, one, other in zip(spec.outputs, ours, theirs, strict=True):
        if one.shape != other.shape:
            return None
        if mask is not None and "source" in tensor.shape:
            axis = tensor.shape.index("source")
            shape = [1] * one.ndim
            shape[0], shape[axis] = mask.shape
            kept = np.broadcast_to(mask.reshape(shape), one.shape)
            one, other = one[kept], other[kept]
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            return None
    return dict(zip(names, ours, strict=True))


def _lengths(most: int) -> list[int]:
    """All up to 48, one beyond the largest distance of T5, and the three longest."""
    lengths = {*range(1, 49), 130, most - 2, most - 1, most}
    return sorted(length for length in lengths if 1 <= length <= most)


def _feeds(spec: GraphSpec, model: ModelSpec) -> Iterator[Values]:
    """Inputs of graphs that have no caches: batches of all sizes, sources of all lengths."""
    generator = np.random.default_rng(0)
    longest = min(model.input_positions, 512)
    for length in _lengths(longest):
        yield _feed(spec, model, generator, 3, length)
    for batch in BATCHES:
        yield _feed(spec, model, generator, batch, min(longest, 13))
    rows = max(8, -(-(model.source_vocab_size or 1) // longest))
    yield _feed(spec, model, generator, rows, longest, every_token=True)


def _passes(spec: GraphSpec, model: ModelSpec) -> Iterator[Values]:
    """Inputs of a decoder that reads targets of all lengths from the first position on."""
    generator = np.random.default_rng(1)
    longest = min(model.max_target_positions, 512)
    for query in _lengths(longest):
        yield _feed(spec, model, generator, 3, min(model.max_source_positions, 9), query, query)
    for batch in BATCHES:
        yield _feed(spec, model, generator, batch, min(model.max_source_positions, 13), 5, 9)
    rows = -(-model.target_vocab_size // longest)
    sources = min(model.max_source_positions, 9)
    yield _feed(spec, model, generator, rows, sources, longest, longest, every_token=True)


def _same_steps(runs: list[Any], spec: GraphSpec, model: ModelSpec) -> bool:
    """Whether rows that began at different steps decode alike, up to the last position."""
    generator = np.random.default_rng(2)
    capacity = min(model.max_target_positions, MOST_STEPS)
    for batch in (1, 4, 33):
        sources = min(model.max_source_positions, 9)
        feed = _feed(spec, model, generator, batch, sources, 1, capacity)
        begins = np.arange(batch) % 4
        for step in range(capacity if batch == 4 else min(capacity, 24)):
            position = np.maximum(step - begins, 0)
            for tensor in spec.inputs:
                if tensor.role == "position":
                    feed[tensor.name] = position.astype(np.int64)
                elif tensor.role == "token":
                    tokens = generator.integers(0, model.target_vocab_size, (batch, 1))
                    feed[tensor.name] = tokens.astype(np.int64)
            found = _outputs(runs, spec, feed)
            if found is None:
                return False
            for tensor in spec.outputs:
                if tensor.role in ("present_key", "present_value", "present_state"):
                    past = next(t for t in spec.inputs if t.slot == tensor.memory)
                    feed[past.name] = found[tensor.name]
    return True


def _feed(
    spec: GraphSpec,
    model: ModelSpec,
    generator: np.random.Generator,
    batch: int,
    source: int,
    query: int = 1,
    capacity: int = 1,
    *,
    every_token: bool = False,
) -> Values:
    """Random inputs of a graph, whose caches are empty and whose masks are ragged."""
    if model.takes_audio:
        source = model.max_source_positions
    sizes: Mapping[str, int] = {
        "batch": batch,
        "source_batch": batch,
        "source": source,
        "query": query,
        "read": query,
        "capacity": capacity,
        "shortlist": model.target_vocab_size,
        "allowed": 64,
    }
    feed: Values = {}
    for tensor in spec.inputs:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in tensor.shape)
        value: NDArray[Any]
        if tensor.owner is Owner.MASK:
            lengths = np.linspace(1, source, batch).astype(int)[::-1]
            value = np.arange(source) < lengths[:, None]
            if model.takes_audio:
                value[:] = True
        elif tensor.role == "read":
            value = np.broadcast_to(np.arange(query), shape)
        elif tensor.role == "source" and not model.takes_audio:
            value = generator.integers(0, model.source_vocab_size or 1, shape)
            if every_token:
                tokens = np.arange(value.size).reshape(shape)
                value = tokens % (model.source_vocab_size or 1)
        elif tensor.role == "token_type":
            value = generator.integers(0, 2, shape)
        elif tensor.role == "token":
            value = generator.integers(0, model.target_vocab_size, shape)
            if every_token:
                value = np.arange(value.size).reshape(shape) % model.target_vocab_size
        elif tensor.role in ("position", "past_key", "past_value", "past_state"):
            value = np.zeros(shape)
        elif tensor.role == "shortlist":
            value = np.arange(*shape)
        elif tensor.role in ("allowed_token", "allowed_column"):  # the last ones are padding
            value = np.arange(shape[1]) + 3 * np.arange(shape[0])[:, None] % 100
            value[:, 50:] = -1 if tensor.role == "allowed_token" else 0
        elif tensor.dtype == "int8":
            value = generator.integers(-127, 128, shape)
        else:
            value = generator.standard_normal(shape)
        feed[tensor.name] = value.astype(np.dtype(tensor.dtype))
    return feed
