"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.metrics import METRIC_NAMES
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
    help="Keep a product or layer in fp32, see `sensitivity`; may be repeated.",
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
    "texts; or directory or list of audio clips, after tabs transcripts [the held-out data].",
)
references_option = click.option(
    "--references",
    type=click.Path(path_type=Path),
    help="File of references, one for each input; or of sources, tabs and references, which are "
    "inputs without --inputs [those in the inputs].",
)
metric_option = click.option(
    "--metric",
    "metrics",
    type=click.Choice(METRIC_NAMES),
    multiple=True,
    help="Judge outputs by this metric, if there are references; may be repeated [what suits the "
    "model].",
)
source_language_option = click.option(
    "--source-language", metavar="CODE", help="Language of the inputs [the bundle's]."
)
target_language_option = click.option(
    "--target-language", metavar="CODE", help="Language of the references [the bundle's]."
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="Compare on at most this many inputs [all]."
)
