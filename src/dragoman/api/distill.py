"""Distills a teacher: trains, builds and judges a student that translates as the teacher does."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, refuse_unwritable, shown
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.settings.generation import GenerationOptions

from .build import build
from .preflight import check_comparison, check_output, check_target
from .report import report

if TYPE_CHECKING:
    from dragoman.distillation.judging import Judged

BUNDLE, CHECKPOINT, REPORT = "bundle", "checkpoint", "report.html"
"""What a distillation writes of the student."""


@dataclass(frozen=True)
class Distillation:
    """A student, and how it compares with its teacher."""

    bundle: Bundle
    """The student's bundle."""
    rows: Sequence[Judged]
    """Figures of teacher and student; the first row is the teacher as it taught, and the last one
    the student as it is deployed."""
    metric: str
    """The metric that decides."""
    loss: float
    """How much worse the student is, in points of 100; below 0 if it is better."""
    sources: int
    """The number of different sources that the teacher was given."""
    rejected: int
    """How many of them it rejected, such as those that are too long for it."""


class DistillationFailedError(DragomanError):
    """A student is further from its teacher than allowed. Its bundle was not written.

    Attributes:
        rows: figures of teacher and student, see `Distillation`
    """

    def __init__(self, message: str, rows: Sequence[Judged]) -> None:
        super().__init__(message)
        self.rows = rows


def distill(
    teacher: str | Path,
    output: str | Path,
    *,
    pairs: Sequence[str | Path] = (),
    dev: Sequence[str | Path] = (),
    test: Sequence[str | Path] = (),
    data: str | Path | None = None,
    sources: Sequence[str | Path] = (),
    student: str | Path | None = None,
    originals: bool = False,
    beams: int = 4,
    source_language: str | None = None,
    target_language: str | None = None,
    precision: Precision = "int8",
    shortlist: bool = True,
    within: float = 1.0,
    metrics: Sequence[str] | None = None,
    epochs: int | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(Silent()),
) -> Distillation:
    """Train a student on its teacher's translations, build it, and judge it against the teacher.

    The teacher translates all sources by beam search (sequence-level knowledge distillation, Kim &
    Rush 2016). The student and its shortlist are trained on these pairs. Its bundle is kept if the
    student, which decodes greedily, loses at most `within` points against the teacher with its
    beams.

    The directory gets `translations.tsv`, `checkpoint`, `bundle`, `figures.json` and, with the
    extra `report`, `figures.png` and `report.html`. A repeated call goes on where the last one
    stopped.

    Args:
        teacher: directory of the teacher's bundle, an encoder-decoder model of texts
        output: directory of the results
        pairs: training data: a file of sources and targets with tabs between them, or a file of
            sources and one of targets
        dev: validation data, in the same form; may have several references
        test: data to judge on, in the same form; none: those of `dev`
        data: folder of the data of the recipe that trained the teacher, in place of these files
        sources: files of further texts for the teacher to translate, one per line
        student: JSON or YAML file with some of the sections model, vocabulary, training, cleaning
            and metrics, as for `dragoman train`. By default, the student has the preset "student"
            and the tokenizers of its teacher
        originals: whether to train on the references, too
        beams: number of beams of the teacher
        source_language, target_language: languages of a multilingual teacher
        precision, shortlist: of the student's bundle
        within: the largest loss of the first metric, in points of 100
        metrics: see `dragoman.metrics`, the one that decides first; None: those of the student's
            file, or else of the recipe that trained the teacher, or else BLEU and chrF
        epochs: None: as the student's file says
        threads: processor threads; None: all cores
        overwrite: whether to replace the bundle of an earlier call
        progress: opens what receives each stage; closed while the student is trained, which
            reports its epochs on standard error

    Raises:
        DistillationFailedError: the student loses more than allowed.
        TrainingStoppedError: a signal stopped the training, whose state is saved.
        ParityFailedError: the student's bundle does not match its checkpoint.
        DragomanError: an argument is wrong, the data cannot be read, the teacher does not translate
            texts, its tokenizers cannot be the student's, or `output` is in use.
    """
    output = Path(output)
    check_output(output / BUNDLE, overwrite)
    refuse_unwritable(output)
    check_target(None, precision, None)
    check_comparison(threads, inputs=None, metrics=metrics)
    if not 0 <= within < math.inf:
        raise DragomanError(f"within: expected at least 0 points, found {shown(within)}")
    if bool(pairs or dev or test) if data is not None else not (pairs and dev):
        raise DragomanError(
            "pairs: expected files to train on and to validate on, or else the folder of a "
            f"recipe's data, found {'too few of them' if data is None else 'files and a folder'}"
        )
    options = GenerationOptions(
        num_beams=beams, source_language=source_language, target_language=target_language
    )
    taught = read_bundle(Path(teacher))

    import torch

    import dragoman.export.exporter  # noqa: F401  # raises before the work if it cannot be imported
    from dragoman.distillation.judging import Judged, judge_all, loss_in_points, write_figures
    from dragoman.distillation.student import check_teacher, read_student_file, student_recipe
    from dragoman.distillation.translations import (
        DataFiles,
        load_files,
        recipe_of,
        translate_sources,
    )
    from dragoman.reference_model.recipes import Cleaning, PairFiles, check_lengths, run_recipe
    from dragoman.reference_model.settings import read_settings
    from dragoman.reference_model.training.state import locked

    check_teacher(taught)
    files, file = DataFiles(output), None if student is None else Path(student)
    stated = read_student_file(file)
    if data is not None:
        of_teacher = recipe_of(taught)
        load_data = partial(of_teacher.load_data, Path(data))
    else:
        of_teacher = None
        given = PairFiles(*([Path(each) for each in part] for part in (pairs, dev, test)))
        rules = read_settings(Cleaning, stated.get("cleaning", {}), f"{file}: cleaning")
        load_data = partial(load_files, given, rules)
    checkpoint, candidate = output / CHECKPOINT, output / f"{BUNDLE}.candidate"
    recipe = student_recipe(
        file,
        stated,
        taught,
        files,
        checkpoint,
        of_teacher,
        originals=originals,
        metrics=metrics,
        epochs=epochs,
    )
    if threads is not None:
        torch.set_num_threads(threads)
    with progress() as reported:
        reported.stage("reading the data")
        texts = load_data()
        check_lengths(recipe, [*texts.validation, *texts.held_out])
    with locked(output):
        with progress() as reported:
            more = [Path(each) for each in sources]
            translated, rejected = translate_sources(
                taught, texts, more, files, options, threads, reported
            )
        for examples in (texts.validation, texts.held_out):
            recipe, _ = recipe.judging(examples)
        trained = run_recipe(recipe, recipe.load_data(None), checkpoint, checkpoint / "training")
        with progress() as reported:
            built = build(
                checkpoint,
                candidate,
                precision=precision,
                shortlist_from=files.translations if shortlist else None,
                threads=threads,
                overwrite=True,
                progress=reported,
            )
            try:
                rows = judge_all(
                    taught, built.bundle, options, recipe, texts.held_out, threads, reported
                )
                rows.insert(-1, Judged("student, in PyTorch, greedy", trained.figures))
                loss = loss_in_points(recipe, rows)
                write_figures(rows, recipe.metric, within, loss, output)
                if loss > within:
                    raise DistillationFailedError(
                        f"within: expected a student that loses at most {within:g} points of "
                        f"{recipe.metric}, found {loss:.2f}; {output / BUNDLE} was not written",
                        rows,
                    )
                if (output / BUNDLE).exists():
                    shutil.rmtree(output / BUNDLE)
                candidate.rename(output / BUNDLE)
            finally:
                shutil.rmtree(candidate, ignore_errors=True)
        if find_spec("jinja2") and find_spec("matplotlib"):
            with progress() as reported:
                report(
                    [output / BUNDLE],
                    output / REPORT,
                    checkpoint=checkpoint,
                    threads=threads,
                    measurements=False,
                    overwrite=True,
                    progress=reported,
                )
    kept = Bundle(output / BUNDLE, built.bundle.manifest)
    return Distillation(kept, rows, recipe.metric, loss, sources=translated, rejected=rejected)
