"""Counts the operators that optimizers fuse in models of other exporters, for docs/fusion.md.

    python -m docs.tools.fusion_table --output docs/fusion.md

The optimizers are those of Dragoman, ONNX Runtime and ONNX Script.
"""

from __future__ import annotations

import argparse
import logging
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from docs.tools.fusion_table.exported_model import ExportedModel, serialized
from docs.tools.fusion_table.models import HEADS, WIDTH
from docs.tools.fusion_table.transformers_exports import COMPONENTS, export
from docs.tools.fusion_table.zoo import REFUSED, ZOO
from dragoman.optimize.fusions import STANDARD_PASSES
from dragoman.optimize.pipeline import apply_passes

COMMAND = "python -m docs.tools.fusion_table --output docs/fusion.md"
LIBRARIES = ("onnx", "onnx-ir", "onnxscript", "onnxruntime", "torch", "transformers")

ATTENTIONS = ("Attention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention")
NORMS = (
    "LayerNormalization",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
GELUS = ("Gelu", "BiasGelu", "FastGelu")


def count(graph: ir.Model) -> str:
    """Format the numbers of fused attentions / norms / Gelus."""
    nodes = Counter(node.op_type for node in graph.graph.all_nodes())
    return " / ".join(
        str(sum(nodes[operator] for operator in operators))
        for operators in (ATTENTIONS, NORMS, GELUS)
    )


def row(model: ExportedModel) -> str:
    """Return a row of the table."""
    cells = [model.name, " / ".join(map(str, vars(model.counts).values()))]
    for optimize in OPTIMIZERS:
        try:
            cells.append(count(optimize(model)))
        except Exception as error:  # a failure is also a result
            cells.append(f"{type(error).__name__}")
    return f"| {' | '.join(cells)} |"


def refusal(model: ExportedModel) -> str:
    """Return a list item with the error of PyTorch's exporter for a model."""
    try:
        model.export()
    except Exception as error:  # any error is the result
        message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        first_sentence = re.split(r"(?<=\.)\s", message)[0]
        return f"- {model.name}: {type(error).__name__}: {first_sentence}"
    return f"- {model.name}: can be exported now; move it into the table"


def transformers_rows(name: str) -> list[str]:
    """Return the rows of a model that transformers exported, one for each graph."""
    with tempfile.TemporaryDirectory() as directory:
        exported = export(name, Path(directory))
        expected = exported.expected()
        results = []
        for target in ("cpu", "neutral"):
            files, records = exported.optimized(Path(directory), target)
            results.append(_same(expected, exported.found(files)))
        rows = []
        for component, counts in COMPONENTS[name].items():
            reasons = [r.reason for record in records[component] for r in record.refusals]
            cells = (
                f"{name} {component}",
                " / ".join(map(str, vars(counts).values())),
                count(ir.load(files[component])),
                "; ".join(reasons) or "none",
                " and ".join(dict.fromkeys(results)),
            )
            rows.append(f"| {' | '.join(cells)} |")
        return rows


def _same(expected: NDArray[Any], found: NDArray[Any]) -> str:
    if expected.dtype.kind == "f":
        return f"outputs within {np.abs(expected - found).max():.0e}"
    return f"{(expected == found).sum()} of {expected.size}"


def table(rows: Iterable[str], refused: Iterable[str], exported: Iterable[str]) -> str:
    """Return the Markdown page."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return "\n".join(
        [
            "# Fusion in models of other exporters",
            "",
            f"`{COMMAND}` with {versions}.",
            "",
            "Attentions / norms / Gelus. The column *model* counts them in the model's source; the",
            "others count fused operators in the optimized graph, those that the exporter wrote",
            "included. A fused operator may still compute something else: only Dragoman's graphs",
            "are compared with the original file. Opsets below 18 are written by PyTorch's",
            "TorchScript exporter, the others by its torch.export exporter. The models have one",
            "encoder and one decoder layer; *bert*, *gpt2* and *plain* are one stack of one layer.",
            "",
            "| file | model | Dragoman | onnxruntime.transformers | onnxscript optimize_for_ort |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            "PyTorch's exporters cannot export these:",
            "",
            *refused,
            "",
            "## Exports of transformers",
            "",
            "`transformers.exporters.OnnxExporter` with dynamic axes writes a graph for the first",
            "step and one for later steps, with past keys and values. The encoder is exported by",
            "itself. *Left unchanged* lists the reasons. *Tokens* are decoded greedily, five for",
            "each of two rows, from the graphs of the targets neutral and cpu, and counted where",
            "they are those of PyTorch without a cache.",
            "",
            "| file | model | Dragoman | left unchanged | tokens |",
            "| --- | --- | --- | --- | --- |",
            *exported,
            "",
        ]
    )


def dragoman(model: ExportedModel) -> ir.Model:
    """Apply Dragoman's fusions, each compared with the file in ONNX Runtime."""
    graph = model.export()
    apply_passes(graph, STANDARD_PASSES, graph=model.name, samples=model.inputs())
    return graph


def transformers_optimizer(model: ExportedModel) -> ir.Model:
    """Apply ONNX Runtime's optimizer for Transformers, with the model's type."""
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
    """Apply onnxscript's optimizer, then its fusions for ONNX Runtime."""
    from onnxscript.optimizer import optimize_ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort as fuse

    graph = model.export()
    optimize_ir(graph)
    result = fuse(graph)
    fused: ir.Model = result[0] if isinstance(result, tuple) else result
    return fused


OPTIMIZERS = (dragoman, transformers_optimizer, optimize_for_ort)


def main() -> None:
    """Print the table as a page of Markdown, and write it where `--output` says."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.tools.fusion_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="the Markdown file to write")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # exporters and optimizers log all skipped nodes
    page = table(
        [row(model) for model in ZOO],
        [refusal(model) for model in REFUSED],
        [line for name in COMPONENTS for line in transformers_rows(name)],
    )
    print(page)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
