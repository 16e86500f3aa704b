"""Tokenizer files of the `tokenizers` library, as plain data to be changed."""

from __future__ import annotations

import base64
from typing import Any

RULES = {"A": "a", "é": "e\u0301", "\ufb01": "fi", "\u2460": "1", "x": "", "ab": "\u65e5"}
"""Of a normalizer; written in binary by `charsmaps`."""
VOCABULARY = {piece: i for i, piece in enumerate(["<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"])}
END = {"SpecialToken": {"id": "</s>", "type_id": 0}}


def plain() -> dict[str, Any]:
    """A tokenizer file of letters, which ends texts with </s>."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, END],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": VOCABULARY,
            "merges": [],
        },
    }


def precompiled(data: bytes) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
