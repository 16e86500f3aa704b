"""A model with vocabularies and no tokenizer takes and gives tokens, wherever others take texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import ModelConfig, Transformer, greedy_uncached
from dragoman.runtime import Model, RejectedError, load

from ..export.families.ctranslate2_writer import write_text_model
from ..random_weights import random_transformer
from .conftest import Outcome

SOURCE = ["<blank>", "<s>", "</s>", *"abcdef", "zoo"]
TARGET = ["<blank>", "<s>", "</s>", *"tuvw", "tu"]
LINES = ["a b zoo", "c a f e", "d"]
UNKNOWN = len(TARGET)


@pytest.fixture(scope="module")
def opennmt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As OpenNMT's, whose vocabularies lack the unknown token that CTranslate2 appends."""
    config = ModelConfig(
        source_vocab_size=len(SOURCE) + 1,
        target_vocab_size=len(TARGET) + 1,
        encoder_layers=1,
        decoder_layers=1,
        d_model=16,
        num_heads=2,
        d_ff=16,
        norm_order="pre",
        positions="learned",
        max_source_positions=32,
        max_target_positions=32,
        tie_target_output=False,
        logits_bias=True,
        start_token_id=1,
        end_token_id=2,
    )
    directory = tmp_path_factory.mktemp("tokens") / "model"
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    names |= dict.fromkeys(["decoder_start_token"], "<s>")
    write_text_model(
        random_transformer(config, seed=3),
        directory,
        **names,  # type: ignore[arg-type]
    )
    for side, tokens in (("source", SOURCE), ("target", TARGET)):
        (directory / f"{side}_vocabulary.json").write_text(json.dumps(tokens))
    (directory / "lines.txt").write_text("\n".join(LINES) + "\n")
    return directory


@pytest.fixture(scope="module")
def built(
    opennmt: Path, build_here: Callable[..., Outcome], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Verified on a file of tokens."""
    directory = tmp_path_factory.mktemp("built") / "bundle"
    done = build_here(
        *("build", opennmt, "-o", directory, "--target", "neutral", "--with-attention"),
        *("--inputs", opennmt / "lines.txt"),
    )
    assert done.returncode == 0, done.stderr
    assert "lines.txt, 3 lines" in done.stdout
    return directory


@pytest.fixture(scope="module")
def model(built: Path) -> Model:
    return load(built, threads=1)


def ids(tokens: str, vocabulary: list[str]) -> list[int]:
    """Worked out from the lists, with the unknown token after the last one."""
    known = {token: number for number, token in enumerate(vocabulary)}
    return [known.get(token, len(vocabulary)) for token in tokens.split()]


def tokens(ids: list[int]) -> str:
    return " ".join([*TARGET, "<unk>"][token] for token in ids)


def test_lines_and_outputs_are_tokens(
    opennmt: Path, built: Path, model: Model, dragoman: Callable[..., Outcome]
) -> None:
    lines = [*LINES, "a nobody  b"]
    oracle = read_checkpoint(opennmt).model
    assert isinstance(oracle, Transformer)
    expected = greedy_uncached(oracle, [ids(line, SOURCE) for line in lines], 8)
    done = dragoman("run", built, "--max-new-tokens", 8, stdin="\n".join(lines).encode())
    assert done.returncode == 0 and done.stderr == ""
    wanted = [tokens([token for token in output if token != 2]) for output in expected]
    assert done.stdout.splitlines() == wanted
    found = model.generate([ids(line, SOURCE) for line in lines], max_new_tokens=8)
    assert [result.text for result in found] == wanted


def test_prefixes_and_phrases_are_tokens(model: Model) -> None:
    (result,) = model.generate(["a b"], prefix="tu v", max_new_tokens=6)
    assert list(result.tokens[:2]) == ids("tu v", TARGET) and str(result.text).startswith("tu v")
    (result,) = model.generate(["a b"], must_contain=["w tu"], num_beams=4, max_new_tokens=6)
    assert " w tu " in f" {result.text} "
    # Forbidden is the token "t", and not the letter.
    (plain,) = model.generate(["a b"], prefix="tu", max_new_tokens=6)
    (result,) = model.generate(
        ["a b"], prefix="tu", must_not_contain=["t", "u v"], max_new_tokens=6
    )
    assert result.error is None and result.text is not None
    assert "t" not in result.text.split() and "u v" not in f"{result.text}"
    assert plain.tokens[0] == result.tokens[0] == TARGET.index("tu")
    options: list[dict[str, Any]] = [{"prefix": "q"}, {"must_not_contain": ["q"]}]
    for given in options:
        with pytest.raises(RejectedError, match=r"found 'q', which it writes '<unk>'$"):
            model.generate(["a b"], **given)


def test_scores_are_those_of_the_ids(
    built: Path, model: Model, dragoman: Callable[..., Outcome]
) -> None:
    expected = model.score([(ids("a zoo", SOURCE), ids("tu t", TARGET))])[0]
    done = dragoman("score", built, "--json", stdin=b"a zoo\ttu t\n")
    assert json.loads(done.stdout)["tokens"] == list(expected.tokens)
    assert json.loads(done.stdout)["log_probability"] == pytest.approx(expected.log_probability)


def test_unknown_tokens_are_replaced_by_source_tokens(
    built: Path, model: Model, dragoman: Callable[..., Outcome]
) -> None:
    (result,) = model.generate(["nobody"], prefix="t <unk>", max_new_tokens=4)
    assert result.tokens[1] == UNKNOWN
    replaced = model.replace_unknown("nobody", result)
    assert replaced == str(result.text).replace("<unk>", "nobody")
    assert model.replace_unknown("nobody", result, by="token") == replaced
    command = ("run", built, "--prefix", "t <unk>", "--max-new-tokens", 4, "nobody")
    assert dragoman(*command, "--replace-unknown").stdout == f"{replaced}\n"
    with pytest.raises(DragomanError, match=r"^by: expected 'word' or 'token', found 'letter'$"):
        model.replace_unknown("nobody", result, by="letter")  # type: ignore[arg-type]


def test_ids_alone_have_no_words_to_replace_tokens_by(
    token_bundle: Path, dragoman: Callable[..., Outcome]
) -> None:
    done = dragoman("run", token_bundle, "--replace-unknown", stdin=b"3 4\n")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "Error: --replace-unknown: expected a bundle with tokenizers or vocabularies, whose source "
        "words replace unknown tokens, found one of token ids only\n"
    )
