"""Languages in bundles, tokenizers and calls of models that have them, and of models without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from dragoman.export import TokenizerFiles
from dragoman.export.tokenizers import PieceModel
from dragoman.reference_model import Transformer
from dragoman.runtime import BundleError, LanguageError, Languages, Model, load, read_bundle
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.runtime.format.writing import BundleWriter

Case = tuple[Transformer, Path]
LANGUAGES = Languages({"de": 3, "en": 4, "fr": 5}, "first", default_target="fr")


@pytest.fixture(scope="module")
def model(text_case: Case, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The bundle of `text_case` with other tokenizers."""
    directory = tmp_path_factory.mktemp("languages")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc cab bac abba"] * 9),
        model_prefix=str(directory / "spm"),
        vocab_size=12,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm.model"))
    pieces = {processor.id_to_piece(i): i + 3 for i in range(3, processor.get_piece_size())}
    pieces_model = PieceModel(directory / "spm.model", pieces, 1)
    template = SourceTemplate(("source_language",), (2,))
    files = TokenizerFiles(pieces_model, pieces_model, template, LANGUAGES)
    bundle = read_bundle(text_case[1])
    (directory / "bundle").mkdir()
    copy = BundleWriter(directory / "bundle")
    for file in bundle.manifest.files:
        if "tokenizer" not in file.path:
            copy.copy(bundle.path(file.path), file.path)
    manifest = dataclasses.replace(
        bundle.manifest, tokenizers=files.write(copy), languages=files.languages
    )
    return load(copy.finish(manifest).directory, threads=1)


def test_the_manifest_is_read_back_equal(model: Model) -> None:
    manifest = read_bundle(model.bundle.directory).manifest
    assert manifest.languages == LANGUAGES
    assert manifest.tokenizers is not None
    assert manifest.tokenizers.template == SourceTemplate(("source_language",), (2,))
    assert manifest.tokenizers.files == ("sentencepiece.model", "vocabulary.json")


def test_a_text_is_encoded_in_its_language(model: Model) -> None:
    english = model.tokenize("abc cab", "en")
    assert english[0] == 4 and english[-1] == 2
    assert model.tokenize("abc cab", "de") == [3, *english[1:]]
    assert model.generate(["abc cab"], source_language="en") == model.generate([english])
    assert [*model.stream("abc", source_language="de")] == [
        *model.stream(model.tokenize("abc", "de"))
    ]
    (result,) = model.generate([[4, 6, 7, 2]], target_language="de")
    assert result.finish_reason in ("end", "length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "source_language: expected one of the 3 languages of this model"),
        ({"source_language": "xx"}, "source_language: .* found 'xx'; the closest are"),
        ({"source_language": "en", "target_language": "frr"}, "found 'frr'; the closest are fr, "),
    ],
)
def test_a_wrong_language_fails_the_call(
    model: Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LanguageError, match=message):
        model.generate(["abc"], **options)
    with pytest.raises(LanguageError, match=message):
        list(model.stream("abc", **options))


def test_a_target_is_scored_in_its_language(model: Model) -> None:
    """The language's token is read, not scored; a target's text has no special tokens."""
    texts = [("abc cab", "cab abba")]
    [default] = model.score(texts, source_language="en")
    [german] = model.score(texts, source_language="en", target_language="de")
    assert default.error is None and german.error is None
    assert default.tokens == german.tokens
    assert default.tokens == (*model.tokenize("cab abba", "en")[1:-1], model.manifest.end_tokens[0])
    assert default.token_log_probabilities != german.token_log_probabilities
    source = model.tokenize("abc cab", "en")
    for language, scored in ((None, default), ("de", german)):
        [result] = model.generate([source], target_language=language, max_new_tokens=4)
        [again] = model.score([(source, result.tokens)], target_language=language, end_token=False)
        # The forced token, which was generated with probability 1, was not scored.
        assert again.tokens == result.tokens[1:]
        assert again.log_probability == pytest.approx(result.log_probability, abs=1e-4)
        [by_ids] = model.score([(source, scored.tokens)], target_language=language)
        assert by_ids == scored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "source_language: expected one of the 3 languages of this model"),
        ({"source_language": "xx"}, "source_language: .* found 'xx'; the closest are"),
        ({"source_language": "en", "target_language": "frr"}, "found 'frr'; the closest are fr, "),
    ],
)
def test_a_wrong_language_fails_the_scoring(
    model: Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LanguageError, match=message):
        model.score([("abc", "cab")], **options)


@pytest.mark.parametrize("option", ["source_language", "target_language"])
def test_a_model_without_languages_refuses_a_language(text_model: Model, option: str) -> None:
    message = f"{option}: expected none, this model has no languages, found 'de'"
    options: dict[str, Any] = {option: "de"}
    with pytest.raises(LanguageError, match=message):
        text_model.generate(["abc"], **options)
    with pytest.raises(LanguageError, match=message):
        text_model.stream("abc", **options)


TOKENIZERS = {
    "source": "encoder.onnx",
    "target": "encoder.onnx",
    "source_vocabulary": "data/weights.bin",
    "target_vocabulary": "data/weights.bin",
    "template": {"prefix": ["source_language"], "suffix": [2]},
}
LANGUAGES_DATA = {"tokens": {"de": 3, "fr": 4}, "target": "first"}
INCONSISTENT: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]] = {
    "no languages": (TOKENIZERS, None, "tokenizers.template: has a source language"),
    "no template": (
        TOKENIZERS | {"template": None},
        LANGUAGES_DATA,
        "tokenizers.template: expected one",
    ),
    "a token outside": (
        TOKENIZERS | {"template": {"prefix": [], "suffix": [11]}},
        LANGUAGES_DATA,
        "tokenizers.template: expected ids in [0, 11), found 11",
    ),
    "another placeholder": (
        TOKENIZERS | {"template": {"prefix": ["target_language"], "suffix": []}},
        LANGUAGES_DATA,
        "tokenizers.template.prefix[0]",
    ),
    "a language outside": (
        TOKENIZERS,
        LANGUAGES_DATA | {"tokens": {"de": 11}},
        "languages.tokens.de: expected an id in [0, 11), found 11",
    ),
    "an unknown default": (
        TOKENIZERS,
        LANGUAGES_DATA | {"default_target": "es"},
        "languages.default_target: expected one of languages.tokens, found 'es'",
    ),
    "a vocabulary not listed": (
        TOKENIZERS | {"target_vocabulary": "v.json"},
        LANGUAGES_DATA,
        "file v.json is used but not listed in files",
    ),
}


def test_a_manifest_with_languages_is_valid(plain_manifest: dict[str, Any]) -> None:
    plain_manifest |= {"tokenizers": TOKENIZERS, "languages": LANGUAGES_DATA}
    assert manifest_from_json(json.dumps(plain_manifest), "p").languages is not None


@pytest.mark.parametrize("case", INCONSISTENT)
def test_an_inconsistency_is_reported(case: str, plain_manifest: dict[str, Any]) -> None:
    tokenizers, languages, message = INCONSISTENT[case]
    plain_manifest |= {"tokenizers": tokenizers, "languages": languages}
    with pytest.raises(BundleError) as caught:
        manifest_from_json(json.dumps(plain_manifest), "p")
    assert message in str(caught.value)
