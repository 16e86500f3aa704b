"""Faults of tokenizer files: other ids, other pieces, other texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..editing import EditedBundle
from .fault import BundleFault

Change = Callable[[dict[str, Any]], None]
"""Changes the contents of a tokenizer.json in place."""


def _ids_swapped(one: int, other: int) -> Change:
    def change(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        by_id = {i: token for token, i in vocabulary.items()}
        vocabulary[by_id[one]], vocabulary[by_id[other]] = other, one

    return change


def _merge_removed(index: int) -> Change:
    def change(tokenizer: dict[str, Any]) -> None:
        del tokenizer["model"]["merges"][index]

    return change


def _lowercased(tokenizer: dict[str, Any]) -> None:
    before = tokenizer["normalizer"]
    steps = [] if before is None else before.get("normalizers", [before])
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "Lowercase"}]}


def _accents_kept(tokenizer: dict[str, Any]) -> None:
    steps = tokenizer["normalizer"]["normalizers"]
    tokenizer["normalizer"]["normalizers"] = [s for s in steps if s["type"] != "StripAccents"]


def _no_template(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"] = None


def _no_decoder(tokenizer: dict[str, Any]) -> None:
    tokenizer["decoder"] = None


def _stripping_decoder(tokenizer: dict[str, Any]) -> None:
    """Texts lose a comma at their ends."""
    strip = {"type": "Strip", "content": ",", "start": 1, "stop": 1}
    before = tokenizer["decoder"]
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [before, strip]}


def _space_before(tokenizer: dict[str, Any]) -> None:
    tokenizer["pre_tokenizer"]["add_prefix_space"] = True


def _short_words(tokenizer: dict[str, Any]) -> None:
    """Words of more than 5 characters are unknown."""
    tokenizer["model"]["max_input_chars_per_word"] = 5


def _end_is_text(tokenizer: dict[str, Any]) -> None:
    """The last special token is written into texts."""
    tokenizer["added_tokens"][-1]["special"] = False


def _cut(tokenizer: dict[str, Any]) -> None:
    """Texts are cut after 12 tokens."""
    tokenizer["truncation"] = {
        "direction": "Right",
        "max_length": 12,
        "strategy": "LongestFirst",
        "stride": 0,
    }


def _fault(name: str, side: str, change: Change, *bundles: str) -> BundleFault:
    """
    Args:
        side: "source" or "target"
    """

    def inject(edited: EditedBundle) -> None:
        tokenizers = edited.manifest.tokenizers
        assert tokenizers is not None
        file = tokenizers.source if side == "source" else tokenizers.target
        assert file is not None
        before = edited.read(file)
        tokenizer = json.loads(before)
        change(tokenizer)
        edited.files[file] = json.dumps(tokenizer, ensure_ascii=False).encode()

    return BundleFault(name, "tokenizers", bundles, inject)


FAULTS: tuple[BundleFault, ...] = (
    _fault(
        "two token ids are swapped",
        "source",
        _ids_swapped(270, 275),
        "bart cpu fp32",
        "gpt2 cpu int8",
    ),
    _fault(
        "two rare token ids are swapped", "target", _ids_swapped(5500, 5700), "bible-en-es cpu fp32"
    ),
    _fault(
        "two letters are swapped",
        "source",
        _ids_swapped(9, 10),
        "g2p-en cpu int8",
        "bert-classifier cpu fp32",
    ),
    _fault("two phonemes are swapped", "target", _ids_swapped(20, 21), "g2p-en cpu fp32"),
    _fault("a merge is missing", "source", _merge_removed(20), "bart cpu fp32", "gpt2 cpu int4"),
    _fault("a rare merge is missing", "source", _merge_removed(5000), "bible-en-es cpu int8"),
    _fault(
        "a merge of the target is missing", "target", _merge_removed(1700), "verses-en cpu fp32"
    ),
    _fault(
        "texts are lowercased",
        "source",
        _lowercased,
        "bart cpu fp32",
        "bert-embedding cpu fp32",
        "bible-en-es cpu fp32",
    ),
    _fault("accents are kept", "source", _accents_kept, "g2p-en cpu fp32"),
    _fault(
        "no special tokens surround a text",
        "source",
        _no_template,
        "bart cpu fp32",
        "bert-classifier cpu fp32",
        "g2p-en cpu int4",
    ),
    _fault(
        "tokens are joined as they are",
        "target",
        _no_decoder,
        "gpt2 cpu fp32",
        "bible-en-es cpu int8",
    ),
    _fault(
        "a comma at the end of a text is lost",
        "target",
        _stripping_decoder,
        "bart cpu fp32",
        "verses-en cpu int4",
    ),
    _fault("a text begins with a space", "source", _space_before, "gpt2 cpu fp32"),
    _fault("words of 6 characters are unknown", "source", _short_words, "bert-embedding cpu int8"),
    _fault("a special token is text", "target", _end_is_text, "bart cpu fp32", "gpt2 cpu int8"),
    _fault(
        "texts are cut after 12 tokens", "source", _cut, "bart cpu fp32", "bert-embedding cpu fp32"
    ),
)
"""Faults of vocabularies, merges, normalizers, templates and decoders."""
