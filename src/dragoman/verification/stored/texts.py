"""Compares tokens of texts, and texts of tokens, with the checkpoint's own tokenizer.

`transformers`, which need not be installed, reads the tokenizer of a Hugging Face directory. Other
checkpoints have the file that the model was trained with, SentencePiece models, or vocabularies.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from dragoman.errors import shown
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.families.encoders.sentence_transformers import read_modules
from dragoman.export.formats.contents import SETTINGS_FILES
from dragoman.export.formats.detection import CONFIG_FILE, format_of
from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.tokenizers import PieceModel, TokenizerFiles
from dragoman.export.tokenizers.files import LIBRARY_FILE
from dragoman.export.tokenizers.settings import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from dragoman.progress import quiet
from dragoman.runtime.encoding.tokenizer import InputTokenizer
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.texts import Tokenizers
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece
from dragoman.runtime.texts.codecs.tokenizer_file import panics_as_errors, summary
from dragoman.runtime.texts.tokenizer import TextCodec

from ..inputs.items import spread
from ..inputs.parity_inputs import ParityInputs
from ..inputs.sources import assumed_language
from .tokenizer_behaviour import AROUND_SPECIAL, TEXTS

NAME = "tokens of texts"
INSTALL = "pip install 'dragoman[verify]'"

WHITE_SPACE = (
    *("no ", "no\n", "no\t", "no\u00a0", " no", "no  no", "no\u00a0no"),
    *("\ufeffno", "n\u200bo\u200b", "caf\u00e9 cafe\u0301\n"),
)
"""Texts in addition to `tokenizer_behaviour.TEXTS`."""
PROMPT = "<|startofprev|>"
"""The token before a prompt of Whisper."""
_UNLIMITED = 1 << 30
MOST_INPUTS = 2000
"""The maximum number of the user's texts of a side that are compared, spread evenly."""

Ids = list[int]
Reader = Callable[[str], Ids]
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class OwnTokenizer:
    """The tokenizer of a checkpoint.

    A side maps a text to its token ids; it may raise an Exception.
    """

    source: Reader | None
    """With the special tokens around the text; None: sources are not texts."""
    target: Reader
    """Without them."""
    decode: Callable[[Ids], str]
    """Token ids of a target to a text without special tokens."""
    piece: Callable[[int], str | None]
    """Target or source token as the vocabulary spells it."""
    added: Sequence[str] = ()
    """Tokens that a text may have in addition to those of its words."""
    pair: Callable[[str, str], tuple[Ids, Ids]] | None = None
    """Token ids and segments of a pair of texts; None: the model reads none."""


def compare_texts(
    bundle: Bundle, checkpoint: OpenedCheckpoint, inputs: ParityInputs
) -> Check | None:
    """Compare tokens of texts, and texts of tokens, with the checkpoint's own tokenizer.

    The texts are difficult ones, each added token alone and inside a text, the inputs and their
    references.
    """
    record, files = bundle.manifest.tokenizers, checkpoint.tokenizers
    if record is None or files is None:
        return None
    language = inputs.source_language or assumed_language(files.languages)
    try:
        with _quietly(), panics_as_errors():
            own = _own_tokenizer(checkpoint, files, language)
    except Exception as error:  # a missing package, or files that another library cannot read
        reason = f"cannot be read: {summary(error)}"
        if isinstance(error, ImportError):
            reason = f"needs {error.name or 'a package'}: {INSTALL}"
        note = f"not compared: the checkpoint's tokenizer {reason}"
        return Check(NAME, 0, "texts", 0, passed=True, note=note)
    texts = [
        *(*TEXTS, *WHITE_SPACE),
        *(around.replace("{}", token) for token in own.added for around in AROUND_SPECIAL),
    ]
    with _quietly():
        found = [*_compared(bundle, record, own, texts, inputs, language)]
    problems = [problem for problem in found if problem is not None]
    problem = problems[0] if problems else ""
    return Check(NAME, len(found), "texts", len(problems), passed=not problems, problem=problem)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with quiet("transformers"), warnings.catch_warnings(action="ignore"):
        yield


def _compared(
    bundle: Bundle,
    record: Tokenizers,
    own: OwnTokenizer,
    texts: Sequence[str],
    inputs: ParityInputs,
    language: str | None,
) -> Iterator[str | None]:
    sources = [*(inputs.texts or ())]
    for line in inputs.lines or ():
        sources += [line.source] if isinstance(line.source, str) else line.source
    pairs = () if inputs.references is None else inputs.references.pairs
    targets = [target for _, target in pairs if isinstance(target, str)]
    head, directory = bundle.manifest.head, bundle.directory
    if head is not None and record.source is not None:
        tokenizer = InputTokenizer(directory / record.source, _UNLIMITED, head)
        chosen = [*texts, *spread(sources, MOST_INPUTS)]
        yield from _side("", own, own.source, lambda text: tokenizer.encode(text).ids, chosen)
        if own.pair is not None:
            yield from _pairs(own, tokenizer, chosen[: len(TEXTS)])
        return
    codec = TextCodec.of(record, directory, bundle.manifest.languages)
    chosen = [*texts, *spread(sources, MOST_INPUTS)]
    yield from _side("source ", own, own.source, lambda text: codec.encode(text, language), chosen)
    chosen = [*texts, *spread(targets, MOST_INPUTS)]
    yield from _side(
        "target ", own, own.target, lambda text: codec.encode_target(text).tokens, chosen
    )
    speech = bundle.manifest.speech
    begin = None if speech is None else speech.timestamp_begin  # texts never show timestamps
    for text in chosen:
        ids = [t for t in _result(own.target, text) or [] if begin is None or t < begin]
        if ids:
            expected, found = (_result(side, ids) for side in (own.decode, codec.decode))
            problem = (
                f"tokens {ids[:20]} of {shown(text)} are decoded to {shown(found)}, expected "
                f"{shown(expected)}"
            )
            yield None if expected == found else problem


def _side(
    side: str, own: OwnTokenizer, expected: Reader | None, found: Reader, texts: Sequence[str]
) -> Iterator[str | None]:
    if expected is None:
        return
    blank = _result(expected, "")
    for text in dict.fromkeys(texts):
        wanted, other = _result(expected, text), _result(found, text)
        # A text that is nothing but white space to the tokenizer is an empty source.
        same = wanted == other or (other == [] and wanted == blank)
        yield None if same else f"{side}text {shown(text)}: {_difference(own, wanted, other)}"


def _pairs(
    own: OwnTokenizer, tokenizer: InputTokenizer, texts: Sequence[str]
) -> Iterator[str | None]:
    assert own.pair is not None
    for text, pair in pairwise(texts):
        if not pair:
            continue
        wanted: tuple[Ids, Ids] = own.pair(text, pair)
        encoded = tokenizer.encode(text, pair)
        if encoded.ids != wanted[0]:
            difference = _difference(own, wanted[0], encoded.ids)
        elif encoded.types != wanted[1]:
            difference = f"expected segments {wanted[1][:20]}, found {encoded.types[:20]}"
        else:
            yield None
            continue
        yield f"texts {shown(text)} and {shown(pair)}: {difference}"


def _result(function: Callable[[Given], Made], given: Given) -> Made | None:
    try:
        with panics_as_errors():
            return function(given)
    except Exception:  # the libraries raise no narrower type
        return None


def _difference(own: OwnTokenizer, expected: Ids | None, found: Ids | None) -> str:
    if expected is None or found is None:
        wanted, other = (
            "none, because it is refused" if ids is None else "tokens" for ids in (expected, found)
        )
        return f"expected {wanted}, found {other}"
    place = next(
        (n for n, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(found)),
    )
    wanted, other = (
        f"{ids[place]} ({shown(own.piece(ids[place]))})" if place < len(ids) else "no more"
        for ids in (expected, found)
    )
    return f"token {place}: expected {wanted}, found {other}"


def _own_tokenizer(
    checkpoint: OpenedCheckpoint, files: TokenizerFiles, language: str | None
) -> OwnTokenizer:
    directory = checkpoint.directory
    kind = format_of(directory, read_json_if_present(directory / CONFIG_FILE)).name
    if kind == "sentence-transformers":
        return _of_sentence_transformers(directory)
    if kind == "Hugging Face":
        spoken = language if files.languages else None
        return _of_transformers(directory, spoken, files.source is not None)
    target = _side_of(files.target, files.pretokenized)
    if files.source is None:
        return replace(target, source=None)
    source, template = _side_of(files.source, files.pretokenized), files.template
    code = files.languages.source_token(language) if files.languages else None
    target = replace(target, piece=source.piece, added=source.added)
    if template is None:
        return replace(target, source=source.source)
    return replace(target, source=lambda text: template.around(source.target(text), code))


def _side_of(tokenizer: Path | Tokenizer | PieceModel, pretokenized: bool) -> OwnTokenizer:
    if isinstance(tokenizer, PieceModel):
        return _of_pieces(tokenizer)
    if pretokenized:
        assert isinstance(tokenizer, Tokenizer)
        return _of_vocabulary(tokenizer)
    own = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.from_file(str(tokenizer))
    own.no_truncation()
    own.no_padding()
    return OwnTokenizer(
        lambda text: list(own.encode(text).ids),
        lambda text: list(own.encode(text, add_special_tokens=False).ids),
        lambda ids: str(own.decode(ids, skip_special_tokens=True)),
        own.id_to_token,
        [token.content for token in own.get_added_tokens_decoder().values()],
    )


def _of_pieces(model: PieceModel) -> OwnTokenizer:
    processor, pieces = load_sentencepiece(model.model), dict(model.pieces)
    named = {token: piece for piece, token in pieces.items()}

    def encode(text: str) -> Ids:
        code = re.match(">>.*?<<", text) if model.leading_code else None
        parts = [code[0]] if code else []
        parts += processor.encode(text[code.end() :] if code else text, out_type=str)
        if model.unknown is None:
            return [pieces[piece] for piece in parts]
        return [pieces.get(piece, model.unknown) for piece in parts]

    def decode(ids: Ids) -> str:
        known = [named[token] for token in ids if token in named]
        return str(processor.decode_pieces(known)).replace("\u2581", " ").strip()

    return OwnTokenizer(encode, encode, decode, named.get)


def _of_vocabulary(tokenizer: Tokenizer) -> OwnTokenizer:
    tokens = tokenizer.get_vocab()
    named = {token: text for text, token in tokens.items()}
    unknown = tokens.get(getattr(tokenizer.model, "unk_token", ""))

    def encode(text: str) -> Ids:
        parts = re.split(r"[ \t\n\v\f\r]+", text)
        if unknown is None:
            return [tokens[part] for part in parts if part]
        return [tokens.get(part, unknown) for part in parts if part]

    return OwnTokenizer(
        encode, encode, lambda ids: " ".join(named[token] for token in ids), named.get
    )


def _read_by_transformers(directory: Path) -> Any:
    """Read the tokenizer of a directory as `AutoTokenizer` does.

    A directory may state no class, and that of the model's type may not be able to hold the
    vocabulary of `tokenizer.json`. The file is then used as it is.
    """
    library: Any = import_module("transformers")
    options = {"local_files_only": True, "trust_remote_code": False}
    path, kind = directory / LIBRARY_FILE, None
    configurations = (directory / name for name in (TOKENIZER_CONFIG_FILE, CONFIG_FILE))
    if not any("tokenizer_class" in read_json_if_present(file) for file in configurations):
        kind = type(Tokenizer.from_file(str(path)).model) if path.exists() else None
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(directory, **options)
        if kind is None or isinstance(tokenizer.backend_tokenizer.model, kind):
            return tokenizer
    except Exception as error:
        if kind is None or isinstance(error, ImportError):
            raise
    return library.PreTrainedTokenizerFast.from_pretrained(directory, **options)


def _added(directory: Path, tokenizer: Any) -> list[str]:
    """Return the added tokens that texts are made with.

    Where no file states how the mask of an old directory of BART or RoBERTa is read, transformers
    since version 5 forgets that it includes the space before it. Whisper's `decode` removes
    prompts.
    """
    added = [token for token in tokenizer.get_added_vocab() if token != PROMPT]
    stated = read_json_if_present(directory / TOKENIZER_CONFIG_FILE)
    states_mask = isinstance(stated.get("mask_token"), dict) or "added_tokens_decoder" in stated
    if states_mask or (directory / LIBRARY_FILE).exists():
        return added
    return [token for token in added if token != tokenizer.mask_token]


def _of_transformers(directory: Path, language: str | None, takes_text: bool) -> OwnTokenizer:
    tokenizer = _read_by_transformers(directory)
    if language is not None:
        tokenizer.src_lang = language
    # Only Marian's tokenizer has another model for targets.
    sides = "text_target" if hasattr(tokenizer, "spm_target") else "text"

    def pair(first: str, second: str) -> tuple[Ids, Ids]:
        read = tokenizer(first, second, return_token_type_ids=True)
        return list(read["input_ids"]), list(read["token_type_ids"])

    return OwnTokenizer(
        (lambda text: list(tokenizer(text)["input_ids"])) if takes_text else None,
        lambda text: list(tokenizer(**{sides: text}, add_special_tokens=False)["input_ids"]),
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        lambda token: tokenizer.convert_ids_to_tokens(token),
        _added(directory, tokenizer),
        pair,
    )


def _of_sentence_transformers(directory: Path) -> OwnTokenizer:
    modules = {module.kind: module.directory for module in read_modules(directory)}
    transformer = modules["Transformer"]
    own = _of_transformers(transformer, None, takes_text=True)
    settings = (read_json_if_present(transformer / name) for name in SETTINGS_FILES)
    if not next((found for found in settings if found), {}).get("do_lower_case"):
        return own

    source, pair = own.source, own.pair
    assert source is not None and pair is not None
    return replace(
        own,
        source=lambda text: source(text.lower()),
        pair=lambda first, second: pair(first.lower(), second.lower()),
        # Added tokens in capitals, which this library never finds in a text, are not compared.
        added=[token for token in own.added if token == token.lower()],
    )
