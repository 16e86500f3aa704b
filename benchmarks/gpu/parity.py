"""The shipped, trained model on every backend that runs, in every precision: parity and speed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dragoman.benchmarks.latency import bench
from dragoman.benchmarks.parity import ParityInputs, check_parity
from dragoman.benchmarks.shipped import exported, held_out
from dragoman.optimize.targets import find_target
from dragoman.optimize.tensorrt.profiles import default_source_range
from dragoman.reference_model import Transformer
from dragoman.runtime import load, read_bundle

from ..models.bundles import bundle_with_engines, optimized_bundle
from .errors import one_line

INPUTS = 200
LARGEST_BATCH = 64
BACKENDS = (
    ("tensorrt-rtx", "tensorrt-rtx"),
    ("onnxruntime-cuda", "neutral"),
    ("tensorrt", "tensorrt"),
)
"""Backend, and the target of its bundles."""

BATCH_SIZES = {"ms/step, batch 1": 1, "ms/step, batch 32": 32}
"""By column."""

COLUMNS = ("passed", "logits", "tokens", "task", *BATCH_SIZES, "error")


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write parity.json; it is rewritten after every bundle."""
    rows: list[dict[str, Any]] = []
    reference, inputs = held_out(INPUTS)
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        neutral = exported(workspace / "neutral")
        for backend, target in BACKENDS:
            for precision in find_target(target).precisions:
                row: dict[str, Any] = {"backend": backend, "precision": precision}
                row |= dict.fromkeys(COLUMNS, "")
                try:
                    bundle = _bundle(
                        neutral, workspace / f"{backend} {precision}", target, precision
                    )
                    row |= _parity(bundle, backend, reference, inputs)
                    row |= _speed(bundle, backend)
                except Exception as error:  # whatever it is, it belongs in the row
                    row["error"] = one_line(error)
                rows.append(row)
                (output / "parity.json").write_text(json.dumps(rows, indent=1) + "\n")


def _parity(
    bundle: Path, backend: str, reference: Transformer, inputs: ParityInputs
) -> dict[str, Any]:
    with load(bundle, backend=backend) as model:
        parity = check_parity(model, reference, inputs, backend=backend)
    logits = next(t for t in parity.tensors if t.name == "logits")
    return {
        "passed": parity.passed,
        "logits": f"{logits.difference:.2g} of {logits.tolerance:g}",
        "tokens": f"{parity.tokens.identical} of {parity.tokens.sequences}",
        "task": f"{parity.task.bundle:.2%}" if parity.task else "",
    }


def _speed(bundle: Path, backend: str) -> dict[str, Any]:
    """The median decoding step of each batch size, in milliseconds."""
    report = bench(
        bundle,
        backend=backend,
        threads=None,
        batch_sizes=tuple(BATCH_SIZES.values()),
        source_length=16,
        new_tokens=32,
        runs=5,
        command="",
    )
    return {
        column: figures.step.p50
        for column, figures in zip(BATCH_SIZES, report.batches, strict=True)
    }


def _bundle(neutral: Path, directory: Path, target: str, precision: str) -> Path:
    if target == "neutral":
        return optimized_bundle(neutral, directory, target=target, precision=precision)
    manifest = read_bundle(neutral).manifest
    return bundle_with_engines(
        neutral,
        directory,
        target=target,
        precision=precision,
        largest_batch=LARGEST_BATCH,
        source=default_source_range(manifest.model),
        capacity=manifest.default_max_new_tokens,
    )


if __name__ == "__main__":
    main()
