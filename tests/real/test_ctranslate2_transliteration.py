"""The trained model of CTranslate2's own tests gives the transliterations that they expect.

Its vocabularies lack the token for unknown ones, which CTranslate2 appends.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.runtime import load

TEST_DATA = os.environ.get("CTRANSLATE2_TEST_DATA")
"""The folder tests/data of https://github.com/OpenNMT/CTranslate2."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        TEST_DATA is None,
        reason="CTRANSLATE2_TEST_DATA must name tests/data of github.com/OpenNMT/CTranslate2",
    ),
]

EXPECTED = {"آ ت ز م و ن": "a t z m o n", "آ ز ا": "a z z a"}  # noqa: RUF001


def test_the_transliterations_are_those_of_its_tests(tmp_path: Path) -> None:
    directory = Path(str(TEST_DATA)) / "models" / "aren-transliteration"
    source, target = (
        (directory / f"{side}_vocabulary.txt").read_text("utf-8").splitlines()
        for side in ("source", "target")
    )
    export_bundle(read_checkpoint(directory).model, tmp_path, name="transliteration")
    sources = [[source.index(token) for token in text.split()] for text in EXPECTED]
    for result, expected in zip(
        load(tmp_path, threads=1).generate(sources), EXPECTED.values(), strict=True
    ):
        assert [target[token] for token in result.tokens] == expected.split()
