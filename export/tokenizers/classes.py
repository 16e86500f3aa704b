"""The tokenizer classes of `transformers`: a vocabulary and settings -> the tokenizer they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from dragoman.errors import DragomanError

from .settings import Token, TokenizerSettings, content_of
from .vocabulary import Scored, Vocabulary, merges_of


# From version 5 on, a class takes only the vocabulary from `tokenizer.json` or a SentencePiece
# model. It makes everything else anew from `tokenizer_config.json`, and adds the tokens that this
# file, and `added_tokens.json` and `special_tokens_map.json` beside it, list.
@dataclass(frozen=True)
class TokenizerClass:
    """A class of `transformers` that makes its tokenizer anew."""

    model: str
    """Type of the model in the `tokenizers` library."""
    named: Mapping[str, Token]
    """Default contents of the special tokens, by name."""
    components: Callable[[Tokenizer, Vocabulary, TokenizerSettings], None]
    """Sets everything but the model and the post-processor."""
    around: Callable[[Tokenizer, TokenizerSettings, Mapping[str, str]], Any] | None = None
    """Returns the post-processor, once all tokens are added; None: the file's."""
    extras: Callable[[Vocabulary, TokenizerSettings], Sequence[Token]] = field(
        default=lambda vocabulary, settings: vocabulary.added
    )
    """Returns further special tokens, unless the settings list some."""
    unknown: int | None = None
    """Index of the unknown piece of a Unigram model; None: that of `unk_token`."""
    arranged: Callable[[list[Scored], Mapping[str, str], TokenizerSettings], list[Scored]] = field(
        default=lambda pieces, contents, settings: pieces
    )
    """Returns the pieces of a SentencePiece model in the order of the token ids."""


def assemble(
    kind: TokenizerClass | None, vocabulary: Vocabulary | Tokenizer, settings: TokenizerSettings
) -> Tokenizer:
    """Make the tokenizer of a class; None uses `tokenizer.json` as it is."""
    if kind is None or isinstance(vocabulary, Tokenizer):
        assert isinstance(vocabulary, Tokenizer)
        _add_tokens(vocabulary, settings, settings.named({}), settings.extras(()))
        return vocabulary
    tokens = {
        name: _like(kind.named.get(name), token)
        for name, token in settings.named(kind.named).items()
    }
    contents = {name: content_of(token) for name, token in tokens.items()}
    if vocabulary.scored:
        pieces = kind.arranged(list(vocabulary.scored), contents, settings)
        if kind.model == "BPE":
            merges = merges_of({piece: token for token, (piece, _) in enumerate(vocabulary.scored)})
            ids = {piece: token for token, (piece, _) in enumerate(pieces)}
            vocabulary = replace(vocabulary, pieces=ids, merges=merges)
        else:
            vocabulary = replace(vocabulary, pieces=pieces)
    tokenizer = Tokenizer(_model(kind, vocabulary, contents, settings))
    kind.components(tokenizer, vocabulary, settings)
    if vocabulary.post_processor is not None:
        tokenizer.post_processor = vocabulary.post_processor
    _add_tokens(tokenizer, settings, tokens, settings.extras(kind.extras(vocabulary, settings)))
    if kind.around is not None:
        tokenizer.post_processor = kind.around(tokenizer, settings, contents)
    elif tokenizer.post_processor is None:
        begin = "{bos} " if settings.flag("add_bos_token", False) else ""
        end = " {eos}" if settings.flag("add_eos_token", False) else ""
        around = _template(f"{begin}$A{end}", f"{begin}$A{end} {begin}$B{end}")
        tokenizer.post_processor = around(tokenizer, settings, contents)
    return tokenizer


def _like(default: Token | None, token: Token) -> Token:
    """Return a token with the flags of the default of its name, unless it has its own."""
    if isinstance(token, AddedToken) or not isinstance(default, AddedToken):
        return token
    return AddedToken(
        token,
        lstrip=default.lstrip,
        rstrip=default.rstrip,
        normalized=default.normalized,
        special=default.special,
    )


def _model(
    kind: TokenizerClass,
    vocabulary: Vocabulary,
    contents: Mapping[str, str],
    settings: TokenizerSettings,
) -> Any:
    pieces: Any = vocabulary.pieces
    if kind.model == "WordPiece":
        return models.WordPiece(pieces, unk_token=contents["unk_token"])
    if kind is NLLB:
        return models.BPE(
            pieces, list(vocabulary.merges), unk_token=contents["unk_token"], fuse_unk=True
        )
    if kind.model == "BPE":
        return models.BPE(
            pieces, list(vocabulary.merges), continuing_subword_prefix="", end_of_word_suffix=""
        )
    unknown = kind.unknown
    if unknown is None:
        names = [piece for piece, _ in pieces]
        wanted = contents["unk_token"]
        unknown = names.index(wanted) if wanted in names else 0
    if unknown >= len(pieces):
        raise DragomanError(
            f"{settings.path}: tokenizer_class: expected more than {unknown} pieces, the unknown "
            f"one of this class, found {len(pieces)}"
        )
    return models.Unigram([tuple(piece) for piece in pieces], unknown, False)


def _add_tokens(
    tokenizer: Tokenizer,
    settings: TokenizerSettings,
    named: Mapping[str, Token],
    extra: Iterable[Token],
) -> None:
    """Add tokens as `transformers` does: listed ones by id, named special ones, further ones."""
    own = tokenizer.get_added_tokens_decoder().values()
    present = {token.content for token in own}
    listed = [settings.added[token_id] for token_id in sorted(settings.added)]
    tokens: list[Token] = list(listed)
    present |= {token.content for token in listed}
    for token in (*named.values(), *extra):
        if content_of(token) not in present:
            tokens.append(token)
            present.add(content_of(token))
    # A token that the library knows as special stays special, whatever is added.
    names = {*map(content_of, named.values()), *(t.content for t in own if t.special)}
    added = []
    for token in tokens:
        if isinstance(token, str):
            token = AddedToken(token, special=True)
        elif not token.special and token.content in names:
            token.special = True
        added.append(token)
    tokenizer.add_tokens(added)


def _word_piece(tokenizer: Tokenizer, vocabulary: Vocabulary, settings: TokenizerSettings) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.flag("tokenize_chinese_chars", True)),
        strip_accents=settings.flag("strip_accents", None),
        lowercase=bool(settings.flag("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")


def _byte_level(tokenizer: Tokenizer, vocabulary: Vocabulary, settings: TokenizerSettings) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(settings.flag("add_prefix_space", False))
    )
    tokenizer.decoder = decoders.ByteLevel()


def _pieces(
    *,
    splits: bool = True,
    normalizer: Callable[[bytes | None], Any] = lambda charsmap: (
        None if charsmap is None else normalizers.Precompiled(charsmap)
    ),
    optional_space: bool = False,
) -> Callable[[Tokenizer, Vocabulary, TokenizerSettings], None]:
    """Return the components of a SentencePiece tokenizer, whose rules make the normalizer.

    It may split a text at white space first. The space before a text may be optional, by
    `add_prefix_space`.
    """

    def components(
        tokenizer: Tokenizer, vocabulary: Vocabulary, settings: TokenizerSettings
    ) -> None:
        made = normalizer(vocabulary.charsmap)
        if made is not None:
            tokenizer.normalizer = made
        spaced = not optional_space or settings.flag("add_prefix_space", True)
        scheme: Any = "always" if spaced else "never"
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.pre_tokenizer = (
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
            if splits
            else metaspace
        )
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)

    return components


def _single_spaces(charsmap: bytes | None) -> Any:
    spaces = normalizers.Replace(Regex(r" {2,}"), " ")
    rules = [] if charsmap is None else [normalizers.Precompiled(charsmap)]
    return normalizers.Sequence([*rules, spaces])


def _of_pegasus(charsmap: bytes | None) -> Any:
    if charsmap is not None:
        return _single_spaces(charsmap)
    spaces = normalizers.Replace(Regex(r" {2,}"), " ")
    return normalizers.Sequence([normalizers.Replace(Regex(r"\n"), " "), spaces])


def _of_albert(tokenizer: Tokenizer, vocabulary: Vocabulary, settings: TokenizerSettings) -> None:
    rules: list[Any] = [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
    if not settings.flag("keep_accents", False):
        rules += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", True):
        rules.append(normalizers.Lowercase())

    def normalizer(charsmap: bytes | None) -> Any:
        own = [] if charsmap is None else [normalizers.Precompiled(charsmap)]
        return normalizers.Sequence([*rules, *own])

    _pieces(normalizer=normalizer, optional_space=True)(tokenizer, vocabulary, settings)


def _template(
    single: str, pair: str
) -> Callable[[Tokenizer, TokenizerSettings, Mapping[str, str]], Any]:
    """Return a maker of templates; {eos} stands for the content of `eos_token`, for example."""

    def around(
        tokenizer: Tokenizer, settings: TokenizerSettings, contents: Mapping[str, str]
    ) -> Any:
        short = {name.removesuffix("_token"): content for name, content in contents.items()}
        forms = [[part.format_map(short) for part in form.split()] for form in (single, pair)]
        special = {part.rpartition(":")[0] or part for part in forms[1]} - {"$A", "$B"}
        ids = [(token, tokenizer.token_to_id(token)) for token in sorted(special)]
        return processors.TemplateProcessing(
            single=forms[0], pair=forms[1], special_tokens=[(t, i) for t, i in ids if i is not None]
        )

    return around


def _around_roberta(
    tokenizer: Tokenizer, settings: TokenizerSettings, contents: Mapping[str, str]
) -> Any:
    sep, cls = contents["sep_token"], contents["cls_token"]
    return processors.RobertaProcessing(
        (sep, tokenizer.get_vocab(with_added_tokens=True)[sep]),
        (cls, tokenizer.get_vocab(with_added_tokens=True)[cls]),
        bool(settings.flag("trim_offsets", True)),
        bool(settings.flag("add_prefix_space", False)),
    )


OWN = ("<unk>", "<s>", "</s>")
"""The first pieces of a SentencePiece model of fairseq."""
_FAIRSEQ: Mapping[str, Token] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_TEXT_MASK: Mapping[str, Token] = {
    **_FAIRSEQ,
    "mask_token": AddedToken("<mask>", lstrip=True, rstrip=False),
}
_BERT = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_END_OF_TEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")


def _sentinels(vocabulary: Vocabulary, settings: TokenizerSettings) -> list[Token]:
    count = settings.integer("extra_ids", 100)
    return [*vocabulary.added, *(f"<extra_id_{i}>" for i in range(count))]


def _with_languages(vocabulary: Vocabulary, settings: TokenizerSettings) -> list[Token]:
    return [*settings.languages, *vocabulary.added]


def _as_fairseq(
    pieces: list[Scored], contents: Mapping[str, str], settings: TokenizerSettings
) -> list[Scored]:
    first = contents["bos_token" if "bos_token" in contents else "cls_token"]
    begin = [first, *(contents[name] for name in ("pad_token", "eos_token", "unk_token"))]
    end = [*settings.languages, contents["mask_token"]]
    return [*((t, 0.0) for t in begin), *pieces[len(OWN) :], *((t, 0.0) for t in end)]


def _as_nllb(
    pieces: list[Scored], contents: Mapping[str, str], settings: TokenizerSettings
) -> list[Scored]:
    names = ("bos_token", "pad_token", "eos_token", "unk_token")
    begin = dict.fromkeys((contents[name] for name in names), 0.0)
    return list(
        {**begin, **{piece: score for piece, score in pieces if piece not in begin}}.items()
    )


def _as_t5(
    pieces: list[Scored], contents: Mapping[str, str], settings: TokenizerSettings
) -> list[Scored]:
    last = settings.integer("extra_ids", 100)
    return [*pieces, *((f"<extra_id_{i}>", 0.0) for i in reversed(range(last)))]


def _as_pegasus(
    pieces: list[Scored], contents: Mapping[str, str], settings: TokenizerSettings
) -> list[Scored]:
    stated = settings.named({})
    masks = [
        content_of(stated.get(name, default))
        for name, default in (("mask_token", "<mask_1>"), ("mask_token_sent", "<mask_2>"))
    ]
    begin = [contents["pad_token"], contents["eos_token"], *dict.fromkeys(masks)]
    return [*((t, 0.0) for t in begin), *((t, -100.0) for t in _unused(settings)), *pieces[2:]]


def _unused(settings: TokenizerSettings) -> list[str]:
    """Return the tokens of Pegasus that its training did not use."""
    return [f"<unk_{i}>" for i in range(2, settings.integer("offset", 103))]


BERT = TokenizerClass(
    "WordPiece",
    _BERT,
    _word_piece,
    _template("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
)
MPNET = TokenizerClass(
    "WordPiece",
    {**_TEXT_MASK, "unk_token": "[UNK]"},
    _word_piece,
    _template("{cls} $A {sep}", "{cls} $A {sep} {sep} $B {sep}"),
)
ROBERTA = TokenizerClass("BPE", _FAIRSEQ, _byte_level, _around_roberta)
GPT2 = TokenizerClass("BPE", _END_OF_TEXT, _byte_level)
T5 = TokenizerClass(
    "Unigram",
    {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    _pieces(),
    _template("$A </s>", "$A </s> $B </s>"),
    _sentinels,
    unknown=2,
    arranged=_as_t5,
)
XLM_ROBERTA = TokenizerClass(
    "Unigram",
    _FAIRSEQ,
    _pieces(optional_space=True),
    _template("{bos} $A {eos}", "{bos} $A {eos} {eos} $B {eos}"),
    unknown=3,
    arranged=_as_fairseq,
)
CAMEMBERT = TokenizerClass(
    "Unigram",
    _TEXT_MASK,
    _pieces(optional_space=True),
    _template("{bos} $A {eos}", "{bos} $A {eos} {eos} $B {eos}"),
    lambda vocabulary, settings: ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"],
)
MBART = TokenizerClass(
    "Unigram",
    _TEXT_MASK,
    _pieces(normalizer=lambda charsmap: None),
    extras=_with_languages,
    unknown=3,
    arranged=_as_fairseq,
)
MBART_50 = TokenizerClass(
    "Unigram",
    {name: token for name, token in _TEXT_MASK.items() if name != "bos_token"},
    _pieces(splits=False, normalizer=_single_spaces),
    extras=_with_languages,
    unknown=3,
    arranged=_as_fairseq,
)
NLLB = TokenizerClass(
    "BPE",
    {**_FAIRSEQ, "mask_token": AddedToken("<mask>", lstrip=True, normalized=True, special=True)},
    _pieces(
        splits=False,
        normalizer=lambda charsmap: None if charsmap is None else _single_spaces(charsmap),
    ),
    extras=_with_languages,
    arranged=_as_nllb,
)
PEGASUS = TokenizerClass(
    "Unigram",
    {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask_2>"},
    _pieces(splits=False, normalizer=_of_pegasus),
    _template("$A {eos}", "$A $B {eos}"),
    lambda vocabulary, settings: ["<mask_1>", *_unused(settings)],
    arranged=_as_pegasus,
)
BARTHEZ = TokenizerClass(
    "Unigram",
    _TEXT_MASK,
    _pieces(
        splits=False,
        normalizer=lambda charsmap: normalizers.Sequence(
            [
                normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
                normalizers.NFC(),
                normalizers.Strip(left=False, right=True),
            ]
        ),
        optional_space=True,
    ),
    unknown=3,
)
ALBERT = TokenizerClass(
    "Unigram",
    {**_BERT, "unk_token": "<unk>", "pad_token": "<pad>"}
    | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
    _of_albert,
    _template("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
    unknown=1,
)
CLASSES: Mapping[str, TokenizerClass] = {
    **dict.fromkeys(
        (
            *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
            *("SqueezeBertTokenizer", "LayoutLMTokenizer", "ConvBertTokenizer"),
        ),
        BERT,
    ),
    **dict.fromkeys(
        (
            *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
            "MvpTokenizer",
        ),
        ROBERTA,
    ),
    "AlbertTokenizer": ALBERT,
    "MPNetTokenizer": MPNET,
    "CamembertTokenizer": CAMEMBERT,
    "GPT2Tokenizer": GPT2,
    "WhisperTokenizer": GPT2,
    "T5Tokenizer": T5,
    "XLMRobertaTokenizer": XLM_ROBERTA,
    "MBartTokenizer": MBART,
    "MBart50Tokenizer": MBART_50,
    "NllbTokenizer": NLLB,
    "PegasusTokenizer": PEGASUS,
    "BarthezTokenizer": BARTHEZ,
}
"""Classes by name, without the suffix "Fast". Others use `tokenizer.json` as it is."""
