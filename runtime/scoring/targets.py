"""What is common to targets of texts and of speech: token ids, the end token, the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..decoding.options import shown
from ..decoding.rejection import RejectedError
from ..format.manifest import Manifest
from ..texts.front_end import token_ids
from ..texts.tokenizer import EncodedTarget, TextCodec, TooLongError, UnknownSymbolsError


def split_pair(pair: Any) -> tuple[Any, Any]:
    """
    Raises:
        RejectedError: it is not a pair.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise RejectedError(f"expected a pair of source and target, found {shown(pair)}")
    return pair[0], pair[1]


class Targets:
    """Turns targets of a model into the tokens to score.

    Args:
        codec: None for a bundle without tokenizers
    """

    def __init__(self, manifest: Manifest, codec: TextCodec | None) -> None:
        self._manifest, self._codec = manifest, codec
        capacity = manifest.executable.capacity
        self._positions = capacity or manifest.model.max_target_positions
        self._limit = "capacity of its engines" if capacity else "positions of this model"

    def encode(self, text: str) -> EncodedTarget:
        """
        Raises:
            RejectedError: the bundle has no tokenizers, or they do not know a symbol, fail, or make
                far too many tokens of the text.
        """
        if self._codec is None:
            raise RejectedError("this bundle has no tokenizers: expected token ids as target")
        try:
            return self._codec.encode_target(text, most=self._positions)
        except UnknownSymbolsError as error:
            raise RejectedError(f"target: {error}") from error
        except TooLongError as error:
            raise self._too_long(str(error), self._positions) from error

    def ids(self, target: Any) -> list[int]:
        """A target that is not a text.

        Raises:
            RejectedError: it is not a list of token ids of the model.
        """
        tokens = token_ids(target, or_text="a text or ")
        vocabulary = self._manifest.model.target_vocab_size
        unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise RejectedError(f"target: expected token ids in [0, {vocabulary}), found {unknown}")
        return tokens

    def finished(
        self, tokens: Sequence[int], given: Sequence[int], end_token: bool | None
    ) -> tuple[int, ...]:
        """The tokens to score: with the end token if it is asked for and not there yet.

        Args:
            given: what the decoder reads before them

        Raises:
            RejectedError: there are none, or more than the model has positions.
        """
        ends = self._manifest.end_tokens
        if end_token is None:
            end_token = self._manifest.model.has_encoder
        if end_token and ends and not (tokens and tokens[-1] in ends):
            end = self._manifest.model.end_token_id
            tokens = [*tokens, end if end in ends else ends[0]]
        if not tokens:
            raise RejectedError("target: expected at least one token to score, found none")
        longest = self._positions + 1 - len(given)  # the last token is not read
        if len(tokens) > longest:
            raise self._too_long(f"{len(tokens)} tokens", longest)
        return tuple(tokens)

    def _too_long(self, found: str, longest: int) -> RejectedError:
        return RejectedError(
            f"target has {found}, expected at most {longest}, by the {self._limit}"
        )
