"""Compares a student with its teacher: quality on held-out pairs, speed and size."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from dragoman.files.regular_files import write_text, write_whole
from dragoman.metrics import find_metric
from dragoman.progress import Progress
from dragoman.reference_model.recipes import Example, Recipe
from dragoman.runtime import Model, load
from dragoman.runtime.format.bundle import Bundle
from dragoman.settings.generation import GenerationOptions

FIGURES_FILE, PICTURE_FILE = "figures.json", "figures.png"
WARM_UP = 64
"""The number of sources that are translated before time is taken."""
MARKS = "o^sDvP"
"""The marks of searches in a picture."""


@dataclass(frozen=True)
class Judged:
    """A bundle, or the student in PyTorch, judged on held-out pairs."""

    name: str
    """Such as "student, greedy"."""
    figures: Mapping[str, float]
    """Figures by the name of their metric."""
    sentences_per_second: float | None = None
    """Sources translated in a second, all of them in one call; None: not measured."""
    megabytes: float | None = None
    """Size of the bundle's files, in MB of 10^6 bytes; None: not a bundle."""


def judge_all(
    teacher: Bundle,
    student: Bundle,
    options: GenerationOptions,
    recipe: Recipe,
    held_out: Sequence[Example],
    threads: int | None,
    progress: Progress,
) -> list[Judged]:
    """Judge a teacher and a student, both with beams and greedily.

    Args:
        options: those of the teacher's translations

    Returns:
        the teacher as it taught first, and the student as it is deployed last

    Raises:
        DragomanError: a bundle cannot be loaded, or does not know an option.
    """
    greedy = GenerationOptions(num_beams=1)
    by_teacher = {"greedy": options.replace(num_beams=1)}
    by_student: dict[str, GenerationOptions] = {}
    if (options.num_beams or 1) > 1:
        beams = f"{options.num_beams} beams"
        by_teacher = {beams: options} | by_teacher
        by_student[beams] = GenerationOptions(num_beams=options.num_beams)
    if student.manifest.shortlist is not None:
        by_student["whole vocabulary"] = greedy.replace(shortlist=False)
    by_student["greedy"] = greedy
    rows = []
    for who, bundle, runs in (("teacher", teacher, by_teacher), ("student", student, by_student)):
        with load(bundle, threads=threads) as model:
            for how, decoding in runs.items():
                progress.stage(f"judging: {who}, {how}")
                rows.append(judge(f"{who}, {how}", model, decoding, recipe, held_out))
    return rows


def judge(
    name: str, model: Model, options: GenerationOptions, recipe: Recipe, held_out: Sequence[Example]
) -> Judged:
    """Translate and score held-out pairs with a bundle, and take the time."""
    assert recipe.score is not None
    sources = [example.source for example in held_out]
    model.generate(sources[:WARM_UP], options)
    began = time.perf_counter()
    results = model.generate(sources, options)
    seconds = time.perf_counter() - began
    figures = recipe.score([result.text or "" for result in results], held_out)
    return Judged(name, figures, len(sources) / seconds, model.bundle.size / 1e6)


def loss_in_points(recipe: Recipe, rows: Sequence[Judged]) -> float:
    """Return how much worse the last row is than the first, in points of 100 of the metric."""
    teacher, student = (rows[n].figures[recipe.metric] for n in (0, -1))
    loss = teacher - student if recipe.higher_is_better else student - teacher
    # A recipe without metrics has an error rate of its own.
    return 100 * loss / (find_metric(recipe.metrics[0]).whole if recipe.metrics else 1)


def write_figures(
    rows: Sequence[Judged], metric: str, within: float, loss: float, directory: Path
) -> None:
    """Write the figures as JSON and, if matplotlib is installed, as a picture.

    Args:
        metric: the metric that decides
        within: the largest loss that is allowed, in points
        loss: the student's loss, in points

    Raises:
        DragomanError: a file cannot be written.
    """
    record = {"metric": metric, "within": within, "loss": loss, "rows": list(map(asdict, rows))}
    write_text(directory / FIGURES_FILE, json.dumps(record, indent=2, allow_nan=False) + "\n")
    if find_spec("matplotlib"):
        draw(rows, metric, directory / PICTURE_FILE)


def draw(rows: Sequence[Judged], metric: str, path: Path) -> None:
    """Draw quality against speed: a line for each bundle, a mark for each search.

    Raises:
        DragomanError: the picture cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    measured = [row for row in rows if row.sentences_per_second is not None]
    searches = list(dict.fromkeys(row.name.rpartition(", ")[2] for row in measured))
    bundles: dict[str, list[Judged]] = {}
    for row in measured:
        bundles.setdefault(row.name.rpartition(", ")[0], []).append(row)
    for number, (bundle, own) in enumerate(bundles.items()):
        speeds = [row.sentences_per_second or 0.0 for row in own]
        figures = [row.figures[metric] for row in own]
        axes.plot(speeds, figures, color=f"C{number}", label=f"{bundle}, {own[0].megabytes:.1f} MB")
        for row, *place in zip(own, speeds, figures, strict=True):
            mark = MARKS[searches.index(row.name.rpartition(", ")[2]) % len(MARKS)]
            axes.plot(*place, mark, color=f"C{number}")
    for search, mark in zip(searches, MARKS, strict=False):
        axes.plot([], [], mark, color="black", label=search)
    axes.set_xscale("log")
    axes.set_xlabel("sentences a second")
    axes.set_ylabel(metric)
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize=8)
    write_whole(path, lambda partial: figure.savefig(partial, format="png", dpi=120))
