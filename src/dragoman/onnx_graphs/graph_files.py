"""Writes graphs as files of a bundle, each as ONNX, and one file with all their weights.

Loaded graphs map this file, once for the whole process; the system may drop its pages at any time.
"""

from __future__ import annotations

import ast
import sys
import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import BundleError
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE, graph_problems
from dragoman.runtime.format.writing import BundleWriter

INLINE_BYTES = 1024
"""The largest tensors that stay in the graph's own file."""
PAGE, MAPPED_BYTES = 4096, 1 << 20
"""Tensors from this size begin at a multiple of a page, so that they can be mapped into memory. The
others begin at a multiple of 64, so that small models do not grow."""
FINGERPRINT_BYTES = 4096


def write_graphs(
    graphs: Mapping[str, ir.Model], specs: Mapping[str, GraphSpec], writer: BundleWriter
) -> None:
    """Write the weights of all graphs, each tensor once, and then the graphs, which refer to them.

    Tensors that hold the same bytes are stored once, whichever graph and name they belong to.

    Raises:
        BundleError: a graph has an operator that bundles may not have.
    """
    values = [value for graph in graphs.values() for value in graph.graph.initializers.values()]
    # Only tensors with the same type, shape and first bytes are compared byte by byte, which is
    # rare, so that nothing needs to be hashed as a whole.
    stored: dict[object, list[tuple[ir.TensorProtocol, int]]] = {}
    with writer.open(WEIGHTS_FILE) as file:
        for value in values:
            tensor = value.const_value
            if tensor is None or tensor.nbytes <= INLINE_BYTES:
                continue
            data = _data(tensor)
            fingerprint = zlib.crc32(data[:FINGERPRINT_BYTES])
            alike = stored.setdefault((tensor.dtype, tensor.shape.numpy(), fingerprint), [])
            same = (place for known, place in alike if known is tensor or _data(known) == data)
            offset = next(same, None)
            if offset is None:
                padding = -file.size % (PAGE if len(data) >= MAPPED_BYTES else 64)
                file.write(bytes(padding))
                offset = file.size
                file.write(data)
                alike.append((tensor, offset))
            value.const_value = ir.ExternalTensor(
                WEIGHTS_FILE,
                offset,
                len(data),
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
                base_dir=writer.directory,
            )
    for name, graph in graphs.items():
        data = ir.to_proto(graph).SerializeToString()
        if problems := graph_problems(data, file.size):
            raise BundleError(specs[name].file, problems)
        writer.write(specs[name].file, data)


def _data(tensor: ir.TensorProtocol) -> memoryview:
    if tensor.dtype.bitwidth < 8 or sys.byteorder != "little":
        return memoryview(tensor.tobytes())
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


_maps: weakref.WeakValueDictionary[tuple[int, ...], np.memmap[Any, Any]] = (
    weakref.WeakValueDictionary()
)
"""Mapped files, by what tells a file from one that replaced it."""


def load_graph(path: Path) -> ir.Model:
    """Load a graph. Its external weights are mapped, read-only; those of less than a byte are not.

    Nothing may be changed in place, since readers of the same file share the memory.
    """
    model = ir.load(path)
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
                value.const_value = _mapped(tensor)
    return model


def place_of(array: NDArray[Any]) -> tuple[Path, int] | None:
    """Find the file and the offset that an array is mapped from; None if it is in no file."""
    if not array.flags.c_contiguous or not array.nbytes:
        return None
    address = array.__array_interface__["data"][0]
    for mapped in list(_maps.values()):
        offset = address - mapped.__array_interface__["data"][0]
        if offset >= 0 and offset + array.nbytes <= mapped.nbytes:
            return Path(str(mapped.filename)), offset
    return None


def _mapped(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    shape = tensor.shape.numpy()
    length = tensor.nbytes
    if not length:
        return tensor
    first = tensor.offset or 0
    mapped = _file(Path(tensor.path))[first : first + length].view(tensor.dtype.numpy())
    numbers = np.asarray(mapped).reshape(shape)
    numbers.flags.writeable = False
    return ir.Tensor(numbers, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)


def _file(path: Path) -> np.memmap[Any, Any]:
    status = path.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    mapped = _maps.get(key)
    if mapped is None:
        mapped = _maps[key] = np.memmap(path.absolute(), np.uint8, "c")
    return mapped


ORIGIN = "pkg.torch.onnx.name_scopes"
"""The metadata entry of a node in which PyTorch's exporter records it."""

PREFIX = "model."
"""The attribute of the exported module that holds the model."""


def module_of(node: ir.Node) -> str:
    """Name the innermost module, such as "decoder.layers.3.feed_forward"."""
    scopes = ast.literal_eval(node.metadata_props.get(ORIGIN, "[]"))
    modules = [scope.removeprefix(PREFIX) for scope in scopes[:-1] if scope.startswith(PREFIX)]
    return modules[-1] if modules else "the model"
