"""bible-en-es: English verses to Spanish ones, trained on two translations of the Bible."""

import re
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError

from ..training import TrainingOptions
from .examples import WORLD_ENGLISH_BIBLE, Cleaning, Example, clean, part_of_chapter
from .recipe import Data
from .tokenizers import Vocabulary
from .translation import translation_recipe

# The data are the verses that occur in both the World English Bible (2020) and the Reina-Valera
# (1909), which are in the public domain. `pysword` reads them from Debian's packages
# `sword-text-web` and `sword-text-sparv`. To get them on any system:
#
#     apt-get download sword-text-web sword-text-sparv
#     for package in sword-text-*.deb; do dpkg -x $package FOLDER; done
#
# The split is that of the recipe verses-en.

MODULES = ("engWEB2015eb", "spaRV1909eb")

PUBLIC_DOMAIN = f"""\
{WORLD_ENGLISH_BIBLE} The Spanish Reina-Valera of 1909 is in the public domain by
its age. What a model that was trained on them writes is neither of them.
"""

Verse = tuple[int, int, int]
"""Book from 1, chapter and verse."""


def load_data(folder: Path | None) -> Data:
    """Read the verses, split by chapter, in the order of the books.

    Raises:
        DragomanError: `pysword` is not installed, no folder is given, or it lacks a module.
    """
    english, spanish = read_verses(folder)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "held_out": []}
    for verse in sorted(english.keys() & spanish.keys()):
        part = part_of_chapter(book=verse[0], chapter=verse[1])
        parts[part].append((english[verse], spanish[verse]))
    train, dropped = clean(parts["train"], Cleaning())
    validation, held_out = (
        [Example(source, (target,)) for source, target in parts[name]]
        for name in ("validation", "held_out")
    )
    return Data(train, validation, held_out, dropped)


def read_verses(folder: Path | None) -> tuple[dict[Verse, str], dict[Verse, str]]:
    """Read the English and the Spanish verses; see `load_data`."""
    english, spanish = (_read(_module(folder, name)) for name in MODULES)
    return english, spanish


def _module(folder: Path | None, name: str) -> Any:
    """Open a module in the folder where SWORD's packages were unpacked or are installed."""
    try:
        from pysword.modules import SwordModules
    except ImportError as error:
        raise DragomanError(
            "recipe bible-en-es needs the package pysword: pip install 'dragoman[train]'"
        ) from error
    if folder is None:
        raise DragomanError(
            "recipe bible-en-es needs a folder in which Debian's packages sword-text-web and "
            "sword-text-sparv were unpacked: --data FOLDER"
        )
    sword = next((file.parent for file in sorted(folder.glob("**/mods.d"))), None)
    if sword is None:
        raise DragomanError(f"{folder}: expected modules of SWORD (mods.d), found none")
    modules = SwordModules(str(sword))
    found = modules.parse_modules()
    if name not in found:
        raise DragomanError(
            f"{sword}: expected the module {name}, found {', '.join(found) or 'none'}"
        )
    return modules.get_bible_from_module(name)


def _read(bible: Any) -> dict[Verse, str]:
    testaments = bible.get_structure().get_books()
    # SWORD puts deuterocanonical books after the first 39.
    books = [*testaments["ot"][:39], *testaments["nt"]]
    verses = {}
    for number, book in enumerate(books, start=1):
        for chapter in range(1, book.num_chapters + 1):
            for verse in range(1, book.chapter_lengths[chapter - 1] + 1):
                raw = bible.get(books=[book.name], chapters=[chapter], verses=[verse], clean=False)
                text = plain(raw, first=verse == 1)
                if text:
                    verses[number, chapter, verse] = text
    return verses


def plain(raw: str, *, first: bool) -> str:
    """Return a verse without its marks (OSIS), notes and speakers, with single spaces.

    Editions print the first word of a chapter in capitals.
    """
    text = re.sub(r"<(note|speaker)\b[^>]*>.*?</\1>", " ", raw, flags=re.DOTALL)
    text = re.sub(r"<(l|lg|div|title|p)\b[^>]*>|</(l|lg|div|title|p)>", " ", text)
    text = " ".join(re.sub(r"<[^>]*>", "", text).split())
    text = re.sub(r" ([,.;:!?)\u2019\u201d])", r"\1", text)
    return re.sub(r"\b[^\W\d_]{2,}\b", _capitalized, text, count=1) if first else text


def _capitalized(word: re.Match[str]) -> str:
    return word[0].capitalize() if word[0].isupper() else word[0]


RECIPE = translation_recipe(
    "bible-en-es",
    "English verses to Spanish ones (World English Bible, Reina-Valera 1909)",
    {
        "encoder_layers": 4,
        "decoder_layers": 2,
        "d_model": 192,
        "num_heads": 4,
        "d_ff": 768,
        "norm_order": "pre",
        "dropout": 0.2,
        "max_source_positions": 256,
        "max_target_positions": 256,
    },
    Vocabulary(size=6000),
    TrainingOptions(
        epochs=24,
        warmup_steps=2000,
        learning_rate_scale=1.5,
        cool_down_epochs=12,
        average_epochs=5,
        precision="bf16",
    ),
    load_data,
    licences={"LICENSE-Bibles.txt": lambda: PUBLIC_DOMAIN},
    duration="80 minutes on one core",
)
