"""The table as a page of Markdown: fused operators by file and optimizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version

import onnx_ir as ir

from .exported_model import ExportedModel
from .optimizers import OPTIMIZERS

COMMAND = "python -m dragoman.benchmarks.fusion_table --output docs/fusion.md"
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
    """Fused attentions / norms / Gelus."""
    nodes = Counter(node.op_type for node in graph.graph.all_nodes())
    return " / ".join(
        str(sum(nodes[operator] for operator in operators))
        for operators in (ATTENTIONS, NORMS, GELUS)
    )


def row(model: ExportedModel) -> str:
    """A row of the table."""
    cells = [model.name, " / ".join(map(str, vars(model.counts).values()))]
    for optimize in OPTIMIZERS:
        try:
            cells.append(count(optimize(model)))
        except Exception as error:  # that an optimizer fails is a result too
            cells.append(f"{type(error).__name__}")
    return f"| {' | '.join(cells)} |"


def refusal(model: ExportedModel) -> str:
    """A list item: the error of PyTorch's exporter for a model that it cannot export."""
    try:
        model.export()
    except Exception as error:  # whatever it is, it is the answer
        message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        first_sentence = re.split(r"(?<=\.)\s", message)[0]
        return f"- {model.name}: {type(error).__name__}: {first_sentence}"
    return f"- {model.name}: can be exported now; move it into the table"


def table(rows: Iterable[str], refused: Iterable[str]) -> str:
    """The page of Markdown."""
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
        ]
    )
