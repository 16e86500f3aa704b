"""HTML, subtitles and plain texts are translated, and all else in them stays as it is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import run_output
from dragoman.runtime import (
    DeadlineError,
    DragomanError,
    GenerationOptions,
    Model,
    RejectedError,
    TranslatedDocument,
    load,
)
from dragoman.runtime import translate_document as translate
from dragoman.runtime.documents import NO_ALIGNMENT, Subtitles, read_document

from ..zoo import prose_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prose_bundle(tmp_path_factory.mktemp("bundles") / "prose")


@pytest.fixture(scope="module")
def model(bundle: Path) -> Model:
    return load(bundle, threads=1)


def text_of(model: Model, sentence: str, **options: Any) -> str:
    return model.generate([sentence], **options)[0].text or ""


def test_html(model: Model) -> None:
    html = "<h1>One</h1>\n<p class='x'>Two men. Three <!-- c --> men &amp; me.</p><pre>a b</pre>\n"
    one, two, three = (text_of(model, s) for s in ("One", "Two men.", "Three men & me."))
    found = translate(model, html, "html")
    assert found.text.replace("<!-- c -->", "").replace("  ", " ") == (
        f"<h1>{one}</h1>\n<p class='x'>{two} {three}</p><pre>a b</pre>\n"
    )
    assert found.text.count("<!-- c -->") == 1 and found.warnings == ()


def test_tags_are_where_the_model_aligns_their_words(model: Model) -> None:
    sentence = "The man saw a house."
    (result,) = model.generate([sentence])
    (alignment,) = model.align([(sentence, result.tokens)])
    found = translate(model, "The <b>man</b> saw a house.", "html").text
    inside = found[found.index("<b>") + 3 : found.index("</b>")].split()
    before = found[: found.index("<b>")].split()
    words = set(range(len(before), len(before) + len(inside)))
    aligned = {target for source, target in alignment.pairs if source == 1}
    assert words & aligned or (not aligned and not words)
    assert found.replace("<b>", "").replace("</b>", "").split() == (result.text or "").split()


def test_without_the_attention_graph_words_are_placed_by_position(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = "<b>The man</b> came home."
    monkeypatch.delitem(model.manifest.graphs, "attention")
    found = translate(model, html, "html")
    words = text_of(model, "The man came home.").split()
    half = -(-len(words) // 2)
    assert found.warnings == (NO_ALIGNMENT,)
    assert found.text[3 : found.text.index("</b>")].split() in (words[:half], words[: half - 1])
    assert translate(model, "<p>The man came home.</p>", "html").warnings == ()


SUBTITLES = """\ufeff1
00:00:01,000 --> 00:00:02,500 X1:1
The man came
to the <i>house</i>.

2
00:00:03,000 --> 00:00:04,000
{\\an8}- Where?
- Here & there.

note

3
00:00:05,000 --> 00:00:06,000

4
00:00:07,000 --> 00:00:08,000
12"""


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_subtitles(model: Model, line_break: str) -> None:
    found = translate(model, SUBTITLES.replace("\n", line_break), "srt").text
    first = text_of(model, "The man came to the house.").split()
    where, here = (text_of(model, text) for text in ("Where?", "Here & there."))
    lines = found.split(line_break)
    assert lines[:2] == ["\ufeff1", "00:00:01,000 --> 00:00:02,500 X1:1"]
    assert " ".join(lines[2:4]).replace("<i>", "").replace("</i>", "").split() == first
    shorter, longer = sorted(map(len, lines[2:4]))
    assert longer - shorter < 15
    assert lines[4:] == [
        *("", "2", "00:00:03,000 --> 00:00:04,000", f"{{\\an8}}- {where}", f"- {here}", ""),
        *("note", "", "3", "00:00:05,000 --> 00:00:06,000", ""),
        *("4", "00:00:07,000 --> 00:00:08,000", "12"),
    ]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("one two three four", 2, "one two\nthree four"),
        ("one two three four", 9, "one\ntwo\nthree\nfour"),
        ('a <font color="x y">bb cc</font>', 2, 'a <font color="x y">bb\ncc</font>'),
        ("one", 2, "one"),
        ("a < b is less, not more", 2, "a < b is less,\nnot more"),
        ("<3 you and <b x>me too", 2, "<3 you and\n<b x>me too"),
        ("", 2, ""),
    ],
)
def test_a_cue_has_as_many_lines_again(text: str, count: int, expected: str) -> None:
    source = "00:01 --> 00:02\n" + "\n".join(["word"] * count)
    subtitles = Subtitles(source, "en")
    assert subtitles.translated([text]) == f"00:01 --> 00:02\n{expected}"


@pytest.mark.parametrize("text", ["", "\n", "1\n0 --> 1\n\n"])
def test_nothing_to_translate(model: Model, text: str) -> None:
    assert translate(model, text, "srt") == TranslatedDocument(text)


@pytest.mark.parametrize("text", ["no cues at all\n\n", "1\nbad time\nThe king\n"])
def test_no_subtitles(model: Model, text: str) -> None:
    with pytest.raises(DragomanError, match="srt: expected times such as 00:00:01,000 --> "):
        translate(model, text, "srt")


def test_plain_text(model: Model) -> None:
    one, two = text_of(model, "One."), text_of(model, "Two men.")
    found = translate(model, "\ufeffOne.  Two men.\r\n\r\n - One.\r\n", "txt").text
    assert found == f"\ufeff{one}  {two}\r\n\r\n - {one}\r\n"


def test_long_sentences_are_cut_with_a_warning(model: Model) -> None:
    long = "one two three, four five six, " * 4
    found = translate(model, f"<p>Hi <b>{long}</b></p>", "html")
    assert found.warnings == (
        "1 sentence is too long for the model and translated in parts: at character 0",
    )
    assert found.text.startswith("<p>") and found.text.count("<b>") == 1


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        ("pdf", {}, "form: expected one of html, srt, txt, found 'pdf'"),
        ("html", {"num_return_sequences": 2, "num_beams": 2}, "num_return_sequences: expected 1"),
        ("html", {"prefix": "ba"}, "prefix: expected none with split"),
    ],
)
def test_mistakes(model: Model, form: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DragomanError, match=words):
        translate(model, "<p>One</p>", form, **options)


def test_what_is_no_text(model: Model) -> None:
    with pytest.raises(DragomanError, match="text: expected a text, found 5"):
        translate(model, 5, "html")  # type: ignore[arg-type]


@pytest.mark.parametrize("calls", [1, 40])
@pytest.mark.parametrize("form", ["html", "srt"])
def test_reading_and_placing_are_stopped(form: Any, calls: int) -> None:
    text = f"1\n0 --> 1\n{'<i>one</i> two ' * 50}"
    left = [calls]

    def check() -> None:
        left[0] -= 1
        if not left[0]:
            raise DeadlineError("late")

    with pytest.raises(DeadlineError):
        read_document(text, form, "en", check)
    document = read_document(text, form, "en")
    left[0] = calls
    with pytest.raises(DeadlineError):
        document.translated(document.sentences, {}, check)


def test_a_sentence_that_cannot_be_decoded(model: Model) -> None:
    with pytest.raises(RejectedError, match="sentence 2 of 2: unknown"):
        translate(model, "<p>One.</p><p>a\ud800</p>", "html")


def test_ids_are_no_text(ids_model: Model) -> None:
    with pytest.raises(DragomanError, match="split: expected a bundle with tokenizers"):
        translate(ids_model, "1", "txt")


def test_standard_input_has_a_limit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_output, "DOCUMENT_BYTES", 4)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"<p>12")))
    with pytest.raises(DragomanError, match="standard input: expected at most 4 bytes"):
        run_output.write_document(model, None, "html", GenerationOptions())
