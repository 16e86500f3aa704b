"""A checkpoint directory of any supported library -> a reference model and its tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman.reference_model import load_checkpoint

from .families import STATE_DICT_FAMILIES, Checkpoint
from .families.ctranslate2 import read_ctranslate2
from .families.encoders.sentence_transformers import read_sentence_transformers
from .families.hugging_face import read_hugging_face, tokenizer_kinds
from .formats.detection import CONFIG_FILE, FormatName, format_of
from .formats.json_files import read_json, read_json_if_present
from .tokenizers.dragoman import find_dragoman_tokenizers

__all__ = ["READERS", "Checkpoint", "read_checkpoint"]


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a directory of Dragoman, Hugging Face or CTranslate2, or of a state dictionary.

    `docs/families.md` says what is read of each.

    Raises:
        CheckpointError, ConfigError: the model cannot be read; all problems are listed.
        DragomanError: the directory is no checkpoint, or its tokenizers cannot be read.
    """
    values = read_json_if_present(directory / CONFIG_FILE)
    return READERS[format_of(directory, values).name](directory)


def read_state_dictionary(directory: Path) -> Checkpoint:
    """Read a state dictionary by the family that its `config.json` names.

    Raises:
        as `read_checkpoint`
    """
    model_type = read_json(directory / CONFIG_FILE)["model_type"]
    model = STATE_DICT_FAMILIES[model_type].load(directory)
    return Checkpoint(model, find_dragoman_tokenizers(directory, model.config))


def read_dragoman(directory: Path) -> Checkpoint:
    """Read a checkpoint of Dragoman itself.

    Raises:
        as `read_checkpoint`
    """
    model = load_checkpoint(directory)
    return Checkpoint(model, find_dragoman_tokenizers(directory, model.config))


def read_sentences(directory: Path) -> Checkpoint:
    """Read a directory of sentence-transformers.

    Raises:
        as `read_checkpoint`
    """
    return read_sentence_transformers(directory, tokenizer_kinds())


READERS: Mapping[FormatName, Callable[[Path], Checkpoint]] = {
    "Dragoman": read_dragoman,
    "Hugging Face": read_hugging_face,
    "sentence-transformers": read_sentences,
    "CTranslate2": read_ctranslate2,
    "state dictionary": read_state_dictionary,
}
