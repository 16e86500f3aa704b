"""Hyper-parameters of the head of an encoder-only model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from dragoman.errors import shown
from dragoman.settings.head import HeadTask

from .settings import ConfigError, all_are, wrong_names

Pooling = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DenseActivation = Literal["identity", "relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
LayerKind = Literal["dense", "layer_norm", "normalize"]


@dataclass(frozen=True, kw_only=True)
class EmbeddingLayer:
    """A layer that an embedding passes after pooling.

    - dense: f(x W + b)
    - layer_norm: layer normalization with gain and bias
    - normalize: division by the Euclidean length

    Raises:
        ConfigError: on construction, naming every field that is out of range.
    """

    kind: LayerKind
    size: int = 0
    """Outputs of a dense layer; 0 for other kinds, which keep the size."""
    activation: DenseActivation = "identity"
    bias: bool = True

    def __post_init__(self) -> None:
        problems = _wrong_types(self)
        if not problems and (self.size > 0) != (self.kind == "dense"):
            expected = "at least 1" if self.kind == "dense" else "0"
            problems = [f"size: expected {expected} for {self.kind}, found {shown(self.size)}"]
        if problems:
            raise ConfigError([f"after_pooling.{problem}" for problem in problems])


@dataclass(frozen=True, kw_only=True)
class HeadConfig(HeadTask):
    """The shape and the arithmetic of a head.

    See Devlin et al. 2018, section 3.2 and figure 4, and Reimers & Gurevych 2019, section 3.

    - embedding: hidden states -> an embedding: pooling, then `after_pooling`
    - sequence-classification: the first token's hidden state -> a dense layer -> a logit per label;
      after decoder layers, the hidden state of the last end token (Lewis et al. 2020, section 3.1)
    - token-classification: each token's hidden state -> a logit per label
    - masked-language-model: each token's hidden state -> a dense layer -> LayerNorm -> a logit for
      each token of the vocabulary, by the token embedding
    - question-answering: each token's hidden state -> two logits, for the start and the end of the
      answer

    Raises:
        ConfigError: on construction, naming every field that is out of range.
    """

    pooling: tuple[Pooling, ...] = ("mean",)
    """How an embedding is pooled; the vectors of several are concatenated. mean: mean over all
    tokens; cls: the first token's hidden state; max: maximum of each component over all tokens;
    mean_sqrt_len_tokens: sum over all tokens, divided by the root of their number; weightedmean:
    mean in which the n-th token counts n times; lasttoken: the last token's hidden state."""
    after_pooling: tuple[EmbeddingLayer, ...] = ()
    """The layers that an embedding passes after pooling, in order."""
    truncate_dim: int = 0
    """Components that an embedding keeps, after all layers; 0: all."""
    dense_size: int = 0
    """Outputs of the dense layer before the logits, which is d_model; 0 for none."""
    dense_activation: DenseActivation = "tanh"
    mask_token_id: int = 0
    """The mask token, in whose place a masked language model predicts a token."""

    def __post_init__(self) -> None:
        problems = [*_wrong_types(self)]
        if not problems:
            problems = self._out_of_range()
        if problems:
            raise ConfigError([f"head.{problem}" for problem in problems])

    def _out_of_range(self) -> list[str]:
        problems = []
        for name in ("dense_size", "truncate_dim"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must be at least 0, found {shown(getattr(self, name))}")
        if not self.pooling:
            problems.append("pooling must be at least one, found none")
        if self.after_pooling and self.task != "embedding":
            problems.append(f"after_pooling is for embeddings, found {self.task}")
        if self.classifies != bool(self.labels):
            expected = "at least one" if self.classifies else "none"
            problems.append(
                f"labels: expected {expected} for {self.task}, found {shown(self.labels)}"
            )
        if self.multi_label and self.task != "sequence-classification":
            problems.append(f"multi_label is for sequence-classification, found {self.task}")
        if self.mask_token_id < 0:
            problems.append(f"mask_token_id must be at least 0, found {shown(self.mask_token_id)}")
        return problems

    def pooled_size(self, d_model: int) -> int:
        """Return the size of an embedding before its layers."""
        return d_model * len(self.pooling)

    def embedding_size(self, d_model: int) -> int:
        """Return the size of an embedding before truncation."""
        sizes = [layer.size for layer in self.after_pooling if layer.kind == "dense"]
        return sizes[-1] if sizes else self.pooled_size(d_model)

    @classmethod
    def from_dict(cls, values: object) -> HeadConfig:
        """Build from plain data.

        Raises:
            ConfigError: names every unknown, missing or invalid field.
        """
        if not isinstance(values, Mapping):
            raise ConfigError([f"head: expected an object, found {shown(values)}"])
        if problems := wrong_names(cls, values):
            raise ConfigError([f"head: {problem}" for problem in problems])
        known = dict(values)
        for name in ("labels", "pooling", "after_pooling"):
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        if isinstance(known.get("after_pooling"), tuple):
            known["after_pooling"] = tuple(map(_layer, known["after_pooling"]))
        return cls(**known)


def _layer(values: object) -> object:
    """Build a layer from plain data; a `HeadConfig` refuses what is none."""
    names = {field.name for field in dataclasses.fields(EmbeddingLayer)}
    if not isinstance(values, Mapping) or not {"kind"} <= set(values) <= names:
        return values
    return EmbeddingLayer(**values)


def _wrong_types(record: HeadConfig | EmbeddingLayer) -> list[str]:
    problems = []
    for name, hint in get_type_hints(type(record)).items():
        value: Any = getattr(record, name)
        if hint is bool:
            good, expected = isinstance(value, bool), "true or false"
        elif hint is int:
            good, expected = type(value) is int and value < 2**31, "an integer of 32 bits"
        elif name == "labels":
            good = isinstance(value, tuple) and all_are(str, value)
            expected = "a list of texts"
        elif name == "after_pooling":
            good = isinstance(value, tuple) and all_are(EmbeddingLayer, value)
            expected = "a list of layers, each with a kind"
        elif name == "pooling":
            modes = get_args(Pooling)
            good = isinstance(value, tuple) and all(mode in modes for mode in value)
            expected = "a list of " + ", ".join(modes)
        else:
            good, expected = value in get_args(hint), "one of " + ", ".join(get_args(hint))
        if not good:
            problems.append(f"{name} must be {expected}, found {shown(value)}")
    return problems
