"""The prompts of speech models (Radford et al. 2022, section 2.3)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dragoman.errors import DragomanError

from ..decoding.options import GenerationOptions, PromptOptions
from ..format.manifest import Manifest
from ..format.speech import SpeechTokens
from .language_names import language_code


@dataclass(frozen=True)
class PromptRequest:
    """What a caller wants a speech model to be told.

    Attributes:
        language: a code; None: the bundle's default, or the most probable one
        task: None: see `SpeechTokens.default_task`
        timestamps: whether to generate timestamps
    """

    language: str | None = None
    task: str | None = None
    timestamps: bool = False

    @classmethod
    def of(cls, options: PromptOptions, speech: SpeechTokens) -> PromptRequest:
        """The request in the options of a call.

        Raises:
            DragomanError: the model does not know the language, the task or timestamps.
        """
        name = options.language
        language = None if name is None else language_code(name)
        timestamps = options.timestamps
        if timestamps is None:
            timestamps = speech.default_timestamps
        request = cls(language, options.task, timestamps)
        request.check(speech)
        return request

    def check(self, speech: SpeechTokens) -> None:
        """
        Raises:
            DragomanError: the model does not know the language, the task or timestamps.
        """
        problems = []
        for name, value, known in (
            ("language", self.language, speech.languages),
            ("task", self.task, speech.tasks),
        ):
            if value is not None and not known:
                problems.append(
                    f"{name}: expected none, this model transcribes one language: leave it out, "
                    f"found {value!r}"
                )
            elif value is not None and value not in known:
                problems.append(
                    f"{name}: expected one of {', '.join(sorted(known))}, found {value!r}"
                )
        if self.timestamps and speech.no_timestamps_token_id is None:
            problems.append("timestamps: expected none, this model has no timestamp tokens")
        if problems:
            raise DragomanError("; ".join(problems))

    def with_timestamps(self, timestamps: bool) -> PromptRequest:
        return dataclasses.replace(self, timestamps=timestamps)

    def language_token(self, speech: SpeechTokens) -> int | None:
        """None: the model is not told a language, or detects it."""
        code = self.language or speech.default_language
        return None if code is None else speech.languages[code]

    def instructions(self, speech: SpeechTokens) -> tuple[int, ...]:
        """The tokens after the language, as Hugging Face's `generate` makes them."""
        task = self.task or speech.default_task
        named = self.language_token(speech) is not None
        if task is None and named and "transcribe" in speech.tasks:
            task = "transcribe"
        tokens = [] if task is None else [speech.tasks[task]]
        if not self.timestamps and speech.no_timestamps_token_id is not None:
            tokens.append(speech.no_timestamps_token_id)
        return tuple(tokens)


def prompt_options(manifest: Manifest) -> GenerationOptions:
    """The options of `Model.generate` that lead to the prompt stated in the manifest, for parity
    and calibration. A text model has no other prompt.
    """
    if manifest.speech is None:
        return GenerationOptions()
    prompt = manifest.generation.prompt
    return GenerationOptions(
        language=_name_in(manifest.speech.languages, prompt),
        task=_name_in(manifest.speech.tasks, prompt),
        timestamps=False,
    )


def greedy_options(manifest: Manifest) -> GenerationOptions:
    """The same, and greedy search whatever the bundle's own strategy is."""
    return prompt_options(manifest).replace(num_beams=1, do_sample=False)


def _name_in(tokens: dict[str, int], prompt: tuple[int, ...]) -> str | None:
    return next((name for name, token in tokens.items() if token in prompt), None)
