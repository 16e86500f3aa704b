"""What Whisper is told by the tokens of its prompt (Radford et al. 2022, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.errors import DragomanError

from ..audio.timestamps import TimestampRule
from .language_names import language_code


@dataclass(frozen=True, kw_only=True)
class Speech:
    """The tokens that prompts of a speech model are made of; plain data.

    Attributes:
        languages: language code -> token; empty: the model knows one language and is not told it
        tasks: "transcribe" and "translate" -> token; empty: it is not told a task
        no_timestamps_token_id: the last token of a prompt that asks for text alone; the tokens of
            times follow it, to the end of the vocabulary. None: the model has none.
        max_initial_timestamp_index: the latest first time, in steps of 0.02 s; None: any
        default_language: a code; None: what the model finds most probable
        default_task: None: as Hugging Face has it, a given language is transcribed, and with a
            language that is found the prompt says no task
    """

    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    no_timestamps_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    default_language: str | None = None
    default_task: str | None = None

    def problems(self, vocabulary: int) -> list[str]:
        """What is wrong, for a target vocabulary of so many tokens."""
        ids = {f"languages.{code}": token for code, token in self.languages.items()}
        ids |= {f"tasks.{task}": token for task, token in self.tasks.items()}
        problems = [
            f"{name}: expected a token id in [0, {vocabulary}), found {token}"
            for name, token in ids.items()
            if not 0 <= token < vocabulary
        ]
        last = self.no_timestamps_token_id
        if last is not None and not 0 <= last < vocabulary - 1:
            problems.append(
                f"no_timestamps_token_id: expected a token id in [0, {vocabulary - 1}), with times "
                f"after it, found {last}"
            )
        latest = self.max_initial_timestamp_index
        if latest is not None and latest < 0:
            problems.append(f"max_initial_timestamp_index: expected at least 0, found {latest}")
        for name, chosen, known in (
            ("default_language", self.default_language, self.languages),
            ("default_task", self.default_task, self.tasks),
        ):
            if chosen is not None and chosen not in known:
                problems.append(f"{name}: expected one of {_listed(known)}, found {chosen!r}")
        return problems

    @property
    def timestamp_begin(self) -> int | None:
        """The token of 0.00 s; from there on all tokens are times."""
        last = self.no_timestamps_token_id
        return None if last is None else last + 1

    def timestamp_rule(self, end_token_id: int) -> TimestampRule | None:
        """None: the model has no times."""
        last = self.no_timestamps_token_id
        if last is None:
            return None
        return TimestampRule(end_token_id, last, self.max_initial_timestamp_index)

    def language_of(self, token: int | None) -> str | None:
        """The code of a language's token."""
        return next((code for code, known in self.languages.items() if known == token), None)

    def language_token(self, asked: SpeechOptions) -> int | None:
        """None: the model is not told a language, or is to find it."""
        code = asked.language or self.default_language
        return None if code is None else self.languages[code]

    def instructions(self, asked: SpeechOptions, *, timestamps: bool) -> tuple[int, ...]:
        """What follows the language in the prompt, as Hugging Face's `generate` makes it.

        Args:
            timestamps: whether times are generated, which `asked` alone does not say
        """
        task = asked.task or self.default_task
        if task is None and self.language_token(asked) is not None and "transcribe" in self.tasks:
            task = "transcribe"
        tokens = [] if task is None else [self.tasks[task]]
        if not timestamps and self.no_timestamps_token_id is not None:
            tokens.append(self.no_timestamps_token_id)
        return tuple(tokens)


@dataclass(frozen=True)
class SpeechOptions:
    """What a caller asks of a speech model.

    Attributes:
        language: a code; None: the bundle's, or what the model finds most probable
        task: "transcribe", or "translate" to English; None: see `Speech.default_task`
        timestamps: whether to generate times. Audio of more than a window is decoded with them in
            any case: they say where the next window begins.
    """

    language: str | None = None
    task: str | None = None
    timestamps: bool = False

    @classmethod
    def of(cls, language: str | None, task: str | None, timestamps: bool) -> SpeechOptions:
        """Of a language by any of its names, see `language_names.language_code`."""
        return cls(None if language is None else language_code(language), task, timestamps)

    def check(self, speech: Speech) -> None:
        """
        Raises:
            DragomanError: the model does not know the language, the task or times.
        """
        problems = []
        for name, asked, known in (
            ("language", self.language, speech.languages),
            ("task", self.task, speech.tasks),
        ):
            if asked is not None and not known:
                problems.append(
                    f"{name}: expected none, this model transcribes one language, found {asked!r}"
                )
            elif asked is not None and asked not in known:
                problems.append(f"{name}: expected one of {_listed(known)}, found {asked!r}")
        if self.timestamps and speech.no_timestamps_token_id is None:
            problems.append("timestamps: expected none, this model has no tokens for times")
        if problems:
            raise DragomanError("; ".join(problems))


def _listed(names: dict[str, int]) -> str:
    return ", ".join(sorted(names)) or "none"
