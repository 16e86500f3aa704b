"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Where the bundle goes: a directory that does not exist yet.",
)
target_option = click.option(
    "--target",
    type=click.Choice(["cpu", "neutral", "tensorrt-rtx", "tensorrt"]),
    help="cpu: ONNX Runtime's own operators; neutral: standard ones; the others: engines "
    "[cpu; neutral for fp16 and bf16].",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "bf16", "int8", "int4"]),
    default="fp32",
    show_default=True,
    help="Number format of weights and arithmetic; fp16 and bf16 not for target cpu.",
)
calibration_option = click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Texts, a line each, or clips, to choose scales and number formats on [random ones].",
)
force_option = click.option("--force", is_flag=True, help="Replace what exists.")
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="Processor threads [all cores]."
)
backend_option = click.option(
    "--backend",
    type=click.Choice(["onnxruntime", "onnxruntime-cuda", "tensorrt-rtx", "tensorrt"]),
    help="What runs the bundle [engines: the package that made them; graphs: onnxruntime].",
)
inputs_option = click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="Texts to compare on, a line each, references after tabs; or a directory of clips "
    "[the held-out data].",
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="Compare on so many inputs only [all]."
)
