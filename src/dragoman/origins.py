"""Which module of the trained model a node of a graph came from."""

from __future__ import annotations

import ast

import onnx_ir as ir

ORIGIN = "pkg.torch.onnx.name_scopes"
"""The metadata entry of a node in which PyTorch's exporter records it."""

PREFIX = "model."
"""The attribute of the exported module that holds the model."""


def module_of(node: ir.Node) -> str:
    """The innermost module, such as "decoder.layers.3.feed_forward"."""
    scopes = ast.literal_eval(node.metadata_props.get(ORIGIN, "[]"))
    modules = [scope.removeprefix(PREFIX) for scope in scopes[:-1] if scope.startswith(PREFIX)]
    return modules[-1] if modules else "the model"
