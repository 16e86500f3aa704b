"""Settings of speech models, and the languages and tasks that a call names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, TypedDict

from .fields import FLAG, TEXT, CommandOption


@dataclass(frozen=True)
class AudioFeatures:
    """A log-mel spectrogram's settings. `runtime.audio.LogMel` computes it.

    Attributes:
        bins: mel bands from 0 Hz to half the sampling rate; 80, or 128 from Whisper large-v3 on
        sampling_rate: samples per second
        n_fft: samples in a frame, an even number
        hop: samples from a frame to the next
        chunk_seconds: the length of the encoder's window
    """

    bins: int = 80
    sampling_rate: int = 16_000
    n_fft: int = 400
    hop: int = 160
    chunk_seconds: float = 30

    @property
    def samples(self) -> int:
        """Samples in a window: 480000."""
        return round(self.chunk_seconds * self.sampling_rate)

    @property
    def frames(self) -> int:
        """Frames in a window: 3000."""
        return self.samples // self.hop

    def problems(self) -> list[str]:
        """Values out of range, a line each."""
        problems = [
            f"{name}: expected at least 1, found {value}"
            for name, value in vars(self).items()
            if name != "chunk_seconds" and value < 1
        ]
        if not 0 < self.chunk_seconds < math.inf:
            problems.append(f"chunk_seconds: expected over 0, found {self.chunk_seconds}")
        if self.n_fft % 2:
            problems.append(f"n_fft: expected an even number, found {self.n_fft}")
        if not problems and (self.samples % self.hop or not self.samples):
            problems.append(
                f"hop: expected a divisor of the {self.samples} samples of a window, found "
                f"{self.hop}"
            )
        return problems


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


@dataclass(frozen=True, kw_only=True)
class LanguageOptions:
    """The languages of a call, and what a speech model does.

    Attributes:
        source_language, target_language: multilingual text models: codes as the model names
            them; None: the bundle's default
        language: speech: the spoken language, a code or an English name; None: the bundle's
            default, or the language that the model finds most probable
        task: speech: "transcribe", or "translate" to English; None: the bundle's default
        timestamps: speech: whether to generate timestamps; None: the bundle's default. Audio longer
            than a window is decoded with them in any case, since they say where the next window
            begins.
    """

    source_language: Annotated[
        str | None,
        TEXT,
        CommandOption("languages", "Language of the texts [the bundle's].", metavar="CODE"),
    ] = None
    target_language: Annotated[
        str | None,
        TEXT,
        CommandOption("languages", "Language to translate to [the bundle's].", metavar="CODE"),
    ] = None
    language: Annotated[
        str | None,
        TEXT,
        CommandOption(
            "languages",
            "Speech: spoken language, such as de or german [detected].",
            metavar="CODE",
        ),
    ] = None
    task: Annotated[
        str | None,
        TEXT,
        CommandOption(
            "languages",
            "Speech: transcribe, or translate to English [the bundle's].",
            choices=("transcribe", "translate"),
        ),
    ] = None
    timestamps: Annotated[
        bool | None,
        FLAG,
        CommandOption("languages", "Speech: write each segment with its times [the bundle's]."),
    ] = None


class LanguageKeywords(TypedDict, total=False):
    """The fields of `LanguageOptions` as keyword arguments."""

    source_language: str | None
    target_language: str | None
    language: str | None
    task: str | None
