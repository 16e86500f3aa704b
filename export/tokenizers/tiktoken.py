"""Encodings of the library tiktoken: patterns, special tokens, and the reader of ranks."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import VOCABULARY_BYTES, read_regular
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.texts.codecs.tokenizer_file import panics_as_errors, summary
from dragoman.runtime.texts.surfaces import BYTE_OF_LETTER

from .checkpoint import TokenizerCheckpoint
from .files import TokenizerFiles, check_has_tokens, check_ids
from .settings import CONFIG_FILE

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Encoding:
    """The properties of an encoding that files of ranks lack."""

    pattern: str
    """Tiktoken's pattern of the pieces of a text, which are encoded one by one."""
    size: int | None = None
    """Number of ranks; None: any."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Special tokens with their ids."""


def _harmony_tokens() -> dict[str, int]:
    named = {
        "<|startoftext|>": 199_998,
        "<|endoftext|>": 199_999,
        "<|return|>": 200_002,
        "<|constrain|>": 200_003,
        "<|channel|>": 200_005,
        "<|start|>": 200_006,
        "<|end|>": 200_007,
        "<|message|>": 200_008,
        "<|call|>": 200_012,
        "<|endofprompt|>": 200_018,
    }
    rest = set(range(200_000, 201_088)) - set(named.values())
    return named | {f"<|reserved_{token}|>": token for token in rest}


_FILLING = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_GPT2 = Encoding(GPT2_PATTERN, 50_256, {"<|endoftext|>": 50_256})
_P50K_TOKENS = {"<|endoftext|>": 50_256}  # between the ranks

ENCODINGS: Mapping[str, Encoding] = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": Encoding(GPT2_PATTERN, 50_280, _P50K_TOKENS),
    "p50k_edit": Encoding(
        GPT2_PATTERN, 50_280, _P50K_TOKENS | {token: 50_281 + i for i, token in enumerate(_FILLING)}
    ),
    "cl100k_base": Encoding(
        CL100K_PATTERN,
        100_256,
        {"<|endoftext|>": 100_257, "<|endofprompt|>": 100_276}
        | {token: 100_258 + i for i, token in enumerate(_FILLING)},
    ),
    "o200k_base": Encoding(
        O200K_PATTERN, 199_998, {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}
    ),
    "o200k_harmony": Encoding(O200K_PATTERN, 199_998, _harmony_tokens()),
}
"""Encodings by tiktoken's names."""

_ESCAPE = (
    r"\\(?:[pP]\{(?:[LMNPSZ][a-z]?|Han|Hiragana|Katakana|Hangul)\}|[sSdDrnt]|u[0-9A-Fa-f]{4}"
    r"|[^A-Za-z0-9\s<>])"
)
_ITEMS = rf"\[\^?(?:{_ESCAPE}|(?!&&|--|~~)[^\[\]\\])+"
_BOUNDS = r"\{\d+(?:,\d*)?\}"
_TOKEN = re.compile(
    rf"""
    (?P<atom> {_ESCAPE} | {_ITEMS}(?:&&{_ITEMS}\])?\] | \. | [^\\()\[\]{{}}|?*+.^$] )
      (?: (?P<bounds> {_BOUNDS} ) (?P<possessive> \+ )? (?![?+]) )?
    | (?P<anchor> [\^$] )
    | \( (?: (?![?*]) | \? (?: [:>=!] | <[=!] | i:(?= (?P<folded> ['|\[\]a-zA-Z]+ ) \) ) ) )
    | \) (?: {_BOUNDS} (?![?+]) )?
    | \|
    | [?*+][?+]? (?![?*+])
    """,
    re.VERBOSE,
)
_ANCHORS = {"^": r"\A", "$": r"\z"}
_MULTIPLE = re.compile("ss|st|f[fil]", re.IGNORECASE)
"""Sequences that match a single letter, such as ß, in Oniguruma if case is ignored."""


class PatternError(ValueError):
    """A pattern that might mean something else in the syntax of the `tokenizers` library."""


def library_pattern(pattern: str) -> str:
    """Translate a pattern of tiktoken for the `tokenizers` library, whose syntax is Oniguruma's.

    There, anchors match at lines, and a plus after bounds repeats the bounded expression. A
    `PatternError` refuses syntax whose meaning may differ.
    """
    translated, position = list[str](), 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None or _MULTIPLE.search(token["folded"] or ""):
            found = pattern[position : position + 20]
            raise PatternError(f"found {shown(found)} at position {position}")
        if token["anchor"]:
            translated.append(_ANCHORS[token["anchor"]])
        elif token["possessive"]:
            translated.append(f"(?>{token['atom']}{token['bounds']})")
        else:
            translated.append(token[0])
        position = token.end()
    return "".join(translated)


# A line holds the bytes of a token in base64 and its rank, which is its id.
#
# tiktoken merges the first pair of neighbours with the lowest rank, and keeps a piece of a text
# that is itself a token. The two parts of a token depend on its own bytes only, since no earlier
# merge crosses its ends. One merge for each token, in the order of ranks, therefore gives the same
# results.

OTHER_NAME = "tiktoken.model"
"""The name of a file of ranks in `transformers`."""
LONGEST_TOKEN = 1000
"""Maximum bytes of a token; published encodings have up to 128. The time to find a token's merge
grows with the square."""

_LINE = re.compile(rb"(\S+)[ \t]+([0-9]{1,9})")
_LETTERS = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}
_NO_RANK = 1 << 62


def plain_ranks(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Read one tokenizer of ranks for both sides; None if there are no ranks.

    `bos` and `eos` enclose a source text if the checkpoint's settings say so.
    """
    tokenizer = tokenizer_of_ranks(checkpoint)
    if tokenizer is None:
        return None
    added = [
        [checkpoint.special(name, f"{name}_token")]
        if checkpoint.setting(f"add_{name}_token", bool)
        else []
        for name in ("bos", "eos")
    ]
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    check_has_tokens(checkpoint.directory / CONFIG_FILE, vocabulary, *added[0], *added[1])
    begin, end = (tuple(vocabulary[token] for token in tokens) for tokens in added)
    template = SourceTemplate(begin, end) if begin or end else None
    return TokenizerFiles(tokenizer, tokenizer, template)


def tokenizer_of_ranks(
    checkpoint: TokenizerCheckpoint, encodings: Mapping[str, Encoding] = ENCODINGS
) -> Tokenizer | None:
    """Make the tokenizer that encodes and decodes as tiktoken does; None if there are no ranks.

    It also has the added tokens of the checkpoint, and the special tokens of the encoding, which
    the name of the file may tell.
    """
    path = _path(checkpoint.directory)
    if path is None:
        return None
    config = checkpoint.directory / CONFIG_FILE
    if checkpoint.setting("add_prefix_space", bool):
        raise DragomanError(f"{config}: add_prefix_space: expected false for ranks, found true")
    encoding = _encoding(checkpoint, path, encodings)
    splitter = pre_tokenizers.Split(_regex(config, encoding.pattern), "removed", invert=True)
    ranks = _read(path, checkpoint.vocab_size)
    if encoding.size not in (None, len(ranks)):
        raise DragomanError(
            f"{path}: expected the {encoding.size} ranks of {path.stem}, found {len(ranks)}: the "
            f"file is damaged, or needs another name, and pat_str in {CONFIG_FILE}"
        )
    others = _other_tokens(checkpoint, path, ranks, encoding)
    tokenizer = Tokenizer(_model(ranks, others))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [splitter, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer, others, checkpoint)
    return tokenizer


def _path(directory: Path) -> Path | None:
    paths = sorted(directory.glob("*.tiktoken"))
    paths += [path for path in [directory / OTHER_NAME] if path.exists()]
    if len(paths) > 1:
        found = ", ".join(path.name for path in paths)
        raise DragomanError(f"{directory}: expected one file of ranks, found {found}")
    return paths[0] if paths else None


def _encoding(
    checkpoint: TokenizerCheckpoint, path: Path, encodings: Mapping[str, Encoding]
) -> Encoding:
    """Return the encoding, by the pattern in the checkpoint or else by the file's name."""
    pattern = checkpoint.setting("pat_str", str)
    if pattern is not None:
        return Encoding(pattern)
    if path.stem in encodings:
        return encodings[path.stem]
    raise DragomanError(
        f"{path}: expected pat_str, the pattern that tiktoken splits texts with, in {CONFIG_FILE}, "
        f"or a file named after its encoding ({', '.join(encodings)}), found neither"
    )


def _regex(config: Path, pattern: str) -> Regex:
    try:
        with panics_as_errors():
            return Regex(library_pattern(pattern))
    except Exception as error:  # the library raises no narrower type
        raise DragomanError(
            f"{config}: pat_str: expected a pattern that tiktoken and tokenizers understand alike: "
            f"{summary(error)}"
        ) from error


def _read(path: Path, size: int) -> dict[str, int]:
    """Read tokens, with a letter for each byte, and their ranks."""
    ranks, taken = dict[str, int](), set[int]()
    for number, line in enumerate(read_regular(path, VOCABULARY_BYTES).splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = _entry(line)
            if rank >= size:
                raise ValueError(f"a rank in [0, {size}), the model's vocabulary, found {rank}")
            if token in ranks or rank in taken:
                raise ValueError(
                    f"each token and each rank once, found {shown(line.decode('latin-1'))} again"
                )
        except ValueError as error:
            raise DragomanError(f"{path}: line {number}: expected {error}") from error
        ranks[token] = rank
        taken.add(rank)
    missing = [byte for byte, letter in _LETTERS.items() if letter not in ranks]
    if missing:
        raise DragomanError(
            f"{path}: expected a token for each byte, found none for {len(missing)} of 256, such "
            f"as 0x{min(missing):02X}"
        )
    return ranks


def _entry(line: bytes) -> tuple[str, int]:
    match = _LINE.fullmatch(line)
    try:
        if match is None:
            raise ValueError
        # Whisper's multilingual ranks end with an empty token, written as "=".
        token = b"" if match[1] == b"=" else base64.b64decode(match[1], validate=True)
    except ValueError:
        raise ValueError(
            f"a token in base64 and its rank, found {shown(line.decode('latin-1'))}"
        ) from None
    if len(token) > LONGEST_TOKEN:
        raise ValueError(f"a token of at most {LONGEST_TOKEN} bytes, found one of {len(token)}")
    return token.decode("latin-1").translate(_LETTERS), int(match[2])


def _other_tokens(
    checkpoint: TokenizerCheckpoint, path: Path, ranks: Mapping[str, int], encoding: Encoding
) -> dict[str, int]:
    """Return the tokens besides the ranks, by ascending id; unused ids get reserved tokens."""
    listed = checkpoint.added_tokens()
    check_ids(checkpoint.directory / CONFIG_FILE, listed, checkpoint.vocab_size)
    by_id = {
        token: content
        for content, token in encoding.special_tokens.items()
        if token < checkpoint.vocab_size and content not in listed
    } | {token: content for content, token in listed.items()}
    ranked = {rank: token for token, rank in ranks.items()}
    for content, token in listed.items():
        for other in (by_id[token], ranked.get(token, content)):
            if other != content:
                raise DragomanError(
                    f"{checkpoint.directory}: expected one token for each id, found "
                    f"{shown(content)} and {shown(other)} for {token}"
                )
    missing = set(range(max(ranked))) - ranked.keys() - by_id.keys()
    if missing:
        raise DragomanError(
            f"{path}: expected ranks without gaps but for special tokens, found none for "
            f"{len(missing)} ids, such as {min(missing)}"
        )
    others = dict[str, int]()
    for token in range(max(ranked.keys() | by_id.keys()) + 1):
        if token in by_id or token not in ranked:
            content = by_id.get(token, f"<|reserved_token_{token}|>")
            if (first := others.get(content, ranks.get(content, token))) != token:
                raise DragomanError(
                    f"{checkpoint.directory}: expected one id for each token, found {first} and "
                    f"{token} for {shown(content)}"
                )
            others[content] = token
    return others


def _model(ranks: Mapping[str, int], others: Mapping[str, int]) -> models.BPE:
    merges, whole = list[tuple[str, str]](), False
    for token, _ in sorted(ranks.items(), key=itemgetter(1)):
        parts = _parts(token, ranks)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
        elif len(parts) > 2:
            whole = True
    last = max(ranks.values())
    gaps = {content: token for content, token in others.items() if token < last}
    # The vocabulary excludes special tokens after the ranks, since they are not pieces of texts.
    return models.BPE({**ranks, **gaps}, merges, ignore_merges=whole)


def _parts(token: str, ranks: Mapping[str, int]) -> list[str]:
    """Return the two tokens that merge to this one; more if its bytes do not merge to it."""
    parts = list(token)
    pairs = [ranks.get(first + second, _NO_RANK) for first, second in pairwise(parts)]
    while len(parts) > 2 and (lowest := min(pairs)) < _NO_RANK:
        place = pairs.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        del pairs[place]
        for i in (place - 1, place):
            if 0 <= i < len(pairs):
                pairs[i] = ranks.get(parts[i] + parts[i + 1], _NO_RANK)
    return parts


def _add(tokenizer: Tokenizer, others: Mapping[str, int], checkpoint: TokenizerCheckpoint) -> None:
    texts = checkpoint.added_texts()
    for is_text, contents in groupby(others, key=texts.__contains__):
        tokens = [AddedToken(content, normalized=False) for content in contents]
        (tokenizer.add_tokens if is_text else tokenizer.add_special_tokens)(tokens)
    for content, token in others.items():
        is_decoded = content not in texts or tokenizer.decode([token]) == content
        if tokenizer.token_to_id(content) != token or not is_decoded:
            raise DragomanError(
                f"{checkpoint.directory}: expected added tokens that the library tokenizers can "
                f"encode and decode, found {shown(content)}"
            )
