"""What a caller may ask of scoring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, Unpack

from dragoman.errors import DragomanError

from ..decoding.options import DEFAULT_BATCH_SIZE, is_integer, replaced, shown


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Options of one call of `Model.score`.

    Attributes:
        end_token: whether the end token is appended to every target and scored. It is not appended
            to token ids that end with one, nor for a model whose outputs no token ends. None: yes,
            but not for a decoder alone, whose texts go on.
        source_language, target_language: multilingual text models: codes as the model names
            them; None: the bundle's default
        language: speech: the spoken language, a code or an English name; None: the bundle's
            default, or the language that the model finds most probable
        task: speech: "transcribe", or "translate" to English; None: the bundle's default
        timestamps: speech: whether targets, which are then token ids, have timestamps
        max_batch_size: the most pairs scored together

    Raises:
        DragomanError: an option is out of range; lists all.
    """

    end_token: bool | None = None
    source_language: str | None = None
    target_language: str | None = None
    language: str | None = None
    task: str | None = None
    timestamps: bool = False
    max_batch_size: int = DEFAULT_BATCH_SIZE

    def __post_init__(self) -> None:
        values = vars(self)
        problems = [
            f"{name}: expected True or False, found {shown(values[name])}"
            for name, kind in (("end_token", bool | None), ("timestamps", bool))
            if not isinstance(values[name], kind)
        ]
        problems += [
            f"{name}: expected a text, found {shown(values[name])}"
            for name in ("source_language", "target_language", "language", "task")
            if not isinstance(values[name], str | None)
        ]
        if not is_integer(self.max_batch_size) or self.max_batch_size < 1:
            problems.append(
                "max_batch_size: expected an integer of at least 1, found "
                f"{shown(self.max_batch_size)}"
            )
        if problems:
            raise DragomanError("; ".join(problems))

    def replace(self, **changes: Unpack[ScoringKeywords]) -> ScoringOptions:
        """The same options with some changed.

        Raises:
            DragomanError: an option is unknown or out of range.
        """
        return replaced(self, changes)


class ScoringKeywords(TypedDict, total=False):
    """The fields of `ScoringOptions` as keyword arguments."""

    end_token: bool | None
    source_language: str | None
    target_language: str | None
    language: str | None
    task: str | None
    timestamps: bool
    max_batch_size: int
