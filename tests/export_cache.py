"""A cache of exported graphs that outlives a run of the suite.

Tracing a graph takes one to three seconds, however small it is, and most tests only need the
result. `cached_export` replaces `export_graph` except in the tests of exporting itself.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir
from onnx import ModelProto

from dragoman.export.exporter import ExportedGraph, graph_spec
from dragoman.reference_model import EncoderModel, ReferenceModel
from dragoman.runtime.format.contract import GraphName

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "exports"

LARGEST_MODEL = 32_000_000
"""Bytes of weights. Files of larger models would take longer than tracing them."""

LARGEST_CACHE = 1_000_000_000
"""Bytes. `prune` deletes the files that were used longest ago."""

PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir", "transformers")

Export = Callable[[ReferenceModel, GraphName], ExportedGraph]


def cached_export(export: Export, folder: Path = FOLDER) -> Export:
    """`export_graph` with a file for each graph.

    A file is named by a hash of everything that the graph depends on: the model's configuration
    and weights, the sources of the exporter, and the versions of the packages that it uses.
    """

    def known(model: ReferenceModel, name: GraphName) -> ExportedGraph:
        def make() -> bytes:
            serialized: bytes = ir.to_proto(export(model, name).model).SerializeToString()
            return serialized

        if sum(weight.nbytes for weight in model.parameters()) > LARGEST_MODEL:
            return export(model, name)
        content = cached(_key(model, name), make, folder)
        return ExportedGraph(ir.from_proto(ModelProto.FromString(content)), graph_spec(model, name))

    return known


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
    digest = hashlib.sha256()
    if name == "decoder" and not isinstance(model, EncoderModel):
        digest.update(repr(model.generation.suppressed_token_ids).encode())
    for named in (model.named_parameters(), model.named_buffers()):
        for tensor_name, tensor in named:
            digest.update(f"{tensor_name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    makers = hash_of_makers("dragoman.export.exporter")
    return f"{makers} {name} {type(model).__name__} {model.config} {digest.hexdigest()}"


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
