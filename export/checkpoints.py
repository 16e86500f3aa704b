"""The directory of a model, whichever library left it -> a reference model and its tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.errors import DragomanError
from dragoman.reference_model import ModelConfig, Transformer, load_checkpoint
from dragoman.reference_model.checkpoint import CONFIG_FILE
from dragoman.reference_model.recipes.recipe import SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE

from .families import pytorch_seq2seq, torch_transformer
from .families.ctranslate2 import load_ctranslate2
from .families.ctranslate2_file import MODEL_FILE
from .families.hugging_face import load_hugging_face
from .families.json_files import read_json
from .tokenizers import TokenizerFiles, find_ctranslate2_tokenizers, find_tokenizers
from .tokenizers.reading import read_library_file

STATE_DICTIONARIES: dict[str, Callable[[Path], Transformer]] = {
    torch_transformer.MODEL_TYPE: torch_transformer.load_torch_transformer,
    pytorch_seq2seq.MODEL_TYPE: pytorch_seq2seq.load_pytorch_seq2seq,
}
"""By the `model_type` that the owner of the weights writes."""


@dataclass(frozen=True)
class Checkpoint:
    """A model in fp32 and what makes tokens of its texts; None: token ids are all it takes."""

    model: Transformer
    tokenizers: TokenizerFiles | None


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a directory of Dragoman, Hugging Face, CTranslate2 or PyTorch; see docs/families.md.

    Raises:
        CheckpointError, ConfigError: the model cannot be read; all problems are listed.
        DragomanError: its tokenizers cannot.
    """
    path = directory / CONFIG_FILE
    values = read_json(path) if path.is_file() else {}
    model_type = values.get("model_type")
    if isinstance(model_type, str) and model_type in STATE_DICTIONARIES:
        model = STATE_DICTIONARIES[model_type](directory)
        return Checkpoint(model, _own_tokenizers(directory, model.config))
    if "model_type" not in values and (directory / MODEL_FILE).is_file():
        model = load_ctranslate2(directory)
        speech = model.config.feature_size is not None
        spec: Literal["WhisperSpec", "TransformerSpec"] = (
            "WhisperSpec" if speech else "TransformerSpec"
        )
        return Checkpoint(model, find_ctranslate2_tokenizers(directory, spec))
    if "model_type" in values:
        model = load_hugging_face(directory)
        target_vocab_size = model.config.target_vocab_size
        tokenizers = find_tokenizers(
            directory,
            values["model_type"],
            values,
            source_vocab_size=model.config.source_vocab_size or target_vocab_size,
            target_vocab_size=target_vocab_size,
        )
        return Checkpoint(model, tokenizers)
    model = load_checkpoint(directory)
    return Checkpoint(model, _own_tokenizers(directory, model.config))


def _own_tokenizers(directory: Path, config: ModelConfig) -> TokenizerFiles | None:
    names = (SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
    source, target = (directory / name for name in names)
    present = [source.is_file(), target.is_file()]
    if not any(present):
        return None
    if not all(present):
        raise DragomanError(
            f"{directory}: expected both {' and '.join(names)}, or neither, found one"
        )
    read_library_file(source, config.source_vocab_size or config.target_vocab_size)
    read_library_file(target, config.target_vocab_size)
    return TokenizerFiles(source, target)
