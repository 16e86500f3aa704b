"""What is new in an output, as it is told to whoever reads along."""

from __future__ import annotations

from collections.abc import Sequence

from ...decoding.results import Token
from ...decoding.streaming import Choice
from ...texts.tokenizer import TextStream
from .engine import Engine


class Pieces:
    """Choices -> tokens with the text that each adds."""

    def __init__(self, engine: Engine) -> None:
        self._end_tokens = engine.model.manifest.end_tokens
        self._text: TextStream | None = engine.model.text_stream()

    def of(self, choices: Sequence[Choice]) -> list[Token]:
        return [
            Token(
                choice.token,
                self._text.step(choice.token) if self._text else None,
                choice.log_probability,
            )
            for choice in choices
            if choice.token not in self._end_tokens
        ]
