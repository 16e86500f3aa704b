"""The tokens that prompts of a speech model are made of, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SpeechTokens:
    """The tokens of a speech model's prompt (Radford et al. 2022, section 2.3).

    Attributes:
        languages: language code -> token; empty: the model knows one language, which prompts do
            not name
        tasks: "transcribe" and "translate" -> token; empty: prompts name no task
        no_timestamps_token_id: the last token of a prompt that asks for text alone; the timestamp
            tokens follow it, to the end of the vocabulary. None: the model has none.
        max_initial_timestamp_index: the latest first timestamp, in steps of 0.02 s; None: any
        default_language: a code; None: the language that the model finds most probable
        default_task: None: as at Hugging Face, audio in a language that the caller names is
            transcribed, and after a detected language the prompt names no task
        default_timestamps: whether timestamps are generated unless the caller says otherwise
    """

    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    no_timestamps_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    default_language: str | None = None
    default_task: str | None = None
    default_timestamps: bool = False

    @property
    def timestamp_begin(self) -> int | None:
        """The token of 0.00 s; all tokens from there on are timestamps."""
        last = self.no_timestamps_token_id
        return None if last is None else last + 1

    def language_of(self, token: int | None) -> str | None:
        """The code of a language's token."""
        return next((code for code, known in self.languages.items() if known == token), None)

    def problems(self, vocabulary: int) -> list[str]:
        """Values out of range for a target vocabulary of this size, a line each."""
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
                f"no_timestamps_token_id: expected a token id in [0, {vocabulary - 1}), followed "
                f"by timestamps, found {last}"
            )
        if self.default_timestamps and last is None:
            problems.append("default_timestamps: expected false, there are no timestamps")
        latest = self.max_initial_timestamp_index
        if latest is not None and latest < 0:
            problems.append(f"max_initial_timestamp_index: expected at least 0, found {latest}")
        for name, code, known in (
            ("default_language", self.default_language, self.languages),
            ("default_task", self.default_task, self.tasks),
        ):
            if code is not None and code not in known:
                names = ", ".join(sorted(known)) or "none"
                problems.append(f"{name}: expected one of {names}, found {code!r}")
        return problems
