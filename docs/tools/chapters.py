"""Writes the held-out chapters of bible-en-es as texts, a chapter a line.

    python -m docs.tools.chapters FOLDER

reads the modules of the recipe in FOLDER, and writes chapters.en and chapters.es.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import click

from dragoman.reference_model.recipes.bible_en_es import read_verses
from dragoman.reference_model.recipes.examples import part_of_chapter


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def main(folder: Path) -> None:
    """Write chapters.en and chapters.es from the modules in FOLDER."""
    english, spanish = read_verses(folder)
    chapters = groupby(sorted(english.keys() & spanish.keys()), lambda verse: verse[:2])
    held_out = [
        list(verses)
        for (book, chapter), verses in chapters
        if part_of_chapter(book=book, chapter=chapter) == "held_out"
    ]
    for texts, name in ((english, "chapters.en"), (spanish, "chapters.es")):
        lines = (" ".join(texts[verse] for verse in verses) for verses in held_out)
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
