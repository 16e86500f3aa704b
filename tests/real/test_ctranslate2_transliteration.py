"""The trained model of CTranslate2's own tests gives the transliterations that they expect.

Its vocabularies lack the token for unknown ones, which CTranslate2 appends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.runtime import Model, load

TEST_DATA = os.environ.get("CTRANSLATE2_TEST_DATA")
"""The folder tests/data of https://github.com/OpenNMT/CTranslate2."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        TEST_DATA is None,
        reason="CTRANSLATE2_TEST_DATA must name tests/data of github.com/OpenNMT/CTranslate2",
    ),
]

LINES = ["آ ت ز م و ن", "آ ز ا"]  # noqa: RUF001
EXPECTED = ["a t z m o n", "a z z a"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("bundle")
    read = read_checkpoint(Path(str(TEST_DATA)) / "models" / "aren-transliteration")
    export_bundle(read.model, directory, name="transliteration", tokenizers=read.tokenizers)
    return load(directory, threads=1)


def texts(model: Model, **options: Any) -> list[str | None]:
    return [result.text for result in model.generate(LINES, **options)]


def test_the_transliterations_are_those_of_its_tests(model: Model) -> None:
    assert texts(model) == EXPECTED


def test_so_are_those_with_a_prefix_and_with_suppressed_tokens(model: Model) -> None:
    assert texts(model, prefix="a t s")[0] == "a t s u m o n"
    assert texts(model, must_not_contain=["o", "t z m"])[0] == "a t z u m u n"


def test_ids_of_the_vocabularies_give_the_same(model: Model) -> None:
    directory = Path(str(TEST_DATA)) / "models" / "aren-transliteration"
    source, target = (
        (directory / f"{side}_vocabulary.txt").read_text("utf-8").splitlines()
        for side in ("source", "target")
    )
    sources = [[source.index(token) for token in text.split()] for text in LINES]
    for result, expected in zip(model.generate(sources), EXPECTED, strict=True):
        assert [target[token] for token in result.tokens] == expected.split()
