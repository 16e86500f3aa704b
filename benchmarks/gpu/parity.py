"""The shipped model on every backend that runs, in every precision: parity, and its own speed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dragoman.benchmarks.contenders import optimized
from dragoman.benchmarks.gpu.contenders import with_engines
from dragoman.benchmarks.latency import bench
from dragoman.benchmarks.parity import ParityInputs, check_parity
from dragoman.benchmarks.shipped import exported, held_out
from dragoman.optimize.targets import PRECISIONS
from dragoman.optimize.tensorrt.profiles import default_source_range
from dragoman.reference_model import Transformer
from dragoman.runtime import load, read_bundle

INPUTS = 200
LARGEST_BATCH = 64
BACKENDS = (
    ("tensorrt-rtx", "tensorrt-rtx", PRECISIONS["tensorrt-rtx"]),
    ("onnxruntime-cuda", "neutral", PRECISIONS["neutral"]),
    ("tensorrt", "tensorrt", PRECISIONS["tensorrt"]),
)
"""Name, target of the bundle, precisions."""

STEPS = {"ms/step, batch 1": 1, "ms/step, batch 32": 32}


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write parity.json, anew after every bundle."""
    rows: list[dict[str, Any]] = []
    reference, inputs = held_out(INPUTS)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        neutral = exported(place / "neutral")
        for backend, target, precisions in BACKENDS:
            for precision in precisions:
                row: dict[str, Any] = {"backend": backend, "precision": precision}
                row |= dict.fromkeys(("passed", "logits", "tokens", "task", *STEPS, "why not"), "")
                try:
                    bundle = _bundle(neutral, place / f"{backend} {precision}", target, precision)
                    row |= _checked(bundle, backend, reference, inputs)
                    row |= _timed(bundle, backend)
                except Exception as error:  # whatever it is, it is the answer
                    row["why not"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
                rows.append(row)
                (output / "parity.json").write_text(json.dumps(rows, indent=1) + "\n")


def _checked(
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


def _timed(bundle: Path, backend: str) -> dict[str, Any]:
    """Milliseconds of a decoding step, the median."""
    report = bench(
        bundle,
        backend=backend,
        threads=None,
        batch_sizes=tuple(STEPS.values()),
        source_length=16,
        new_tokens=32,
        runs=5,
        command="",
    )
    return {name: figures.step.p50 for name, figures in zip(STEPS, report.batches, strict=True)}


def _bundle(neutral: Path, directory: Path, target: str, precision: str) -> Path:
    if target == "neutral":
        return optimized(neutral, directory, target=target, precision=precision)
    manifest = read_bundle(neutral).manifest
    lengths, capacity = default_source_range(manifest.model), manifest.default_max_new_tokens
    return with_engines(neutral, directory, target, precision, LARGEST_BATCH, lengths, capacity)


if __name__ == "__main__":
    main()
