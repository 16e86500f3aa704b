"""The verses of the recipe bible-en-es."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.reference_model.recipes import bible_en_es
from dragoman.reference_model.recipes.bible_en_es import load_data, plain
from dragoman.reference_model.recipes.examples import chapter_bucket


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (  # a note between two words
            '<w lemma="strong:H0430">God</w><note placement="foot"><reference>1:1 </reference>The '
            'word is “אֱלֹהִ֑ים”.</note><w lemma="strong:H1254">created</w> the heavens. ',
            "God created the heavens.",
        ),
        ("He said<note>or, spoke</note>, “Go.<note>x</note>”", "He said, “Go.”"),
        (  # lines of a poem, and the title of a psalm
            '<div type="x-milestone" sID="pv4"/><title canonical="true" type="psalm">A Psalm by '
            'David.</title> <lg sID="gen7"/> <l level="1" sID="gen1"/>Yahweh, how my adversaries '
            'increased!<l eID="gen1"/> <l level="2" sID="gen2"/>Many rise.<l eID="gen2"/>',
            "A Psalm by David. Yahweh, how my adversaries increased! Many rise.",
        ),
        (  # who speaks
            "He took me.<l/> <speaker>Friends</speaker> <l/>We will be glad.",
            "He took me. We will be glad.",
        ),
        ('<q marker="" who="Jesus">“Blessed</q> are they', "“Blessed are they"),
        ("¡<w>OH</w> Jehová!", "¡OH Jehová!"),
        ("", ""),
    ],
)
def test_marks_are_taken_away(raw: str, text: str) -> None:
    assert plain(raw, first=False) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("EN el principio", "En el principio"),
        ("¡<w>OH</w> Jehová!", "¡Oh Jehová!"),
        ("Y ACAECIÓ que", "Y Acaeció que"),
        ("Salmo de David. BIENAVENTURADO", "Salmo de David. BIENAVENTURADO"),
        ("Y dijo JAH", "Y dijo JAH"),
    ],
)
def test_the_first_word_of_a_chapter_is_not_in_capitals(raw: str, text: str) -> None:
    assert plain(raw, first=True) == text


@dataclass
class Book:
    name: str
    chapter_lengths: Sequence[int]

    @property
    def num_chapters(self) -> int:
        return len(self.chapter_lengths)


@dataclass
class Bible:
    """Books with verses such as "Verse 3 of chapter 2 of a4."."""

    old: int
    language: str
    missing: set[tuple[str, int, int]] = field(default_factory=set)

    def get_structure(self) -> Bible:
        return self

    def get_books(self) -> dict[str, list[Book]]:
        return {
            "ot": [Book(f"a{number}", [2, 1, 3]) for number in range(self.old)],
            "nt": [Book(f"b{number}", [1, 2]) for number in range(27)],
        }

    def get(self, *, books: list[str], chapters: list[int], verses: list[int], clean: bool) -> str:
        assert not clean
        place = books[0], chapters[0], verses[0]
        if place in self.missing:
            return " <note>not in this edition</note> "
        return f"<w>{self.language}</w> verse {place[2]} of chapter {place[1]} of {place[0]}. "


@pytest.fixture
def bibles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The English one has books beyond the canon in the Old Testament."""
    modules = {
        "engWEB2015eb": Bible(56, "English", {("a3", 1, 2)}),
        "spaRV1909eb": Bible(39, "Spanish", {("b26", 2, 1)}),
    }
    monkeypatch.setattr(bible_en_es, "_module", lambda folder, name: modules[name])


def test_verses_are_paired_and_split_by_chapter(bibles: None, tmp_path: Path) -> None:
    data = load_data(tmp_path)
    parts = {"train": data.train, "validation": data.validation, "held_out": data.held_out}
    assert sum(map(len, parts.values())) == 39 * 6 + 27 * 3 - 2
    assert not data.dropped and data.held_out
    found = {}
    for part, examples in parts.items():
        for example in examples:
            assert example.references == (example.source.replace("English", "Spanish"),)
            _, _, verse, _, _, chapter, _, book = example.source.rstrip(".").split()
            number = int(book[1:]) + (1 if book[0] == "a" else 40)
            expected = chapter_bucket(book=number, chapter=int(chapter))
            wanted = "held_out" if expected < 5 else "validation" if expected < 7 else "train"
            assert part == wanted, (book, chapter)
            found[book, int(chapter), int(verse)] = part
    assert ("a3", 1, 2) not in found and ("b26", 2, 1) not in found
    assert ("a3", 1, 1) in found and ("b26", 2, 2) in found


def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"sword-text-web and sword-text-sparv .*: --data FOLD"):
        load_data(None)
    with pytest.raises(DragomanError, match=r"expected modules of SWORD \(mods\.d\), found none"):
        load_data(tmp_path)
    (tmp_path / "usr" / "mods.d").mkdir(parents=True)
    with pytest.raises(DragomanError, match=r"usr: expected the module engWEB2015eb, found none"):
        load_data(tmp_path)
