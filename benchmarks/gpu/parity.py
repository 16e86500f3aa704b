"""A model on every backend that runs, in every precision: parity and speed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dragoman.benchmarks.latency import bench
from dragoman.export import export_bundle
from dragoman.metrics import shown_figure
from dragoman.optimize.targets import find_target
from dragoman.optimize.tensorrt.profiles import default_source_range
from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.executables import Range
from dragoman.verification import check_parity

from ..models.bundles import bundle_with_engines, optimized_bundle
from .errors import one_line
from .subjects import SUBJECTS, Subject

BACKENDS = (
    ("tensorrt-rtx", "tensorrt-rtx"),
    ("onnxruntime-cuda", "neutral"),
    ("tensorrt", "tensorrt"),
)
"""Backend, and the target of its bundles."""

PRECISIONS = ("fp16", "fp32", "bf16", "int8", "int4")
"""In the order in which they are worth knowing."""

COLUMNS = ("passed", "logits", "divergence", "tokens", "task")


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--model", "name", type=click.Choice(list(SUBJECTS)), required=True)
def main(output: Path, name: str) -> None:
    """Write parity-NAME.json; it is rewritten after every bundle."""
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        subject = SUBJECTS[name](workspace)
        neutral = workspace / "neutral"
        neutral.mkdir()
        export_bundle(subject.model, neutral, name=name, tokenizers=subject.tokenizers)
        rows: list[dict[str, Any]] = []
        report = {"model": subject.description, "inputs": subject.inputs.description, "rows": rows}
        for precision in PRECISIONS:
            for backend, target in BACKENDS:
                if precision in find_target(target).precisions:
                    folder = workspace / f"{backend} {precision}"
                    rows.append(_row(subject, neutral, folder, backend, target, precision))
                    (output / f"parity-{name}.json").write_text(json.dumps(report, indent=1) + "\n")


def _row(
    subject: Subject, neutral: Path, directory: Path, backend: str, target: str, precision: str
) -> dict[str, Any]:
    """What is found of a bundle; what cannot be found is "" and the reason is in `error`."""
    times = {f"ms/step, batch {size}": size for size in subject.batch_sizes}
    row: dict[str, Any] = {"backend": backend, "precision": precision}
    row |= dict.fromkeys((*COLUMNS, *times, "error"), "")
    try:
        bundle = _bundle(subject, neutral, directory, target, precision)
        row |= _parity(subject, bundle, backend)
        row |= _speed(bundle, backend, times)
    except Exception as error:  # whatever it is, it belongs in the row
        row["error"] = one_line(error)
    return row


def _parity(subject: Subject, bundle: Path, backend: str) -> dict[str, Any]:
    with load(bundle, backend=backend) as model:
        parity = check_parity(model, subject.model, subject.inputs, backend=backend)
    logits = next(t for t in parity.tensors if t.name == "logits")
    distributions, tokens = parity.distributions, parity.tokens
    assert distributions is not None
    return {
        "passed": parity.passed,
        "logits": _of(logits.difference, logits.tolerance),
        "divergence": _of(distributions.bundle.mean, distributions.allowed),
        "tokens": f"{tokens.identical} of {tokens.sequences}",
        "task": "".join(shown_figure(t.metric, t.bundle) for t in parity.tasks[:1]),
    }


def _of(found: float, allowed: float | None) -> str:
    return f"{found:.2g}" if allowed is None else f"{found:.2g} of {allowed:.2g}"


def _speed(bundle: Path, backend: str, times: dict[str, int]) -> dict[str, Any]:
    """The median decoding step of each batch size, in milliseconds, by column."""
    report = bench(
        bundle,
        backend=backend,
        threads=None,
        batch_sizes=tuple(times.values()),
        source_length=16,
        new_tokens=32,
        runs=5,
        command="",
    )
    return {
        column: figures.step.p50
        for column, figures in zip(times, report.batches, strict=True)
        if figures.step is not None
    }


def _bundle(subject: Subject, neutral: Path, directory: Path, target: str, precision: str) -> Path:
    if target == "neutral":
        return optimized_bundle(neutral, directory, target=target, precision=precision)
    manifest = read_bundle(neutral).manifest
    model, largest = manifest.model, subject.batch_sizes[-1]
    # Of a decoder alone, prompts need positions, too.
    capacity = manifest.default_max_new_tokens if model.has_encoder else model.max_target_positions
    return bundle_with_engines(
        neutral,
        directory,
        target=target,
        precision=precision,
        batches=(Range(1, 1, 1), Range(1, largest, 2 * largest)),
        source=default_source_range(model),
        capacity=capacity,
    )


if __name__ == "__main__":
    main()
