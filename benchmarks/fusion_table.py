"""How many operators three optimizers find in the files that exporters write.

python -m dragoman.benchmarks.fusion_table --output docs/fusion.md
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

import onnx_ir as ir

from dragoman.optimize.fusions import STANDARD_PASSES
from dragoman.optimize.pipeline import apply_passes

from .exported_models import HEADS, REFUSED, WIDTH, ZOO, ExportedModel, serialized

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


def ours(model: ExportedModel) -> ir.Model:
    """Dragoman's fusions, each checked against the file on ONNX Runtime."""
    graph = model.export()
    apply_passes(graph, STANDARD_PASSES, graph=model.name, samples=model.inputs())
    return graph


def transformers_optimizer(model: ExportedModel) -> ir.Model:
    """ONNX Runtime's optimizer for Transformers, told the model's kind."""
    from onnxruntime.transformers.optimizer import optimize_model

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.onnx"
        path.write_bytes(serialized(model))
        done = optimize_model(
            str(path), model_type=model.family, num_heads=HEADS, hidden_size=WIDTH, opt_level=0
        )
        optimized: ir.Model = ir.from_proto(done.model)
        return optimized


def optimize_for_ort(model: ExportedModel) -> ir.Model:
    """Onnxscript's optimizer, then its fusions for ONNX Runtime."""
    from onnxscript.optimizer import optimize_ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort as fuse

    graph = model.export()
    optimize_ir(graph)
    result = fuse(graph)
    fused: ir.Model = result[0] if isinstance(result, tuple) else result
    return fused


TOOLS = (ours, transformers_optimizer, optimize_for_ort)


def count(graph: ir.Model) -> str:
    """Attentions / norms / Gelus."""
    found = Counter(node.op_type for node in graph.graph.all_nodes())
    return " / ".join(
        str(sum(found[operator] for operator in operators))
        for operators in (ATTENTIONS, NORMS, GELUS)
    )


def row(model: ExportedModel) -> str:
    """A line of the table."""
    cells = [model.name, " / ".join(map(str, vars(model.counts).values()))]
    for tool in TOOLS:
        try:
            cells.append(count(tool(model)))
        except Exception as error:  # another tool's failure is a result
            cells.append(f"{type(error).__name__}")
    return f"| {' | '.join(cells)} |"


def refusal(model: ExportedModel) -> str:
    """A line on what PyTorch's exporter says of a model that it does not take."""
    try:
        model.export()
    except Exception as error:  # whatever it is, it is the answer
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        first_sentence = re.split(r"(?<=\.)\s", plain)[0]
        return f"- {model.name}: {type(error).__name__}: {first_sentence}"
    return f"- {model.name}: is exported now, and belongs in the table"


def table(rows: Iterable[str], refused: Iterable[str]) -> str:
    """The page."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return "\n".join(
        [
            "# What fusion finds in other people's files",
            "",
            f"`{COMMAND}` with {versions}.",
            "",
            "Attentions / norms / Gelus. The first column counts them in the model; the others",
            "count the fused operators in the graph, those that the exporter wrote itself",
            "included. An operator counted is not an operator checked: only the column Dragoman is",
            "compared with the file it came from. Opsets below 18 are by PyTorch's TorchScript",
            "exporter, the others by its torch.export exporter; one encoder and one decoder layer.",
            "",
            "| file | model | Dragoman | onnxruntime.transformers | onnxscript optimize_for_ort |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            "PyTorch's exporters do not take these:",
            "",
            *refused,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="the markdown file to write")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # exporters and optimizers tell at length what they skip
    text = table([row(model) for model in ZOO], [refusal(model) for model in REFUSED])
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
