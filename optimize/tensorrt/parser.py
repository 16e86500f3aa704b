"""An ONNX file -> a TensorRT network, or an error that names the operator that prevents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir

from dragoman.errors import DragomanError
from dragoman.origins import module_of
from dragoman.runtime.backends.tensorrt.messages import NO_DRIVER, Messages, make_logger


class EngineError(DragomanError):
    """TensorRT cannot build an engine from a graph, or would build a wrong one."""


def parse(trt: Any, builder: Any, graph: Path) -> Any:
    """
    Args:
        trt: the package's module
        builder: its Builder

    Returns:
        INetworkDefinition, strongly typed: the graph determines the precision

    Raises:
        EngineError: an operator is not supported (names it, its node and the module of the model
            that it comes from).
    """
    messages = Messages()
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    # The parser does not keep its logger alive.
    logger = make_logger(trt, messages)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        reasons = [_reason(error, graph) for error in errors] or [messages.reason]
        raise EngineError(f"{graph.name}: " + "; ".join(dict.fromkeys(reasons)))
    return network


def _reason(error: Any, graph: Path) -> str:
    operator, name = error.node_operator(), error.node_name()
    lines = [line for line in str(error.desc()).splitlines() if NO_DRIVER not in line]
    reason = " ".join(" ".join(lines).split())
    if not operator:
        return reason
    nodes = {node.name: node for node in ir.load(graph).graph.all_nodes()}
    module = module_of(nodes[name]) if name in nodes else "the graph"
    return f"{operator} of {module} (node {name}) cannot become part of an engine: {reason}"
