"""Files of shortlists: lexicons of word aligners, `vmap.txt` of CTranslate2, `.bin` of Marian."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import FileError, read_regular
from dragoman.reference_model.recipes.examples import read_pairs
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.neutral_graphs import kind_of
from dragoman.runtime.texts.codecs.interface import TokenizerError, UnknownSymbolsError
from dragoman.runtime.texts.shortlist import LARGEST_FILE, LONGEST_ENTRY, Shortlist
from dragoman.runtime.texts.tokenizer import TextCodec, TooLongError

# A lexicon has a line `source target probability` for each pair of tokens, as fast_align and
# eflomal print it, with probabilities or their logarithms; or `target source probability`, as
# Marian reads it. Which one it is shows in the sums: the probabilities of a source's targets sum to
# at most 1.
#
# A line of `vmap.txt` has one or several source tokens, a tab, and the target tokens that they
# allow. Without source tokens, all sources allow them.
#
# Where source and target have one vocabulary, a source also allows its own tokens, so that names
# can be copied, as in Marian; but not with a `vmap.txt`, which states all that is allowed.
#
# A `.bin` file (marian-nmt/marian-dev, src/data/shortlist.cpp) is little-endian: u64
# 0xF11A48D5013417F5, a checksum of what follows, the number of first tokens of the vocabulary that
# all sources allow, the number of best tokens of each source token, the number of offsets, and the
# number of target tokens; then the offsets of each source token's target tokens, u64, and the
# target tokens, u32.

MAGIC = 0xF11A48D5013417F5
HEADER = struct.Struct("<6Q")
BEST, FREQUENT = 100, 100
"""The number of most probable targets of a source token that are kept of a lexicon, and of tokens
that most source tokens list, which every source allows. Marian's defaults."""
LEAST_KNOWN = 0.5
"""The least share of lines whose tokens the model has."""
MOST_PAIRS, MOST_TOKENS, PAIRS_AT_ONCE = 100_000, 128, 1000
"""The most pairs to learn from, the most tokens of one of their texts, and the pairs whose links
are in memory at once."""
ITERATIONS, LEAST_PROBABILITY = 5, 1e-4
SURPLUS = 1.05
"""The largest sum of rounded probabilities."""

Known = Callable[[str], int | None]
"""Returns the id of a token as a vocabulary spells it; None if it lacks the token."""


class Vocabularies(NamedTuple):
    """The ids of the tokens of a model."""

    source: Known
    target: Known


def shortlist_of(path: Path, bundle: Bundle) -> Shortlist:
    """Read the shortlist of a file for a bundle."""
    check_shortlist_model(bundle.manifest.model)
    model, generation = bundle.manifest.model, bundle.manifest.generation
    try:
        data = read_regular(path, LARGEST_FILE)
    except FileError as error:
        raise DragomanError(f"{path}: {error.problem}") from error
    data, codec = _decompressed(path, data), _codec(bundle)
    if data[:8] == struct.pack("<Q", MAGIC):
        found = _with_own_tokens(_of_marian(path, data, model), codec, model)
    else:
        vocabularies = _vocabularies(codec, model)
        lines = _lines(path, data)
        if lines[0].count("\t") == 1:
            found = _of_ctranslate2(path, lines, vocabularies)
        else:
            found = _with_own_tokens(_of_lexicon(path, lines, vocabularies), codec, model)
    return found.with_always(bundle.manifest.end_tokens, generation.suppressed_token_ids)


def check_shortlist_model(model: ModelSpec) -> None:
    """Raise a `DragomanError` unless a model translates texts."""
    kind = kind_of(model)
    if kind != "sequence-to-sequence" or model.takes_audio:
        found = "a speech model" if model.takes_audio else kind
        raise DragomanError(f"shortlist: expected an encoder-decoder model of texts, found {found}")


def learned_shortlist(path: Path, bundle: Bundle, language: str | None = None) -> Shortlist:
    """Learn a shortlist for a bundle from a file of pairs with tabs between them.

    The lexicon is that of IBM Model 1 (Brown et al. 1993, section 4.1), estimated on at most
    `MOST_PAIRS` pairs, evenly spaced. How often a token occurs in a text does not count. Sources of
    a multilingual model are in the language.
    """
    check_shortlist_model(bundle.manifest.model)
    manifest = bundle.manifest
    codec = _codec(bundle)
    if codec is None:
        raise DragomanError("shortlist: expected a model with tokenizers to learn from texts")
    rows = list(read_pairs([path]))
    if len(rows) > MOST_PAIRS:
        kept = np.linspace(0, len(rows) - 1, MOST_PAIRS).astype(int).tolist()
        rows = [rows[i] for i in kept]
    pairs = []
    for source, target in rows:
        try:
            read = codec.encode_source(source, language, most=MOST_TOKENS).tokens
            written = codec.encode_target(target, most=MOST_TOKENS).tokens
        except (TooLongError, TokenizerError, UnknownSymbolsError):
            continue
        if 0 < len(read) <= MOST_TOKENS and 0 < len(written) <= MOST_TOKENS:
            pairs.append((np.unique(read), np.unique(written)))
    if not pairs:
        raise DragomanError(f"{path}: expected pairs of texts that the model reads, found none")
    found = _of_probabilities(_ibm_model_1(pairs, manifest.model.target_vocab_size))
    found = _with_own_tokens(found, codec, manifest.model)
    suppressed = manifest.generation.suppressed_token_ids
    return found.with_always(manifest.end_tokens, suppressed)


def _ibm_model_1(
    pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], vocabulary: int
) -> dict[int, list[tuple[float, int]]]:
    parts = [pairs[first : first + PAIRS_AT_ONCE] for first in range(0, len(pairs), PAIRS_AT_ONCE)]
    keys = np.unique(np.concatenate([np.unique(_linked(part, vocabulary)[0]) for part in parts]))
    sources = keys // vocabulary
    probabilities = np.ones(len(keys))
    for _ in range(ITERATIONS):
        counts = np.zeros(len(keys))
        for part in parts:
            linked, targets = _linked(part, vocabulary)
            places = np.searchsorted(keys, linked)
            shares = probabilities[places]
            shares /= np.bincount(targets, shares)[targets]
            counts += np.bincount(places, shares, minlength=len(keys))
        probabilities = counts / np.bincount(sources, counts)[sources]
    likely = np.flatnonzero(probabilities > LEAST_PROBABILITY)
    found: dict[int, list[tuple[float, int]]] = {}
    for place in likely.tolist():
        target = int(keys[place] % vocabulary)
        found.setdefault(int(sources[place]), []).append((float(probabilities[place]), target))
    return found


def _linked(
    pairs: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Link every source token of a pair with every target token: source * vocabulary + target.

    Return these, and the number of the target among all targets.
    """
    linked, numbers, first = [], [], 0
    for source, target in pairs:
        linked.append((source[:, None] * vocabulary + target).ravel())
        numbers.append(np.tile(np.arange(first, first + len(target)), len(source)))
        first += len(target)
    return np.concatenate(linked), np.concatenate(numbers)


def _codec(bundle: Bundle) -> TextCodec | None:
    manifest = bundle.manifest
    if manifest.tokenizers is None:
        return None
    return TextCodec.of(manifest.tokenizers, bundle.directory, manifest.languages)


def _with_own_tokens(found: Shortlist, codec: TextCodec | None, model: ModelSpec) -> Shortlist:
    """Let every source token allow itself, if source and target have one vocabulary."""
    if codec is None:
        return found
    sizes = model.source_vocab_size or 0, model.target_vocab_size
    pieces = [codec.source_piece(token) for token in range(min(sizes))]
    if pieces != [codec.target_piece(token) for token in range(min(sizes))]:
        return found
    entries = dict(found.entries)
    for token in (token for token, piece in enumerate(pieces) if piece is not None):
        listed = entries.get((token,), np.empty(0, np.int32))
        entries[(token,)] = np.union1d(listed, np.array([token], np.int32))
    return Shortlist(entries, found.always)


def _decompressed(path: Path, data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _not_a_shortlist(path, error) from error
    if len(data) > LARGEST_FILE:
        raise DragomanError(f"{path}: expected at most {LARGEST_FILE} bytes, found more")
    return data


def _not_a_shortlist(path: Path, error: Exception) -> DragomanError:
    return DragomanError(
        f"{path}: expected a shortlist: lines of source token, target token and probability, "
        f"vmap.txt of CTranslate2, or a .bin file of Marian: {error}"
    )


def _lines(path: Path, data: bytes) -> list[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_a_shortlist(path, error) from error
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        raise DragomanError(f"{path}: expected the lines of a shortlist, found none")
    return lines


def _words(line: str) -> list[str]:
    """Split a line at spaces and tabs: other white space may be part of a token."""
    return [word for word in line.replace("\t", " ").split(" ") if word]


def _vocabularies(codec: TextCodec | None, model: ModelSpec) -> Vocabularies:
    """Return the vocabularies of a model; without tokenizers, tokens are spelled as their ids."""
    sizes = model.source_vocab_size or 0, model.target_vocab_size
    if codec is None:
        return Vocabularies(*({str(i): i for i in range(size)}.get for size in sizes))
    spelled = (codec.source_piece, codec.target_piece)
    pieces = (
        {piece: i for i in range(size) if (piece := piece_of(i)) is not None}
        for size, piece_of in zip(sizes, spelled, strict=True)
    )
    return Vocabularies(*(known.get for known in pieces))


def _of_lexicon(path: Path, lines: list[str], known: Vocabularies) -> Shortlist:
    pairs: list[tuple[str, str, float]] = []
    for number, line in enumerate(lines, 1):
        words = _words(line)
        try:
            first, second, probability = words[0], words[1], float(words[2])
        except (IndexError, ValueError):
            probability = math.nan
        if len(words) != 3 or not math.isfinite(probability):
            raise DragomanError(
                f"{path}: line {number}: expected source token, target token and probability, "
                f"found {shown(line)}"
            )
        pairs.append((first, second, probability))
    values = [value for *_, value in pairs]
    if min(values) < 0:
        if max(values) > 0:
            raise DragomanError(
                f"{path}: expected probabilities or their logarithms, found {min(values):g} and "
                f"{max(values):g}"
            )
        pairs = [(first, second, math.exp(min(0.0, value))) for first, second, value in pairs]
    if _begins_with_target(pairs):
        pairs = [(second, first, probability) for first, second, probability in pairs]
    by_source: dict[int, list[tuple[float, int]]] = {}
    unknown: list[str] = []
    for source, target, probability in pairs:
        ids = known.source(source), known.target(target)
        if ids[0] is None or ids[1] is None:
            unknown.append(source if ids[0] is None else target)
            continue
        by_source.setdefault(ids[0], []).append((probability, ids[1]))
    _check_known(path, unknown, len(pairs))
    return _of_probabilities(by_source)


def _of_probabilities(by_source: Mapping[int, list[tuple[float, int]]]) -> Shortlist:
    best = {
        (source,): [target for _, target in sorted(found, key=lambda p: (-p[0], p[1]))[:BEST]]
        for source, found in by_source.items()
    }
    listed = Counter(target for targets in best.values() for target in targets)
    frequent = [target for target, _ in listed.most_common(FREQUENT)]
    return _shortlist(best.items(), frequent)


def _begins_with_target(pairs: list[tuple[str, str, float]]) -> bool:
    """Return whether the sums of probabilities say that the second token is the source's."""
    sums: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for first, second, probability in pairs:
        sums[0][first] += probability  # type: ignore[assignment]  # Counter adds any number
        sums[1][second] += probability  # type: ignore[assignment]
    largest = [max(side.values()) for side in sums]
    return largest[0] > SURPLUS >= largest[1]


def _of_ctranslate2(path: Path, lines: list[str], known: Vocabularies) -> Shortlist:
    always: set[int] = set()
    entries: dict[tuple[int, ...], set[int]] = {}
    unknown: list[str] = []
    for number, line in enumerate(lines, 1):
        sources, tab, targets = line.partition("\t")
        if not tab or not _words(targets):
            raise DragomanError(
                f"{path}: line {number}: expected source tokens, a tab and target tokens, found "
                f"{shown(line)}"
            )
        ids = [known.source(token) for token in _words(sources)]
        allowed = {known.target(token) for token in _words(targets)} - {None}
        if len(ids) > LONGEST_ENTRY:
            raise DragomanError(
                f"{path}: line {number}: expected at most {LONGEST_ENTRY} source tokens, found "
                f"{len(ids)}"
            )
        if None in ids or not allowed:
            unknown.append(sources if None in ids else _words(targets)[0])
            continue
        own = entries.setdefault(tuple(i for i in ids if i is not None), set()) if ids else always
        own.update(token for token in allowed if token is not None)
    _check_known(path, unknown, len(lines))
    return _shortlist(entries.items(), always)


def _of_marian(path: Path, data: bytes, model: ModelSpec) -> Shortlist:
    if len(data) < HEADER.size:
        raise DragomanError(f"{path}: expected a shortlist of Marian, found {len(data)} bytes")
    _, stated, first, _, offsets, words = HEADER.unpack_from(data)
    expected = HEADER.size + 8 * offsets + 4 * words
    if len(data) != expected:
        raise DragomanError(f"{path}: expected {expected} bytes, found {len(data)}: it is cut")
    if stated != (computed := checksum(data)):
        raise DragomanError(
            f"{path}: expected the checksum {stated:#x} of its header, found {computed:#x}: it is "
            "damaged"
        )
    starts = np.frombuffer(data, "<u8", offsets, HEADER.size).astype(np.int64)
    tokens = np.frombuffer(data, "<u4", words, HEADER.size + 8 * offsets).astype(np.int64)
    vocabulary, sources = model.target_vocab_size, model.source_vocab_size or 0
    largest = int(tokens.max(initial=0))
    if largest >= vocabulary or first > vocabulary or offsets > sources + 1:
        raise DragomanError(
            f"{path}: expected a shortlist for vocabularies of {sources} and {vocabulary} tokens, "
            f"found one with {max(0, offsets - 1)} source tokens, the target token {largest} and "
            f"{first} tokens that are always allowed"
        )
    if offsets and ((np.diff(starts) < 0).any() or starts[0] < 0 or starts[-1] > words):
        raise DragomanError(f"{path}: expected ascending offsets, found others: it is damaged")
    lists = (
        ((source,), tokens[begin:end].tolist())
        for source, (begin, end) in enumerate(pairwise(starts))
        if end > begin
    )
    return _shortlist(lists, range(first))


def checksum(data: bytes) -> int:
    """Compute the checksum of a shortlist in Marian's form, given all its bytes.

    It is that of the whole 64-bit words after its own place (marian-nmt/marian-dev,
    src/common/hash.h).
    """
    found = 0
    for word in np.frombuffer(data, "<u8", len(data) // 8 - 2, 16).tolist():
        found ^= (word + 0x9E3779B9 + (found << 6) + (found >> 2)) & 0xFFFFFFFFFFFFFFFF
    return found


def _shortlist(
    entries: Iterable[tuple[tuple[int, ...], Iterable[int]]], always: Iterable[int]
) -> Shortlist:
    def sorted_tokens(tokens: Iterable[int]) -> NDArray[np.int32]:
        return np.unique(np.fromiter(tokens, np.int32))

    allowed = {source: sorted_tokens(tokens) for source, tokens in entries}
    return Shortlist(allowed, sorted_tokens(always))


def _check_known(path: Path, unknown: Sequence[str], lines: int) -> None:
    """Check that the model has the tokens of most lines; otherwise they are of another one."""
    if len(unknown) > (1 - LEAST_KNOWN) * lines:
        raise DragomanError(
            f"{path}: expected tokens of the model's vocabularies, found others in "
            f"{len(unknown)} of {lines} lines, the first one {shown(unknown[0])}"
        )
