"""The files of a training: state, weights of epochs, tokens, and the lock of the directory."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save_file
from torch import Tensor

from dragoman.errors import DragomanError
from dragoman.files.regular_files import check_regular, write_whole

from ..checkpoint import read_safetensors, write_tensors
from ..settings import CheckpointError, first_line
from .history import HISTORY_FILE, read_history
from .loss import Pair, TokenPairs, token_dtype
from .options import TrainingOptions

STATE_FILE = "state.pt"
LOCK_FILE = "lock"

KEYS = frozenset(
    {"what", "weights", "optimizer", "step", "done", "loss_sum", "token_count", "seconds"}
    | {"epochs", "changed", "changed_now", "validations", "batches", "scaler"}
)
"""The entries of a training state."""


class DamagedStateError(DragomanError):
    """A training state that cannot be read."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory of a training; the same thread may lock it again.

    Raises:
        DragomanError: another process or thread trains in this directory, or it cannot be written.
    """
    path = directory / LOCK_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(path, timeout=0, is_singleton=True):
            path.write_text(f"{os.getpid()}\n", encoding="ascii")
            yield
    except Timeout as error:
        holder = path.read_text(encoding="ascii", errors="replace").strip()
        raise DragomanError(
            f"{directory}: expected a directory that no other training uses, found that of "
            f"process {holder or 'unknown'}; wait for it or stop it, or choose another directory"
        ) from error


def identity(
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    pairs: TokenPairs,
    validation: TokenPairs,
    initial_weights: str,
) -> dict[str, object]:
    """Return what determines the steps of a training, by name; `options` are those that do."""
    digests = {
        "training pairs (SHA-256)": _pairs_digest(pairs),
        "validation pairs (SHA-256)": _pairs_digest(validation),
    }
    return {**options, **model, **digests, "beginning": initial_weights}


def _pairs_digest(pairs: TokenPairs) -> str:
    corpora = [(count, float(weight)) for count, weight in pairs.corpora]
    return hashlib.sha256(repr((pairs.digest, corpora)).encode()).hexdigest()


TOKENS_FILE = "tokens.safetensors"
HEADER_BYTES = 512
"""The length of the header of the file of tokens, which is written after the tokens."""


def write_tokens(directory: Path, pairs: Iterable[Pair], vocabulary: int) -> None:
    """Write pairs to a file of tensors as they come: "tokens" and "lengths", see `TokenPairs`.

    Args:
        vocabulary: more than any token

    Raises:
        DragomanError: the file cannot be written; the one before is then unchanged.
    """
    dtype = np.dtype(token_dtype(vocabulary))

    def write(path: Path) -> None:
        lengths, buffer, count = array("i"), array("i"), 0

        def flush() -> None:
            nonlocal buffer, count
            count += len(buffer)
            file.write(np.frombuffer(buffer, np.int32).astype(dtype).data)
            buffer = array("i")

        with path.open("wb") as file:
            file.seek(HEADER_BYTES)
            for pair in pairs:
                for side in pair:
                    buffer.extend(side)
                    lengths.append(len(side))
                if len(buffer) > 1 << 20:
                    flush()
            if (count + len(buffer)) % 2:
                buffer.append(0)  # the lengths begin at a multiple of four bytes
            flush()
            file.write(lengths)
            end = count * dtype.itemsize
            header = {
                "tokens": _entry(dtype, [count], 0),
                "lengths": _entry(np.dtype(np.int32), [len(lengths) // 2, 2], end),
            }
            text = json.dumps(header).encode().ljust(HEADER_BYTES - 8)
            file.seek(0)
            file.write(len(text).to_bytes(8, "little") + text)

    write_whole(directory / TOKENS_FILE, write)


_DTYPES: dict[str, np.dtype[Any]] = {"U16": np.dtype(np.uint16), "I32": np.dtype(np.int32)}


def _entry(dtype: np.dtype[Any], shape: list[int], first: int) -> dict[str, object]:
    name = next(name for name, known in _DTYPES.items() if known == dtype)
    return {
        "dtype": name,
        "shape": shape,
        "data_offsets": [first, first + math.prod(shape) * dtype.itemsize],
    }


def read_tokens(directory: Path, corpora: Sequence[tuple[int, float]] | None = None) -> TokenPairs:
    """Open the file of `write_tokens`, whose tokens are read from the disk when they are used.

    Raises:
        OSError, ValueError, KeyError, TypeError: there is no such file, or it is damaged.
    """
    path = directory / TOKENS_FILE
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(size, HEADER_BYTES)))
    arrays = {}
    for name, entry in header.items():
        first, shape = 8 + size + entry["data_offsets"][0], tuple(entry["shape"])
        mapped = np.memmap(path, _DTYPES[entry["dtype"]], "r", first, shape)
        arrays[name] = np.asarray(mapped)
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    return TokenPairs(tokens[: int(lengths.sum(dtype=np.int64))], lengths, corpora)


def epoch_file(directory: Path, number: int) -> Path:
    """Return the file of the weights after an epoch."""
    return directory / f"epoch-{number}.safetensors"


def write_epoch(directory: Path, number: int, weights: Mapping[str, Tensor]) -> None:
    """Write the weights after an epoch."""
    file = epoch_file(directory, number)
    write_tensors(file, lambda path: save_file(dict(weights), path))


def kept_epochs(directory: Path) -> list[int]:
    """Return the numbers of the epochs whose weights are there, in order."""
    files = (re.fullmatch(r"epoch-(\d+)\.safetensors", file.name) for file in directory.glob("*"))
    return sorted(int(match[1]) for match in files if match is not None)


def whole_epochs(directory: Path) -> list[int]:
    """Return the numbers of the epochs in the history whose weights can be read."""
    recorded = {epoch.epoch for epoch in read_history(directory / HISTORY_FILE)}
    return [n for n in kept_epochs(directory) if n in recorded and _readable(directory, n)]


def epochs_to_finish(directory: Path) -> list[int]:
    """Return the numbers of the whole epochs of a training that is to be finished.

    Raises:
        DragomanError: there is none.
    """
    whole = whole_epochs(directory)
    if not whole:
        raise DragomanError(
            f"{directory}: expected a training to finish, found none of an epoch or a state; train "
            "first, without --finish"
        )
    return whole


def has_training(directory: Path, *, finish: bool) -> bool:
    """Return whether a directory has a training to go on with or to finish.

    Raises:
        DragomanError: there is nothing to finish.
    """
    state = (directory / STATE_FILE).exists()
    return state or (finish and bool(epochs_to_finish(directory)))


def _readable(directory: Path, number: int) -> bool:
    try:
        return bool(read_safetensors(epoch_file(directory, number)))
    except CheckpointError:
        return False


def write_state(directory: Path, state: Mapping[str, object]) -> None:
    """Write the state of a training.

    Raises:
        DragomanError: the file cannot be written; the state before is then unchanged.
    """
    assert state.keys() == KEYS
    write_tensors(directory / STATE_FILE, lambda path: torch.save(dict(state), path))


def read_state(directory: Path) -> dict[str, Any] | None:
    """Read the state of a training; None: there is none.

    Raises:
        DamagedStateError: the state cannot be read; names the epochs whose weights are whole.
    """
    path = directory / STATE_FILE
    if not path.exists():
        return None
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not compare checksums
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} differs")
        state = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(state, dict) or state.keys() != KEYS:
            raise ValueError("it is not a state of this version")
    except Exception as error:  # torch.load raises many unrelated types
        raise DamagedStateError(
            f"{path} is damaged ({first_line(error)}): {_way_out(directory)}"
        ) from error
    return state


def _way_out(directory: Path) -> str:
    whole = whole_epochs(directory)
    if not whole:
        return "no epoch's weights can be used; delete it to start over"
    numbers = ", ".join(map(str, whole))
    which = f"epoch {numbers}" if len(whole) == 1 else f"epochs {numbers}"
    return (
        f"the weights of {which} can be used; make a checkpoint of them with --finish, or delete "
        "the state to start over"
    )


def check_same_training(
    path: Path, expected: Mapping[str, object], found: Mapping[str, object]
) -> None:
    """Check that the state in a file belongs to a training; both are those of `identity`.

    Raises:
        DragomanError: it belongs to another one; names the differences.
    """
    names = [
        name for name in dict.fromkeys([*expected, *found]) if expected.get(name) != found.get(name)
    ]
    if "epochs" in expected.keys() ^ found.keys():
        names.remove("epochs")  # it follows from the schedule whether they matter
    if not names:
        return
    differing = [f"{name} {expected.get(name)}, found {found.get(name)}" for name in names]
    may_change = TrainingOptions.__dataclass_fields__.keys() - {"seed"}
    way_out = "choose another directory, or delete the file to start over"
    if may_change.issuperset(names):
        way_out = (
            "choose another directory, delete the file to start over, or go on as before and "
            f"change it from here on with {' '.join(f'--change {n}={expected[n]}' for n in names)}"
        )
    raise DragomanError(
        f"{path} belongs to a training with other options or data: expected "
        f"{'; '.join(differing)}; {way_out}"
    )
