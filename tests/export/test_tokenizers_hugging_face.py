"""The tokenizers of Hugging Face directories give the ids and texts that `transformers` gives."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers as typed_transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

from dragoman.export.families import ENCODER_FAMILIES, FAMILIES
from dragoman.export.families.hugging_face import find_hugging_face_tokenizers, tokenizer_kinds
from dragoman.export.tokenizers import TokenizerCheckpoint, TokenizerFiles
from dragoman.export.tokenizers.kind import choose_kind
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec

transformers: Any = typed_transformers

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

ROOT = Path(__file__).parents[2]
FOREIGN = [
    "Das ist ein Häuschen. Ça va bien, n'est-ce pas ?",
    "Привет, мир! Как дела?",
    "日本語のテキストです。",
    "naïve café déjà vu — ﬁne “quotes” … ½",
]
CORPUS = [
    *(line for line in (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines() if line),
    *(FOREIGN * 5),
]
PIECES = 420
MOST = 7
"""The most tokens of a truncated text."""

TEXTS = [
    "",
    " ",
    "\n\t ",
    "Hello world",
    "  leading,  several   spaces and trailing  ",
    "line\nbreak\r\nand\ttab",
    "NAÏVE café e\u0301clair a\u0308 o\u0302\u0323",
    "emoji 😀 👩\u200d👩\u200d👧 🇫🇷!",
    "never seen: Ω≈ç√ ሰላም שלום हिन्दी",
    "\uff46\uff55\uff4c\uff4c \uff37\uff29\uff24\uff34\uff28 ﬁne ① ½ ㍿",
    "\u00a0no-break\u2003em\u3000ideographic\u200bzero\ufeff",
    "각 \u1100\u1161\u11a8",
    "مَرحبا بالعالم",
    "\x00\x01control\x7f",
    "▁pieces▁ ▁",
    "a" * 5000,
    "many words " * 700,
    "don't can't we've it's , . ! ?",
    *FOREIGN,
]


def random_texts(count: int = 60) -> Iterator[str]:
    generator = random.Random(0)
    symbols = sorted({symbol for text in (*CORPUS, *TEXTS) for symbol in text}) + [" "] * 60
    for _ in range(count):
        yield "".join(generator.choices(symbols, k=generator.randint(1, 40)))


ALL_TEXTS = [*TEXTS, *random_texts()]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SentencePiece models, named by type and numbering, and a byte-level pair encoding."""
    directory = tmp_path_factory.mktemp("trained")
    numberings: dict[str, dict[str, Any]] = {
        "marian": {},
        "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        "albert": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
        | {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
    }
    for numbering, ids in numberings.items():
        for kind in ("unigram", "bpe"):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(CORPUS),
                model_prefix=str(directory / f"{kind}-{numbering}"),
                model_type=kind,
                vocab_size=PIECES,
                character_coverage=0.998,
                minloglevel=2,
                **ids,
            )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=PIECES,
            special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.model.save(str(directory))
    return directory


def codec_of(files: TokenizerFiles | None, directory: Path) -> TextCodec:
    assert files is not None
    directory.mkdir()
    return TextCodec.of(files.write(ScratchWriter(directory)), directory, files.languages)


def expected(hugging_face: Any, text: str) -> list[int]:
    """Their ids; an empty list if a text encodes to special tokens only."""
    if not hugging_face(text, add_special_tokens=False).input_ids:
        return []
    ids: list[int] = hugging_face(text).input_ids
    return ids


def decoded(hugging_face: Any, tokens: list[int]) -> str:
    text: str = hugging_face.decode(tokens, skip_special_tokens=True)
    return text


def assert_same(
    codec: TextCodec,
    hugging_face: Any,
    texts: list[str] = ALL_TEXTS,
    *,
    source_language: str | None = None,
) -> None:
    for text in texts:
        tokens = codec.encode(text, source_language)
        assert tokens == expected(hugging_face, text), text[:60]
        assert codec.decode(tokens) == decoded(hugging_face, tokens), text[:60]
        assert streamed(codec, tokens) == codec.decode(tokens)
        if tokens:
            cut = hugging_face(text, truncation=True, max_length=MOST).input_ids
            beginning = codec.encode_beginning(text, source_language, MOST)
            assert beginning.tokens == cut, text[:60]


def streamed(codec: TextCodec, tokens: list[int]) -> str:
    stream = codec.stream()
    return "".join(map(stream.step, tokens)) + stream.rest()


def assert_random_tokens_are_decoded_alike(
    codec: TextCodec, hugging_face: Any, size: int, *, streams: bool = True
) -> None:
    generator = random.Random(1)
    for _ in range(100):
        tokens = [generator.randrange(size) for _ in range(generator.randint(0, 20))]
        text = codec.decode(tokens)
        assert text.strip() == decoded(hugging_face, tokens).strip(), tokens
        assert not streams or streamed(codec, tokens) == text or text.endswith("\ufffd"), tokens


def marian(trained: Path, directory: Path, *, separate: bool) -> Any:
    spm = [trained / "unigram-marian.model", trained / "bpe-marian.model"]
    sides = []
    for model in spm:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        sides.append([processor.id_to_piece(i) for i in range(3, PIECES)])
    if separate:
        vocabularies = [["</s>", "<unk>", *pieces, "<pad>"] for pieces in sides]
    else:  # shuffled, so that no id is that of a SentencePiece model
        joint = sorted({*sides[0], *sides[1]}, key=lambda piece: hash_of(piece))
        vocabularies = [["</s>", "<unk>", *joint, ">>fra<<", ">>deu<<", "<pad>"]]
    paths = [directory / "v.json", directory / "w.json"]
    for path, tokens in zip(paths, vocabularies, strict=False):
        path.write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return transformers.MarianTokenizer(
        *map(str, (*spm, *paths[: len(vocabularies)])),
        separate_vocabs=separate,
        source_lang="en",
        target_lang="fr",
    )


def find(directory: Path, model_type: str, values: dict[str, Any]) -> TokenizerFiles | None:
    size = values["vocab_size"]
    return find_hugging_face_tokenizers(
        directory, FAMILIES[model_type], values, source_vocab_size=size, target_vocab_size=size
    )


def hash_of(piece: str) -> int:
    return sum(ord(symbol) * pow(31, i, 10007) for i, symbol in enumerate(piece)) % 10007


@pytest.mark.parametrize("separate", [False, True], ids=["joint", "separate"])
def test_marian(trained: Path, tmp_path: Path, separate: bool) -> None:
    hugging_face = marian(trained, tmp_path, separate=separate)
    hugging_face.save_pretrained(tmp_path / "saved")
    size = len(hugging_face)
    values = {"vocab_size": size, "decoder_vocab_size": size}
    codec = codec_of(find(tmp_path / "saved", "marian", values), tmp_path / "bundle")
    # Hugging Face detokenizes with the source's model, so only joint vocabularies compare.
    for text in [*ALL_TEXTS, ">>fra<< Hello", ">>fra<<", ">>xyz<<Hello", " >>fra<< a", "a >>fra<<"]:
        tokens = codec.encode(text)
        assert tokens == expected(hugging_face, text), text[:60]
        if not separate:
            assert codec.decode(tokens) == decoded(hugging_face, tokens), text[:60]
    assert_random_tokens_are_decoded_alike(codec, hugging_face, size)


def test_marian_leaves_punctuation_as_it_is(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`transformers` has a punctuation normalizer for Marian that it never calls."""
    hugging_face = marian(trained, tmp_path, separate=False)

    def called(text: str) -> str:
        raise AssertionError(text)

    monkeypatch.setattr(hugging_face, "punc_normalizer", called)
    hugging_face("“Hello” — world…")


def test_m2m_100(trained: Path, tmp_path: Path) -> None:
    model = trained / "bpe-marian.model"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *map(processor.id_to_piece, range(3, PIECES))]
    (tmp_path / "v.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    codes = [f"__{code}__" for code in M2M_CODES["m2m100"]]
    hugging_face = transformers.M2M100Tokenizer(
        str(tmp_path / "v.json"), str(model), src_lang="de", tgt_lang="zu"
    )
    hugging_face.save_pretrained(tmp_path / "saved")
    values = {"vocab_size": len(tokens) + len(codes) + 8, "forced_bos_token_id": None}
    files = find(tmp_path / "saved", "m2m_100", values)
    codec = codec_of(files, tmp_path / "bundle")
    for source in (None, "en", "zu"):
        hugging_face.src_lang = source or "de"
        for text in ALL_TEXTS:
            ids = codec.encode(text, source)
            assert ids == expected(hugging_face, text), text[:60]
            # transformers 5 shows the language token, which earlier versions hid
            shown = decoded(hugging_face, [i for i in ids if i < len(tokens)])
            assert codec.decode(ids) == shown == streamed(codec, ids)
    assert files is not None and files.languages is not None
    assert files.languages.target == "first"
    assert files.languages.target_token() == hugging_face.get_lang_id("zu")
    assert files.languages.target_token("ast") == hugging_face.get_lang_id("ast")
    assert_random_tokens_are_decoded_alike(codec, hugging_face, len(tokens))


def multilingual(family: str, trained: Path, directory: Path) -> Any:
    """A tokenizer of theirs, loaded from a SentencePiece model."""
    directory.mkdir()
    name = "sentencepiece.bpe.model"
    kind = "bpe" if family == "nllb" else "unigram"
    shutil.copyfile(trained / f"{kind}-marian.model", directory / name)
    if family == "mbart":
        return transformers.MBartTokenizer.from_pretrained(directory, src_lang="ro_RO")
    if family == "mbart_50":
        return transformers.MBart50Tokenizer.from_pretrained(directory, src_lang="gl_ES")
    # With their ids stated: transformers 5 would put the mask before the languages.
    added = {PIECES + 1 + i: code for i, code in enumerate([*NLLB_CODES, "<mask>"])}
    return transformers.NllbTokenizer.from_pretrained(
        directory,
        src_lang="deu_Latn",
        added_tokens_decoder={
            i: transformers.AddedToken(token, special=True, normalized=False)
            for i, token in added.items()
        },
    )


MULTILINGUAL = {
    "mbart": ("mbart", "ro_RO", "fr_XX", 25),
    "mbart_50": ("mbart", "gl_ES", "sl_SI", 52),
    "nllb": ("m2m_100", "deu_Latn", "zul_Latn", 202),
}


@pytest.mark.parametrize("family", MULTILINGUAL)
def test_multilingual_with_a_library_file(family: str, trained: Path, tmp_path: Path) -> None:
    model_type, default, other, count = MULTILINGUAL[family]
    hugging_face = multilingual(family, trained, tmp_path / "spm")
    hugging_face.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    values = {"vocab_size": len(hugging_face), "decoder_start_token_id": 2}
    files = find(tmp_path / "saved", model_type, values)
    codec = codec_of(files, tmp_path / "bundle")
    for source in (None, other):
        hugging_face.src_lang = source or default
        assert_same(codec, hugging_face, source_language=source)
    assert files is not None and files.languages is not None
    assert len(files.languages.tokens) == count
    assert files.languages.tokens[other] == hugging_face.convert_tokens_to_ids(other)
    assert_random_tokens_are_decoded_alike(codec, hugging_face, len(hugging_face))


@pytest.mark.parametrize("family", MULTILINGUAL)
def test_multilingual_with_a_sentencepiece_model(
    family: str, trained: Path, tmp_path: Path
) -> None:
    model_type, default, other, count = MULTILINGUAL[family]
    hugging_face = multilingual(family, trained, tmp_path / "saved")
    settings = {"tokenizer_class": type(hugging_face).__name__, "src_lang": default}
    (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps(settings))
    values = {"vocab_size": len(hugging_face)}
    files = find(tmp_path / "saved", model_type, values)
    codec = codec_of(files, tmp_path / "bundle")
    assert files is not None and files.languages is not None
    assert len(files.languages.tokens) == count
    for source in (None, other):
        hugging_face.src_lang = source or default
        assert_same(codec, hugging_face, source_language=source)
    assert_random_tokens_are_decoded_alike(codec, hugging_face, len(hugging_face))


@pytest.mark.parametrize("files", ["library", "sentencepiece"])
@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_t5(kind: str, files: str, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    shutil.copyfile(trained / "unigram-t5.model", tmp_path / "saved" / "spiece.model")
    extra_ids = 100 if kind == "t5" else 0
    hugging_face = transformers.T5Tokenizer.from_pretrained(tmp_path / "saved", extra_ids=extra_ids)
    size = len(hugging_face)
    if files == "library":
        hugging_face.save_pretrained(tmp_path / "saved")
    else:
        settings = {"extra_ids": extra_ids}
        (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizers = find(tmp_path / "saved", kind, {"vocab_size": size + 28})
    codec = codec_of(tokenizers, tmp_path / "bundle")
    assert_same(codec, hugging_face)
    assert_random_tokens_are_decoded_alike(codec, hugging_face, size)
    assert codec.decode([size + 5]) == ""


@pytest.mark.parametrize("files", ["library", "sentencepiece"])
def test_pegasus(files: str, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    shutil.copyfile(trained / "unigram-t5.model", tmp_path / "saved" / "spiece.model")
    hugging_face = transformers.PegasusTokenizer.from_pretrained(tmp_path / "saved")
    if files == "library":
        hugging_face.save_pretrained(tmp_path / "saved")
    size = len(hugging_face)
    tokenizers = find(tmp_path / "saved", "pegasus", {"vocab_size": size})
    codec = codec_of(tokenizers, tmp_path / "bundle")
    assert_same(codec, hugging_face)
    assert_random_tokens_are_decoded_alike(codec, hugging_face, size)


@pytest.mark.parametrize("files", ["library", "merges"])
def test_bart(files: str, trained: Path, tmp_path: Path) -> None:
    hugging_face = transformers.BartTokenizer(
        vocab=str(trained / "vocab.json"), merges=str(trained / "merges.txt")
    )
    hugging_face.save_pretrained(tmp_path / "saved")
    if files == "merges":
        (tmp_path / "saved" / "tokenizer.json").unlink()
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(trained / name, tmp_path / "saved" / name)
    size = len(hugging_face)
    tokenizers = find(tmp_path / "saved", "bart", {"vocab_size": size})
    codec = codec_of(tokenizers, tmp_path / "bundle")
    assert_same(codec, hugging_face)
    assert_random_tokens_are_decoded_alike(codec, hugging_face, size)


MASKED = ["a <mask> b", "<mask>", " <mask>", "the<mask> the", "a \n <mask>  <mask> b", "<mask> b"]


@pytest.mark.parametrize("stated", [None, True, False])
@pytest.mark.parametrize("form", ["mask_token", "added_tokens_decoder"])
def test_the_mask_takes_the_space_before_it_if_stated(
    form: str, stated: bool | None, trained: Path, tmp_path: Path
) -> None:
    """If the checkpoint says so, as for transformers 5; transformers 4 took it in any case."""
    strips = stated is True
    mask = transformers.AddedToken("<mask>", lstrip=strips, normalized=False, special=True)
    hugging_face = transformers.RobertaTokenizer(
        vocab=str(trained / "vocab.json"), merges=str(trained / "merges.txt"), mask_token=mask
    )
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(trained / name, tmp_path / name)
    settings: dict[str, Any] = {"tokenizer_class": "RobertaTokenizer", "mask_token": "<mask>"}
    if stated is not None:
        of_mask = {"content": "<mask>", "lstrip": stated, "normalized": False, "special": True}
        settings[form] = of_mask if form == "mask_token" else {"4": of_mask}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    files = find(tmp_path, "bart", {"vocab_size": len(hugging_face)})
    assert files is not None and isinstance(files.source, Tokenizer)
    for text in [*MASKED, *TEXTS]:
        assert files.source.encode(text).ids == hugging_face(text).input_ids, text[:60]


@pytest.mark.parametrize("files", ["library", "merges"])
def test_whisper(files: str, trained: Path, tmp_path: Path) -> None:
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>"]
    special += ["<|translate|>", "<|startofprev|>", "<|notimestamps|>"]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(40)]
    vocabulary = json.loads((trained / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {special[0]: len(vocabulary)}))
    hugging_face = transformers.WhisperTokenizer(
        vocab=str(tmp_path / "vocab.json"),
        merges=str(trained / "merges.txt"),
        extra_special_tokens=special[1:],
    )
    hugging_face.add_tokens([transformers.AddedToken(time, normalized=False) for time in times])
    hugging_face.save_pretrained(tmp_path / "saved")
    if files == "merges":
        (tmp_path / "saved" / "tokenizer.json").unlink()
        shutil.copyfile(tmp_path / "vocab.json", tmp_path / "saved" / "vocab.json")
        shutil.copyfile(trained / "merges.txt", tmp_path / "saved" / "merges.txt")
        added = {t: hugging_face.convert_tokens_to_ids(t) for t in special[1:] + times}
        (tmp_path / "saved" / "added_tokens.json").write_text(json.dumps(added))
    size = len(hugging_face)
    tokenizers = find(tmp_path / "saved", "whisper", {"vocab_size": size})
    assert tokenizers is not None and tokenizers.source is None
    codec = codec_of(tokenizers, tmp_path / "bundle")
    prompt = hugging_face.convert_tokens_to_ids(special[1:4])
    for text in ALL_TEXTS:
        ids = hugging_face(text, add_special_tokens=False).input_ids
        timed = [*prompt, size - 40, *ids, size - 7, size - 1]
        assert codec.decode(timed) == decoded(hugging_face, timed) == text
        assert streamed(codec, timed) == text
        assert streamed(codec, timed[:-3]) == codec.decode(timed[:-3])  # within a character, too
    with pytest.raises(Exception, match="expected a model whose sources are texts"):
        codec.encode("hello")


TYPED = ["</s>", "a</s>b", "<pad><unk> x", "en_XX <s> deu_Latn __de__ <mask>", "<extra_id_0>"]


@pytest.mark.parametrize("files", ["library", "sentencepiece"])
@pytest.mark.parametrize("text", TYPED)
def test_special_tokens_typed(text: str, files: str, trained: Path, tmp_path: Path) -> None:
    """They are read as in `transformers` or, on request, as text."""
    saved = tmp_path / "saved"
    saved.mkdir()
    shutil.copyfile(trained / "unigram-t5.model", saved / "spiece.model")
    t5 = transformers.T5Tokenizer.from_pretrained(saved)
    assert t5("a</s>b").input_ids.count(1) == 2
    if files == "library":
        t5.save_pretrained(saved)
    tokenizers = find(saved, "t5", {"vocab_size": len(t5)})
    codec = codec_of(tokenizers, tmp_path / "bundle")
    assert_same(codec, t5, [text])
    tokens = codec.encode(text, split_special_tokens=True)
    assert tokens[-1] == 1 and not {0, 1, *range(PIECES, len(t5))} & set(tokens[:-1])

    mbart = multilingual("mbart", trained, tmp_path / "mbart")
    if files == "library":
        mbart.save_pretrained(tmp_path / "mbart")
    values = {"vocab_size": len(mbart)}
    tokenizers = find(tmp_path / "mbart", "mbart", values)
    codec = codec_of(tokenizers, tmp_path / "mbart-bundle")
    assert_same(codec, mbart, [text], source_language="ro_RO")
    tokens = codec.encode(text, "ro_RO", split_special_tokens=True)
    special = set(mbart.all_special_ids) - {mbart.unk_token_id}
    assert tokens[-2:] == [2, mbart.convert_tokens_to_ids("ro_RO")]
    assert not special & set(tokens[:-2])


def of_encoder(directory: Path, model_type: str, size: int) -> Tokenizer:
    family = ENCODER_FAMILIES[model_type]
    checkpoint = TokenizerCheckpoint(directory, {"model_type": model_type}, size, size)
    files = choose_kind(checkpoint, family.tokenizers, tokenizer_kinds()).read(checkpoint)
    assert files is not None and isinstance(files.source, Tokenizer)
    return files.source


def assert_same_pairs(found: Tokenizer, hugging_face: Any) -> None:
    for text in ALL_TEXTS:
        assert found.encode(text).ids == hugging_face(text).input_ids, text[:60]
        pair = hugging_face(text, "Hello world").input_ids
        assert found.encode(text, "Hello world").ids == pair or not text, text[:60]


@pytest.mark.parametrize("files", ["library", "vocabulary"])
def test_mpnet(files: str, tmp_path: Path) -> None:
    letters = [chr(i) for i in range(33, 127)]
    pieces = ["<s>", "<pad>", "</s>", "[UNK]", *letters, *(f"##{c}" for c in letters)]
    pieces += ["hello", "world", "##ing", "<mask>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    hugging_face = transformers.MPNetTokenizer(vocab=vocabulary)
    if files == "library":
        hugging_face.save_pretrained(tmp_path)
    else:
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    assert_same_pairs(of_encoder(tmp_path, "mpnet", len(pieces)), hugging_face)


@pytest.mark.parametrize("settings", [{}, {"keep_accents": True, "do_lower_case": False}], ids=str)
@pytest.mark.parametrize("files", ["library", "sentencepiece"])
def test_albert(files: str, settings: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    model = trained / "unigram-albert.model"
    shutil.copyfile(model, tmp_path / "spiece.model")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "AlbertTokenizer"} | settings)
    )
    hugging_face = transformers.AlbertTokenizer.from_pretrained(tmp_path)
    if files == "library":
        hugging_face.save_pretrained(tmp_path)
        (tmp_path / "spiece.model").unlink()
    assert hugging_face.convert_tokens_to_ids(["<pad>", "[CLS]", "[MASK]"]) == [0, 2, 4]
    assert_same_pairs(of_encoder(tmp_path, "albert", len(hugging_face)), hugging_face)


def test_camembert(trained: Path, tmp_path: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(trained / "unigram-marian.model")
    )
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, PIECES)]
    begin = [(name, 0.0) for name in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
    special = [("<unk>NOTUSED", -100.0), *pieces, ("<s>", 0.0), ("</s>", 0.0), ("<mask>", 0.0)]
    hugging_face = transformers.CamembertTokenizer(vocab=[*begin, *special])
    hugging_face.save_pretrained(tmp_path)
    assert_same_pairs(of_encoder(tmp_path, "camembert", len(hugging_face)), hugging_face)
