"""How many operators three optimizers fuse in models that other exporters wrote.

python -m dragoman.benchmarks.fusion_table --output docs/fusion.md
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

from .table import refusal, row, table
from .zoo import REFUSED, ZOO


def main() -> None:
    """Print the table as a page of Markdown, and write it where `--output` says."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman.benchmarks.fusion_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="the Markdown file to write")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # exporters and optimizers report everything they skip
    page = table([row(model) for model in ZOO], [refusal(model) for model in REFUSED])
    print(page)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
