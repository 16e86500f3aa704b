"""The sizes and special tokens of a model that its runtime needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSpec:
    """What decoding needs to know of a model, whatever framework it was trained in.

    Attributes:
        source_vocab_size: None: the source is features of audio, not tokens; see `takes_audio`
    """

    source_vocab_size: int | None
    target_vocab_size: int
    decoder_layers: int
    num_heads: int
    head_size: int
    max_source_positions: int
    max_target_positions: int
    pad_token_id: int
    start_token_id: int
    end_token_id: int

    @property
    def takes_audio(self) -> bool:
        """Whether the source is a window of audio features, as long as every other, not tokens."""
        return self.source_vocab_size is None

    def problems(self) -> list[str]:
        """Values out of range, a line each."""
        problems = []
        for name, value in vars(self).items():
            if value is not None and value < (0 if name.endswith("_id") else 1):
                problems.append(f"{name}: out of range, found {value}")
        source = self.source_vocab_size or self.target_vocab_size
        for name, vocabulary in (
            ("pad_token_id", min(source, self.target_vocab_size)),
            ("start_token_id", self.target_vocab_size),
            ("end_token_id", self.target_vocab_size),
        ):
            value = getattr(self, name)
            if value >= vocabulary:
                problems.append(
                    f"{name}: expected less than {vocabulary}, the vocabulary, found {value}"
                )
        return problems
