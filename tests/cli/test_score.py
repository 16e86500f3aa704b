"""`dragoman score`: a line out for each pair in, and the perplexity of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.reference_model import LanguageModel, ModelConfig
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.runtime import Model, ScoredPair, load, perplexity

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

PAIRS = [("dragoman", "D R AE G AH M AH N"), ("need", "N IY D"), ("a", ""), ("need", "AH")]


@pytest.fixture
def score(dragoman: Dragoman, bundle: Path) -> Dragoman:
    def score(*arguments: object, stdin: bytes = b"") -> Outcome:
        return dragoman("score", bundle, "--threads", 1, *arguments, stdin=stdin)

    return score


def lines_of(pairs: list[tuple[str, str]], end: str = "\n") -> bytes:
    return "".join(f"{source}\t{target}{end}" for source, target in pairs).encode()


def shown(scored: list[ScoredPair]) -> list[str]:
    return [f"{pair.log_probability:.4f}\t{len(pair.tokens)}" for pair in scored]


def summary(scored: list[ScoredPair]) -> str:
    tokens = sum(len(pair.tokens) for pair in scored)
    return f"perplexity {perplexity(scored):.6g} over {tokens} tokens of {len(scored)} pairs\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_and_standard_input(score: Dragoman, model: Model, tmp_path: Path, end: str) -> None:
    scored = model.score(PAIRS)
    (tmp_path / "pairs.tsv").write_bytes(lines_of(PAIRS, end))
    for outcome in (score(tmp_path / "pairs.tsv"), score(stdin=lines_of(PAIRS, end))):
        assert (outcome.returncode, outcome.stderr) == (0, summary(scored))
        assert outcome.stdout.splitlines() == shown(scored)


def test_beginnings(score: Dragoman, model: Model) -> None:
    pairs = PAIRS[:2]
    outcome = score("--no-end-token", "--batch-size", 1, stdin=lines_of(pairs))
    assert outcome.stdout.splitlines() == shown(model.score(pairs, end_token=False))


@pytest.fixture(scope="module")
def language_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained decoder-only model, with the tokenizers of verses-en."""
    shipped = read_checkpoint(find_checkpoint("verses-en"))
    fields = {"decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24}
    config = ModelConfig.from_dict(shipped.model.config.to_dict() | fields)
    directory = tmp_path_factory.mktemp("language")
    model = LanguageModel(config).eval()
    export_bundle(model, directory, name="language", tokenizers=shipped.tokenizers)
    return directory


@pytest.mark.parametrize(
    ("option", "end_token"), [((), False), (("--end-token",), True), (("--no-end-token",), False)]
)
def test_whole_texts_of_a_decoder_alone(
    dragoman: Dragoman, language_bundle: Path, option: tuple[str, ...], end_token: bool
) -> None:
    """By default a text may go on. With its end token it is a token longer."""
    texts = ["In the beginning God created the heavens", "and the earth."]
    stdin = f"{texts[0]}\n{texts[1]}\n{texts[0]}\t {texts[1]}\n".encode()
    cases: list[str | tuple[str, str]] = [*texts, (texts[0], f" {texts[1]}")]
    with load(language_bundle, threads=1) as model:
        scored = model.score(cases, end_token=end_token)
        by_default = model.score(cases)
    end = model.manifest.model.end_token_id
    assert [p.tokens[-1] == end for p in scored] == [end_token] * 3
    assert [len(p.tokens) - end_token for p in scored] == [len(p.tokens) for p in by_default]
    outcome = dragoman("score", language_bundle, "--threads", 1, *option, stdin=stdin)
    assert (outcome.returncode, outcome.stderr) == (0, summary(scored))
    assert outcome.stdout.splitlines() == shown(scored)


def test_the_end_token_of_an_encoder_and_decoder(score: Dragoman, model: Model) -> None:
    """It is what they score by default."""
    outcome = score("--end-token", stdin=lines_of(PAIRS))
    assert outcome.stdout.splitlines() == shown(model.score(PAIRS))


def test_json_holds_every_token_and_every_error(score: Dragoman, model: Model) -> None:
    outcome = score("--json", stdin=lines_of([*PAIRS, ("need", "XX")]))
    *rows, bad = [json.loads(line) for line in outcome.stdout.splitlines()]
    for row, scored in zip(rows, model.score(PAIRS), strict=True):
        assert list(row) == ["tokens", "token_log_probabilities", "log_probability", "error"]
        assert tuple(row["tokens"]) == scored.tokens and row["error"] is None
        assert row["token_log_probabilities"] == pytest.approx(scored.token_log_probabilities)
        assert row["log_probability"] == pytest.approx(scored.log_probability)
    assert bad["error"] == "target: unknown to this model: 'XX'"
    assert outcome.returncode == 1


def test_bad_lines_are_reported_and_the_others_scored(score: Dragoman, model: Model) -> None:
    good = b"need\tN IY D"
    lines = [
        good,
        b"need",
        b"need\tN\tIY",
        b"\tN",
        b"",
        b"n44d\tN",
        b"need\tn",
        b"need\tN\xff",
        b"need\t" + b"N " * 24,
        b"need\t" + b"N " * 1_000_000,
        good,
    ]
    outcome = score(stdin=b"\n".join(lines))
    [scored] = model.score([("need", "N IY D")])
    assert outcome.returncode == 1
    assert outcome.stdout.splitlines() == [*shown([scored]), *[""] * 9, *shown([scored])]
    *errors, last = outcome.stderr.splitlines()
    assert errors[:-1] == [
        "line 2: expected a source and a target with one tab between, found 0 tabs",
        "line 3: expected a source and a target with one tab between, found 2 tabs",
        "line 4: expected a source, found an empty one",
        "line 5: expected a source and a target with one tab between, found 0 tabs",
        "line 6: unknown to this model: '4'",
        "line 7: target: unknown to this model: 'n'",
        "line 8: expected UTF-8 text: invalid start byte at byte 6",
        "line 9: target has 25 tokens, expected at most 24, by the positions of this model",
    ]
    assert errors[-1].startswith("line 10: target has at least ")
    assert f"{last}\n" == summary([scored, scored])


def test_token_ids(dragoman: Dragoman, token_bundle: Path) -> None:
    scored = load(token_bundle, threads=1).score([([3, 4, 5, 2], [7, 8]), ([28, 0, 2], [])])
    stdin = b"3 4 5 2\t7 8\n28 0  2\t\nthree\t4\n3\tfour\n"
    outcome = dragoman("score", token_bundle, "--threads", 1, stdin=stdin)
    assert outcome.returncode == 1
    assert outcome.stdout.splitlines() == [*shown(scored), "", ""]
    words = "expected token ids separated by spaces: this bundle has no tokenizers"
    assert outcome.stderr.splitlines()[:2] == [f"line 3: {words}", f"line 4: {words}"]


def test_nothing_to_score(score: Dragoman) -> None:
    outcome = score(stdin=b"")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


@pytest.mark.parametrize("what", ["nothing", "a directory"])
def test_no_file(score: Dragoman, tmp_path: Path, what: str) -> None:
    path = tmp_path / "none.tsv" if what == "nothing" else tmp_path
    outcome = score(path)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == f"Error: expected a file of pairs, found {what} at {path}\n"


def test_options_of_other_models(score: Dragoman) -> None:
    outcome = score("--target-language", "de", stdin=lines_of(PAIRS))
    assert outcome.returncode == 2
    assert outcome.stderr == (
        "Error: --target-language: expected none, this model has no languages, found 'de'\n"
    )
