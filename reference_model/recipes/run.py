"""Running a recipe: from its data and an optional trained model to a scored checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tokenizers import Tokenizer

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import write_whole
from dragoman.files.text_lines import UnknownCharacters

from ..checkpoint import WEIGHTS_FILE, load_checkpoint, save_checkpoint
from ..config import DROPOUTS, ModelConfig
from ..decoding import decoded
from ..models import AutoregressiveModel, LanguageModel, Transformer, make_model
from ..training import Candidate, train
from ..training.history import CURVE_FILE, HISTORY_FILE
from ..training.loss import Pair, TokenPairs, negative_log_likelihood
from ..training.processes import process_0_first, rank
from ..training.state import has_training, locked
from .corpora import Corpora, Unknown, encoded_pairs, find_tokenizers
from .examples import Example, write_examples
from .recipe import (
    AT_THE_LIMIT,
    HELD_OUT_FILE,
    RECIPE_FILE,
    SOURCE_TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
    Data,
    Recipe,
    Tokenizers,
)
from .tokenizers import count_unknown, digests_of, read_tokenizers, write_tokenizers

PARTS, SIDES = ("training", "validation", "held-out"), ("sources", "targets")
"""The parts of the data, and the sides of pairs, in records and messages."""
ENCODING_BATCH = 2048
"""Examples encoded at once."""
TOO_MANY_TOKENS = "more tokens than the model has positions"
"""The reason why a pair is left out after cleaning, which counts characters."""


@dataclass(frozen=True)
class InitialModel:
    """A trained model, the SHA-256 of its weights, and its tokenizers."""

    digest: str
    """The SHA-256 of the model's weights."""
    model: AutoregressiveModel
    tokenizers: Tokenizers


def read_initial_model(
    directory: Path, config: ModelConfig, *, open_vocabulary: bool = False
) -> InitialModel:
    """Read the trained model that a training starts from, which must have the shape of `config`.

    With an open vocabulary, the sizes of its vocabularies may be others.

    Raises:
        CheckpointError, ConfigError: the weights or the configuration cannot be read.
        DragomanError: tokenizers are missing or damaged, or the model has another shape.
    """
    model = load_checkpoint(directory)
    if not isinstance(model, AutoregressiveModel):
        raise DragomanError(
            f"{directory}: expected a model with a decoder to start from, found an encoder-only one"
        )
    if open_vocabulary:
        config = config.replace(
            source_vocab_size=model.config.source_vocab_size,
            target_vocab_size=model.config.target_vocab_size,
        )
    none = dict.fromkeys(DROPOUTS, 0.0)
    expected, found = (c.replace(**none).to_dict() for c in (config, model.config))
    differing = [
        f"{name} {found[name]} instead of {value}"
        for name, value in expected.items()
        if found[name] != value
    ]
    if differing:
        raise DragomanError(
            f"{directory}: expected a model of the shape that is to be trained, found "
            f"{', '.join(differing)}"
        )
    with_dropout = make_model(config, model.generation)
    assert isinstance(with_dropout, AutoregressiveModel)
    with_dropout.load_state_dict(model.state_dict())
    digest = hashlib.sha256((directory / WEIGHTS_FILE).read_bytes()).hexdigest()
    return InitialModel(digest, with_dropout.eval(), read_tokenizers(directory))


@dataclass(frozen=True)
class RecipeResult:
    """What a training by a recipe found."""

    figures: Mapping[str, float]
    """Figures on the held-out data, by name."""
    at_the_limit: int
    """The number of outputs for held-out data that have as many tokens as the model has positions,
    and did not end."""
    signatures: Mapping[str, str]
    """How each figure is computed, by the name of its metric."""
    candidates: Sequence[Candidate]
    """The weights that were judged on the validation data."""


def run_recipe(
    recipe: Recipe,
    data: Data,
    directory: Path,
    work: Path,
    *,
    initial: InitialModel | None = None,
    changes: Mapping[str, Any] | None = None,
    finish: bool = False,
    log_directory: Path | None = None,
    device: str | None = None,
) -> RecipeResult:
    """Train, score on held-out data, and write a checkpoint directory.

    Args:
        data: from the recipe's `load_data`
        directory: the checkpoint directory, for configuration, weights, tokenizers, held-out data,
            figures, training curve and licences
        work: directory of the training state and the tokenizers, from which an interrupted run
            resumes
        initial: the trained model to start from; None: random weights
        changes, finish, log_directory, device: see `train`

    Returns:
        what was found; without figures in processes other than process 0

    Raises:
        TrainingStoppedError: a signal stopped the training; its state is saved in `work`.
        DragomanError: see `train`; or a text to score or every text to train on is too long for the
            model, or `initial` has other tokenizers than the files that the recipe names.
    """
    given = recipe.own_tokenizers
    if initial is not None:
        if given is not None and digests_of(given) != digests_of(initial.tokenizers):
            raise DragomanError(
                "vocabulary: files: expected the tokenizers of the model to start from, found "
                f"other ones; name its {SOURCE_TOKENIZER_FILE} and {TARGET_TOKENIZER_FILE}, or "
                "train from random weights"
            )
        given = initial.tokenizers
    recipe, remark = recipe.judging(data.validation)
    if remark:
        _note(remark)
    unknown = {part: (UnknownCharacters(), UnknownCharacters()) for part in PARTS}
    with ExitStack() as stack:

        def begin() -> tuple[AutoregressiveModel, Tokenizers, TokenPairs, Data]:
            found = data
            has_training(work, finish=finish)  # raises before the directory is made
            if not rank():
                stack.enter_context(locked(work))
            elif isinstance(data.train, Corpora):  # process 0 has written what they became
                found = replace(data, train=data.train.known_in(work))
            begun = has_training(work, finish=finish)
            tokenizers = find_tokenizers(recipe, found, work, given, begun=begun)
            if begun and isinstance(found.train, Corpora):
                found.train.check_same(work, recipe.config, recipe.vocabulary)
            if initial is None:
                torch.manual_seed(recipe.options.seed)
                model = make_model(recipe.config_for(tokenizers))
                assert isinstance(model, AutoregressiveModel)
            else:
                model = initial.model
            # Tokenizers that were there already may have been trained with other settings.
            vocabulary = recipe.vocabulary if initial is None and not begun else None
            made = _pairs_to_train_on(
                model, tokenizers, found, work, vocabulary, unknown["training"]
            )
            return model, tokenizers, *made

        model, tokenizers, pairs, data = process_0_first(begin)
        # Raises before the training, not after it.
        _training_pairs(model, tokenizers, data.held_out, unknown["held-out"])
        validation = _training_pairs(model, tokenizers, data.validation, unknown["validation"])
        _report(unknown, again=data.held_out is data.validation)
        weights = "random weights" if initial is None else initial.digest
        trained = train(
            model,
            pairs,
            validation,
            recipe.options,
            work,
            evaluate=lambda m: evaluate(m, recipe, tokenizers, data.validation)[recipe.metric],
            metric_name=recipe.metric,
            higher_is_better=recipe.higher_is_better,
            initial_weights=", ".join(filter(None, (weights, recipe.vocabulary))),
            changes=changes,
            finish=finish,
            log_directory=log_directory,
            device=device,
        )
        if rank():
            return RecipeResult({}, 0, {}, trained.candidates)
        figures, at_the_limit = _scored(model, recipe, tokenizers, data.held_out)
        result = RecipeResult(
            figures, at_the_limit, recipe.signatures(data.held_out), trained.candidates
        )
        save_checkpoint(model, directory)
        write_tokenizers(tokenizers, directory)
        write_examples(data.held_out, directory / HELD_OUT_FILE)
        for name, text in recipe.licences.items():
            _write(directory / name, text().encode())
        record = {
            "recipe": recipe.name,
            "held_out": figures,
            AT_THE_LIMIT: at_the_limit,
            "metrics": result.signatures,
            "candidates": [asdict(candidate) for candidate in trained.candidates],
            "training": asdict(trained.options) | {"steps": trained.step},
            "data": _counts(data),
            **_counted(unknown),
            "from": None if initial is None else initial.digest,
        }
        lines = json.dumps(record, indent=2, allow_nan=False) + "\n"
        _write(directory / RECIPE_FILE, lines.encode())
        for name in (HISTORY_FILE, CURVE_FILE):
            if (work / name).exists():  # not if a training is finished before its first epoch ends
                _write(directory / name, (work / name).read_bytes())
    return result


def check_lengths(recipe: Recipe, examples: Sequence[Example]) -> None:
    """Check that texts to validate and to score on fit a model of tokenizers that exist.

    Raises:
        DragomanError: a text is too long for the model.
    """
    if recipe.own_tokenizers is not None:
        model = make_model(recipe.config_for(recipe.own_tokenizers))
        assert isinstance(model, AutoregressiveModel)
        _training_pairs(model, recipe.own_tokenizers, examples)


def _note(text: str) -> None:
    Console(stderr=True).print(text, soft_wrap=True, markup=False, highlight=False)


def _report(unknown: Mapping[str, Unknown], *, again: bool) -> None:
    for part, sides in unknown.items():
        if part == "held-out" and again:
            continue
        for side, each in zip(SIDES, sides, strict=True):
            if each.found:
                _note(f"{part} data, {side}: {each.summary()}")


def _counted(unknown: Mapping[str, Unknown]) -> dict[str, object]:
    counted = {
        part: {
            side: {"unknown": each.found.total(), "characters": each.characters}
            for side, each in zip(SIDES, sides, strict=True)
            if each.characters
        }
        for part, sides in unknown.items()
    }
    counted = {part: sides for part, sides in counted.items() if sides}
    return {"unknown characters": counted} if counted else {}


def _pairs_to_train_on(
    model: AutoregressiveModel,
    tokenizers: Tokenizers,
    data: Data,
    work: Path,
    vocabulary: str | None,
    unknown: Unknown,
) -> tuple[TokenPairs, Data]:
    """Encode examples, without those of more tokens than the model has positions.

    Pairs of files are encoded into a file in `work`, which later calls read. Returns the pairs, and
    the data with the number of those that were left out.
    """
    fitting: Counter[int] = Counter()
    if isinstance(data.train, Corpora):
        pairs = encoded_pairs(
            data.train,
            tokenizers,
            model.config,
            work,
            vocabulary,
            lambda examples: _fitting(model, tokenizers, examples, fitting, unknown),
            fitting,
            unknown,
        )
    else:
        numbered = ((0, example) for example in data.train)
        pairs = TokenPairs.of(_fitting(model, tokenizers, numbered, fitting, unknown))
    left_out = len(data.train) - fitting.total()
    if not left_out:
        return pairs, data
    assert isinstance(model, Transformer)
    if not len(pairs):
        source, target = _longest(model)
        raise DragomanError(
            f"expected pairs of at most {source} and {target} tokens, the model's positions, to "
            f"train on; all {left_out} are longer"
        )
    _note(f"left out: {left_out:,} pairs of {TOO_MANY_TOKENS}")
    return pairs, replace(data, dropped=dict(data.dropped) | {TOO_MANY_TOKENS: left_out})


def _fitting(
    model: AutoregressiveModel,
    tokenizers: Tokenizers,
    numbered: Iterable[tuple[int, Example]],
    fitting: Counter[int],
    unknown: Unknown,
) -> Iterator[Pair]:
    """Encode examples that fit the model's positions; for a language model, all whole texts.

    Each has the index of its corpus, by which `fitting` counts those that fit.
    """
    examples = iter(numbered)
    while chunk := list(islice(examples, ENCODING_BATCH)):
        batch = [example for _, example in chunk]
        encoded: Iterator[list[Pair]]
        if isinstance(model, LanguageModel):
            encoded = (whole_texts([example], tokenizers.target) for example in batch)
            longest = None
        else:
            encoded, longest = _encoded(tokenizers, batch, unknown), _longest(model)
        for (number, _), pairs in zip(chunk, encoded, strict=True):
            if longest is None or all(_fits(pair, longest) for pair in pairs):
                fitting[number] += 1
                yield from pairs


def _training_pairs(
    model: AutoregressiveModel,
    tokenizers: Tokenizers,
    examples: Sequence[Example],
    unknown: Unknown | None = None,
) -> list[Pair]:
    """Encode each source with each of its references; for a language model, whole texts."""
    if isinstance(model, LanguageModel):
        return whole_texts(examples, tokenizers.target)
    longest = _longest(model)
    pairs: list[Pair] = []
    for example, of_example in zip(examples, _encoded(tokenizers, examples, unknown), strict=True):
        for reference, pair in zip(example.references, of_example, strict=True):
            texts = (example.source, reference)
            for ids, positions, text in zip(pair, longest, texts, strict=True):
                if len(ids) > positions:
                    raise DragomanError(
                        f"expected texts of at most {positions} tokens, the model's positions, "
                        f"found one of {len(ids)}: {shown(text)}"
                    )
            pairs.append(pair)
    return pairs


def _encoded(
    tokenizers: Tokenizers, examples: Sequence[Example], unknown: Unknown | None
) -> Iterator[list[Pair]]:
    sources = [example.source for example in examples]
    references = [text for example in examples for text in example.references]
    texts = sources, references
    encoded = [side.encode_batch(each) for side, each in zip(tokenizers, texts, strict=True)]
    if unknown is not None:
        for side, counted in enumerate(unknown):
            count_unknown(tokenizers[side], texts[side], encoded[side], counted)
    targets = iter(encoded[1])
    for example, source in zip(examples, encoded[0], strict=True):
        yield [(source.ids, next(targets).ids) for _ in example.references]


def _longest(model: Transformer) -> tuple[int, int]:
    return model.config.max_source_positions, model.config.max_target_positions


def _fits(pair: Pair, longest: tuple[int, int]) -> bool:
    return all(len(ids) <= positions for ids, positions in zip(pair, longest, strict=True))


def evaluate(
    model: AutoregressiveModel, recipe: Recipe, tokenizers: Tokenizers, examples: Sequence[Example]
) -> dict[str, float]:
    """Compute the recipe's figures, by name."""
    figures, _ = _scored(model, recipe, tokenizers, examples)
    return figures


def _scored(
    model: AutoregressiveModel, recipe: Recipe, tokenizers: Tokenizers, examples: Sequence[Example]
) -> tuple[dict[str, float], int]:
    if isinstance(model, LanguageModel):
        return perplexity(model, examples, tokenizers.target), 0
    assert recipe.score is not None
    outputs = decoded(model, [tokenizers.source.encode(example.source).ids for example in examples])
    ends = model.generation.end_tokens(model.config.end_token_id)
    at_the_limit = sum(output[-1] not in ends for output in outputs)
    return recipe.score(tokenizers.target.decode_batch(outputs), examples), at_the_limit


def _counts(data: Data) -> Mapping[str, object]:
    counts = {
        "train": len(data.train) - data.dropped.get(TOO_MANY_TOKENS, 0),
        "validation": len(data.validation),
        "held_out": len(data.held_out),
        "dropped": dict(data.dropped),
    }
    corpora = data.train.described() if isinstance(data.train, Corpora) else []
    return counts | ({"corpora": corpora} if corpora else {})


def _write(path: Path, content: bytes) -> None:
    write_whole(path, lambda partial: partial.write_bytes(content))


def whole_texts(examples: Sequence[Example], tokenizer: Tokenizer) -> list[Pair]:
    """Encode each source with the reference that continues it."""
    return [
        ((), tokenizer.encode(example.source + reference).ids)
        for example in examples
        for reference in example.references
    ]


def perplexity(
    model: LanguageModel, examples: Sequence[Example], tokenizer: Tokenizer
) -> dict[str, float]:
    """Compute the perplexity of whole texts, end tokens included, and the bits per character."""
    texts = whole_texts(examples, tokenizer)
    nats = negative_log_likelihood(model, texts)
    tokens_in_all = sum(len(text) for _, text in texts)
    if not nats / tokens_in_all < math.log(sys.float_info.max):
        raise DragomanError(
            f"the training diverged: the loss is {nats / tokens_in_all:g} nats per token, whose "
            "perplexity is no number; choose a smaller learning_rate_scale"
        )
    characters = sum(len(e.source) + len(reference) for e in examples for reference in e.references)
    return {
        "perplexity": math.exp(nats / tokens_in_all),
        "bits per character": nats / math.log(2) / characters,
    }
