"""Shortlists: the target tokens that the tokens of a source allow.

A shortlist lists, for each source token or sequence of source tokens, the target tokens that may
follow from it, so that a step need not compute the whole vocabulary (Jean et al. 2015, section 3.3;
Kim et al. 2019, section 3.3). Some tokens are allowed for every source.
"""

from __future__ import annotations

import functools
import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.files.regular_files import FileError, read_regular

from ..format.manifest import BundleError, ShortlistRecord
from ..format.model_spec import ModelSpec

SHORTLIST_FILE = "shortlist.npz"
LARGEST_FILE, MOST_ENTRIES = 2**28, 2**20
"""The largest size of the file and of its arrays, in bytes, and the most entries."""
LONGEST_ENTRY = 8
"""The largest number of source tokens of an entry."""
_ARRAYS = {"sources": 2, "offsets": 1, "tokens": 1, "always": 1}
"""The arrays of the file, and their axes."""

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that source tokens allow."""

    entries: Mapping[tuple[int, ...], Tokens]
    """Target tokens by the source tokens that allow them, one or several in a row."""
    always: Tokens
    """Target tokens that every source allows."""

    def allowed(self, source: Sequence[int], others: Iterable[int] = ()) -> NDArray[np.int64]:
        """Return the tokens that a source allows, ascending."""
        found = [self.always, np.fromiter(others, np.int32)]
        for length in self._lengths:
            for first in range(len(source) - length + 1):
                tokens = self.entries.get(tuple(source[first : first + length]))
                if tokens is not None:
                    found.append(tokens)
        return np.unique(np.concatenate(found)).astype(np.int64)

    def with_always(self, tokens: Iterable[int], never: Iterable[int] = ()) -> Shortlist:
        """Return a shortlist that always allows some tokens and never others."""
        left_out = np.fromiter(never, np.int32)
        always = np.union1d(self.always, np.fromiter(tokens, np.int32))
        entries = {source: np.setdiff1d(found, left_out) for source, found in self.entries.items()}
        return Shortlist(entries, np.setdiff1d(always, left_out).astype(np.int32))

    @property
    def record(self) -> ShortlistRecord:
        """What the manifest says of it."""
        sizes = [len(tokens) for tokens in self.entries.values()]
        mean = float(np.mean(sizes)) if sizes else 0.0
        return ShortlistRecord(SHORTLIST_FILE, len(sizes), round(mean, 2), len(self.always))

    @functools.cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(source) for source in self.entries})

    def to_bytes(self) -> bytes:
        """Return the contents of its file, a compressed archive of NumPy arrays."""
        sources = sorted(self.entries)
        longest = max(map(len, sources), default=1)
        padded = np.full((len(sources), longest), -1, np.int32)
        for row, source in enumerate(sources):
            padded[row, : len(source)] = source
        lists = [self.entries[source] for source in sources]
        offsets = np.cumsum([0, *map(len, lists)])
        file = io.BytesIO()
        np.savez_compressed(
            file,
            sources=padded,
            offsets=offsets.astype(np.int64),
            tokens=np.concatenate([*lists, np.zeros(0, np.int32)]).astype(np.int32),
            always=self.always.astype(np.int32),
        )
        return file.getvalue()


def read_shortlist(path: Path, model: ModelSpec) -> Shortlist:
    """Read the shortlist of a bundle."""
    try:
        arrays = _arrays(read_regular(path, LARGEST_FILE))
    except FileError as error:
        raise BundleError(str(path), [error.problem]) from error
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"expected the arrays of a shortlist: {error}"
        raise BundleError(str(path), [problem]) from error
    sources, offsets = arrays["sources"], arrays["offsets"]
    tokens, always = arrays["tokens"].astype(np.int32), arrays["always"].astype(np.int32)
    whole = len(offsets) == len(sources) + 1 and offsets[0] == 0 and offsets[-1] == len(tokens)
    if not whole or (np.diff(offsets) < 0).any() or sources.shape[1] > LONGEST_ENTRY:
        raise BundleError(str(path), ["expected the tokens of each entry, found other offsets"])
    if len(sources) > MOST_ENTRIES:
        problem = f"expected at most {MOST_ENTRIES} entries, found {len(sources)}"
        raise BundleError(str(path), [problem])
    for name, found, size in (
        ("source", sources, model.source_vocab_size or 0),
        ("target", tokens, model.target_vocab_size),
        ("target", always, model.target_vocab_size),
    ):
        least = -1 if name == "source" else 0
        if found.size and not (least <= found.min() and found.max() < size):
            problem = f"expected {name} tokens in [0, {size}), found {found.min()} to {found.max()}"
            raise BundleError(str(path), [problem])
    entries = {
        tuple(token for token in source if token >= 0): tokens[begin:end]
        for source, begin, end in zip(
            sources.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True
        )
    }
    if len(entries) < len(sources):
        raise BundleError(str(path), ["expected entries of different source tokens, found equal"])
    return Shortlist(entries, always)


def _arrays(data: bytes) -> dict[str, NDArray[np.integer[Any]]]:
    """Read the integer arrays of an archive, without trusting their sizes."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [archive.getinfo(f"{name}.npy") for name in _ARRAYS]
        if sum(member.file_size for member in members) > LARGEST_FILE:
            raise ValueError(f"expected arrays of at most {LARGEST_FILE} bytes, found more")
        for (name, axes), member in zip(_ARRAYS.items(), members, strict=True):
            known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if member.flag_bits & 1 or member.compress_type not in known:
                raise ValueError(f"{name}: expected a plain or deflated member, found another")
            with archive.open(member) as file:
                numbers = file.read(member.file_size)
            arrays[name] = _array(name, numbers, axes)
    return arrays


def _array(name: str, data: bytes, axes: int) -> NDArray[np.integer[Any]]:
    """Read an array in NumPy's format, allocating nothing that is not there."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{name}: expected version 1.0 of NumPy's format, found another")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    if len(shape) != axes or not np.issubdtype(dtype, np.integer) or by_columns:
        raise ValueError(
            f"{name}: expected integers with {axes} axes, found {dtype} of shape {list(shape)}"
        )
    rest = data[file.tell() :]
    if math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(
            f"{name}: expected numbers of shape {list(shape)}, found {len(rest)} bytes"
        )
    found: NDArray[np.integer[Any]] = np.frombuffer(rest, dtype).reshape(shape)
    return found
