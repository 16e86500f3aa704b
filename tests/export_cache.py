"""A cache of exported graphs that outlives a run of the suite.

Tracing a graph takes one to three seconds, however small it is, and most tests only need the
result. `cached_export` replaces `export_graph` except in the tests of exporting itself. Models of
one configuration share a file, whatever their weights.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir
import torch
from onnx import ModelProto
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor

from dragoman.export.exporter import ExportedGraph, graph_spec
from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.runtime.format.contract import GraphName

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "exports"

LARGEST_CACHE = 1_000_000_000
"""Bytes. `prune` deletes the files that were used longest ago."""

TRANSPOSED = "transposed"

PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir", "transformers")

Export = Callable[[ReferenceModel, GraphName], ExportedGraph]


def cached_export(export: Export, folder: Path = FOLDER) -> Export:
    """`export_graph` with a file for each graph, without the weights.

    A file is named by a hash of everything that the graph depends on: the model's configuration,
    its tied weights, the sources of the exporter, and the versions of the packages that it uses.
    """

    def known(model: ReferenceModel, name: GraphName) -> ExportedGraph:
        def make() -> bytes:
            graph = export(model, name).model
            take_weights(graph, tensors)
            serialized: bytes = ir.to_proto(graph).SerializeToString()
            return serialized

        tensors = dict([*model.named_parameters(), *model.named_buffers()])
        content = cached(_key(model, name), make, folder)
        graph = ir.from_proto(ModelProto.FromString(content))
        put_weights(graph, tensors)
        return ExportedGraph(graph, graph_spec(model, name))

    return known


def take_weights(graph: ir.Model, tensors: Mapping[str, Tensor]) -> None:
    """Replace the weights of a graph by empty ones, and note which are transposed."""
    transposed = []
    for name in sorted(tensors.keys() & graph.graph.initializers.keys()):
        value = graph.graph.initializers[name]
        weight: Tensor = getattr(value.const_value, "raw")  # noqa: B009 # of several classes
        if weight.stride() != tensors[name].stride():
            transposed.append(name)
        value.const_value = TorchTensor(torch.empty(0, dtype=weight.dtype), name=name)
    graph.graph.metadata_props[TRANSPOSED] = " ".join(transposed)


def put_weights(graph: ir.Model, tensors: Mapping[str, Tensor]) -> None:
    """Undo `take_weights` with the weights of a model."""
    transposed = graph.graph.metadata_props.pop(TRANSPOSED).split()
    for name in tensors.keys() & graph.graph.initializers.keys():
        value, weight = graph.graph.initializers[name], tensors[name]
        value.const_value = TorchTensor(weight.t() if name in transposed else weight, name=name)
        value.shape = value.const_value.shape


def cached(key: str, make: Callable[[], bytes], folder: Path = FOLDER) -> bytes:
    """The content of a file of the cache, which is made if there is none.

    Files appear whole, so that several processes can share the folder.
    """
    file = folder / hashlib.sha256(key.encode()).hexdigest()
    try:
        content = file.read_bytes()
        os.utime(file)
    except FileNotFoundError:
        content = make()
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(file)
    return content


def prune(folder: Path = FOLDER, limit: int = LARGEST_CACHE) -> None:
    """Delete the files that were used longest ago until the others are within the limit."""
    found = [(file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("*")]
    kept = 0
    for _, size, file in sorted(found, reverse=True):
        kept += size
        if kept > limit:
            file.unlink(missing_ok=True)


def _key(model: ReferenceModel, name: GraphName) -> str:
    tied: dict[int, list[str]] = {}
    for named in (model.named_parameters, model.named_buffers):
        for tensor_name, tensor in named(remove_duplicate=False):
            tied.setdefault(tensor.data_ptr(), []).append(
                f"{tensor_name} {tensor.dtype} {tensor.shape}"
            )
    suppressed: tuple[int, ...] = ()
    if name == "decoder" and not isinstance(model, EncoderModel):
        suppressed = model.generation.suppressed_token_ids
    makers = hash_of_makers("dragoman.export.exporter")
    parts = (makers, name, type(model).__name__, model.config, suppressed, [*tied.values()])
    return " ".join(map(str, parts))


@functools.cache
def hash_of_makers(module: str) -> str:
    """A hash of versions and of a module's sources, without their comments and docstrings."""
    digest = hashlib.sha256(sys.version.encode())
    for package in PACKAGES:
        digest.update(f"{package} {version(package)}".encode())
    for file in sorted(sources_of(module)):
        digest.update(f"{file.relative_to(ROOT)} {code_of(file.read_bytes())}".encode())
    return digest.hexdigest()


def code_of(source: bytes) -> str:
    """What Python makes of a source, without comments, docstrings and positions."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def sources_of(module: str) -> set[Path]:
    """The files of a module here and of all modules here that it imports, directly or not."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        parts = name.split(".")
        path = ROOT.joinpath(*(["src"] if parts[0] == "dragoman" else []), *parts)
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name not in found and file.exists():
            found[name] = file
            package = name if path.is_dir() else name.rpartition(".")[0]
            waiting.extend(_imports(ast.parse(file.read_bytes()), package))
    return set(found.values())


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Names that may be modules: `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
