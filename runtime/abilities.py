"""What a model can be asked for, by its kind: one line for whoever asks for something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.errors import DragomanError

from .format.manifest import Manifest

ENCODER_METHODS = {
    "embedding": ("gives vectors", "encode"),
    "sequence-classification": ("classifies texts", "classify"),
    "token-classification": ("tags words", "tag"),
    "masked-language-model": ("fills masks", "fill"),
    "question-answering": ("answers questions", "answer"),
}
"""By the task of its head: what an encoder alone does, and the method for it."""

DECODING = ("generate", "stream", "score", "detokenize")


class AbilityError(DragomanError):
    """A model is asked for what models of another kind do."""


def check_able(manifest: Manifest, method: str) -> None:
    """
    Args:
        method: of `Model`

    Raises:
        AbilityError: the model does not have it; says what it does, and by which method and
            command.
    """
    what, methods, command = _abilities(manifest)
    if method in methods or (method == "align" and _translates(manifest)):
        return
    name = manifest.name
    if method == "align":
        raise AbilityError(
            "alignments and unknown words: expected a model that reads a text and writes another "
            f"one, found {name}, a model that {what}"
        )
    *known, last = [*(f"model.{own}" for own in methods if own != "detokenize"), *command]
    raise AbilityError(f"{method}: {name} is a model that {what}: use {', '.join(known)} or {last}")


def _abilities(manifest: Manifest) -> tuple[str, Sequence[str], Sequence[str]]:
    """What a model does, by which methods, and by which commands."""
    if manifest.head is not None:
        what, only = ENCODER_METHODS[manifest.head.task]
        methods = ("encode", "hidden_states") if only == "encode" else (only,)
        return what, methods, ("dragoman encode",)
    what = "turns texts into texts" if _translates(manifest) else "continues texts"
    if manifest.model.takes_audio:
        what = "transcribes speech"
    return what, DECODING, ("dragoman run", "dragoman score")


def _translates(manifest: Manifest) -> bool:
    """Whether a model reads a text and writes another one."""
    model = manifest.model
    return model.has_encoder and model.has_decoder and not model.takes_audio


def abilities_data(manifest: Manifest) -> dict[str, Any]:
    """What a model does, in words and as the methods of `Model` that it has."""
    what, methods, _ = _abilities(manifest)
    return {"what": what, "methods": list(methods)}
