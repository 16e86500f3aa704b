"""SentencePiece models in bundles, and the special tokens around a text."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from dragoman.runtime import BundleError
from dragoman.runtime.decoding.running_batch import SelectedToken
from dragoman.runtime.format.texts import LanguageError, Languages, SourceTemplate
from dragoman.runtime.texts.outputs import TokenStream
from dragoman.runtime.texts.tokenizer import TextCodec, UnknownSymbolsError

CORPUS = ["the cat sat on the mat", "a cat, a dog and the bird", "naïve café: où ?", "x y z"] * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unknown characters become bytes."""
    directory = tmp_path_factory.mktemp("spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "bytes"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        minloglevel=2,
    )
    return directory / "bytes.model"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "plain"),
        vocab_size=45,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return directory / "plain.model"


def pieces_of(model: Path) -> dict[str, int]:
    """Numbered from the end, so that no id is the model's own."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    count = processor.get_piece_size()
    return {processor.id_to_piece(i): 2 * count - i for i in range(3, count)}


def codec(model: Path, directory: Path, **changes: Any) -> TextCodec:
    options: dict[str, Any] = {
        "unknown": 1,
        "pieces": None,
        "template": SourceTemplate((), (0,)),
        "languages": None,
        "leading_code": False,
    } | changes
    if options["pieces"] is None:
        options["pieces"] = pieces_of(model)
    vocabulary = directory / "vocabulary.json"
    names = ("unknown", "pieces", "leading_code")
    vocabulary.write_text(json.dumps({name: options[name] for name in names}))
    return TextCodec(
        model,
        model,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        template=options["template"],
        languages=options["languages"],
    )


def streamed(codec: TextCodec, tokens: list[int]) -> list[str]:
    stream = codec.stream()
    return [stream.step(token) for token in tokens]


def test_pieces_have_the_ids_of_the_vocabulary(plain: Path, tmp_path: Path) -> None:
    pieces = pieces_of(plain)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(plain))
    tokens = codec(plain, tmp_path).encode("  the cat  ")
    assert tokens == [*(pieces[p] for p in processor.encode("the cat", out_type=str)), 0]
    assert codec(plain, tmp_path).decode(tokens) == "the cat"


@pytest.mark.parametrize("text", ["", " ", "\n \t"])
def test_an_empty_text_has_no_tokens(plain: Path, tmp_path: Path, text: str) -> None:
    assert codec(plain, tmp_path).encode(text) == []


def test_unknown_symbols_are_one_token_or_named(plain: Path, tmp_path: Path) -> None:
    assert codec(plain, tmp_path).encode("ΩΩ").count(1) == 1
    with pytest.raises(UnknownSymbolsError, match="unknown to this model: 'Ω', '≈'"):
        codec(plain, tmp_path, unknown=None).encode("Ω a ≈ Ω")
    assert codec(plain, tmp_path, unknown=None).encode("a cat")


def test_half_a_symbol_is_unknown(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownSymbolsError, match=r"\\udc80"):
        codec(plain, tmp_path).encode("caf\udc80")


@pytest.mark.parametrize("text", [*CORPUS[:4], "😎", "Ω and 日本", "ﬁ"])
def test_any_text_survives_a_round_trip(model: Path, tmp_path: Path, text: str) -> None:
    both = codec(model, tmp_path)
    tokens = both.encode(text)
    expected = {"ﬁ": "fi"}.get(text, text)
    assert both.decode(tokens) == "".join(streamed(both, tokens)) == expected


def test_a_symbol_of_several_bytes_is_streamed_when_it_is_complete(
    model: Path, tmp_path: Path
) -> None:
    pieces = pieces_of(model)
    tokens = [pieces[f"<0x{byte:02X}>"] for byte in "😎".encode()]
    assert streamed(codec(model, tmp_path), tokens) == ["", "", "", "😎"]


def test_any_tokens_are_streamed_as_they_are_decoded(model: Path, tmp_path: Path) -> None:
    both = codec(model, tmp_path)
    tokens = [0, 1, *pieces_of(model).values(), *[pieces_of(model)["▁"]] * 40]
    generator = random.Random(0)
    complete = 0
    for _ in range(400):
        chosen = generator.choices(tokens, k=generator.randint(0, 12))
        text, joined = both.decode(chosen), "".join(streamed(both, chosen))
        if text.endswith("\ufffd"):
            assert text.startswith(joined)
        else:
            assert joined == text
            complete += 1
    assert 50 < complete < 400


def test_ids_without_a_piece_are_not_part_of_the_text(plain: Path, tmp_path: Path) -> None:
    both = codec(plain, tmp_path)
    tokens = both.encode("the cat")
    assert both.decode([0, *tokens, 1, 12345]) == "the cat"


def test_a_code_at_the_start_is_one_token(plain: Path, tmp_path: Path) -> None:
    pieces = pieces_of(plain) | {">>fra<<": 7}
    with_codes = codec(plain, tmp_path, pieces=pieces, leading_code=True)
    cat = with_codes.encode("the cat")
    assert with_codes.encode(">>fra<< the cat") == [7, *cat]
    assert with_codes.encode(">>xyz<<the cat") == [1, *cat]
    assert with_codes.encode(">>fra<<") == [7, 0]
    assert with_codes.encode(" >>fra<< the cat")[0] != 7
    assert 7 not in codec(plain, tmp_path, pieces=pieces).encode(">>fra<< the cat")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (SourceTemplate((), ()), lambda text: text),
        (SourceTemplate((), (0,)), lambda text: [*text, 0]),
        (SourceTemplate((5, 6), (0,)), lambda text: [5, 6, *text, 0]),
        (SourceTemplate(("source_language",), (0,)), lambda text: [9, *text, 0]),
        (SourceTemplate((), (0, "source_language")), lambda text: [*text, 0, 9]),
    ],
)
def test_special_tokens_surround_a_text(
    plain: Path, tmp_path: Path, template: SourceTemplate, expected: Any
) -> None:
    text = codec(plain, tmp_path, template=SourceTemplate((), ())).encode("the cat")
    languages = Languages({"de": 8, "fr": 9}, "first")
    around = codec(plain, tmp_path, template=template, languages=languages)
    assert around.encode("the cat", "fr") == expected(text)
    assert around.encode("", "fr") == []


def test_a_missing_or_unknown_language_is_an_error(plain: Path, tmp_path: Path) -> None:
    template = SourceTemplate(("source_language",), ())
    tokens = {"de_DE": 5, "en_XX": 6, "fr_XX": 7, "gl_ES": 8}
    without = codec(plain, tmp_path, template=template, languages=Languages(tokens, "first"))
    with pytest.raises(LanguageError) as caught:
        without.encode("the cat")
    assert str(caught.value) == (
        "source_language: expected one of the 4 languages of this model (de_DE, en_XX, fr_XX, "
        "...), found none"
    )
    with pytest.raises(LanguageError, match=r"found 'FR'; the closest are fr_XX, "):
        without.encode("the cat", "FR")
    default = Languages(tokens, "start", default_source="en_XX")
    by_default = codec(plain, tmp_path, template=template, languages=default)
    assert by_default.encode("the cat")[0] == 6
    assert by_default.encode("the cat", "gl_ES")[0] == 8


def test_target_languages() -> None:
    languages = Languages({"de": 5, "fr": 7}, "first", default_target="fr")
    assert (languages.target_token(), languages.target_token("de")) == (7, 5)
    with pytest.raises(LanguageError, match="target_language: expected one of the 2 languages"):
        languages.target_token("xx")
    with pytest.raises(LanguageError, match=r"target_language: .* found none"):
        Languages({"de": 5}, "first").target_token()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[]", "expected an object"),
        (b'{"pieces": {}}', "unknown: missing"),
        (b'{"pieces": {"a": 1.5}, "unknown": 1}', "distinct token ids"),
        (b'{"pieces": {"a": -1}, "unknown": 1}', "distinct token ids"),
        (b'{"pieces": {"a": 3, "b": 3}, "unknown": 1}', "distinct token ids"),
        (b'{"pieces": {"a": 3}, "unknown": "x"}', "unknown: expected an integer"),
    ],
)
def test_a_damaged_vocabulary_is_a_bundle_error(
    plain: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=rf"broken\.json: .*{message}"):
        TextCodec(plain, plain, source_vocabulary=path, target_vocabulary=path)


@pytest.mark.parametrize("content", [b"", b"{}", b"not a model" * 9])
def test_a_damaged_model_is_a_bundle_error(plain: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.model").write_bytes(content)
    with pytest.raises(BundleError, match=r"broken\.model: not a SentencePiece model"):
        codec(tmp_path / "broken.model", tmp_path, pieces={})


def test_without_sentencepiece_the_error_says_what_to_install(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = pieces_of(plain)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(BundleError) as caught:
        codec(plain, tmp_path, pieces=pieces)
    assert "the package sentencepiece cannot be imported" in str(caught.value)
    assert "pip install 'dragoman[sentencepiece]'" in str(caught.value)


class HeldBack:
    """A stream of an incomplete character, which token 9 begins."""

    def step(self, token: int) -> str:
        return "" if token == 9 else "a"

    def rest(self) -> str:
        return "\N{REPLACEMENT CHARACTER}"


def test_an_incomplete_character_at_the_end_belongs_to_the_last_token() -> None:
    stream = TokenStream(HeldBack())
    tokens = [*stream.tokens([SelectedToken(n, -0.5) for n in (1, 9, 1, 9)]), *stream.rest()]
    assert [(token.id, token.text) for token in tokens] == [
        (1, "a"),
        (9, ""),
        (1, "a"),
        (9, "\N{REPLACEMENT CHARACTER}"),
    ]
