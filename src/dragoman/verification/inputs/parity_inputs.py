"""The inputs that a bundle and its oracle are compared on, with the metrics of their task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.exporter import audio_features
from dragoman.metrics import PERPLEXITY, Metric, find_metric
from dragoman.metrics.metric import RatioMetric, check_pairs
from dragoman.metrics.metric import References as TextReferences
from dragoman.optimize.step_inputs import random_sound
from dragoman.reference_model import ReferenceModel
from dragoman.reference_model.recipes import Example, Recipe
from dragoman.runtime.audio import LogMel, read_audio
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.parity import describe_random, describe_sentence

from .items import References
from .sources import EncoderLine

RANDOM_SOURCES = 64
DEFAULT_WINDOWS = 4
"""Windows are half a minute long."""
SENTENCE = "sentence.opus"
"""An English sentence of seven seconds."""
LONGEST_RANDOM = 48

Decode = Callable[[Sequence[int]], str]
"""Maps target tokens to their text."""


@dataclass(frozen=True)
class Task:
    """The metrics and references that outputs are judged by."""

    metrics: Sequence[Metric]
    """The most important one first."""
    references: Sequence[Sequence[str]]
    parts: Sequence[Sequence[int]]
    """For each text, the inputs whose outputs it consists of, in order: one input, or the windows
    of a recording."""

    def texts(self, outputs: Sequence[str]) -> list[str]:
        """Join the outputs of all inputs to texts."""
        return [" ".join(outputs[i].strip() for i in inputs) for inputs in self.parts]


@dataclass(frozen=True)
class ParityInputs:
    """The inputs of a comparison."""

    description: str
    sources: Sequence[EncoderInput]
    """Source token ids, at least one each, or features [mel bins, frames]."""
    origins: Sequence[str] = ()
    """The place of each source, such as "held_out.tsv, line 17"; empty: its number."""
    texts: list[str] | None = None
    """The texts of the sources, which the bundle's own tokenizer must turn into them."""
    decode: Decode | None = None
    """The checkpoint's tokenizer of outputs; None: its outputs are no texts."""
    task: Task | None = None
    source_language: str | None = None
    target_language: str | None = None
    """`source_language` and `target_language`: of texts, for a multilingual model; None: see
    `sources.assumed_language` and `oracle.oracle_for`."""
    references: References | None = None
    """Sources with references whose probability is compared."""
    random: bool = False
    """Whether the sources are random or of `sentence_inputs`, and say nothing about quality."""
    lines: Sequence[EncoderLine] | None = None
    """The texts or pairs of texts of an encoder-only model, with their tokens."""
    remark: str = ""

    @property
    def recorded(self) -> str:
        """The description in the record of parity."""
        return "; ".join(text for text in (self.description, self.remark) if text)


def text_metrics(
    checkpoint: OpenedCheckpoint,
    names: Sequence[str] | None,
    language: str | None = None,
    sources: Sequence[str] = (),
) -> list[Metric]:
    """Choose the metrics of outputs, the most important one first.

    Args:
        names: of `metrics.METRIC_NAMES`; None: those that its training recorded, a recipe's metrics
            or its own score, word error for speech, ROUGE-L for summaries, BLEU and chrF for any
            other text; none for a decoder-only model, since many continuations are right
    """
    recipe, config = checkpoint.recipe, checkpoint.model.config
    if names is not None:
        usual: Iterable[str] = dict.fromkeys(name for name in names if name != PERPLEXITY)
    elif checkpoint.trained_for:
        usual = checkpoint.trained_for
    elif recipe is not None and recipe.metrics:
        usual = recipe.metrics
    elif recipe is not None:
        return [] if recipe.score is None else [RecipeMetric(recipe, sources)]
    elif checkpoint.tokenizers is None or not config.has_encoder:
        return []
    elif config.takes_audio:
        usual = ("word-error",)
    else:
        usual = ("rouge-l",) if checkpoint.summarizes else ("bleu", "chrf")
    return [find_metric(name, language) for name in usual]


@dataclass(frozen=True)
class RecipeMetric(RatioMetric):
    """The figure that a recipe's training reports, a share of errors averaged over examples."""

    recipe: Recipe
    """One with a score."""
    sources: Sequence[str]
    higher_is_better: bool = False
    whole: float = 1

    @property
    def name(self) -> str:
        """The name of the recipe's metric."""
        return self.recipe.metric

    def shown(self, figure: float) -> str:
        """Format a figure as the recipe does."""
        return self.recipe.shown(figure)

    def figure(self, hypotheses: Sequence[str], references: TextReferences) -> float:
        """Compute the mean over all examples."""
        check_pairs(hypotheses, references)
        examples = [Example(s, tuple(r)) for s, r in zip(self.sources, references, strict=True)]
        return self._score(hypotheses, examples)

    def signature(self, references: TextReferences = ()) -> str:
        """Name the recipe."""
        return f"recipe:{self.recipe.name}"

    def _score(self, hypotheses: Sequence[str], examples: Sequence[Example]) -> float:
        assert self.recipe.score is not None
        return self.recipe.score(hypotheses, examples)[self.recipe.metric]

    def _sums(self, hypotheses: Sequence[str], references: TextReferences) -> NDArray[np.float64]:
        figures = [
            (self._score([text], [Example(source, tuple(right))]), 1)
            for text, source, right in zip(hypotheses, self.sources, references, strict=True)
        ]
        return np.array(figures, np.float64)


def random_inputs(
    model: ReferenceModel, count: int = RANDOM_SOURCES, *, seed: int = 0
) -> ParityInputs:
    """Make uniformly random tokens in ragged lengths from 1, or random sound."""
    generator = np.random.default_rng(seed)
    config = model.config
    features = audio_features(config)
    if features is not None:
        log_mel = LogMel.of(features)
        count = min(count, DEFAULT_WINDOWS)
        sounds: list[EncoderInput] = [
            log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
            for _ in range(count)
        ]
        origins = _numbered("random sound", count)
        description = describe_random(count, seed, audio=True)
        return ParityInputs(description, sounds, origins, random=True)
    vocabulary, positions = config.source_vocab_size or 0, config.max_source_positions
    if not config.has_encoder:  # prompts
        vocabulary, positions = config.target_vocab_size, config.max_target_positions // 2
    longest = max(1, min(LONGEST_RANDOM, positions))
    lengths = [1, longest, *generator.integers(1, longest + 1, size=max(0, count - 2))][:count]
    tokens = [generator.integers(0, vocabulary, size=n).tolist() for n in lengths]
    origins = _numbered("random source", count)
    return ParityInputs(describe_random(count, seed, audio=False), tokens, origins, random=True)


def sentence_inputs(model: ReferenceModel, count: int) -> ParityInputs:
    """Make windows of a spoken sentence: 1/count, 2/count, ..., all of it.

    A trained model ends its outputs after speech. After random sound it often generates as many
    tokens as there are positions, with distributions that rounding changes more than those of
    speech.

    Args:
        count: at most `DEFAULT_WINDOWS` are made

    Raises:
        AudioError: the libraries that read audio files are not installed, or cannot read Opus.
    """
    features = audio_features(model.config)
    assert features is not None
    log_mel, count = LogMel.of(features), min(count, DEFAULT_WINDOWS)
    sentence = read_audio(files(__package__).joinpath(SENTENCE).read_bytes(), log_mel.sampling_rate)
    sentence = sentence[: log_mel.samples]
    sounds = [log_mel.chunk(sentence[: len(sentence) * n // count]) for n in range(1, count + 1)]
    origins = [f"beginning {number} of the sentence" for number in range(1, count + 1)]
    return ParityInputs(describe_sentence(count), sounds, origins, random=True)


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what} {number}" for number in range(1, count + 1)]
