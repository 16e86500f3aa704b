"""Edits the graphs, files and manifest of a bundle, and writes a copy with correct hashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from dragoman.onnx_graphs.graph_files import write_graphs
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE
from dragoman.runtime.format.writing import BundleWriter

Make = Callable[[ir.Value], ir.Value]
"""Maps a value to its replacement, which new nodes compute from it."""


class GraphEditor:
    """Changes a graph in place.

    New nodes are appended in any order; `EditedBundle.write` sorts them.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self._constants = 0

    @property
    def nodes(self) -> list[ir.Node]:
        return list(self.graph)

    def of_type(self, *op_types: str) -> list[ir.Node]:
        """The nodes of operators of these names, in order."""
        return [node for node in self.graph if node.op_type in op_types]

    @property
    def initializers(self) -> dict[str, ir.Value]:
        return dict(self.graph.initializers)

    def has(self, name: str) -> bool:
        """Whether there is an input, initializer or node output of this name."""
        return any(value.name == name for value in self._values())

    def value(self, name: str) -> ir.Value:
        """The input, initializer or node output of this name."""
        return next(value for value in self._values() if value.name == name)

    def weight(self, name: str) -> NDArray[Any]:
        """A copy of an initializer's value."""
        tensor = self.graph.initializers[name].const_value
        assert tensor is not None
        return np.array(tensor.numpy())

    def set_weight(self, name: str, value: NDArray[Any]) -> None:
        """Change an initializer's value, of the same shape, in its own number format."""
        held = self.graph.initializers[name]
        assert held.const_value is not None
        old = held.const_value.numpy()
        assert value.shape == old.shape
        held.const_value = ir.tensor(value.astype(old.dtype), name=name)

    def constant(self, value: ArrayLike, dtype: Any = None) -> ir.Value:
        """A new initializer; whole numbers are int64 unless `dtype` says otherwise."""
        array = np.asarray(value, dtype)
        if dtype is None:
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        self._constants += 1
        made = ir.Value(name=f"fault.constant.{self._constants}", const_value=ir.tensor(array))
        made.type, made.shape = ir.TensorType(ir.tensor(array).dtype), ir.Shape(array.shape)
        self.graph.register_initializer(made)
        return made

    def like(self, other: ir.Value, value: float) -> ir.Value:
        """A scalar in the number format of a value that states one."""
        assert other.dtype is not None
        return self.constant(value, other.dtype.numpy())

    def op(
        self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any
    ) -> ir.Value:
        """The first output of a new node."""
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        self.graph.append(node)
        for index, output in enumerate(node.outputs):
            output.name = f"fault.{op_type}.{len(self.graph)}.{index}"
        return node.outputs[0]

    def where_mask(self, condition: ir.Value, one: ir.Value, other: ir.Value) -> ir.Value:
        """`Where` of masks, which ONNX Runtime has for numbers only."""
        numbers = [self.op("Cast", mask, to=ir.DataType.INT64) for mask in (one, other)]
        return self.op("Cast", self.op("Where", condition, *numbers), to=ir.DataType.BOOL)

    def replace(self, old: ir.Value, make: Make, *, uses: bool = True, output: bool = True) -> None:
        """Put another value in the place of one.

        Args:
            uses: whether in the graph's nodes
            output: whether among the graph's outputs
        """
        consumers = list(old.uses())
        new = make(old)
        if uses:
            for node, index in consumers:
                node.replace_input_with(index, new)
        if output and old in self.graph.outputs:
            assert old.name is not None
            index = self.graph.outputs.index(old)
            new.type, new.shape = old.type, old.shape
            name, old.name = old.name, f"{old.name}.right"
            new.name = name
            self.graph.outputs[index] = new

    def _values(self) -> list[ir.Value]:
        outputs = [value for node in self.graph for value in node.outputs]
        return [*self.graph.inputs, *self.graph.initializers.values(), *outputs]


class EditedBundle:
    """A bundle being copied with changes.

    Attributes:
        manifest: to be replaced by a changed one
        files: by name, the bytes of tokenizer files and of the shortlist that change
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.manifest = bundle, bundle.manifest
        self.files: dict[str, bytes] = {}
        self._graphs: dict[str, ir.Model] = {}

    def graph(self, name: str) -> GraphEditor:
        """The editor of a graph."""
        if not self._graphs:
            for known in self.bundle.manifest.graphs:
                self._graphs[known] = ir.load(self.bundle.graph_path(known))
        return GraphEditor(self._graphs[name])

    @property
    def editors(self) -> dict[str, GraphEditor]:
        """The editors of the graphs that compute the model."""
        return {name: self.graph(name) for name in self.manifest.model_graphs}

    def read(self, name: str) -> bytes:
        """A file of the bundle as it is."""
        return self.files.get(name) or self.bundle.path(name).read_bytes()

    def write(self, directory: Path) -> Bundle:
        """Write the changed copy into an empty directory."""
        writer = BundleWriter(directory)
        if self._graphs:
            for model in self._graphs.values():
                model.graph.sort()
            write_graphs(self._graphs, self.manifest.graphs, writer)
        else:
            for name in (WEIGHTS_FILE, *(spec.file for spec in self.manifest.graphs.values())):
                writer.copy(self.bundle.path(name), name)
        tokenizers, shortlist = self.bundle.manifest.tokenizers, self.bundle.manifest.shortlist
        texts = () if tokenizers is None else tokenizers.files
        for name in (*texts, *([] if shortlist is None else [shortlist.file])):
            writer.write(name, self.read(name))
        manifest: Manifest = self.manifest
        return writer.finish(manifest)
