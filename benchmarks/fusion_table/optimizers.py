"""The optimizers that the table compares."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir

from dragoman.optimize.fusions import STANDARD_PASSES
from dragoman.optimize.pipeline import apply_passes

from .exported_model import ExportedModel, serialized
from .models import HEADS, WIDTH


def dragoman(model: ExportedModel) -> ir.Model:
    """Dragoman's fusions, each compared with the file on ONNX Runtime."""
    graph = model.export()
    apply_passes(graph, STANDARD_PASSES, graph=model.name, samples=model.inputs())
    return graph


def transformers_optimizer(model: ExportedModel) -> ir.Model:
    """ONNX Runtime's optimizer for Transformers, given the model's type."""
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        path.write_bytes(serialized(model))
        optimizer = optimize_model(
            str(path), model_type=model.family, num_heads=HEADS, hidden_size=WIDTH, opt_level=0
        )
        optimized: ir.Model = ir.from_proto(optimizer.model)
        return optimized


def optimize_for_ort(model: ExportedModel) -> ir.Model:
    """The optimizer of onnxscript, then its fusions for ONNX Runtime."""
    from onnxscript.optimizer import optimize_ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort as fuse

    graph = model.export()
    optimize_ir(graph)
    result = fuse(graph)
    fused: ir.Model = result[0] if isinstance(result, tuple) else result
    return fused


OPTIMIZERS = (dragoman, transformers_optimizer, optimize_for_ort)
