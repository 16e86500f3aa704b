"""Ranks that are damaged, and statements of checkpoints that do not fit them, are refused."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError

from .ranks_files import BYTES, WORDS, added, find, ranked, write


def lines(*changed: bytes, drop: int = 0) -> bytes:
    whole = [b64encode(token) + b" %d" % i for i, token in enumerate(BYTES)]
    return b"\n".join([*whole[: 256 - drop], *changed])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            lines(b"!!!! 256"),
            r"line 257: expected a token in base64 and its rank, found '!!!! 256'",
        ),
        (lines(b"YWI 256"), "line 257: expected a token in base64"),
        (lines(b"YWI=256"), "line 257: expected a token in base64"),
        (lines(b"YWI= -1"), "line 257: expected a token in base64"),
        (lines(b"YWI= 1 2"), "line 257: expected a token in base64"),
        (lines(b"YWI= " + b"9" * 5000), "line 257: expected a token in base64"),
        (b"version https://git-lfs.github.com/spec/v1\n", "line 1: expected a token in base64"),
        (b'{"a": 1}', "line 1: expected a token in base64"),
        (b"\xff\xfe\x00", "line 1: expected a token in base64"),
        (b"", "expected a token for each byte, found none for 256 of 256, such as 0x00"),
        (lines(drop=1), "expected a token for each byte, found none for 1 of 256, such as 0xFF"),
        (lines(b"YWI= 300"), r"line 257: expected a rank in \[0, 300\), .* found 300"),
        (lines(b"YWI= 255"), "line 257: expected each token and each rank once, found 'YWI= 255'"),
        (lines(b"YQ== 256"), "line 257: expected each token and each rank once, found 'YQ== 256'"),
        (lines(b"YWI= 258"), "expected ranks without gaps.*, found none for 2 ids, such as 256"),
        (lines(b64encode(b"a" * 1001) + b" 256"), "line 257: expected a token of at most 1000 b"),
    ],
)
def test_damaged_ranks(content: bytes, problem: str, tmp_path: Path) -> None:
    write(tmp_path, {}, pat_str=WORDS)
    (tmp_path / "ours.tiktoken").write_bytes(content)
    with pytest.raises(DragomanError, match=f"ours.tiktoken: {problem}") as caught:
        find(tmp_path, 300)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("ours.tiktoken", {}, r"ours.tiktoken: expected pat_str, .* \(gpt2, .*\), found neither"),
        ("tiktoken.model", {}, r"tiktoken.model: expected pat_str.*, found neither"),
        ("multilingual.tiktoken", {}, "expected pat_str.*, found neither"),
        ("ours.tiktoken", {"pat_str": 1}, "pat_str: expected str, found 1"),
        ("gpt2.tiktoken", {}, "expected the 50256 ranks of gpt2, found 256: the file is damaged"),
        (
            "ours.tiktoken",
            {"pat_str": ".", "add_prefix_space": True},
            "add_prefix_space: expected false for ranks, found true",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": added({"<s>": 97})},
            "expected one token for each id, found '<s>' and 'a' for 97",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": added({"a": 256})},
            "expected one id for each token, found 97 and 256 for 'a'",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": added({"<s>": 300})},
            r"expected token ids in \[0, 300\)",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": added({"<|reserved_token_256|>": 257})},
            r"expected one id for each token, found 256 and 257 for '<\|reserved_token_256\|>'",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": added({"Ñandú": 256}, special=False)},
            "expected added tokens that the library tokenizers can .*, found 'Ñandú'",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": added({"": 256})},
            "expected added tokens that the library tokenizers can .*, found ''",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "added_tokens_decoder": {"256": {"content": 5}}},
            "added_tokens_decoder: expected tokens by their ids, each with its content: found",
        ),
        (
            "ours.tiktoken",
            {"pat_str": ".", "add_eos_token": True, "eos_token": "</s>"},
            "expected a token '</s>', found none",
        ),
    ],
)
def test_statements_that_do_not_fit(
    name: str, settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    write(tmp_path, ranked(BYTES), name, **settings)
    with pytest.raises(DragomanError, match=f"^{re.escape(str(tmp_path))}.*{problem}") as caught:
        find(tmp_path, 300)
    assert len(str(caught.value).splitlines()) == 1


def test_two_tokens_of_one_id(tmp_path: Path) -> None:
    write(tmp_path, ranked(BYTES), pat_str=".", added_tokens_decoder=added({"<s>": 256}))
    (tmp_path / "added_tokens.json").write_text('{"<pad>": 256}')
    with pytest.raises(DragomanError, match="expected one token for each id, found '<pad>'"):
        find(tmp_path, 300)


def test_several_files(tmp_path: Path) -> None:
    for name in ("gpt2.tiktoken", "multilingual.tiktoken", "tiktoken.model"):
        (tmp_path / name).touch()
    with pytest.raises(
        DragomanError, match=r"expected one file of ranks, found gpt2\.tiktoken, mul"
    ):
        find(tmp_path, 300)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"\w+", r"\w+"),
        (r"a|(?i:ss|x)", "(?i:ss|x)"),
        (r"(?i:ä)", "(?i:ä)"),
        (r"(?i)x", "(?i)x"),
        (r"(?P<a>x)", "(?P<a>x)"),
        (r"x++*", "++*"),
        (r"(?:ab){2}+", "{2}+"),
        (r"x{2}?", "{2}?"),
        (r"x{,2}", "{,2}"),
        (r"[a[b]]", "[a[b]]"),
        (r"[a-z--b]", "[a-z--b]"),
        (r"\p{Punct}", r"\p{Punct}"),
        (r"\bx", r"\bx"),
        (r"(x", ""),
        (r"[z-a]", ""),
    ],
)
def test_patterns_that_may_mean_something_else(pattern: str, found: str, tmp_path: Path) -> None:
    write(tmp_path, ranked(BYTES), pat_str=pattern)
    problem = f"found {found!r} at position" if found else "alike: "
    with pytest.raises(DragomanError, match=f"json: pat_str: expected a .*{re.escape(problem)}"):
        find(tmp_path, 256)
