"""The models whose parity is checked on a GPU: trained ones, with real inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.comparison import Comparison

from ..real_models import cache, downloaded_whisper
from ..shipped import MODEL, held_out

if TYPE_CHECKING:
    from dragoman.export.tokenizers import TokenizerFiles
    from dragoman.reference_model import AutoregressiveModel
    from dragoman.verification import ParityInputs

WORDS = 200
PROMPTS = 8
"""Each is continued by PyTorch without a cache, anew for every bundle."""
WINDOWS = 8
VERSES = "verses-en"
REPOSITORY_CLIPS = Path("tests/real/clips")
"""Where the repository has clips; a kit has them beside the model."""


@dataclass(frozen=True)
class Subject:
    """A model and what to check it on.

    Attributes:
        description: for the record
        batch_sizes: that are timed; the last is the largest that engines are built for
    """

    description: str
    model: AutoregressiveModel
    tokenizers: TokenizerFiles | None
    inputs: ParityInputs
    batch_sizes: tuple[int, ...]


def g2p_en(workspace: Path) -> Subject:
    """The shipped model and some of its held-out words."""
    from dragoman.export.locating import locate_checkpoint
    from dragoman.export.opened_checkpoint import open_checkpoint

    model, inputs = held_out(WORDS)
    return Subject(
        MODEL, model, open_checkpoint(locate_checkpoint(MODEL)).tokenizers, inputs, (1, 32)
    )


def verses_en(workspace: Path) -> Subject:
    """The shipped language model, a decoder alone, and beginnings of verses held out."""
    from dragoman.export.locating import locate_checkpoint
    from dragoman.export.opened_checkpoint import open_checkpoint
    from dragoman.reference_model import LanguageModel
    from dragoman.verification import inputs_for

    opened = open_checkpoint(locate_checkpoint(VERSES))
    assert isinstance(opened.model, LanguageModel)
    inputs = inputs_for(opened, Comparison(limit=PROMPTS))
    return Subject(VERSES, opened.model, opened.tokenizers, inputs, (1, 32))


def whisper_tiny_en(workspace: Path) -> Subject:
    """Trained Whisper tiny.en and windows of clips; without its weights, which are not downloaded
    here, random ones in its shape, and random sound without clips or what reads them.
    """
    from dragoman.export.locating import locate_checkpoint
    from dragoman.export.opened_checkpoint import open_checkpoint
    from dragoman.reference_model import Transformer
    from dragoman.verification import inputs_for

    from ..models import checkpoint_configs as configs
    from ..models.random_checkpoint import write_random_checkpoint

    directory, description = downloaded_whisper("tiny.en"), "Whisper tiny.en"
    if directory is None:
        description = (
            f"random weights in the shape of Whisper tiny.en, which is not in {cache().resolve()}"
        )
        directory = workspace / "random-whisper"
        write_random_checkpoint(
            configs.WHISPER_TINY_EN,
            directory,
            seed=1,
            sharpness=2.0,
            generation=configs.WHISPER_GENERATION,
        )
    opened = open_checkpoint(locate_checkpoint(directory))
    inputs = inputs_for(opened, Comparison(clips(), WINDOWS))
    if directory.parent == workspace:  # nothing is expected of random weights
        inputs = dataclasses.replace(inputs, random=True)
    assert isinstance(opened.model, Transformer)
    return Subject(description, opened.model, opened.tokenizers, inputs, (1, WINDOWS))


def clips() -> Path | None:
    """A folder of clips; None if there is none, or no library to read them."""
    try:
        import soundfile  # noqa: F401
        import soxr  # noqa: F401
    except (ImportError, OSError):  # OSError: its own library cannot be loaded
        return None
    folders = (cache() / "clips", REPOSITORY_CLIPS)
    return next((folder for folder in folders if folder.is_dir()), None)


SUBJECTS: Mapping[str, Callable[[Path], Subject]] = {
    MODEL: g2p_en,
    VERSES: verses_en,
    "whisper-tiny.en": whisper_tiny_en,
}
"""By name: made in an existing folder."""
