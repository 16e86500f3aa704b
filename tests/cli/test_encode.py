"""`dragoman encode`"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.runtime import load

Dragoman = Callable[..., CompletedProcess[str]]
transformers: Any = importlib.import_module("transformers")

LETTERS = "abcdefgh"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]
CONFIG: dict[str, Any] = {
    "vocab_size": len(PIECES),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
INPUTS = {
    "Model": "ab\na b c\n",
    "ForSequenceClassification": "a b\tc\nab\n",
    "ForTokenClassification": "a bc\nd\n",
    "ForMaskedLM": "a [MASK] b\n",
    "ForQuestionAnswering": "a\tb c\nab\tc d e\n",
}
"""Lines as the command takes them, for each head."""
LABELS = {"ForSequenceClassification": {"id2label": {0: "contradiction", 1: "entailment"}}}


@pytest.fixture(scope="module")
def build(build_here: Dragoman, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A bundle of a random BERT with a head, built by the command."""
    known: dict[str, Path] = {}

    def build(head: str) -> Path:
        if head not in known:
            torch.manual_seed(0)
            directory = tmp_path_factory.mktemp(head)
            config = transformers.BertConfig(**CONFIG | LABELS.get(head, {}))
            model = getattr(transformers, f"Bert{head}")(config)
            model.save_pretrained(directory / "checkpoint")
            lines = "".join(f"{piece}\n" for piece in PIECES)
            (directory / "checkpoint" / "vocab.txt").write_text(lines)
            (directory / "lines.txt").write_text(INPUTS[head])
            done = build_here(
                *("build", directory / "checkpoint", "-o", directory / "bundle"),
                *("--inputs", directory / "lines.txt", "--with-attention"),
            )
            assert done.returncode == 0, done.stderr
            assert f"Next: dragoman encode {directory / 'bundle'}" in done.stdout
            known[head] = directory / "bundle"
        return known[head]

    return build


def test_vectors(build: Callable[[str], Path], dragoman: Dragoman, tmp_path: Path) -> None:
    bundle = build("Model")
    with load(bundle, threads=1) as model:
        expected = model.encode(["ab", "c"])
    lines = dragoman("encode", bundle, "ab", "c").stdout.splitlines()
    np.testing.assert_allclose([list(map(float, x.split())) for x in lines], expected, atol=1e-5)
    lines = dragoman("encode", bundle, stdin=b"ab\nc\n").stdout.splitlines()
    np.testing.assert_allclose([list(map(float, x.split())) for x in lines], expected, atol=1e-5)
    (line,) = dragoman("encode", bundle, "ab", "--json").stdout.splitlines()
    np.testing.assert_allclose(json.loads(line)["vector"], expected[0], atol=1e-6)
    outcome = dragoman("encode", bundle, "ab", "c", "-o", tmp_path / "x.npy")
    assert (outcome.returncode, outcome.stdout) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected)
    again = dragoman("encode", bundle, "ab", "-o", tmp_path / "x.npy")
    assert again.returncode == 2 and "--force" in again.stderr
    short = dragoman("encode", bundle, "ab", "c", "--dimensions", 3, "-o", tmp_path / "s.npy")
    assert (short.returncode, short.stdout) == (0, "")
    assert short.stderr.startswith("Note: 3 of 16 dimensions;")
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), expected[:, :3])
    long = dragoman("encode", bundle, "ab", "--dimensions", 17)
    assert long.stderr == "Error: dimensions: expected 1 to 16, found 17\n"
    both = dragoman("encode", bundle, "ab", "--json", "-o", tmp_path / "y.npy")
    assert both.returncode == 2 and not (tmp_path / "y.npy").exists()
    assert both.stderr == "Error: --json: expected no --output, which holds embeddings only\n"


def test_prompts_by_name(build: Callable[[str], Path], dragoman: Dragoman, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(build("Model"), tmp_path / "prompts"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["tokenizers"]["prompts"] = {"texts": {"query": "a b "}}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with load(bundle, threads=1) as model:
        plain, prompted = model.encode(["c"]), model.encode(["a b c"])
    for options, expected in (((), plain), (("--prompt-name", "query"), prompted)):
        done = dragoman("encode", bundle, "c", *options)
        np.testing.assert_allclose([list(map(float, done.stdout.split()))], expected, atol=1e-5)
    unknown = dragoman("encode", bundle, "c", "--prompt-name", "passage")
    assert unknown.returncode == 2 and not unknown.stdout
    assert unknown.stderr == "Error: prompt_name: expected one of 'query', found 'passage'\n"


def test_a_line_that_cannot_be_read(
    build: Callable[[str], Path], dragoman: Dragoman, tmp_path: Path
) -> None:
    bundle, long = build("Model"), " ".join("abcdefgh" * 2)
    outcome = dragoman("encode", bundle, stdin=f"a\n{long}\n".encode() + b"\xff\nb\n")
    assert outcome.returncode == 1
    lines = outcome.stdout.splitlines()
    assert [bool(line) for line in lines] == [True, False, False, True]
    assert "line 2: text has 18 tokens, expected at most 12" in outcome.stderr
    assert "line 3: expected UTF-8 text" in outcome.stderr
    outcome = dragoman("encode", bundle, "a", long, "--truncate")
    assert outcome.returncode == 0 and "1 of 2 lines were truncated" in outcome.stderr
    outcome = dragoman("encode", bundle, "a", long, "-o", tmp_path / "x.npy")
    assert outcome.returncode == 1
    assert np.isnan(np.load(tmp_path / "x.npy")).any(axis=1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("head", "line", "pattern"),
    [
        ("ForSequenceClassification", "a b", r"(contradiction|entailment)\t0\.\d{4}"),
        ("ForSequenceClassification", "a\tb", r"(contradiction|entailment)\t0\.\d{4}"),
        ("ForTokenClassification", "a bc", r"a/LABEL_[01] bc/LABEL_[01]"),
        ("ForMaskedLM", "a [MASK] b", r"a .+ b"),
        ("ForQuestionAnswering", "a\tb c", r"b|c|b c"),
    ],
)
def test_each_head(
    head: str, line: str, pattern: str, build: Callable[[str], Path], dragoman: Dragoman
) -> None:
    outcome = dragoman("encode", build(head), line)
    assert outcome.returncode == 0, outcome.stderr
    assert re.fullmatch(pattern, outcome.stdout.rstrip("\n"))
    (found,) = dragoman("encode", build(head), line, "--json").stdout.splitlines()
    assert json.loads(found)["error"] is None


@pytest.mark.parametrize(
    ("head", "line", "problem"),
    [
        ("ForMaskedLM", "a b", "expected a mask ([MASK]), found none"),
        ("ForQuestionAnswering", "a b", "expected a question, a tab and a context, found no tab"),
    ],
)
def test_lines_that_are_no_inputs(
    head: str, line: str, problem: str, build: Callable[[str], Path], dragoman: Dragoman
) -> None:
    outcome = dragoman("encode", build(head), line)
    assert (outcome.returncode, outcome.stdout) == (1, "\n")
    assert problem in outcome.stderr


def test_the_wrong_command_names_the_right_one(
    build: Callable[[str], Path], bundle: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    vectors, labels = build("Model"), build("ForSequenceClassification")
    for command, expected in (
        (("run", vectors, "a"), "computes embeddings: use model.encode, "),
        (("score", vectors), "computes embeddings: use model.encode, "),
        (("run", labels, "a"), "classifies texts: use model.classify, model.classify_zero_shot, "),
        (("encode", bundle, "a"), "turns texts into texts: use model.generate, "),
        (
            ("encode", labels, "a", "-o", tmp_path / "x.npy"),
            "expected a model that computes embeddings",
        ),
    ):
        outcome = dragoman(*command)
        assert outcome.returncode == 2
        assert expected in outcome.stderr
        assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("head", "line", "printed", "problem"),
    [
        ("ForTokenClassification", "2 6 3", r"2/LABEL_[01] 6/LABEL_[01] 3/LABEL_[01]\n", None),
        (
            "ForQuestionAnswering",
            "a\tb",
            r"\n",
            "expected a bundle with them, since answers are text",
        ),
    ],
)
def test_without_tokenizers(
    head: str,
    line: str,
    printed: str,
    problem: str | None,
    build: Callable[[str], Path],
    dragoman: Dragoman,
    tmp_path: Path,
) -> None:
    checkpoint = build(head).parent / "checkpoint"
    shutil.copytree(checkpoint, tmp_path / "checkpoint", ignore=shutil.ignore_patterns("vocab*"))
    dragoman("export", tmp_path / "checkpoint", "-o", tmp_path / "bundle")
    outcome = dragoman("encode", tmp_path / "bundle", line)
    assert re.fullmatch(printed, outcome.stdout)
    assert outcome.returncode == int(problem is not None)
    assert problem is None or problem in outcome.stderr


def test_verify_and_inspect(build: Callable[[str], Path], dragoman: Dragoman) -> None:
    for head in ("Model", "ForSequenceClassification"):
        bundle = build(head)
        outcome = dragoman("verify", bundle, bundle.parent / "checkpoint")
        assert outcome.returncode == 0, outcome.stderr
        assert ("order of" in outcome.stdout) == (head == "Model")
        outcome = dragoman("inspect", bundle)
        assert outcome.returncode == 0 and "encoder-only; heads: 2 of size 8" in outcome.stdout


def test_int8_is_calibrated_on_pairs(
    build: Callable[[str], Path], dragoman: Dragoman, tmp_path: Path
) -> None:
    directory = build("ForQuestionAnswering").parent
    outcome = dragoman(
        *("build", directory / "checkpoint", "-o", tmp_path / "bundle", "--precision", "int8"),
        *("--calibration", directory / "lines.txt", "--inputs", directory / "lines.txt"),
    )
    assert outcome.returncode == 0, outcome.stderr


def test_attention_of_a_pair(
    build: Callable[[str], Path], dragoman: Dragoman, tmp_path: Path
) -> None:
    """As Hugging Face computes it."""
    for head, first, second in (
        ("ForQuestionAnswering", "a b", "c"),
        ("ForSequenceClassification", "a", "b c"),
    ):
        bundle, output = build(head), tmp_path / f"{head}.html"
        outcome = dragoman("attention", bundle, f"{first}\t{second}", "-o", output)
        assert outcome.returncode == 0, outcome.stderr
        (found,) = re.findall(r"const data = (\{.*\});", output.read_text(encoding="utf-8"))
        (shown,) = json.loads(found)["maps"]
        checkpoint = bundle.parent / "checkpoint"
        theirs = getattr(transformers, f"Bert{head}").from_pretrained(
            checkpoint, attn_implementation="eager"
        )
        tokenizer = transformers.BertTokenizer(str(checkpoint / "vocab.txt"))
        encoded = tokenizer(first, second, return_tensors="pt")
        with torch.inference_mode():
            expected = torch.stack(theirs(**encoded, output_attentions=True).attentions)[:, 0]
        np.testing.assert_allclose(shown["weights"], expected, atol=1e-4)
        assert shown["columns"] == tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a b",), "expected a question, a tab and a context, found no tab"),
        (("a\tb", "--target", "c"), "--target: expected none, checkpoint is an encoder-only"),
        (
            ("a\tb", "--source-language", "en", "--target-language", "de"),
            "--source-language, --target-language: expected none, checkpoint is an encoder-only",
        ),
    ],
)
def test_attention_that_an_encoder_does_not_have(
    arguments: tuple[str, ...],
    problem: str,
    build: Callable[[str], Path],
    dragoman: Dragoman,
    tmp_path: Path,
) -> None:
    bundle = build("ForQuestionAnswering")
    outcome = dragoman("attention", bundle, *arguments, "-o", tmp_path / "a.svg")
    assert outcome.returncode == 2
    assert outcome.stderr.startswith(f"Error: {problem}")
    assert len(outcome.stderr.splitlines()) == 1
    assert not (tmp_path / "a.svg").exists()


@pytest.fixture(scope="module")
def reranker(build_here: Dragoman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("reranker")
    config = transformers.BertConfig(**CONFIG, id2label={0: "relevance"})
    transformers.BertForSequenceClassification(config).save_pretrained(directory / "checkpoint")
    (directory / "checkpoint" / "vocab.txt").write_text("".join(f"{p}\n" for p in PIECES))
    done = build_here("build", directory / "checkpoint", "-o", directory / "bundle")
    assert done.returncode == 0, done.stderr
    table = " ".join(done.stdout.split())
    assert re.search(r"order of 64 documents .* Kendall's tau 1\.0000, NDCG@10 1\.0000", table), (
        table
    )
    return directory / "bundle"


def test_documents_are_ranked(reranker: Path, dragoman: Dragoman) -> None:
    documents = ["a b", "c", "d e f", "g"]
    with load(reranker, threads=1) as model:
        expected = model.rerank("ab", documents)
    done = dragoman("rerank", reranker, "ab", *documents)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{e.score:.6g}\t{documents[e.index]}" for e in expected]
    best = dragoman(
        "rerank", reranker, "ab", "--top", "2", "--json", stdin="\n".join(documents).encode()
    )
    found = [json.loads(line) for line in best.stdout.splitlines()]
    assert [each["index"] for each in found] == [e.index for e in expected[:2]]
    assert found[0]["text"] == documents[expected[0].index]
    long = dragoman("rerank", reranker, "ab", "c", "a b c d e f g h a b c d")
    assert long.returncode == 1
    assert len(long.stdout.splitlines()) == 1
    assert long.stderr.startswith("document 2: ")
    for query, problem in (("\udcff", "expected"), (" ", "expected a text, found ' '\n")):
        bad = dragoman("rerank", reranker, query, "c")
        assert bad.returncode == 2 and bad.stderr.startswith(f"Error: query: {problem}")
        assert len(bad.stderr.splitlines()) == 1 and not bad.stdout


def test_texts_are_classified_by_labels_that_are_given(
    build: Callable[[str], Path], dragoman: Dragoman
) -> None:
    bundle = build("ForSequenceClassification")
    texts = ["a\tb", "c", "a b c d e f g h a b"]
    options = ("--labels", "e, f", "--hypothesis-template", "g {}")
    with load(bundle, threads=1) as model:
        own = model.classify(["ab", "c"])
        expected = model.classify_zero_shot(texts, ["e", "f"], hypothesis_template="g {}")
    done = dragoman("classify", bundle, *options, stdin="\n".join(texts).encode())
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        *(f"{e.label}\t{e.labels[0].score:.4f}" for e in expected[:2]),
        "",
    ]
    assert done.stderr == f"line 3: {expected[2].error}\n"
    each = dragoman("classify", bundle, *options, "--multi-label", "--truncate", "--json", *texts)
    assert each.returncode == 0 and "1 of 3 lines were truncated" in each.stderr
    found = [json.loads(line) for line in each.stdout.splitlines()]
    assert [one["truncated"] for one in found] == [False, False, True]
    assert {label["label"] for label in found[0]["labels"]} == {"e", "f"}
    plain = dragoman("classify", bundle, "ab", "c")
    assert plain.stdout.splitlines() == [f"{e.label}\t{e.labels[0].score:.4f}" for e in own]
    for wrong, problem in (
        (["--labels", "a" * 1001], "labels: expected at most 1,000 characters, found 1,001"),
        (["--labels", "a,,b"], "labels: expected texts, none empty, found ''"),
        (["--labels", "a", "--hypothesis-template", "b"], "hypothesis_template: expected a text"),
        (["--multi-label"], "--multi-label: expected --labels, found none"),
        (["--hypothesis-template", "{}"], "--hypothesis-template: expected --labels, found none"),
    ):
        done = dragoman("classify", bundle, "a", *wrong)
        assert done.returncode == 2 and done.stderr.startswith(f"Error: {problem}")
    done = dragoman("classify", build("Model"), "a", "--labels", "a")
    assert done.returncode == 2 and "is a model that computes embeddings" in done.stderr


def test_long_contexts_are_read_in_windows(
    build: Callable[[str], Path], dragoman: Dragoman
) -> None:
    bundle = build("ForQuestionAnswering")
    pairs = [("a", "b c d e f g h c a d b f g h e a c"), ("b", "c d")]
    lines = "".join(f"{question}\t{context}\n" for question, context in pairs).encode()
    with load(bundle, threads=1) as model:
        expected = model.answer(pairs, stride=3)
        assert all(found.error is None for found in expected)
        assert model.answer(pairs)[0].error is not None
    done = dragoman("encode", bundle, "--stride", "3", stdin=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [found.text for found in expected]
    for head, stride, problem in (
        ("ForQuestionAnswering", "0", "stride: expected an integer of at least 1, found 0"),
        ("Model", "3", "--stride: expected a model that answers questions, found embedding"),
    ):
        done = dragoman("encode", build(head), "a\tb", "--stride", stride)
        assert done.returncode == 2 and done.stderr.startswith(f"Error: {problem}")
