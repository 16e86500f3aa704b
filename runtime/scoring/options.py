"""Options of a call that scores targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Unpack

from dragoman.errors import DragomanError
from dragoman.settings.fields import Check, integer, replaced, wrong_fields
from dragoman.settings.generation import DEFAULT_BATCH_SIZE
from dragoman.settings.speech import LanguageKeywords, LanguageOptions


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(LanguageOptions):
    """Options of one call of `Model.score`.

    Attributes:
        end_token: whether to append the end token to every target and score it. It is not appended
            to token ids that end with one, nor for a model without an end token. None: True, or
            False for a decoder-only model.
        source_language, target_language, language, task: see `LanguageOptions`
        timestamps: for speech, whether targets have timestamps; they must be token ids then
        max_batch_size: maximum number of pairs scored together

    Raises:
        DragomanError: options are out of range; lists all of them.
    """

    end_token: Annotated[
        bool | None, Check("True or False", lambda v: isinstance(v, bool | None))
    ] = None
    timestamps: Annotated[bool, Check("True or False", lambda v: isinstance(v, bool))] = False
    max_batch_size: Annotated[int, integer(1, optional=False)] = DEFAULT_BATCH_SIZE

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        if problems:
            raise DragomanError("; ".join(problems))

    def replace(self, **changes: Unpack[ScoringKeywords]) -> ScoringOptions:
        """Return the options with some changed.

        Raises:
            DragomanError: an option is unknown or out of range.
        """
        return replaced(self, changes)


class ScoringKeywords(LanguageKeywords, total=False):
    """The fields of `ScoringOptions` as keyword arguments, for type checkers and editors."""

    end_token: bool | None
    timestamps: bool
    max_batch_size: int
