"""The sizes and special tokens of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dragoman.errors import shown
from dragoman.settings.fields import LEFT_OUT


@dataclass(frozen=True)
class ModelSpec:
    """The sizes and special tokens of a model, independent of the training framework.

    Sizes of a missing encoder or decoder are 0. An encoder-only model has no target vocabulary,
    decoder layers or target positions; a decoder-only model has no source vocabulary or source
    positions.
    """

    source_vocab_size: int | None
    """Size of the source vocabulary; None: the source is audio features, see `takes_audio`."""
    target_vocab_size: int
    decoder_layers: int
    num_heads: int
    head_size: int
    """Size of the queries and keys of a head."""
    max_source_positions: int
    max_target_positions: int
    pad_token_id: int
    start_token_id: int
    end_token_id: int
    value_size: Annotated[int | None, LEFT_OUT] = None
    """Size of the values of a head; None: `head_size`."""
    state_size: Annotated[int | None, LEFT_OUT] = None
    """Size of the state of each layer of a recurrent decoder; None: the layers have
    self-attention."""

    @property
    def takes_audio(self) -> bool:
        """Whether the source is a window of audio features of fixed length instead of tokens."""
        return self.source_vocab_size is None

    @property
    def has_encoder(self) -> bool:
        """Whether the model reads a source."""
        return self.source_vocab_size != 0

    @property
    def has_decoder(self) -> bool:
        """Whether the model generates a target."""
        return self.target_vocab_size != 0

    @property
    def input_vocab_size(self) -> int:
        """The vocabulary size of sources, or of prompts of a decoder-only model; 0 for audio."""
        return (self.source_vocab_size if self.has_encoder else self.target_vocab_size) or 0

    @property
    def input_positions(self) -> int:
        """The largest number of tokens of an input."""
        return self.max_source_positions if self.has_encoder else self.max_target_positions

    def problems(self) -> list[str]:
        """Return one line for each value out of range."""
        names = ["num_heads", "head_size", "value_size", "state_size"]
        of_encoder = ("source_vocab_size", "max_source_positions")
        of_decoder = ("target_vocab_size", "decoder_layers", "max_target_positions")
        problems = []
        for present, side, of_side in (
            (self.has_encoder, "encoder", of_encoder),
            (self.has_decoder, "decoder", of_decoder),
        ):
            names += of_side if present else ()
            problems += [
                f"{name}: expected 0 in a model without {side}, found {shown(getattr(self, name))}"
                for name in of_side
                if not present and getattr(self, name) != 0
            ]
        sizes = {name: getattr(self, name) for name in names}
        problems += [
            f"{name}: out of range, found {shown(value)}"
            for name, value in sizes.items()
            if value is not None and value < 1
        ]
        if self.state_size is not None and not (self.has_encoder and self.has_decoder):
            problems.append(
                "state_size: expected none in a model without encoder or decoder, found "
                f"{shown(self.state_size)}"
            )
        return problems + self._token_problems()

    def _token_problems(self) -> list[str]:
        vocabularies = [size for size in (self.source_vocab_size, self.target_vocab_size) if size]
        of_target = self.target_vocab_size or 1
        problems = []
        for name, vocabulary in (
            ("pad_token_id", min(vocabularies, default=0)),
            ("start_token_id", of_target),
            ("end_token_id", of_target),
        ):
            value = getattr(self, name)
            if value < 0:
                problems.append(f"{name}: out of range, found {shown(value)}")
            if value >= vocabulary:
                problems.append(
                    f"{name}: expected less than {vocabulary}, the vocabulary, found {shown(value)}"
                )
        return problems
