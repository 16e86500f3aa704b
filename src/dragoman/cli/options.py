"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.optimize.targets import ALL_PRECISIONS, TARGETS
from dragoman.runtime.backends.table import BACKEND_NAMES

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The bundle's directory, which must not exist yet.",
)
revision_option = click.option(
    "--revision", help="Branch, tag or commit of a model at the Hugging Face Hub [main]."
)
target_option = click.option(
    "--target",
    type=click.Choice([target.name for target in TARGETS]),
    help="; ".join(f"{target.name}: {target.summary}" for target in TARGETS)
    + " [cpu; neutral for fp16 and bf16].",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(ALL_PRECISIONS),
    default="fp32",
    show_default=True,
    help="Number format of weights and arithmetic; the cpu target has no fp16 and bf16.",
)
calibration_option = click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="File of texts, one per line, or directory of audio clips, to choose scales and number "
    "formats on [random inputs].",
)
keep_fp32_option = click.option(
    "--keep-fp32",
    metavar="NAME",
    multiple=True,
    help="A product, module or layer whose weights int8 and int4 leave in fp32, as `sensitivity` "
    "lists them; may be repeated.",
)
attention_option = click.option(
    "--with-attention",
    is_flag=True,
    help="Add the graph that shows attention; not with engines.",
)
force_option = click.option("--force", is_flag=True, help="Replace the output if it exists.")
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="Processor threads [all cores]."
)
backend_option = click.option(
    "--backend",
    metavar="NAME",
    type=click.Choice(BACKEND_NAMES),
    help=f"{', '.join(BACKEND_NAMES)} [the first that runs it].",
)
inputs_option = click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="File of texts to compare on, one per line, after tabs references, of encoders second "
    "texts; or directory of audio clips [the held-out data].",
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="Compare on at most this many inputs [all]."
)
