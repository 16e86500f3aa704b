"""Recipes of translation, and those that a file describes.

`dragoman train CONFIG.yaml --pairs ... --dev ...` trains by such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dragoman.errors import DragomanError, shown
from dragoman.metrics import find_metric
from dragoman.metrics.sacrebleu_metrics import SacreBleu

from ..config import PRESETS, ModelConfig
from ..settings import ConfigError, read_settings, read_settings_file
from ..training import TrainingOptions
from .examples import Cleaning, Example, clean, read_pairs, remark_on_ratio
from .recipe import Data, Recipe, Tokenizers
from .tokenizers import SPECIAL_TOKENS, Vocabulary, train_tokenizers

METRICS = ("bleu", "chrf")
SMALLEST = len(SPECIAL_TOKENS) + 1
"""The size that stands in for that of a vocabulary that is not known yet."""


def translation_recipe(
    name: str,
    summary: str,
    model: Mapping[str, object],
    vocabulary: Vocabulary,
    options: TrainingOptions,
    load_data: Callable[[Path | None], Data],
    *,
    licences: Mapping[str, Callable[[], str]],
    duration: str = "",
    alignment_layer: int | None = None,
    own: Tokenizers | None = None,
) -> Recipe:
    """Make a recipe of translation.

    Args:
        model: fields of `ModelConfig`, except for the sizes of the vocabularies
        own: the tokenizers of the files of the vocabulary, if it has some

    Raises:
        ConfigError: a field of the model is unknown or out of range, or contradicts the vocabulary.
    """
    if model.get("tie_source_target") is True and not vocabulary.is_shared:
        raise ConfigError(
            [
                "tie_source_target: expected false, because source and target have vocabularies of "
                'their own, found true; "shared" in the section "vocabulary" gives them one'
            ]
        )
    sizes = vocabulary.sizes
    if own is not None:
        sizes = own.source.get_vocab_size(), own.target.get_vocab_size()
    if vocabulary.open:
        sizes = SMALLEST, SMALLEST
    config = ModelConfig.from_dict(
        {
            "tie_source_target": vocabulary.is_shared,
            **model,
            "source_vocab_size": sizes[0],
            "target_vocab_size": sizes[1],
        }
    )
    return Recipe(
        name=name,
        summary=summary,
        config=config,
        options=options,
        load_data=load_data,
        make_tokenizers=lambda data: own or _make_tokenizers(vocabulary, data),
        open_vocabulary=vocabulary.open,
        metric="BLEU",
        score=partial(score, lowercase=vocabulary.lowercase),
        metrics=METRICS,
        lowercase=vocabulary.lowercase,
        licences=licences,
        duration=duration,
        alignment_layer=alignment_layer,
        vocabulary=repr(vocabulary),
        shown="{:.2f}".format,
    )


def _make_tokenizers(vocabulary: Vocabulary, data: Data) -> Tokenizers:
    try:
        return train_tokenizers(vocabulary, data.train)
    except DragomanError as error:
        remark = remark_on_ratio(len(data.train), data.dropped)
        if not remark:
            raise
        raise DragomanError(f"{remark}; {error}") from error


def score(
    hypotheses: Sequence[str], examples: Sequence[Example], *, lowercase: bool = False
) -> dict[str, float]:
    """Compute BLEU and chrF of the corpus, from 0 to 100.

    Args:
        lowercase: whether to ignore case, for a model that outputs lower case only
    """
    references = [example.references for example in examples]
    for name in METRICS:
        find_metric(name)  # raises if its library is not installed
    both = (SacreBleu("BLEU", lowercase=lowercase), SacreBleu("chrF", lowercase=lowercase))
    return {metric.name: metric.figure(hypotheses, references) for metric in both}


SECTIONS = ("model", "vocabulary", "cleaning", "training", "metrics")
DECIDED = (
    *("source_vocab_size", "target_vocab_size"),
    *("pad_token_id", "start_token_id", "end_token_id"),
)
"""Fields of the model that the vocabulary determines."""


@dataclass(frozen=True)
class PairFiles:
    """The files of parallel text: each one file with tabs, or one of sources and one of targets.

    Attributes:
        held_out: files to score the trained model on; if empty, `validation`
    """

    train: Sequence[Path]
    validation: Sequence[Path]
    held_out: Sequence[Path] = ()


def read_training_file(
    path: Path,
    pairs: PairFiles,
    read_vocabulary: Callable[[Path], Tokenizer] | None = None,
) -> Recipe:
    """Read the recipe that a JSON or YAML file describes.

    Its sections are "model" (`ModelConfig`, optionally with a "preset"), "vocabulary"
    (`Vocabulary`), "cleaning" (`Cleaning`, optional), "training" (`TrainingOptions`) and "metrics"
    (names for `find_metric`, the most important one first, optional).

    Args:
        read_vocabulary: reads a vocabulary that the file names, as
            `dragoman.export.tokenizers.read_trainable` does

    Raises:
        ConfigError: the section "model" is invalid.
        DragomanError: the file cannot be read, or another section is invalid.
    """
    sections = read_settings_file(path)
    unknown = [name for name in sections if name not in SECTIONS]
    missing = [name for name in ("model", "vocabulary", "training") if name not in sections]
    if unknown or missing:
        raise DragomanError(
            f"{path}: expected the sections {', '.join(SECTIONS)}, found {', '.join(sections)}"
        )
    cleaning = read_settings(Cleaning, sections.get("cleaning", {}), f"{path}: cleaning")
    vocabulary = read_settings(Vocabulary, sections["vocabulary"], f"{path}: vocabulary")
    own = None
    if vocabulary.files:
        assert read_vocabulary is not None, "a function that reads the files of vocabularies"
        own = vocabulary.read_files(path.parent, read_vocabulary)
    try:
        recipe = translation_recipe(
            path.stem,
            f"pairs of {', '.join(file.name for file in pairs.train)}",
            _model(sections["model"]),
            vocabulary,
            read_settings(TrainingOptions, sections["training"], f"{path}: training"),
            lambda _: _load(pairs, cleaning),
            licences={},
            own=own,
        )
    except ConfigError as error:
        raise DragomanError(f"{path}: model", error.problems) from error
    if "metrics" not in sections:
        return recipe
    names = sections["metrics"]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise DragomanError(f"{path}: metrics: expected a list of names, found {shown(names)}")
    try:
        return recipe.scored_by(names)
    except DragomanError as error:
        raise DragomanError(f"{path}: {error}") from error


def _model(values: object) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError([f"expected an object, found {shown(values)}"])
    decided = [name for name in DECIDED if name in values]
    if decided:
        raise ConfigError([f"{name}: expected none, the vocabulary decides it" for name in decided])
    preset = values.get("preset", "base")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError([f"unknown preset {shown(preset)}, expected one of {', '.join(PRESETS)}"])
    changes = {name: value for name, value in values.items() if name != "preset"}
    return {**PRESETS[preset], **changes}


def _load(pairs: PairFiles, rules: Cleaning) -> Data:
    train, dropped = clean(read_pairs(pairs.train), rules)
    validation = _whole(pairs.validation)
    held_out = _whole(pairs.held_out) if pairs.held_out else validation
    return Data(train, validation, held_out, dropped)


def _whole(files: Sequence[Path]) -> list[Example]:
    """Read pairs to score on. Every pair must have both sides.

    Raises:
        DragomanError: there are no pairs, or a side is empty.
    """
    examples = []
    names = " and ".join(str(file) for file in files)
    for number, (source, target) in enumerate(read_pairs(files), start=1):
        for side, text in (("source", source), ("target", target)):
            if not text.strip():
                raise DragomanError(f"{names}, line {number}: expected a {side}, found none")
        examples.append(Example(" ".join(source.split()), (" ".join(target.split()),)))
    if not examples:
        raise DragomanError(f"{names}: expected at least one pair, found none")
    return examples
