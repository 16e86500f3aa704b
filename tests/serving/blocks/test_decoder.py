"""Blocks are decoded as `dragoman run` decodes lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.runtime import BackendError, GenerationOptions, load, read_bundle
from dragoman.runtime.decoding.plain import result_data
from dragoman.runtime.serving.blocks.decoder import Decoder, Form, check_form

from ...small_bundle import small_bundle

OPTIONS = GenerationOptions(max_new_tokens=5)
SOURCES = [[1, 2, 3], [4], [5, 6]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without tokenizers."""
    return small_bundle(tmp_path_factory.mktemp("small"), 8)


def decoder(bundle: Path, form: Form = "text", backend: str | None = None) -> Decoder:
    return Decoder(bundle, OPTIONS, form, 1, backend)


def test_a_line_out_for_each(bundle: Path) -> None:
    decoded = decoder(bundle).decode(b"1 2 3\nword\n4\r\n\xff\n5 6")
    with load(bundle, threads=1) as model:
        texts = [" ".join(map(str, r.tokens)) for r in model.generate(SOURCES, OPTIONS)]
    assert decoded.lines == [texts[0], "", texts[1], "", texts[2]]
    assert decoded.rejected == {
        1: "expected token ids separated by spaces: this bundle has no tokenizers",
        3: "expected UTF-8 text: invalid start byte at byte 0",
    }


def test_objects(bundle: Path) -> None:
    decoded = decoder(bundle, "json").decode(b"1 2 3\nword\n")
    with load(bundle, threads=1) as model:
        (result,) = model.generate(SOURCES[:1], OPTIONS)
    good, bad = map(json.loads, decoded.lines)
    assert good == json.loads(json.dumps(result_data(result)))
    assert bad["finish_reason"] == "rejected" and bad["error"] == decoded.rejected[1]


def test_what_is_wrong_is_told_by_a_method(bundle: Path) -> None:
    made = decoder(bundle, backend="none")
    with pytest.raises(BackendError, match="unknown backend 'none'"):
        made.check()


def test_options_are_checked(bundle: Path) -> None:
    made = Decoder(bundle, GenerationOptions(source_language="de"), "text", 1, None)
    with pytest.raises(DragomanError, match="source_language"):
        made.check()


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(num_beams=2, num_return_sequences=2),
        GenerationOptions(timestamps=True),
    ],
)
def test_several_lines_need_json(bundle: Path, options: GenerationOptions) -> None:
    manifest = read_bundle(bundle).manifest
    check_form(manifest, options, "json")
    with pytest.raises(DragomanError, match="a line of output for each of input"):
        check_form(manifest, options, "text")
