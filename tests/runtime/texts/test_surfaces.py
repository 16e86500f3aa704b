"""Texts are the surfaces of their tokens, whatever form the tokenizer has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dragoman.runtime.texts.codecs import LibraryCodec
from dragoman.runtime.texts.surfaces import Surfaces
from dragoman.runtime.texts.tokenizer import TextCodec, TokenizerError

VOCABULARY = 400


@pytest.fixture(scope="module")
def surfaces(target: TextCodec) -> Surfaces:
    return target.surfaces(VOCABULARY)


def test_a_text_is_the_surfaces_of_its_tokens(target: TextCodec, surfaces: Surfaces) -> None:
    """Of any tokens, and of ids without a token; only half characters may differ."""
    generator = random.Random(0)
    whole = 0
    for _ in range(500):
        tokens = [generator.randrange(VOCABULARY) for _ in range(generator.randint(0, 9))]
        joined = b"".join(surfaces[token] for token in tokens).decode(errors="replace").strip()
        text = target.decode(tokens).strip()
        if "\ufffd" not in joined:
            assert text == joined
            whole += 1
    assert whole > 100


@pytest.mark.parametrize("text", ["the cat sat", "a dog", "naïve café: où ?", "x y z, the bird"])
def test_encoded_texts_are_found_in_their_surfaces(
    target: TextCodec, surfaces: Surfaces, text: str
) -> None:
    tokens = target.encode_target(text).tokens
    joined = b"".join(surfaces[token] for token in tokens).decode()
    assert joined.strip() == target.decode(tokens)


def test_bytes_of_characters_add_up(target: TextCodec, surfaces: Surfaces) -> None:
    tokens = target.encode_target("\N{SMILING FACE WITH SUNGLASSES}").tokens
    if target.decode(tokens) == "\N{SMILING FACE WITH SUNGLASSES}":
        assert len(tokens) >= 4
        joined = b"".join(surfaces[token] for token in tokens)
        assert joined.decode().strip() == "\N{SMILING FACE WITH SUNGLASSES}"


@pytest.mark.parametrize("text", ["a", "t", "at", " ", " the", "é", "cat ", "zzz", "the cat"])
def test_tokens_are_found_by_what_they_contain(surfaces: Surfaces, text: str) -> None:
    part = text.encode()
    everything = [(token, surfaces[token]) for token in range(VOCABULARY)]
    assert surfaces.containing(part) == [token for token, own in everything if part in own]
    beginning = {token for token, own in everything if own.startswith(part)}
    assert set(surfaces.beginning_with(part)) == beginning


def test_half_a_character_is_found_too(target: TextCodec, surfaces: Surfaces) -> None:
    tokens = [token for token in range(VOCABULARY) if surfaces[token] == b"\xc3"]
    assert surfaces.beginning_with(b"\xc3")[: len(tokens)].tolist() == tokens


def saved(tokenizer: Tokenizer, file: Path) -> LibraryCodec:
    tokenizer.save(str(file))
    return LibraryCodec(file)


def test_tokens_whose_texts_depend_on_others_are_refused(tmp_path: Path) -> None:
    """CTC merges tokens that are repeated."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "|": 2, "<pad>": 3}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.CTC()
    codec = saved(tokenizer, tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="expected token ids"):
        Surfaces.of(codec, 4)


def test_a_tokenizer_without_texts_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0}))
    tokenizer.add_special_tokens(["<pad>"])
    codec = saved(tokenizer, tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="expected token ids"):
        Surfaces.of(codec, 3)
