"""The recipe of a student: what its file states, and what its teacher and its data give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, shown
from dragoman.export.tokenizers import read_trainable
from dragoman.reference_model.recipes import PairFiles, Recipe, check_file_name
from dragoman.reference_model.recipes.translation import recipe_of_sections
from dragoman.reference_model.settings import read_settings_file
from dragoman.reference_model.training.options import FALLING_TO_ZERO
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.neutral_graphs import kind_of

from .translations import DataFiles

TRAINING: Mapping[str, object] = {
    "epochs": 20,
    "warmup_steps": 2000,
    "learning_rate_scale": 1.5,
    "monitor": "metric",
}
"""The options of the training that a student's file may leave out. The learning rate falls to zero
over the second half of the epochs. The loss does not choose the weights: it is that of references,
and rises as the student learns its teacher's outputs."""
OF_DATA = ("corpora", "dev", "test")
"""The sections of files, which a distillation writes."""
SECTIONS = ("model", "vocabulary", "training", "cleaning", "metrics")
"""Those that a student's file may have."""


def check_teacher(teacher: Bundle) -> None:
    """Check that a bundle translates texts.

    Raises:
        DragomanError: it has a model of another kind, or no tokenizers.
    """
    model = teacher.manifest.model
    kind = "speech" if model.takes_audio else kind_of(model)
    if kind != "sequence-to-sequence" or teacher.manifest.tokenizers is None:
        found = "one without tokenizers" if kind == "sequence-to-sequence" else f"a {kind} model"
        raise DragomanError(
            f"{teacher.directory}: expected an encoder-decoder model of texts to learn from, found "
            f"{found}"
        )


def read_student_file(path: Path | None) -> dict[str, Any]:
    """Read the sections that a student's file states; null is as good as none.

    Raises:
        DragomanError: the file cannot be read, or names data.
    """
    found = {} if path is None else read_settings_file(path)
    stated = {name: values for name, values in found.items() if values is not None}
    if own := [name for name in OF_DATA if name in stated]:
        raise DragomanError(
            f"{path}: expected no section {own[0]}, the options of the command name the data"
        )
    if unknown := [name for name in stated if name not in SECTIONS]:
        raise DragomanError(
            f"{path}: expected some of the sections {', '.join(SECTIONS)}, found "
            f"{shown(unknown[0])}"
        )
    return stated


def student_recipe(
    path: Path | None,
    stated: Mapping[str, Any],
    teacher: Bundle,
    files: DataFiles,
    checkpoint: Path,
    of_teacher: Recipe | None,
    *,
    originals: bool = False,
    metrics: Sequence[str] | None = None,
    epochs: int | None = None,
) -> Recipe:
    """Make the recipe that a student is trained and judged by.

    Args:
        path, stated: the student's file, if there is one, and its sections (`read_student_file`)
        files: what the student is trained, validated and judged on, which need not exist yet
        checkpoint: directory of the student's checkpoint
        of_teacher: the recipe that gives the data, if one does
        originals, metrics, epochs: see `dragoman.distill`

    Raises:
        ConfigError: the section "model" is invalid.
        DragomanError: a section or a metric is invalid, or the teacher's tokenizers cannot be the
            student's.
    """
    learned = [files.translations, *([files.originals] if originals else [])]
    sections: dict[str, Any] = {
        "vocabulary": _vocabulary(teacher),
        **stated,
        "model": _with(
            {
                "preset": "student",
                "norm_order": "pre",
                "max_source_positions": teacher.manifest.model.max_source_positions,
                "max_target_positions": teacher.manifest.model.max_target_positions,
            },
            stated.get("model"),
        ),
        "training": _training(stated.get("training"), epochs),
        "corpora": [{"files": [str(file.absolute())]} for file in learned],
    }
    pairs = PairFiles(validation=[files.dev], held_out=[files.test])
    name = path or Path(f"{teacher.manifest.name}-student")
    recipe = recipe_of_sections(sections, name, pairs, checkpoint / "training", read_trainable)
    check_file_name(name)
    if of_teacher is not None:  # the same task, on the same data
        recipe = replace(recipe, licences=of_teacher.licences)
        if "metrics" not in stated:
            recipe = replace(
                recipe,
                score=of_teacher.score,
                metric=of_teacher.metric,
                metrics=of_teacher.metrics,
                lowercase=of_teacher.lowercase,
            )
    return recipe.scored_by(metrics) if metrics else recipe


def _training(stated: object, epochs: int | None) -> object:
    options = _with(TRAINING, stated)
    if not isinstance(options, dict):
        return options
    if epochs is not None:
        options = options | {"epochs": epochs}
        if isinstance(cool_down := options.get("cool_down_epochs"), int):
            options["cool_down_epochs"] = min(cool_down, epochs)
    if "cool_down_epochs" not in options and options.get("schedule") not in FALLING_TO_ZERO:
        whole = options["epochs"]
        options["cool_down_epochs"] = whole // 2 if isinstance(whole, int) and whole > 0 else 0
    return options


def _with(defaults: Mapping[str, object], stated: object) -> object:
    """Return a section with defaults for what it leaves out; another value is checked later."""
    return {**defaults, **(stated or {})} if isinstance(stated, dict | None) else stated


def _vocabulary(teacher: Bundle) -> Mapping[str, object]:
    """Return the vocabulary that the tokenizers of a teacher are."""
    tokenizers = teacher.manifest.tokenizers
    assert tokenizers is not None and tokenizers.source is not None
    files = [teacher.path(name) for name in (tokenizers.source, tokenizers.target)]
    shared = files[0].read_bytes() == files[1].read_bytes()
    return {"files": [str(file.absolute()) for file in files[: 1 if shared else 2]]}
