"""Converting a graph to an opset that has the operators of the fusions."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnxscript.version_converter import ConvertVersionPass

from ..graph_pass import Changes, PassError, Property

OPSET = 23
"""The first opset with Attention and RMSNormalization."""


@dataclass(frozen=True)
class UpgradeOpset:
    """Converts a graph of an older opset to opset 23: from opset 18 on with onnxscript's version
    converter, below with ONNX's.
    """

    name: str = "opset"
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset({f"opset {OPSET}"})
    tolerance: float = 1e-5

    def apply(self, model: ir.Model) -> Changes:
        before = model.opset_imports.get("")
        if before is None:
            raise PassError(
                f"expected a graph of ONNX operators, found {dict(model.opset_imports)}"
            )
        if before >= OPSET:
            return Changes(0)
        log = logging.getLogger("onnxscript.version_converter")
        level = log.level
        log.setLevel(logging.CRITICAL)  # it logs the errors that are raised below
        try:
            ConvertVersionPass(OPSET, fallback=True)(model)
        except Exception as error:  # the converters' error types share no base
            raise PassError(f"expected opset {OPSET}, found {before}: {error}") from error
        finally:
            log.setLevel(level)
        if model.opset_imports.get("") != OPSET:
            raise PassError(
                f"expected opset {OPSET}, found {before}, from which ONNX's version converter "
                "cannot convert this graph; export it with opset 18 or later"
            )
        # The IR version released with opset 23.
        model.ir_version = max(model.ir_version or 0, 11)
        ShapeInferencePass()(model)
        return Changes(1)


OPSET_PASS = UpgradeOpset()
