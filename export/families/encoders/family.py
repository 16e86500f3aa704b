"""A family of encoders at Hugging Face: everything that sets it apart, as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.reference_model import ConfigError
from dragoman.reference_model.head_config import DenseActivation, Task

from ...formats.json_files import Values
from ...tokenizers import TokenizerKind
from ..settings_reader import SettingsReader

NOT_INTEGERS = ("dropout", "norm_epsilon")
"""Of the fields of `ModelConfig` that families name."""


@dataclass(frozen=True)
class HeadNames:
    """What stands on an encoder for a task, in one family.

    Attributes:
        parts: names of the head's modules in `EncoderModel` and in the checkpoint
        activation: of the dense layer; None: the one that the encoder's feed-forward has
    """

    parts: Mapping[str, str]
    activation: DenseActivation | None = None

    @property
    def has_dense(self) -> bool:
        return "dense.linear" in self.parts


@dataclass(frozen=True)
class EncoderFamily:
    """All that is known of a family.

    Attributes:
        model_type: its name in `config.json`
        describes: models that people know it by
        prefix: of the encoder's weights in a model with a head, as in `bert.embeddings`
        class_prefix: of its classes, as in `BertForMaskedLM`
        fields: fields of `ModelConfig`, and what `config.json` calls them
        activation: the field that names the activation
        defaults: values for fields that a `config.json` leaves out
        parts: parts of a parameter's name in `EncoderModel`, replaced in this order
        heads: by task; an embedding needs none of its own
        positions_follow_padding: the table of positions begins after as many rows as the padding
            token's id and one more, as in fairseq
        tokenizers: the kinds of tokenizers that its checkpoints have
        mask: the text of the token that stands where one is to be found
    """

    model_type: str
    describes: str
    prefix: str
    class_prefix: str
    fields: Mapping[str, str]
    activation: str
    defaults: Mapping[str, Any]
    parts: Mapping[str, str]
    heads: Mapping[Task, HeadNames]
    tokenizers: tuple[TokenizerKind, ...]
    mask: str
    positions_follow_padding: bool = False

    def known(self, values: Values) -> dict[str, Any]:
        """The fields of a `config.json`, with defaults for those that it leaves out."""
        return {**self.defaults, **{k: v for k, v in values.items() if v is not None}}

    def sizes(self, values: Values) -> dict[str, int]:
        """The fields that count something, by the names of a `config.json`.

        Raises:
            ConfigError: some are no integers of at least 0; all are listed.
        """
        problems: list[str] = []
        read = SettingsReader(self.known(values), problems)
        names = [theirs for ours, theirs in self.fields.items() if ours not in NOT_INTEGERS]
        sizes = {name: read.number(name, 0) for name in (*names, "type_vocab_size")}
        if problems:
            raise ConfigError(problems)
        return sizes

    def first_position(self, values: Values) -> int:
        """The row of the table of positions that the first token gets."""
        return self.sizes(values)["pad_token_id"] + 1 if self.positions_follow_padding else 0
