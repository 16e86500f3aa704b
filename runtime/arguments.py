"""Checks the arguments of `Model`'s methods: abilities of the model, lists, numbers, options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import DragomanError
from dragoman.settings.fields import is_integer, shown
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

DECODING_METHODS = ("generate", "stream", "score", "detokenize")


class AbilityError(DragomanError):
    """A method was called that models of this kind do not have."""


def check_able(manifest: Manifest, method: str) -> None:
    """Check that a model has a method of `Model`.

    Raises:
        AbilityError: the model does not have it; names its methods and commands.
    """
    what, methods, commands = _abilities(manifest)
    if method in methods or (method == "align" and _translates(manifest)):
        return
    name = manifest.name
    if method == "align":
        raise AbilityError(
            "alignments and unknown words: expected a model that reads a text and writes another "
            f"one, found {name}, a model that {what}"
        )
    *known, last = [*(f"model.{own}" for own in methods if own != "detokenize"), *commands]
    raise AbilityError(f"{method}: {name} is a model that {what}: use {', '.join(known)} or {last}")


def abilities_data(manifest: Manifest) -> dict[str, Any]:
    """Return a model's abilities, in words and as methods of `Model`."""
    what, methods, _ = _abilities(manifest)
    return {"what": what, "methods": list(methods)}


def _abilities(manifest: Manifest) -> tuple[str, Sequence[str], Sequence[str]]:
    """Return what a model does in words, its methods and its commands."""
    if manifest.head is not None:
        what, only = ENCODER_METHODS[manifest.head.task]
        methods = ("encode", "hidden_states") if only == "encode" else (only,)
        return what, methods, ("dragoman encode",)
    what = "turns texts into texts" if _translates(manifest) else "continues texts"
    if manifest.model.takes_audio:
        what = "transcribes speech"
    return what, DECODING_METHODS, ("dragoman run", "dragoman score")


def _translates(manifest: Manifest) -> bool:
    """Return whether a model reads a text and writes another one."""
    model = manifest.model
    return model.has_encoder and model.has_decoder and not model.takes_audio


def options_of(options: object, changes: GenerationKeywords) -> GenerationOptions:
    """Return the options of a call with changes applied.

    Raises:
        DragomanError: `options` is not `GenerationOptions`, or a change is unknown or out of range.
    """
    options = GenerationOptions() if options is None else options
    if not isinstance(options, GenerationOptions):
        raise DragomanError(f"options: expected GenerationOptions, found {shown(options)}")
    return options.replace(**changes)


def options_of_each(
    options: Any, changes: GenerationKeywords, count: int
) -> GenerationOptions | list[GenerationOptions]:
    """Return the options of `count` sources: one for all, or a list with one for each.

    Raises:
        DragomanError: the list has another length, or as for `options_of`.
    """
    if not isinstance(options, list | tuple):
        return options_of(options, changes)
    each = [options_of(one, changes) for one in options]
    if len(each) != count:
        raise DragomanError(
            f"options: expected one, or one for each of {count} sources, found {len(each)}"
        )
    return each


def check_list(sources: object) -> None:
    """Check that inputs are a list; their front end checks each of them.

    Raises:
        DragomanError: `sources` is not a list.
    """
    if isinstance(sources, str | bytes | os.PathLike):
        raise DragomanError("expected a list of inputs, found one: put it in a list")
    ordered = hasattr(sources, "__len__") and hasattr(sources, "__getitem__")
    if not ordered or isinstance(sources, Mapping) or getattr(sources, "ndim", 1) == 0:
        raise DragomanError(f"expected a list of inputs, found {shown(sources)}")


def check_count(name: str, value: Any) -> None:
    """Check that an argument is an integer of at least 1.

    Raises:
        DragomanError: `value` is not an integer of at least 1.
    """
    if not is_integer(value) or value < 1:
        raise DragomanError(f"{name}: expected an integer of at least 1, found {shown(value)}")
