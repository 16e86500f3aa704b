"""Checks the arguments of `Model`'s methods: abilities, lists, numbers, options, time limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.files.text_lines import Line, source_of
from dragoman.settings.fields import is_integer, is_number
from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from .format.manifest import Manifest

ENCODER_METHODS = {
    "embedding": ("computes embeddings", "encode"),
    "sequence-classification": ("classifies texts", "classify"),
    "token-classification": ("tags words", "tag"),
    "masked-language-model": ("fills masks", "fill"),
    "question-answering": ("answers questions", "answer"),
}
"""The result of an encoder-only model, and the method that computes it, by the task of its head."""

Plan = TypeVar("Plan")

Source = (
    str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
)
"""A text, or its token ids including special tokens. For a speech model, the path of an audio
file, samples [samples] (`audio.Audio`), or features float32 [mel bins, frames]."""

DECODING_METHODS = ("generate", "stream", "score", "detokenize")


MOST_SECONDS = 1e9
"""Longer time limits are cut: the clock does not count further."""


class AbilityError(DragomanError):
    """A method was called that models of this kind do not have."""


class StoppedError(DragomanError):
    """A call was stopped before all of its inputs were finished.

    Attributes:
        finished: finished results by index of their input
    """

    def __init__(self, message: str, finished: Mapping[int, Any] | None = None) -> None:
        super().__init__(message)
        self.finished = dict(finished or {})


class DeadlineError(StoppedError):
    """A call, or a request of the server, exceeded its time limit."""

    status, code = 504, "timeout"


class CancelError(StoppedError):
    """The caller cancelled a call."""


class CancelEvent(Protocol):
    """An event that cancels a call when it is set, such as `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the call is cancelled; called before each step or batch."""


StopCheck = Callable[[], None]
"""Called before each step or batch of a call; raises a `StoppedError` to stop the call."""


def never_stopped() -> None:
    """Let a call run to its end."""


def stop_check(timeout: Any, *events: Any) -> StopCheck:
    """Return the function that stops a call which begins now.

    Args:
        timeout: maximum seconds of the call; None: unlimited
        events: each a `CancelEvent`, or None
    """
    if timeout is not None and not (is_number(timeout) and 0 < timeout < float("inf")):
        raise DragomanError(f"timeout: expected seconds above 0, found {shown(timeout)}")
    cancels = [event for event in events if event is not None]
    for event in cancels:
        if not callable(getattr(event, "is_set", None)):
            raise DragomanError(
                f"cancel: expected an object with is_set(), such as threading.Event, found "
                f"{shown(event)}"
            )
    if timeout is None and not cancels:
        return never_stopped
    seconds = float(min(timeout or MOST_SECONDS, MOST_SECONDS))
    deadline = time.monotonic() + seconds

    def check() -> None:
        if any(event.is_set() for event in cancels):
            raise CancelError("the call was cancelled")
        if time.monotonic() >= deadline:
            raise DeadlineError(f"the call was not done within {seconds:.3g} s")

    return check


def check_able(manifest: Manifest, method: str) -> None:
    """Check that a model has a method of `Model`, else raise an `AbilityError`."""
    what, methods, commands = _abilities(manifest)
    model, aligns = manifest.model, method in ("align", "replace_unknown")
    if method in methods or (aligns and _translates(manifest)):
        return
    name = manifest.name
    if method == "align" and model.takes_audio:
        return
    if aligns:
        raise AbilityError(
            "alignments and unknown words: expected a model that reads a text and writes another "
            f"one, found {name}, a model that {what}"
        )
    if method == "rerank" and manifest.head is not None and "classify" in methods:
        raise AbilityError(
            f"rerank: expected a model with one label, the relevance, found {name} with "
            f"{len(manifest.head.labels)}: use model.classify"
        )
    if method == "classify_zero_shot" and manifest.head is not None and "classify" in methods:
        found = ", ".join(map(repr, manifest.head.labels))
        raise AbilityError(
            "zero-shot classification: expected a model of natural language inference, with a "
            f"label that begins with entail and another one, found {name} with {found:.200}"
        )
    *known, last = [*(f"model.{own}" for own in methods if own != "detokenize"), *commands]
    raise AbilityError(f"{method}: {name} is a model that {what}: use {', '.join(known)} or {last}")


def abilities_data(manifest: Manifest) -> dict[str, Any]:
    """Return a model's abilities, in words and as methods of `Model`."""
    what, methods, _ = _abilities(manifest)
    return {"what": what, "methods": list(methods)}


def _abilities(manifest: Manifest) -> tuple[str, Sequence[str], Sequence[str]]:
    if manifest.head is not None:
        what, only = ENCODER_METHODS[manifest.head.task]
        methods = ("encode", "hidden_states") if only == "encode" else (only,)
        if only == "classify" and len(manifest.head.labels) == 1:
            return what, (*methods, "rerank"), ("dragoman encode", "dragoman rerank")
        if manifest.head.entailment is not None:
            return what, (*methods, "classify_zero_shot"), ("dragoman encode", "dragoman classify")
        return what, methods, ("dragoman encode",)
    what = "turns texts into texts" if _translates(manifest) else "continues texts"
    if manifest.model.takes_audio:
        what = "transcribes speech"
        return what, (*DECODING_METHODS, "transcribe"), ("dragoman run", "dragoman score")
    return what, DECODING_METHODS, ("dragoman run", "dragoman score")


def _translates(manifest: Manifest) -> bool:
    model = manifest.model
    return model.has_encoder and model.has_decoder and not model.takes_audio


def options_of(options: object, changes: GenerationKeywords) -> GenerationOptions:
    """Return the options of a call with changes applied."""
    options = GenerationOptions() if options is None else options
    if not isinstance(options, GenerationOptions):
        raise DragomanError(f"options: expected GenerationOptions, found {shown(options)}")
    return options.replace(**changes)


def options_of_each(
    options: Any, changes: GenerationKeywords, count: int
) -> GenerationOptions | list[GenerationOptions]:
    """Return the options of `count` sources: one for all, or a list with one for each."""
    if not isinstance(options, list | tuple):
        return options_of(options, changes)
    each = [options_of(one, changes) for one in options]
    if len(each) != count:
        raise DragomanError(
            f"options: expected one, or one for each of {count} sources, found {len(each)}"
        )
    return each


def planned(
    options: GenerationOptions | Sequence[GenerationOptions],
    count: int,
    plan: Callable[[GenerationOptions], Plan],
) -> Iterator[Plan | DragomanError]:
    """Return the plan of each of `count` sources, or the error of its options.

    Raises:
        DragomanError: all sources share the same options, and these are invalid.
    """
    if isinstance(options, GenerationOptions):
        return repeat(plan(options), count)

    @cache
    def attempt(each: GenerationOptions) -> Plan | DragomanError:
        try:
            return plan(each)
        except DragomanError as error:
            return error

    return map(attempt, options)


def with_prefix(
    options: GenerationOptions, line: Line, *, takes_text: bool
) -> GenerationOptions | DragomanError:
    """Return options with the prefix that a line states, or the error of a line that states none.

    Args:
        line: text, or token ids if the model does not take texts; blank: no prefix
    """
    prefix = source_of(line, takes_text=takes_text)
    if isinstance(prefix, DragomanError):
        return DragomanError(f"prefix: {prefix}")
    is_blank = isinstance(prefix, str) and not prefix.strip()
    return options.replace(prefix=None if is_blank else prefix)


def check_list(sources: object) -> None:
    """Check that inputs are a list; their front end checks each of them."""
    if isinstance(sources, str | bytes | os.PathLike):
        raise DragomanError("expected a list of inputs, found one: put it in a list")
    ordered = hasattr(sources, "__len__") and hasattr(sources, "__getitem__")
    if not ordered or isinstance(sources, Mapping) or getattr(sources, "ndim", 1) == 0:
        raise DragomanError(f"expected a list of inputs, found {shown(sources)}")


def check_count(name: str, value: Any) -> None:
    """Check that an argument is an integer of at least 1."""
    if not is_integer(value) or value < 1:
        raise DragomanError(f"{name}: expected an integer of at least 1, found {shown(value)}")
