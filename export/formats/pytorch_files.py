"""PyTorch's own files: zip archives of a pickle and of the bytes of each storage.

A pickle may describe a tensor as sparse, on another device, or as a view that repeats a few bytes a
billion times. Only tensors whose elements are all in the file are read.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import shown
from dragoman.reference_model import CheckpointError
from dragoman.reference_model.settings import first_line

MAX_LISTED = 5
"""Maximum number of problems with tensors that an error lists."""


def load_pytorch(path: Path) -> Any:
    """Read a regular file of plain data and tensors. No code in it is executed."""
    _check_archive(path)
    try:
        with warnings.catch_warnings():  # warnings about tensors that are refused below
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # PyTorch's message names the object in a paragraph on unsafe loading.
        name = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        found = f"the Python object {name[1]}" if name else first_line(error)
        raise CheckpointError(
            path, [f"expected tensors only (nothing else is loaded), found {found}"]
        ) from error
    except Exception as error:  # torch raises a dozen types for damaged files
        raise CheckpointError(
            path, [f"not a complete PyTorch file: {first_line(error)}"]
        ) from error


def check_tensors(weights: Mapping[Any, Any], path: Path) -> None:
    """Check that names are text, and that each value is a tensor with all elements in the file."""
    problems = [
        f"expected names as text, found {shown(name)}" for name in weights if not _is_text(name)
    ]
    if not problems:
        others = [name for name, value in weights.items() if not isinstance(value, Tensor)]
        if others:
            listed = ", ".join(others[:MAX_LISTED])
            problems = [f"expected tensors only, found others: {listed}"]
    if not problems:
        kinds = {name: _unreadable(tensor) for name, tensor in weights.items()}
        problems = [
            f"{name}: expected a tensor stored in full, found {kind}"
            for name, kind in kinds.items()
            if kind is not None
        ]
    if not problems:
        stored, size = _stored_bytes(weights.values()), path.stat().st_size
        if stored > size:
            problems = [f"expected the numbers of all tensors, {stored} bytes, in a file of {size}"]
    if problems:
        raise CheckpointError(path, problems[:MAX_LISTED])


def _check_archive(path: Path) -> None:
    """Check the sizes in an archive; files from before PyTorch 1.6 are not archives."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # PyTorch also checks this signature
            return
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception as error:  # zipfile raises half a dozen types for damaged files
        raise CheckpointError(
            path, [f"not a complete PyTorch file: {first_line(error)}"]
        ) from error
    compressed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise CheckpointError(
            path,
            [
                f"expected an archive without compression, as PyTorch writes it, found "
                f"{compressed[0]!r} compressed"
            ],
        )
    stated, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if stated > size:
        raise CheckpointError(
            path, [f"not a complete PyTorch file: its entries need {stated} bytes, found {size}"]
        )


def _unreadable(tensor: Tensor) -> str | None:
    """Describe a tensor without all its elements in memory; None if it has them all."""
    if type(tensor) not in (Tensor, nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.is_nested:
        return "a nested one"
    if tensor.layout != torch.strided:
        return f"one in the layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.device.type != "cpu":
        return f"one without numbers (device {tensor.device.type})"
    if tensor.is_quantized:
        return f"a quantized one ({tensor.dtype})"
    if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
        return f"a view that repeats its numbers, of shape {list(tensor.shape)}"
    return None


def _stored_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of tensors; shared storages count once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _is_text(name: object) -> bool:
    try:
        return isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
