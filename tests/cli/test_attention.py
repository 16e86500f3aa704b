"""`dragoman attention`, and alignments of `dragoman run`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from dragoman.runtime import Model, load, read_bundle

Dragoman = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def shown(checkpoint: Path, build_here: Dragoman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the graph that shows attention."""
    directory = tmp_path_factory.mktemp("shown") / "bundle"
    done = build_here("build", checkpoint, "-o", directory, "--with-attention", "--limit", "5")
    assert done.returncode == 0, done.stderr
    return directory


def test_a_picture(shown: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        output = tmp_path / name
        outcome = dragoman("attention", shown, "dragoman", "-o", output)
        assert (outcome.returncode, outcome.stdout) == (0, f"Wrote {output}\n")
        assert output.read_bytes().startswith(magic)
    for more in (("--layer", "0", "--head", "1"), ("--which", "encoder"), ("--target", "D R AE")):
        outcome = dragoman("attention", shown, "a", "-o", tmp_path / "a.png", "--force", *more)
        assert outcome.returncode == 0, outcome.stderr


def test_a_page_has_everything_inside(shown: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    output = tmp_path / "a.html"
    assert dragoman("attention", shown, "dragoman", "-o", output).returncode == 0
    page = output.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=", page)
    (found,) = re.findall(r"const data = (\{.*\});", page)
    data = json.loads(found)
    with load(shown, threads=1) as model:
        expected = model.attention("dragoman")
    assert [m["title"] for m in data["maps"]] == [
        "target to source",
        "what the decoder reads",
        "source",
    ]
    assert expected.cross is not None
    np.testing.assert_allclose(data["maps"][0]["weights"], expected.cross, atol=1e-4)
    assert tuple(data["maps"][0]["columns"]) == expected.source


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a", "-o", "a.txt"), "expected a name that ends in .html or in one of"),
        (("a", "-o", "a.png", "--layer", "9"), "--layer: expected 0 to 0, found 9"),
        (("a", "-o", "a.png", "--head", "9"), "--head: expected 0 to 1, found 9"),
        (("1", "-o", "a.png"), "unknown to this model: '1'"),
        (
            ("a", "-o", "a.html", "--layer", "0", "--which", "encoder"),
            "--which, --layer: expected a picture, found a.html: a page has everything",
        ),
        (("a", "-o", "a.html", "--head", "0"), "--head: expected a picture, found a.html"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...],
    problem: str,
    shown: Path,
    dragoman: Dragoman,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = dragoman("attention", shown, *arguments)
    assert outcome.returncode == 2
    assert problem in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
    assert list(tmp_path.glob("a.*")) == []


def test_where_a_picture_goes(shown: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    outcome = dragoman("attention", shown, "a", "-o", tmp_path / "new" / "folder" / "a.png")
    assert outcome.returncode == 0, outcome.stderr
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == ["a.png"]
    (tmp_path / "b.png").mkdir()
    outcome = dragoman("attention", shown, "a", "-o", tmp_path / "b.png", "--force")
    assert outcome.returncode == 2
    assert "expected the name of a file, found a directory" in outcome.stderr


def test_a_name_is_refused_before_anything_is_read(dragoman: Dragoman, tmp_path: Path) -> None:
    outcome = dragoman("attention", tmp_path / "nowhere", "a", "-o", tmp_path / "a.txt")
    assert outcome.returncode == 2
    assert "expected a name that ends in .html or in one of" in outcome.stderr


def test_a_bundle_without_the_graph(bundle: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    for command in (
        ("attention", bundle, "a", "-o", tmp_path / "a.png"),
        ("run", bundle, "a", "--alignments"),
        ("run", bundle, "a", "--replace-unknown"),
    ):
        outcome = dragoman(*command)
        assert outcome.returncode == 2
        assert "none: build one for target cpu or neutral with --with-attention" in outcome.stderr


def test_an_output_is_not_replaced(shown: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("mine")
    outcome = dragoman("attention", shown, "a", "-o", tmp_path / "a.png")
    assert outcome.returncode == 2 and "--force" in outcome.stderr
    assert (tmp_path / "a.png").read_text() == "mine"


def test_alignments(shown: Path, dragoman: Dragoman) -> None:
    words = ["dragoman", "a", "encoder"]
    lines = dragoman("run", shown, "--alignments", "--max-new-tokens", "6", *words).stdout
    plain = dragoman("run", shown, "--max-new-tokens", "6", *words).stdout.splitlines()
    with load(shown, threads=1) as model:
        results = model.generate(words, max_new_tokens=6)
        pairs = list(zip(words, [r.tokens for r in results], strict=True))
        aligned = model.align(pairs)
    assert lines.splitlines() == [f"{p}\t{a}" for p, a in zip(plain, aligned, strict=True)]
    for result, alignment in zip(results, aligned, strict=True):
        assert alignment.target == tuple((result.text or "").split())
        assert [target for _, target in alignment.pairs] == list(range(len(alignment.target)))


@pytest.mark.parametrize("tail", ["", "1"], ids=["", "then unknown"])
def test_alignments_of_a_source_that_is_cut(shown: Path, dragoman: Dragoman, tail: str) -> None:
    """They are those of its first letters, and the end token."""
    positions = read_bundle(shown).manifest.model.max_source_positions
    letters = "abcdefghijklmnopqrstuvwxyz" * 3
    long, short = letters + "a" * 10_000 * len(tail) + tail, letters[: positions - 1]
    options = ("--alignments", "--max-new-tokens", "6")
    outcome = dragoman("run", shown, *options, "--truncate", long)
    assert (outcome.returncode, outcome.stderr) == (0, "line 1: the source was truncated\n")
    assert outcome.stdout == dragoman("run", shown, *options, short).stdout
    with load(shown, threads=1) as model:
        (result,) = model.generate([short], max_new_tokens=6)
        pairs = [(long, result.tokens), (short, result.tokens)]
        cut, whole = model.align(pairs, truncate=True)
        assert cut == whole and cut.source == tuple(short) and cut.pairs
        (rejected,) = model.align(pairs[:1])
        assert rejected.error is not None and "tokens, expected at most" in rejected.error
        scored = model.score([(source, "D") for source in (long, short)], truncate=True)
        assert scored[0] == scored[1]
        ids = model.attention([5] * 50, list(result.tokens), truncate=True)
        assert len(ids.source) == positions
        own = [model.attention(source, truncate=True) for source in (long, short)]
        assert own[0].source == own[1].source and own[0].target == own[1].target


def test_alignments_are_those_of_the_attention(shown: Path) -> None:
    """Letters and phonemes are words here, a token each."""
    with load(shown, threads=1) as model:
        (result,) = model.generate(["transformer"], max_new_tokens=7)
        (alignment,) = model.align([("transformer", result.tokens)])
        weights = aligning(model, "transformer", result.tokens)
    letters = len("transformer")
    expected = [(int(row[:letters].argmax()), i) for i, row in enumerate(weights)]
    assert list(alignment.pairs) == expected
    assert alignment.source == tuple("transformer")


def aligning(model: Model, source: str, tokens: tuple[int, ...]) -> np.ndarray:
    """Each output token's row, by PyTorch's convention: what predicts it."""
    found = model.attention(source, list(tokens), end_token=False)
    assert found.target == tuple(found.target)
    return found.aligning[: len(tokens)]


@pytest.mark.parametrize("option", ["--alignments", "--replace-unknown"])
@pytest.mark.parametrize("other", [("--stream",), ("--n-best", "2", "--beams", "2")])
def test_of_one_output_only(
    option: str, other: tuple[str, ...], shown: Path, dragoman: Dragoman
) -> None:
    outcome = dragoman("run", shown, "a", option, *other)
    assert outcome.returncode == 2 and "it is of one output" in outcome.stderr


def test_engines_do_not_show_attention(
    checkpoint: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    outcome = dragoman(
        *("build", checkpoint, "-o", tmp_path / "out", "--target", "tensorrt-rtx"),
        "--with-attention",
    )
    assert outcome.returncode == 2 and "engines do not show attention" in outcome.stderr
    assert not (tmp_path / "out").exists()
