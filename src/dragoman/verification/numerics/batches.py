"""Checks that the outputs of a source do not depend on the other sources of a batch.

Sources are computed alone and in batches, with other lengths and at other rows, in one pass and
through the cache, also with several rows for a source. Where bundles are batch-invariant, the
numbers must be the same bit for bit.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.optimize.checking.encoded_once import encode_together
from dragoman.runtime import Model
from dragoman.runtime.backends.interface import Encoded
from dragoman.runtime.decoding.request import pad
from dragoman.runtime.format.parity import Check

from ..checks.distances import differences, divergence
from ..tolerances import Slack, Tally
from .probes import Probe, batch_of

Array = NDArray[Any]

SIZES = (2, 3, 5, 8, 33, 65)
"""Small ones one by one; and beyond powers of two, where kernels and memory change."""
WIDTH, WIDE = 3, 5
"""Rows that are decoded from each source, as beams are, and the sources of a batch of them."""
STEPS = 3
"""Steps through the cache, after one pass."""
MOST_NUMBERS = 2**25
"""Logits that a batch may have; larger batches are left out."""
MOST_WINDOWS, FEWEST_WINDOWS, WINDOW_WEIGHTS = 5, 2, 4e8
"""Windows of audio in a batch, half a minute each, and weights that all of them are multiplied by:
batches of large models have the fewest."""
PROMISED_ON = frozenset({"x86_64", "AMD64"})


Outputs = dict[str, Array]
"""Outputs of the encoder by name, without padding; "logits of one pass" [T, V]; and "logits of a
step", of the first steps through the cache, [steps, V]."""


def is_promised(model: Model, backend: str) -> bool:
    """Whether the model is batch-invariant bit for bit, see docs/guides/precisions.md."""
    manifest = model.manifest
    return (
        manifest.target == "cpu"
        and backend == "onnxruntime"
        and not manifest.model.takes_audio
        and platform.machine() in PROMISED_ON
    )


def most_windows(parameters: int) -> int:
    """Return how many windows of audio a batch of a model with so many parameters has at most."""
    return max(FEWEST_WINDOWS, min(MOST_WINDOWS, int(WINDOW_WEIGHTS / parameters)))


def compare_batches(
    model: Model, probes: Sequence[Probe], windows: int, slack: Slack, *, promised: bool
) -> Check:
    """Compare probes in batches of one and in larger batches.

    Args:
        windows: the maximum number of windows of audio in a batch
        slack: what rounding explains where bits may differ
        promised: whether they may not differ
    """
    single = [_results(model, [probe], 1)[0] for probe in probes]
    tally = Tally()

    def compare(found: Outputs, expected: Outputs, what: str, *, promised: bool) -> None:
        excess, where = _excess(expected, found, slack, promised=promised)
        problem = f"{what} differs from the same source in a batch of one: {where}"
        tally.add(1, excess > 1, excess, problem if excess > 1 else "")

    for size, members in _batches(model, probes, windows):
        for row, found in enumerate(_results(model, [probes[i] for i in members], 1)):
            what = f"row {row} of a batch of {size}"
            compare(found, single[members[row]], what, promised=promised)
    most = model.backend.limits.rows or WIDE * WIDTH
    spec = model.manifest.model
    if spec.has_decoder and spec.has_encoder and most >= WIDTH:
        # Sums over several rows of a source have another order than over one.
        members = list(range(min(WIDE, most // WIDTH, len(probes))))
        several = [_results(model, [probes[i]], WIDTH)[0] for i in members]
        for row, found in enumerate(_results(model, [probes[i] for i in members], WIDTH)):
            compare(several[row], single[row], f"one of {WIDTH} rows of a source", promised=False)
            what = f"one of {WIDTH} rows of source {row} in a batch of {len(members)} sources"
            compare(found, several[row], what, promised=promised)
    return tally.check("batches", "rows")


def batch_sizes(model: Model, probes: Sequence[Probe], windows: int) -> list[int]:
    """List the sizes of the batches that are compared, 1 included."""
    return [1, *(size for size, _ in _batches(model, probes, windows))]


def _batches(
    model: Model, probes: Sequence[Probe], windows: int
) -> Iterator[tuple[int, list[int]]]:
    generator = np.random.default_rng(1)
    spec = model.manifest.model
    longest = max(max(len(probe.read), 1) for probe in probes)
    most = model.backend.limits.rows or max(SIZES)
    if spec.takes_audio:
        most = min(most, windows)
    for size in sorted({min(size, most) for size in SIZES} - {1}):
        if size * longest * spec.target_vocab_size <= MOST_NUMBERS:
            yield size, generator.permutation(np.arange(size) % len(probes)).tolist()


def _results(model: Model, probes: Sequence[Probe], width: int) -> list[Outputs]:
    spec, manifest, backend = model.manifest.model, model.manifest, model.backend
    source, mask = batch_of(probes, spec, backend.limits.source_multiple)
    given = encode_together(model, source, mask)
    encoded: Encoded = {}
    if spec.has_encoder:
        encoded = given if isinstance(given, Mapping) else backend.encode(given, mask)
    results = [
        {name: _own(manifest, name, values[i], mask[i]) for name, values in encoded.items()}
        for i in range(len(probes))
    ]
    if not spec.has_decoder:
        return results
    read, read_mask = pad([probe.read for probe in probes], spec.pad_token_id)
    scored = backend.score(given, mask, read)
    stepped = []
    state = backend.start(given, mask, read[:, :1], read.shape[1] + 1, width)
    with contextlib.closing(state):
        for step in range(min(STEPS, read.shape[1])):
            logits = state.advance().logits
            stepped.append(np.array(logits).reshape(len(probes), width, -1))
            following = read[:, min(step + 1, read.shape[1] - 1)]
            state.feed(np.repeat(following, width))
    for i, result in enumerate(results):
        result["logits of one pass"] = scored[i, read_mask[i]]
        own = min(len(probes[i].read), len(stepped))
        # All rows of a source are alike: the last one stands for them.
        result["logits of a step"] = np.stack([step[i, width - 1] for step in stepped[:own]])
    return results


def _own(manifest: Any, name: str, values: Array, mask: NDArray[np.bool_]) -> Array:
    role = next(t.role for t in manifest.graphs["encoder"].outputs if t.name == name)
    if role in ("cross_key", "cross_value"):
        return np.asarray(values[:, mask])
    return np.asarray(values[mask] if role in ("hidden", "token_logits") else values)


def _excess(single: Outputs, found: Outputs, slack: Slack, *, promised: bool) -> tuple[float, str]:
    worst, where = 0.0, ""
    for name, expected in single.items():
        values = found[name]
        apart = differences(values, expected)
        largest = float(apart.max(initial=0))
        if promised and name != "embedding":  # a mean over tokens is a sum over padding, too
            excess = 0.0 if largest == 0 else 1 + largest
        elif name.startswith("logits") and slack.channels is not None:
            excess = float((apart / slack.channels).max())
        elif name.startswith("logits"):
            wide = (torch.from_numpy(v.astype(np.float32)) for v in (expected, values))
            excess = float(divergence(*wide).max()) / slack.largest
        else:
            size = max(1e-6, float(np.abs(expected).max(initial=0)))
            excess = largest / (size * slack.of_size)
        if excess > worst:
            worst, where = excess, f"{name} differ by {largest:.3g}"
    return worst, where
