"""Checkpoints whose tokenizer is a file of ranks."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dragoman.export.families import FAMILIES
from dragoman.export.families.hugging_face import find_hugging_face_tokenizers
from dragoman.export.tokenizers import TokenizerFiles

Ranks = Mapping[bytes, int]

BYTES = [bytes([byte]) for byte in range(256)]
WORDS = r"\S+|\s+"


def ranked(tokens: Iterable[bytes]) -> dict[bytes, int]:
    return {token: rank for rank, token in enumerate(tokens)}


def write(directory: Path, ranks: Ranks, name: str = "ours.tiktoken", **settings: Any) -> None:
    lines = (b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (directory / name).write_bytes(b"".join(lines))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def added(tokens: Mapping[str, int], **fields: Any) -> dict[str, Any]:
    return {str(i): {"content": content, **fields} for content, i in tokens.items()}


def find(directory: Path, size: int, model_type: str = "t5") -> TokenizerFiles:
    files = find_hugging_face_tokenizers(
        directory, FAMILIES[model_type], {}, source_vocab_size=size, target_vocab_size=size
    )
    assert files is not None
    return files
