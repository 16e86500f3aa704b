"""Special tokens in texts that come in and go out."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import pytest
from tokenizers import Tokenizer

from dragoman.runtime import Model, RejectedError, load, read_bundle
from dragoman.runtime.format.writing import write_manifest
from dragoman.runtime.texts.tokenizer import CleaningStream, clean_up, uncleaned

from ...bundle_files import record_files

SPECIAL = ("w5", "w7")


@pytest.fixture(scope="module")
def model(text_case: Any, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The words w5 and w7 are special tokens, and letters in angle brackets are added tokens."""
    directory = tmp_path_factory.mktemp("special") / "bundle"
    shutil.copytree(text_case[1], directory)
    for name in ("source", "target"):
        path = directory / f"{name}_tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_special_tokens(list(SPECIAL) if name == "target" else ["a"])
        tokenizer.save(str(path))
    manifest = read_bundle(text_case[1]).manifest
    manifest = dataclasses.replace(manifest, files=record_files(directory))
    write_manifest(manifest, directory)
    return load(directory, threads=1)


def test_a_source(model: Model) -> None:
    assert model.tokenize("ab</s>c") == [3, 4, 2, 5, 2]
    with pytest.raises(Exception, match="unknown to this model: '<'"):
        model.tokenize("ab</s>c", split_special_tokens=True)
    typed, ids = model.generate(["ab</s>c", [3, 4, 2, 5, 2]])
    assert typed == ids
    (refused,) = model.generate(["ab</s>c"], split_special_tokens=True)
    assert refused.finish_reason == "rejected" and "unknown to this model" in str(refused.error)
    assert model.generate(["abc"], split_special_tokens=True) == model.generate(["abc"])


def test_the_text_of_an_output(model: Model) -> None:
    options: dict[str, Any] = {"prefix": "w5 w3 w7", "alternatives": 3, "min_new_tokens": 8}
    (hidden,) = model.generate(["abc"], **options)
    (shown,) = model.generate(["abc"], skip_special_tokens=False, **options)
    assert shown.tokens == hidden.tokens and shown.tokens[:3] == (5, 3, 7)
    assert shown.text == " ".join(f"w{token}" for token in shown.tokens)
    kept = [f"w{token}" for token in hidden.tokens if f"w{token}" not in SPECIAL]
    assert hidden.text == " ".join(kept)
    for result, texts in ((hidden, {"", "w3"}), (shown, {"w5", "w3"})):
        of_token = {a.token: a.text for step in result.hypotheses[0].alternatives for a in step}
        assert {of_token.get(5, min(texts)), of_token.get(3, "w3")} <= {*texts, "w5"}
    for skip, result in ((True, hidden), (False, shown)):
        streamed = model.stream("abc", skip_special_tokens=skip, **_of_stream(options))
        assert "".join(token.text or "" for token in streamed) == result.text
        assert model.detokenize(result.tokens, skip_special_tokens=skip) == result.text


def _of_stream(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "alternatives"}


def test_phrases(model: Model) -> None:
    for skip in (True, False):
        options: dict[str, Any] = {"num_beams": 2, "skip_special_tokens": skip}
        (result,) = model.generate(["abc"], must_contain=["w3 w7"], **options)
        tokens = result.tokens
        assert any(tokens[i : i + 2] == (3, 7) for i in range(len(tokens)))
        (free,) = model.generate(["abc"], skip_special_tokens=skip, prefix="w3")
        special = next((t for t in free.tokens if t in (5, 7)), None)
        assert special is not None
        (result,) = model.generate(
            ["abc"], skip_special_tokens=skip, prefix="w3", must_not_contain=[f"w{special}"]
        )
        assert special not in result.tokens
    (result,) = model.generate(["abc"], must_not_contain=["s"])  # part of the end token's name
    assert result == model.generate(["abc"])[0]
    with pytest.raises(RejectedError, match="prefix: expected no end token"):
        model.generate(["abc"], prefix="w3 w12")


def test_a_target(model: Model) -> None:
    (scored,) = model.score([("abc", "w3 w5")])
    assert scored.tokens == (3, 5, model.manifest.model.end_token_id)
    assert scored == model.score([("abc", [3, 5])])[0]


class _Pieces:
    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def step(self, token: int) -> str:
        return self._pieces[token]

    def rest(self) -> str:
        return ""


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "text",
    [
        "Hello , world . Is it ? No ! I 'm , do n't , we 've , they 're , it 's ' quoted '",
        *("ends with '", "a ' n", " ' ' .", "  ' m 's", " ' v ' e", "n ' t n't", " . . .  ,"),
    ],
)
def test_a_stream_is_cleaned_up_like_the_whole(text: str, width: int) -> None:
    pieces = [text[i : i + width] for i in range(0, len(text), width)]
    stream = CleaningStream(_Pieces(pieces))
    assert "".join(map(stream.step, range(len(pieces)))) + stream.rest() == clean_up(text)


def test_what_a_forbidden_text_can_be_written_as() -> None:
    for written in ("No .", "do n't", "a , b !", "it 's", "a ' b", "they 're , I 'm"):
        assert {written, clean_up(written)} <= uncleaned(clean_up(written))
    assert uncleaned("plain words") == {"plain words"}
    assert all(clean_up(written) == "No, no." for written in uncleaned("No, no."))
    with pytest.raises(ValueError, match="expected at most 6 marks, found 7"):
        uncleaned(".......")
