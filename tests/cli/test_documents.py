"""`dragoman run --split`, and `--format` for documents."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import Model, load, translate_document

from ..zoo import prose_bundle

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]
HTML = "<p>The <b>man</b> came.</p>\n<pre>x</pre>\n"


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prose_bundle(tmp_path_factory.mktemp("bundles") / "prose")


@pytest.fixture(scope="module")
def model(prose: Path) -> Model:
    return load(prose, threads=1)


def test_lines_are_split(dragoman: Dragoman, prose: Path, model: Model) -> None:
    lines = ["One man came.  He left.", "", "  Two."]
    outcome = dragoman(
        "run", prose, "--threads", 1, "--split", stdin="\r\n".join(lines).encode() + b"\n"
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    expected = [result.text for result in model.generate(lines, split=True)]
    assert outcome.stdout == "".join(f"{line}\n" for line in expected)
    assert "  " in outcome.stdout.splitlines()[0]


def test_a_sentence_that_is_cut_is_named(dragoman: Dragoman, prose: Path) -> None:
    outcome = dragoman("run", prose, "--threads", 1, "--split", "One.", "two three, " * 9)
    assert outcome.returncode == 0
    assert outcome.stderr == (
        "line 2: 1 sentence is too long for the model and translated in parts: at character 0\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--split", "--stream"), "--stream and --split exclude each other"),
        (("--split", "--alignments"), "--alignments: expected without --stream, --n-best, "),
        (("--split", "--prefix", "ba"), "--prefix: expected none with split"),
        (("--split-language", "de"), "--split-language: expected with split"),
    ],
)
def test_what_split_excludes(
    dragoman: Dragoman, prose: Path, arguments: tuple[str, ...], words: str
) -> None:
    outcome = dragoman("run", prose, "One.", *arguments)
    assert outcome.returncode == 2 and words in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1 and not outcome.stdout


def test_a_document_is_translated(
    dragoman: Dragoman, prose: Path, model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(HTML)
    outcome = dragoman("run", prose, path, "--format", "html", "--threads", 1)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == translate_document(model, HTML, "html").text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("srt", "1\r\n00:00:01,000 --> 00:00:02,000\r\nThe man came.\r\n\r\n"),
        ("txt", "One man. He left.\n\n\tTwo\n"),
        ("html", ""),
    ],
)
def test_documents_of_standard_input(
    dragoman: Dragoman, prose: Path, model: Model, form: str, text: str
) -> None:
    arguments = ("run", prose, "--format", form, "--beams", 2, "--threads", 1)
    outcome = dragoman(*arguments, stdin=text.encode())
    assert (outcome.returncode, outcome.stderr) == (0, "")
    expected = translate_document(model, text, form, num_beams=2).text  # type: ignore[arg-type]
    assert outcome.stdout.replace("\r\n", "\n") == expected.replace("\r\n", "\n")


def test_the_document_of_a_long_sentence_has_a_warning(dragoman: Dragoman, prose: Path) -> None:
    outcome = dragoman("run", prose, "--format", "txt", stdin=b"two three, " * 9)
    assert outcome.returncode == 0
    assert outcome.stderr.startswith("Warning: 1 sentence is too long for the model")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "vtt"), "--format: expected one of html, srt, txt for texts, found vtt"),
        (("--format", "html", "a", "b"), "--format: expected one file, found 2"),
        (("--format", "html", "none.html"), "none.html: expected a file, found none"),
        (("--format", "html", "--json"), "--format and --json exclude each other"),
        (("--format", "html", "--scores"), "--format and --scores exclude each other"),
        (("--format", "html", "--alignments"), "--alignments, --replace-unknown: expected without"),
        (("--format", "txt", "--n-best", "2", "--beams", "2"), "expected 1 for a document"),
        (("--resume", "x"), "--resume: for speech models"),
    ],
)
def test_mistakes(dragoman: Dragoman, prose: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = dragoman("run", prose, *arguments)
    assert outcome.returncode == 2 and words in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1 and not outcome.stdout


def test_a_million_tags_are_refused(dragoman: Dragoman, prose: Path) -> None:
    begun = time.perf_counter()
    outcome = dragoman("run", prose, "--format", "html", stdin=b"a <b>b</b> " * 500_000)
    assert time.perf_counter() - begun < 30
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == (
        "Error: tags: expected at most 200 elements within each other and 100,000 tags, found "
        "more\n"
    )


def test_a_document_that_is_no_text(dragoman: Dragoman, prose: Path) -> None:
    outcome = dragoman("run", prose, "--format", "txt", stdin=b"One.\nTwo \xff")
    assert outcome.returncode == 2
    assert "expected UTF-8 text, found byte 0xff at offset 9 (line 2)" in outcome.stderr
