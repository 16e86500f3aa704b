"""Checks parity and speed of trained models on every backend, in every precision."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.benchmarks.latency import bench
from dragoman.export import export_bundle
from dragoman.metrics import shown_figure
from dragoman.optimize.targets import find_target
from dragoman.optimize.tensorrt.profiles import default_source_range
from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.manifest import Range
from dragoman.verification.comparison import Comparison
from dragoman.verification.parity import check_parity

from ..models.bundles import bundle_with_engines, optimized_bundle
from ..models.real_models import cache, downloaded_whisper
from ..models.shipped import MODEL, held_out
from .parts import one_line

if TYPE_CHECKING:
    from dragoman.export.tokenizers import TokenizerFiles
    from dragoman.reference_model import AutoregressiveModel
    from dragoman.verification.inputs.parity_inputs import ParityInputs


BACKENDS = (
    ("tensorrt-rtx", "tensorrt-rtx"),
    ("onnxruntime-cuda", "neutral"),
    ("tensorrt", "tensorrt"),
)
"""Backend, and the target of its bundles."""

PRECISIONS = ("fp16", "fp32", "bf16", "int8", "int4")
"""In the order in which they are worth knowing."""

COLUMNS = ("passed", "logits", "divergence", "tokens", "task")
WORDS = 200
PROMPTS = 8
"""Prompts that PyTorch continues without a cache, again for every bundle."""
WINDOWS = 8
VERSES = "verses-en"
REPOSITORY_CLIPS = Path("tests/real/clips")
"""The clips of the repository."""


@dataclass(frozen=True)
class Subject:
    """A model and its inputs.

    Attributes:
        description: description for the record
        batch_sizes: measured batch sizes; the last is the maximum of the engines
    """

    description: str
    model: AutoregressiveModel
    tokenizers: TokenizerFiles | None
    inputs: ParityInputs
    batch_sizes: tuple[int, ...]


def g2p_en(workspace: Path) -> Subject:
    """Open the shipped model with some of its held-out words."""
    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.locating import locate_checkpoint

    model, inputs = held_out(WORDS)
    return Subject(
        MODEL, model, open_checkpoint(locate_checkpoint(MODEL)).tokenizers, inputs, (1, 32)
    )


def verses_en(workspace: Path) -> Subject:
    """Open the shipped decoder-only model with beginnings of held-out verses."""
    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.locating import locate_checkpoint
    from dragoman.reference_model import LanguageModel
    from dragoman.verification.inputs.choosing import inputs_for

    opened = open_checkpoint(locate_checkpoint(VERSES))
    assert isinstance(opened.model, LanguageModel)
    inputs = inputs_for(opened, Comparison(limit=PROMPTS))
    return Subject(VERSES, opened.model, opened.tokenizers, inputs, (1, 32))


def whisper_tiny_en(workspace: Path) -> Subject:
    """Open trained Whisper tiny.en with windows of clips.

    Weights are not downloaded; without them, random weights are used. Without clips or audio
    libraries, inputs are random sound.
    """
    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.locating import locate_checkpoint
    from dragoman.reference_model import Transformer
    from dragoman.verification.inputs.choosing import inputs_for

    from ..models import shapes as configs
    from ..models.random_checkpoint import write_random_checkpoint

    directory, description = downloaded_whisper("tiny.en"), "Whisper tiny.en"
    if directory is None:
        description = (
            f"random weights in the shape of Whisper tiny.en, which is not in {cache().resolve()}"
        )
        directory = workspace / "random-whisper"
        write_random_checkpoint(
            configs.WHISPER_TINY_EN,
            directory,
            seed=1,
            sharpness=2.0,
            generation=configs.WHISPER_GENERATION,
        )
    opened = open_checkpoint(locate_checkpoint(directory))
    inputs = inputs_for(opened, Comparison(clips(), WINDOWS))
    if directory.parent == workspace:  # random weights have no expected output
        inputs = dataclasses.replace(inputs, random=True)
    assert isinstance(opened.model, Transformer)
    return Subject(description, opened.model, opened.tokenizers, inputs, (1, WINDOWS))


def clips() -> Path | None:
    """Find a folder of clips; None: there is no folder or no audio library."""
    try:
        import soundfile  # noqa: F401
        import soxr  # noqa: F401
    except (ImportError, OSError):  # OSError: its shared library cannot be loaded
        return None
    folders = (cache() / "clips", REPOSITORY_CLIPS)
    return next((folder for folder in folders if folder.is_dir()), None)


SUBJECTS: Mapping[str, Callable[[Path], Subject]] = {
    MODEL: g2p_en,
    VERSES: verses_en,
    "whisper-tiny.en": whisper_tiny_en,
}
"""The models by name; each is made in an existing folder."""


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--model", "name", type=click.Choice(list(SUBJECTS)), required=True)
def main(output: Path, name: str) -> None:
    """Write parity-NAME.json after every bundle."""
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
    """Check a bundle; missing figures are "", with the reason in `error`."""
    times = {f"ms/step, batch {size}": size for size in subject.batch_sizes}
    row: dict[str, Any] = {"backend": backend, "precision": precision}
    row |= dict.fromkeys((*COLUMNS, *times, "error"), "")
    try:
        bundle = _bundle(subject, neutral, directory, target, precision)
        row |= _parity(subject, bundle, backend)
        row |= _speed(bundle, backend, times)
    except Exception as error:  # any error belongs in the row
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
    """Measure the median decoding step of each batch size, in milliseconds, by column."""
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
    # Prompts of a decoder-only model need positions, too.
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
