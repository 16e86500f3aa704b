"""Readers for `tokenizer.json`, and for the two files of a byte-level pair encoding."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dragoman.errors import DragomanError
from dragoman.regular_files import VOCABULARY_BYTES, check_regular
from dragoman.runtime.texts.codecs.failures import panics_as_errors

from .checkpoint import TokenizerCheckpoint
from .files import TokenizerFiles
from .reading import LIBRARY_FILE, all_present, check_ids, read_vocabulary

SPECIAL_TOKENS = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def library_file(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """`tokenizer.json`, unchanged, for both sides."""
    if checkpoint.library is None:
        return None
    path = checkpoint.directory / LIBRARY_FILE
    return TokenizerFiles(path, path)


def byte_level(checkpoint: TokenizerCheckpoint, defaults: Mapping[str, str]) -> Tokenizer | None:
    """Byte-level pair encoding from `vocab.json` and `merges.txt`; None if they are not there.

    Args:
        defaults: special tokens of the family that tokenizer_config.json may leave out
    """
    directory = checkpoint.directory
    if not all_present(directory, "vocab.json", "merges.txt"):
        return None
    path, merges = directory / "vocab.json", directory / "merges.txt"
    added = checkpoint.added_tokens()
    vocabulary = read_vocabulary(path, checkpoint.vocab_size) | added
    check_ids(path, vocabulary, checkpoint.vocab_size)
    check_regular(merges, VOCABULARY_BYTES)
    try:
        with panics_as_errors():
            pairs = models.BPE.read_file(str(path), str(merges))[1]
            model = models.BPE(
                vocabulary, pairs, continuing_subword_prefix="", end_of_word_suffix=""
            )
    except Exception as error:  # the library raises no narrower type
        raise DragomanError(f"{merges}: not the merges of {path.name}: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space(checkpoint))
    tokenizer.decoder = decoders.ByteLevel()
    named = (checkpoint.special(name, defaults.get(name, "")) for name in SPECIAL_TOKENS)
    special = sorted({*added, *named} & vocabulary.keys(), key=vocabulary.__getitem__)
    mask = checkpoint.special("mask", defaults.get("mask", ""))
    # Models of fairseq were trained on masks without a token for the space before them.
    strips = checkpoint.strips_left("mask", mask, "mask" in defaults)
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=strips and token == mask, normalized=False) for token in special]
    )
    return tokenizer


def prefix_space(checkpoint: TokenizerCheckpoint) -> bool:
    """Whether a text is tokenized as if a space stood before it."""
    return bool(checkpoint.setting("add_prefix_space", bool))
