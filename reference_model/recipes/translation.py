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
from ..settings import ConfigError, all_are, read_settings, read_settings_file
from ..training import TrainingOptions
from .corpora import Corpora, Corpus, prefixes_of
from .examples import Cleaning, Example, read_rows, references_of, remark_on_ratio
from .recipe import Data, Recipe, Tokenizers
from .tokenizers import SPECIAL_TOKENS, Vocabulary, digests_of, train_tokenizers

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
        vocabulary=repr(vocabulary) if own is None else f"files (SHA-256 {digests_of(own)})",
        own_tokenizers=own,
        shown="{:.2f}".format,
    )


def _make_tokenizers(vocabulary: Vocabulary, data: Data) -> Tokenizers:
    try:
        prefixes = data.train.prefixes if isinstance(data.train, Corpora) else ()
        return train_tokenizers(vocabulary, data.train, prefixes)
    except DragomanError as error:
        remark = remark_on_ratio(len(data.train), data.dropped)
        if not remark:
            raise
        raise DragomanError(f"{remark}; {error}") from error


def score(
    hypotheses: Sequence[str], examples: Sequence[Example], *, lowercase: bool = False
) -> dict[str, float]:
    """Compute BLEU and chrF of the corpus, from 0 to 100; in lower case, they ignore case."""
    references = references_of(examples)
    for name in METRICS:
        find_metric(name)  # raises if its library is not installed
    both = (SacreBleu("BLEU", lowercase=lowercase), SacreBleu("chrF", lowercase=lowercase))
    return {metric.name: metric.figure(hypotheses, references) for metric in both}


FILES = {"corpora": "--pairs", "dev": "--dev", "test": "--test"}
"""The sections that name files, and the options of the command that do."""
SECTIONS = ("model", "vocabulary", "cleaning", "training", "metrics", *FILES)
DECIDED = (
    *("source_vocab_size", "target_vocab_size"),
    *("pad_token_id", "start_token_id", "end_token_id"),
)
"""Fields of the model that the vocabulary determines."""


@dataclass(frozen=True)
class PairFiles:
    """The files of parallel text: each one file with tabs, or one of sources and one of targets.

    Those to validate and score on may have several references for a source: after further tabs, or
    in further files.
    """

    train: Sequence[Path] = ()
    """Files to train on; if empty, those of the section "corpora"."""
    validation: Sequence[Path] = ()
    """Files to validate on; if empty, those of the section "dev"."""
    held_out: Sequence[Path] = ()
    """Files to score the trained model on; if empty, those of the section "test", or else
    `validation`."""


def read_training_file(
    path: Path,
    pairs: PairFiles,
    directory: Path | None = None,
    read_vocabulary: Callable[[Path], Tokenizer] | None = None,
) -> Recipe:
    """Read the recipe that a JSON or YAML file describes.

    Its sections are "model" (`ModelConfig`, optionally with a "preset"), "vocabulary"
    (`Vocabulary`), "cleaning" (`Cleaning`, optional), "training" (`TrainingOptions`), "metrics"
    (names for `find_metric`, the most important one first, optional), and, in place of `pairs`,
    "corpora" (a list of `Corpus`), "dev" and "test" (lists of files, relative to this one).

    Args:
        directory: that of the training's state, whose record saves reading the pairs again
        read_vocabulary: reads a vocabulary that the file names, as
            `dragoman.export.tokenizers.read_trainable` does

    Raises:
        ConfigError: the section "model" is invalid.
        DragomanError: the file cannot be read, another section is invalid, or files are missing or
            stated twice.
    """
    return recipe_of_sections(read_settings_file(path), path, pairs, directory, read_vocabulary)


def recipe_of_sections(
    found: Mapping[str, Any],
    path: Path,
    pairs: PairFiles,
    directory: Path | None = None,
    read_vocabulary: Callable[[Path], Tokenizer] | None = None,
) -> Recipe:
    """Make the recipe that the sections of a file describe, see `read_training_file`.

    Args:
        path: that of the file, which its files are relative to
    """
    sections = {name: values for name, values in found.items() if values is not None}
    unknown = [name for name in sections if name not in SECTIONS]
    missing = [name for name in ("model", "vocabulary", "training") if name not in sections]
    if unknown or missing:
        raise DragomanError(
            f"{path}: expected the sections {', '.join(SECTIONS)}, found {', '.join(sections)}"
        )
    cleaning = read_settings(Cleaning, sections.get("cleaning", {}), f"{path}: cleaning")
    corpora, validation, held_out = _files(path, sections, pairs)
    vocabulary = read_settings(Vocabulary, sections["vocabulary"], f"{path}: vocabulary")
    own = None
    if vocabulary.files is not None:
        if read_vocabulary is None:
            raise DragomanError(
                f"{path}: vocabulary: files: expected read_vocabulary, a function that reads them, "
                "such as dragoman.export.tokenizers.read_trainable; found none"
            )
        try:
            own = vocabulary.read_files(path.parent, read_vocabulary, prefixes_of(corpora))
        except DragomanError as error:
            raise DragomanError(f"{path}: {error}") from error
    try:
        recipe = translation_recipe(
            path.stem,
            f"pairs of {', '.join(file.name for corpus in corpora for file in corpus.files)}",
            _model(sections["model"]),
            vocabulary,
            read_settings(TrainingOptions, sections["training"], f"{path}: training"),
            lambda _: load_pairs(Corpora(corpora, cleaning, directory), validation, held_out),
            licences={},
            own=own,
        )
    except ConfigError as error:
        raise DragomanError(f"{path}: model", error.problems) from error
    if "metrics" not in sections:
        return recipe
    names = sections["metrics"]
    if not isinstance(names, list) or not names or not all_are(str, names):
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


def _files(
    path: Path, sections: Mapping[str, object], pairs: PairFiles
) -> tuple[list[Corpus], Sequence[Path], Sequence[Path]]:
    options = (pairs.train, pairs.validation, pairs.held_out)
    for (section, option), files in zip(FILES.items(), options, strict=True):
        if files and section in sections:
            raise DragomanError(
                f"{path}: expected {option} or the section {section}, found both; leave out one"
            )
        if not files and section not in sections and section != "test":
            raise DragomanError(
                f"{option}: expected a file for {path}, which has no section {section}; found none"
            )
    if pairs.train:
        corpora = [read_settings(Corpus, {"files": tuple(pairs.train)}, "--pairs")]
    else:
        entries, where = sections["corpora"], f"{path}: corpora"
        if not isinstance(entries, list) or not entries:
            raise DragomanError(f"{where}: expected a list of objects, found {shown(entries)}")
        corpora = [_corpus(entry, f"{where}[{n}]", path) for n, entry in enumerate(entries)]
    validation = pairs.validation or _paths(sections["dev"], f"{path}: dev", path)
    held_out = pairs.held_out
    if "test" in sections:
        held_out = _paths(sections["test"], f"{path}: test", path)
    return corpora, validation, held_out or validation


def _corpus(entry: object, where: str, path: Path) -> Corpus:
    if isinstance(entry, dict) and "files" in entry:
        entry = entry | {"files": _paths(entry["files"], f"{where}: files", path)}
    return read_settings(Corpus, entry, where)


def _paths(names: object, where: str, path: Path) -> tuple[Path, ...]:
    if not isinstance(names, list) or not names or not all_are(str, names):
        raise DragomanError(f"{where}: expected a list of files, found {shown(names)}")
    return tuple(path.parent / name for name in names)


def load_pairs(corpora: Corpora, validation: Sequence[Path], held_out: Sequence[Path]) -> Data:
    """Read the examples to validate and to score on, as `PairFiles` names them.

    Raises:
        DragomanError: a file has no pairs, or lacks a source or a reference.
    """
    examples = _whole(validation)
    scored = examples if held_out == validation else _whole(held_out)
    return Data(corpora, examples, scored, corpora.dropped)


def _whole(files: Sequence[Path]) -> list[Example]:
    examples = []
    names = " and ".join(str(file) for file in files)
    for number, row in enumerate(read_rows(files), start=1):
        source, *references = (" ".join(text.split()) for text in row)
        if not source or not references or not all(references):
            side = "target" if source else "source"
            raise DragomanError(f"{names}, line {number}: expected a {side}, found none")
        examples.append(Example(source, tuple(references)))
    if not examples:
        raise DragomanError(f"{names}: expected at least one pair, found none")
    return examples
