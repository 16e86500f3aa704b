"""The rows of a batch: lengths of sources, common cached positions, allowed tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.contract import Slot, TensorSpec

SHRINK_BELOW = 3 / 4
"""Sources are laid out again once the longest needs at most this share of the allocated positions,
since attention reads all of them."""

CACHED_TOKENS = 1024
"""Number of source tokens whose activations stay in the CPU caches between operators.

On one thread, the int8 encoder of a base model takes 1.2 times as long for 3,840 tokens at once,
and MiniLM's takes 1.07 to 1.24 times as long for 4,096 (docs/speed.md)."""

POSITION_MULTIPLE = 4
"""Sources, and the positions of a target, are padded to a multiple of this on the CPU.

Attention multiplies this many keys at once, and the remaining keys one by one. Masked keys add
nothing to a sum, so with this padding its order depends neither on the batch's longest source nor
on the room for its longest output."""


def rows_of_sources(sources: NDArray[np.intp], width: int) -> NDArray[np.intp]:
    """Return the rows of sources: source `s` has rows `width * s` to `width * s + width - 1`."""
    rows: NDArray[np.intp] = (width * sources[:, None] + np.arange(width)).ravel()
    return rows


def part_of(source: NDArray[Any] | Mapping[str, NDArray[Any]], rows: slice) -> Any:
    """Take some sources of a batch, whether they are encoded or not."""
    if isinstance(source, Mapping):
        return {name: values[rows] for name, values in source.items()}
    return source[rows]


def unwritten(tensor: TensorSpec, rows: int, capacity: int) -> NDArray[Any]:
    """Make the caches or the states of decoder rows before their first step: zeros."""
    return np.zeros(tensor.sized({"batch": rows, "capacity": capacity}), tensor.dtype)


def source_lengths(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of positions up to the last token of each source, [N].

    It is 1 for a mask without positions, as for decoder-only models.
    """
    if not mask.shape[1]:
        return np.ones(len(mask), np.int64)
    after: NDArray[np.int64] = np.maximum(1, mask.shape[1] - mask[:, ::-1].argmax(axis=1))
    return after


def padded_length(length: int, multiple: int, most: int) -> int:
    """Round a length up to a multiple, limited to `most` positions."""
    return max(length, min(-(-length // multiple) * multiple, most))


def source_room(present: int, longest: int) -> int:
    """Return the number of positions to allocate for each source."""
    return present if SHRINK_BELOW * present < longest < present else longest


class RowCopy(NamedTuple):
    """A copy of the cached positions `begin` to `end` of row `row` to row `to`."""

    row: int
    to: int
    begin: int
    end: int


class CacheHistory:
    """Records which step of which row wrote each cached position of each row.

    Beams of a source share most cached positions. A beam that continues another one needs only the
    positions after the two diverged.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self._writers = np.zeros((rows, capacity), np.int64)
        self._written = 0

    def write(self, positions: NDArray[np.int64], queries: int) -> None:
        """Record that every row has decoded `queries` tokens from its position on."""
        rows = len(positions)
        numbers = np.arange(self._written + 1, self._written + 1 + rows * queries)
        at = positions[:, None] + np.arange(queries)
        self._writers[np.arange(rows)[:, None], at] = numbers.reshape(rows, queries)
        self._written += rows * queries

    def copies(self, parents: NDArray[np.intp], positions: NDArray[np.int64]) -> list[RowCopy]:
        """Return the copies that let row r continue row parents[r], and record them as done."""
        copies = []
        for to in np.flatnonzero(parents != np.arange(len(parents))).tolist():
            row = int(parents[to])
            end = int(positions[row])
            theirs, ours = self._writers[row, :end], self._writers[to, :end]
            different = np.flatnonzero(theirs != ours)
            if len(different):
                copies.append(RowCopy(row, to, int(different[0]), end))
                ours[:] = theirs
        return copies

    def take(self, other: CacheHistory, row: int, to: int) -> None:
        """Replace a row by a row of this or another batch of the same capacity."""
        self._writers[to] = other._writers[row]

    def resize(self, rows: int) -> None:
        """Change the number of rows; new rows have no positions in common with others."""
        missing = rows - len(self._writers)
        if missing > 0:
            self._writers = np.pad(self._writers, ((0, missing), (0, 0)))


TOKENS_MULTIPLE = 64
"""The allowed tokens of a row are padded to a multiple of this.

ONNX Runtime sums this many numbers at once, and the remaining ones otherwise. Padding adds zeros,
so that the sum of a row depends on its own tokens only."""
LEAST_OF_THREAD = 2 * TOKENS_MULTIPLE
"""The least number of columns of a product of floating point numbers for each thread. With fewer,
ONNX Runtime adds them in another order."""
_PADDING = -1

ALLOWED_TOKEN, ALLOWED_COLUMN = Slot("allowed_token"), Slot("allowed_column")

Gather = Callable[[NDArray[np.int64]], dict[Slot, NDArray[Any]]]
"""Returns the weights of tokens [U], by the decoder's inputs."""


class BatchShortlist:
    """The tokens that the sources of a batch allow, and their weights.

    Those of the `former` shortlist, of the batch before, are kept if they suffice.
    """

    def __init__(
        self,
        gather: Gather,
        allowed: Sequence[NDArray[np.int64]],
        vocabulary: int,
        least: int = TOKENS_MULTIPLE,
        former: BatchShortlist | None = None,
    ) -> None:
        self._gather, self._allowed = gather, list(allowed)
        self._vocabulary, self._least = vocabulary, least
        self._columns: NDArray[np.int64]
        self.weights: dict[Slot, NDArray[Any]]
        is_needed = np.zeros(vocabulary, np.bool_)
        for tokens in allowed:
            is_needed[tokens] = True
        if former is not None and (former._columns[is_needed] >= 0).all():
            self._columns, self.weights = former._columns, former.weights
            return
        needed = np.flatnonzero(is_needed)
        size = max(self._least, -(-len(needed) // TOKENS_MULTIPLE) * TOKENS_MULTIPLE)
        self._columns = np.full(vocabulary, _PADDING)
        self._columns[needed] = np.arange(len(needed))
        self.weights = gather(np.pad(needed, (0, size - len(needed))))

    def kept(self, sources: Sequence[int]) -> BatchShortlist:
        """Return the shortlist of some sources, see `DecodingState.keep`."""
        return self._of([self._allowed[source] for source in sources])

    def joined(
        self, other: BatchShortlist, sources: Sequence[int], staying: Sequence[int]
    ) -> BatchShortlist:
        """Return the shortlist with the sources of another batch, see `DecodingState.join`.

        Sources of this batch that are not retired are `staying`.
        """
        idle = self._allowed[0][:1]  # of rows whose results nobody reads
        allowed = [idle] * max(len(self._allowed), max(sources) + 1)
        for source in staying:
            allowed[source] = self._allowed[source]
        for source, to in enumerate(sources):
            allowed[to] = other._allowed[source]
        return self._of(allowed)

    def rows(self, width: int) -> dict[Slot, NDArray[np.int64]]:
        """Return the allowed tokens and their columns for each row, [B, A]."""
        longest = max(map(len, self._allowed))
        size = max(1, -(-longest // TOKENS_MULTIPLE)) * TOKENS_MULTIPLE
        tokens = np.full((len(self._allowed), size), _PADDING)
        columns = np.zeros_like(tokens)
        for source, allowed in enumerate(self._allowed):
            tokens[source, : len(allowed)] = allowed
            columns[source, : len(allowed)] = self._columns[allowed]
        return {
            ALLOWED_TOKEN: np.repeat(tokens, width, axis=0),
            ALLOWED_COLUMN: np.repeat(columns, width, axis=0),
        }

    def _of(self, allowed: Sequence[NDArray[np.int64]]) -> BatchShortlist:
        return BatchShortlist(self._gather, allowed, self._vocabulary, self._least, self)
