"""Every precision and strategy on every test set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.runtime import Model, load

from ..models.bundles import bundle_of_checkpoint
from .scores import Scores, scores
from .sets import HeldOut


@dataclass(frozen=True)
class Figure:
    """
    Attributes:
        beams: 1 for greedy decoding
        sentences: translated
    """

    test: str
    precision: str
    beams: int
    sentences: int
    scores: Scores
    published: float | None = None


def measure(
    checkpoint: Path,
    workspace: Path,
    tests: Sequence[HeldOut],
    *,
    precisions: Sequence[str],
    beams: Sequence[int],
    calibration: Sequence[str],
    threads: int | None,
) -> Iterator[Figure]:
    """
    Args:
        workspace: an empty directory for the bundles
        calibration: texts to quantize with

    Raises:
        DragomanError: the checkpoint cannot be read, or a source was rejected.
    """
    for precision in precisions:
        bundle = bundle_of_checkpoint(
            checkpoint,
            workspace / precision,
            target="cpu",
            precision=precision,
            calibration=calibration,
        )
        with load(bundle, threads=threads) as model:
            for test in tests:
                for count in beams:
                    outputs = _translations(model, test, count)
                    yield Figure(
                        test.name,
                        precision,
                        count,
                        len(outputs),
                        scores(outputs, test),
                        test.published,
                    )


def _translations(model: Model, test: HeldOut, beams: int) -> list[str]:
    results = model.generate(list(test.sources), num_beams=beams)
    rejected = [result.error for result in results if result.error]
    if rejected:
        raise DragomanError(
            f"{test.name}: expected a translation of every source, found {len(rejected)} rejected, "
            f"the first with: {rejected[0]}"
        )
    return [result.text or "" for result in results]
