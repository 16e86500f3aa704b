"""What a model can be asked for, by its kind: one line for whoever asks for something else."""

from __future__ import annotations

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
    if manifest.head is None:
        model = manifest.model
        aligns = model.has_encoder and not model.takes_audio
        if method in DECODING or (method == "align" and aligns):
            return
        what = "decodes" if model.has_encoder else "continues texts"
        able, command = ["generate", "stream", "score"], "run or dragoman score"
    else:
        what, only = ENCODER_METHODS[manifest.head.task]
        able, command = [only], "encode"
        if only == "encode":
            able.append("hidden_states")
        if method in able:
            return
    methods = ", ".join(f"model.{name}" for name in able)
    raise AbilityError(
        f"{method}: {manifest.name} is a model that {what}: use {methods} or dragoman {command}"
    )
