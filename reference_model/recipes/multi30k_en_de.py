"""multi30k-en-de: English captions of photographs to German ones, trained on Multi30k."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from dragoman.errors import DragomanError

from ..training import TrainingOptions
from .examples import Cleaning, Example, clean
from .recipe import Data
from .tokenizers import Vocabulary
from .translation import translation_recipe

# The data are the lower-cased, normalized and Moses-tokenized files of task 1
# (https://github.com/multi30k/dataset, data/task1; Elliott et al. 2016, 2017): `train`, `val` for
# validation, and `test_2016_flickr` held out, plain or compressed with gzip. Their use is limited
# to non-commercial research and education, so trained weights are not shipped.
#
# The model is "transformer_tiny" of Wu et al. 2021 (arXiv 2105.14462), but pre-norm. Pre-norm
# reaches after two epochs the validation loss that post-norm reaches after seven.

FORM = "lc.norm.tok"
TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
SOURCE, TARGET = "en", "de"


def load_data(folder: Path | None) -> Data:
    """Read the captions of the folder.

    Raises:
        DragomanError: no folder is given, or a file is missing, is not UTF-8 or has another number
            of lines than its translation.
    """
    if folder is None:
        raise DragomanError(
            "recipe multi30k-en-de needs the folder data/task1 of github.com/multi30k/dataset: "
            "--data FOLDER"
        )
    everything = Cleaning(duplicates=True, longest=None, ratio=None)
    train, dropped = clean(_pairs(folder, "train"), everything)
    return Data(train, read_set(folder, "val"), read_set(folder, TESTS[0]), dropped)


def read_set(folder: Path, name: str) -> list[Example]:
    """Read one of the sets, such as "test_2016_flickr".

    Raises:
        DragomanError: see `load_data`.
    """
    return [Example(source, (target,)) for source, target in _pairs(folder, name)]


def _pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    sources, targets = (read_lines_of(folder, f"{name}.{FORM}.{side}") for side in (SOURCE, TARGET))
    if len(sources) != len(targets):
        raise DragomanError(
            f"{folder}: expected as many lines of {name} in both languages, found {len(sources)} "
            f"and {len(targets)}"
        )
    return list(zip(sources, targets, strict=True))


def read_lines_of(folder: Path, name: str) -> list[str]:
    """Read the lines of a file in the folder or, as in the public repository, its `tok` or `raw`.

    Raises:
        DragomanError: the file is missing, is damaged or is not UTF-8.
    """
    for path in (place / name for place in (folder, folder / "tok", folder / "raw")):
        for candidate, opener in ((path, open), (path.with_name(f"{name}.gz"), gzip.open)):
            lines = _lines(candidate, opener)
            if lines is not None:
                return lines
    raise DragomanError(f"{folder}: expected {name} or {name}.gz, found neither")


def _lines(path: Path, opener: Callable[..., IO[str]]) -> list[str] | None:
    try:
        with opener(path, "rt", encoding="utf-8", newline="\n") as file:
            return [line.rstrip("\r\n") for line in file]
    except FileNotFoundError:
        return None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DragomanError(f"{path}: expected UTF-8 text: {error}") from error


RECIPE = translation_recipe(
    "multi30k-en-de",
    "English captions of photographs to German ones (Multi30k, task 1)",
    {
        "encoder_layers": 4,
        "decoder_layers": 4,
        "d_model": 128,
        "num_heads": 4,
        "d_ff": 256,
        "norm_order": "pre",
        "dropout": 0.3,
        "max_source_positions": 256,
        "max_target_positions": 256,
    },
    Vocabulary(size=10_000, tokenized=True),
    TrainingOptions(
        epochs=52,
        batch_tokens=2048,
        warmup_steps=1000,
        learning_rate_scale=1.5,
        cool_down_epochs=24,
        average_epochs=10,
        precision="bf16",
    ),
    load_data,
    licences={},
    duration="90 minutes on one core",
)
