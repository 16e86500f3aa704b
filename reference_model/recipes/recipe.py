"""The record of a recipe: everything needed to train a model from scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from tokenizers import Tokenizer

from dragoman.errors import DragomanError
from dragoman.metrics import Metric, find_metric, metrics_that_judge, name_of
from dragoman.metrics.sacrebleu_metrics import SacreBleu

from ..config import ModelConfig
from ..training import TrainingOptions
from .examples import Example, references_of

SOURCE_TOKENIZER_FILE = "source_tokenizer.json"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"
HELD_OUT_FILE = "held_out.tsv"
RECIPE_FILE = "recipe.json"
AT_THE_LIMIT = "outputs reached the limit"
"""The name in records of the number of outputs that used all of the model's positions and did not
end."""


class Examples(Protocol):
    """Examples whose number is known, and which can be read repeatedly."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Example]: ...


@dataclass(frozen=True)
class Data:
    """Examples for training, validation and the final scores."""

    train: Examples
    validation: list[Example]
    held_out: list[Example]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of pairs removed from `train`, by reason."""


class Tokenizers(NamedTuple):
    """The tokenizers of both sides, each of which ends a text with the end token."""

    source: Tokenizer
    target: Tokenizer


Score = Callable[[Sequence[str], Sequence[Example]], dict[str, float]]
"""Outputs and their examples -> figures by name, the recipe's metric first."""


@dataclass(frozen=True)
class Recipe:
    """A model that Dragoman can train from scratch."""

    name: str
    summary: str
    config: ModelConfig
    options: TrainingOptions
    load_data: Callable[[Path | None], Data]
    """The data, from a folder for recipes that need one."""
    make_tokenizers: Callable[[Data], Tokenizers]
    metric: str
    """The name of the figure that training reports after each epoch, such as "word error"."""
    score: Score | None
    """None for a language model, whose figure is its perplexity."""
    metrics: Sequence[str] = ()
    """Names in `dragoman.metrics` of the figures that `score` returns; if empty, `score` is the
    recipe's own error rate."""
    lowercase: bool = False
    """Whether outputs are in lower case, so that metrics ignore case."""
    licences: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """Licence texts of the data, by the name of the file each is written to."""
    duration: str = ""
    """The duration of the training, as a text for users."""
    open_vocabulary: bool = False
    """Whether the sizes of the vocabularies follow from the texts; those of `config` stand in."""
    vocabulary: str = ""
    """The options of `make_tokenizers`, if any. A training with other tokenizers cannot resume."""
    own_tokenizers: Tokenizers | None = None
    """The tokenizers of the user's files, which `make_tokenizers` returns; None: it trains some."""
    alignment_layer: int | None = None
    """The decoder layer, counted from 0, whose cross-attention aligns words best; None: the last
    but one."""
    shown: Callable[[float], str] = "{:.2%}".format
    """Formats a figure for users, if it is none of `dragoman.metrics`."""

    def config_for(self, tokenizers: Tokenizers) -> ModelConfig:
        """Return the configuration of a model with these tokenizers."""
        if not self.open_vocabulary:
            return self.config
        source, target = (tokenizer.get_vocab_size() for tokenizer in tokenizers)
        return self.config.replace(source_vocab_size=source, target_vocab_size=target)

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher metric is better."""
        return bool(self.metrics) and find_metric(self.metrics[0]).higher_is_better

    def signatures(self, examples: Sequence[Example]) -> dict[str, str]:
        """Describe how each of `metrics` is computed."""
        references = references_of(examples)
        return {name: self._found(name).signature(references) for name in self.metrics}

    def scored_by(self, names: Sequence[str]) -> Recipe:
        """Return the recipe with other metrics, the most important one first.

        Raises:
            DragomanError: the recipe is a language model's, a metric is unknown, or its library is
                missing.
        """
        if self.score is None:
            raise DragomanError(
                f"--metric: expected none for {self.name}, a language model, which is judged by "
                f"its perplexity; found {', '.join(names)}"
            )
        found = [self._found(name) for name in dict.fromkeys(names)]
        return replace(
            self,
            metric=found[0].name,
            metrics=[*dict.fromkeys(names)],
            score=partial(_figures, found, self.lowercase),
        )

    def judging(self, examples: Sequence[Example]) -> tuple[Recipe, str]:
        """Replace BLEU if it is 0 for every output, with a remark; see `metrics_that_judge`."""
        found = [self._found(name) for name in self.metrics]
        metrics, remark = metrics_that_judge(found, references_of(examples))
        return (self.scored_by([name_of(m) for m in metrics]), remark) if remark else (self, "")

    def _found(self, name: str) -> Metric:
        metric = find_metric(name)
        if self.lowercase and isinstance(metric, SacreBleu):
            return replace(metric, lowercase=True)
        return metric


def _figures(
    metrics: Sequence[Metric],
    lowercase: bool,
    hypotheses: Sequence[str],
    examples: Sequence[Example],
) -> dict[str, float]:
    references = references_of(examples)
    if lowercase:
        hypotheses = [text.lower() for text in hypotheses]
        references = [tuple(text.lower() for text in each) for each in references]
    return {metric.name: metric.figure(hypotheses, references) for metric in metrics}
