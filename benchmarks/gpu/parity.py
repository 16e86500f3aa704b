"""Checks parity and speed of trained models on every backend, in every precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.benchmarks.latency import bench
from dragoman.export import export_bundle
from dragoman.optimize.targets import find_target
from dragoman.optimize.tensorrt.profiles import default_source_range
from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.manifest import Range
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.parity import check_parity

from ..compare.options import option
from ..models.bundles import MODEL, bundle_with_engines, opened, optimized_bundle
from ..models.real_models import downloaded_whisper
from ..processes import reason
from .device import memory_meter, steps_of
from .parts import command

if TYPE_CHECKING:
    from dragoman.export.checkpoints import OpenedCheckpoint
    from dragoman.verification.inputs.parity_inputs import ParityInputs


BACKENDS = {"onnxruntime-cuda": "neutral", "tensorrt-rtx": "tensorrt-rtx", "tensorrt": "tensorrt"}
"""The backends, and the targets of their bundles."""

DEFAULT = ("onnxruntime-cuda",)

PRECISIONS = ("fp16", "fp32", "bf16", "int8", "int4")
"""In the order in which they are worth knowing."""

COLUMNS = "passed", "logits", "divergence", "tokens", "taken_mb", "left_mb", "captured", "direct"
WORDS, FEW = 200, 5
PROMPTS = 8
"""Prompts that PyTorch continues without a cache, again for every bundle."""
WINDOWS = 8
VERSES, STUDENT = "verses-en", "bible-en-es-student"
CLIPS = Path("tests/real/clips")
BATCH_SIZES = (1, 8)
"""The measured batch sizes; engines are built for the last one."""


class Subject(NamedTuple):
    """A model, its description, and inputs."""

    description: str
    checkpoint: OpenedCheckpoint
    inputs: ParityInputs


def shipped(name: str, limit: int) -> Subject:
    """Open a shipped model with some of its held-out inputs."""
    return Subject(name, *opened(name, Comparison(limit=limit)))


def whisper_tiny_en(workspace: Path, small: bool) -> Subject:
    """Open Whisper tiny.en: trained, with clips, if both are here, or random, with random sound."""
    from ..models.random_checkpoint import write_random_checkpoint
    from ..models.shapes import WHISPER_GENERATION, WHISPER_TINY_EN, stacks

    trained = None if small else downloaded_whisper("tiny.en")
    if trained is not None:
        clips = CLIPS if all(map(find_spec, ("av", "soxr"))) and CLIPS.is_dir() else None
        return Subject("Whisper tiny.en", *opened(trained, Comparison(clips, WINDOWS)))
    config, generation = WHISPER_TINY_EN, WHISPER_GENERATION
    if small:  # parity reads the whole vocabulary, and takes minutes for 51,864 tokens
        config, generation = (
            {name: v - 50_000 if type(v) is int and v > 50_000 else v for name, v in fields.items()}
            for fields in (config | stacks(16, 1, 2, 24), generation)
        )
    directory = workspace / "checkpoint"
    write_random_checkpoint(config, directory, seed=1, sharpness=2.0, generation=generation)
    checkpoint, inputs = opened(directory, Comparison(limit=2 if small else WINDOWS))
    return Subject("random weights in the shape of Whisper tiny.en", checkpoint, inputs)


SUBJECTS: Mapping[str, Callable[[Path, bool], Subject]] = {
    MODEL: lambda workspace, small: shipped(MODEL, FEW if small else WORDS),
    VERSES: lambda workspace, small: shipped(VERSES, 1 if small else PROMPTS),
    STUDENT: lambda workspace, small: shipped(STUDENT, FEW if small else WORDS),
    "whisper-tiny.en": whisper_tiny_en,
}
"""The models by name; each is made in an existing folder."""


def check(
    workspace: Path, device: str, name: str, backends: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Check a model in every precision on backends that run it."""
    on_cpu = device == "cpu"
    targets = {"onnxruntime": "neutral"} if on_cpu else {b: BACKENDS[b] for b in backends}
    subject = SUBJECTS[name](workspace, on_cpu)
    neutral = workspace / "neutral"
    neutral.mkdir()
    checkpoint = subject.checkpoint
    export_bundle(checkpoint.model, neutral, name=name, tokenizers=checkpoint.tokenizers)
    rows: list[dict[str, Any]] = []
    for precision in PRECISIONS[:2] if on_cpu else PRECISIONS:
        for backend, target in targets.items():
            if precision in find_target(target).precisions:
                folder = workspace / f"{backend} {precision}"
                rows.append(_row(subject, neutral, folder, backend, target, precision))
                described = {"model": subject.description, "inputs": subject.inputs.description}
                yield {**described, "rows": rows}


def _row(
    subject: Subject, neutral: Path, directory: Path, backend: str, target: str, precision: str
) -> dict[str, Any]:
    """Check a bundle; missing figures are "", with the reason in `error`."""
    times = {f"batch {size}": size for size in BATCH_SIZES}
    row: dict[str, Any] = {"backend": backend, "precision": precision}
    row |= dict.fromkeys((*COLUMNS, *times, "error"), "")
    try:
        bundle = _bundle(subject, neutral, directory, target, precision)
        row |= _parity(subject, bundle, backend)
        row |= _speed(bundle, backend, times)
    except Exception as error:  # any error belongs in the row
        row["error"] = reason(error)
    return row


def _parity(subject: Subject, bundle: Path, backend: str) -> dict[str, Any]:
    taken = memory_meter("cpu" if backend == "onnxruntime" else "cuda")
    with load(bundle, threads=1, backend=backend, check="never") as model:
        parity = check_parity(model, subject.checkpoint.model, subject.inputs, backend=backend)
        memory: dict[str, Any] = {"taken_mb": round(taken(), 1), **steps_of(model)}
    logits = next(t for t in parity.tensors if t.name == "logits")
    distributions, tokens = parity.distributions, parity.tokens
    assert distributions is not None
    return {
        "passed": parity.passed,
        "logits": _of(logits.difference, logits.tolerance),
        "divergence": _of(distributions.bundle.mean, distributions.allowed),
        "tokens": f"{tokens.identical} of {tokens.sequences}",
        **memory,
        "left_mb": round(taken(), 1),
    }


def _of(found: float, allowed: float | None) -> str:
    return f"{found:.2g}" if allowed is None else f"{found:.2g} of {allowed:.2g}"


def _speed(bundle: Path, backend: str, batches: dict[str, int]) -> dict[str, str]:
    """Measure decoding at each batch size, by column."""
    sizes: dict[str, Any] = {"batch_sizes": tuple(batches.values()), "source_length": 16}
    ways: dict[str, Any] = {"new_tokens": 32, "runs": 5, "command": ""}
    report = bench(bundle, backend=backend, threads=1, **sizes, **ways)
    shares = {m.batch_size: f", {m.share_of_bandwidth:.0%}" for m in report.memory_reads}
    return {
        column: f"{f.step.p50:.3f} ms/step, {f.tokens_per_second:,.0f}/s{shares.get(size, '')}"
        for (column, size), f in zip(batches.items(), report.batches, strict=True)
        if f.step is not None
    }


def _bundle(subject: Subject, neutral: Path, directory: Path, target: str, precision: str) -> Path:
    kind = {"target": target, "precision": precision}
    if target == "neutral":
        return optimized_bundle(neutral, directory, **kind)
    manifest = read_bundle(neutral).manifest
    model, largest = manifest.model, BATCH_SIZES[-1]
    # Prompts of a decoder-only model need positions, too.
    capacity = manifest.default_max_new_tokens if model.has_encoder else model.max_target_positions
    return bundle_with_engines(
        neutral,
        directory,
        batches=(Range(1, 1, 1), Range(1, largest, largest)),
        source=default_source_range(model),
        capacity=capacity,
        **kind,
    )


main = command(
    "parity-{name}",
    check,
    option("--model", "The model.", MODEL, [*SUBJECTS], parameter="name"),
    option("--backend", "Backends;", DEFAULT, [*BACKENDS], parameter="backends"),
)

if __name__ == "__main__":
    main()
