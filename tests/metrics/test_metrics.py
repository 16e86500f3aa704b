"""Metrics against the libraries themselves, and against cases worked by hand."""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Any

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from dragoman.errors import DragomanError
from dragoman.metrics import (
    METRIC_NAMES,
    METRICS,
    PERPLEXITY,
    check_metrics,
    find_metric,
    metrics_that_judge,
    name_of,
    shown_figure,
)
from dragoman.metrics.segment_metrics import words_of

HYPOTHESES = [
    "The dog bit the man.",
    "It was not unexpected.",
    "",
    "The man bit him first!",
    "well",
]
REFERENCES = [
    ["The dog bit the man.", "The dog had bit the man."],
    ["It was not surprising.", "No one was surprised."],
    ["Nothing at all."],
    ["The man had bitten the dog.", "The man bit him first.", "He was bitten."],
    ["Well"],
]
STREAMS = [[of_one[i] if i < len(of_one) else None for of_one in REFERENCES] for i in range(3)]
"""References as sacrebleu takes them, with None where a text has no more."""


def figure(name: str, hypotheses: list[str], references: list[list[str]]) -> float:
    return METRICS[name].figure(hypotheses, references)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_bleu_and_chrf_are_those_of_sacrebleu(name: str, count: int) -> None:
    corpus: Any = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}[name]
    expected = corpus(HYPOTHESES[:count], [stream[:count] for stream in STREAMS]).score
    assert figure(name, HYPOTHESES[:count], REFERENCES[:count]) == pytest.approx(expected, abs=1e-9)


def test_bleu_worked_by_hand() -> None:
    """Seven words for eight, which is too brief; "red" is not in the reference."""
    found = figure("bleu", ["the cat sat on a red mat"], [["the cat sat on a mat that is"]])
    precisions = (6 / 7, 4 / 6, 3 / 5, 2 / 4)
    expected = 100 * math.exp(1 - 8 / 7) * math.prod(precisions) ** (1 / 4)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", METRICS)
def test_an_exact_output_is_whole_or_without_error(name: str) -> None:
    metric, texts = METRICS[name], ["one two three four five", "six seven eight nine ten"]
    best = metric.figure(texts, [["x", text] for text in texts])
    assert best == pytest.approx(metric.whole if metric.higher_is_better else 0)
    nothing = metric.figure(["", ""], [[text] for text in texts])
    assert nothing == pytest.approx(0 if metric.higher_is_better else metric.whole)


def test_word_error_worked_by_hand() -> None:
    """Case and punctuation do not count; one substitution and one insertion in 4 + 3 words."""
    hypotheses = ["The DOG, bit a man", "it was not"]
    references = [["the dog bit him"], ["It was not."]]
    assert figure("word-error", hypotheses, references) == pytest.approx(2 / 7)


def test_word_error_is_of_the_reference_with_the_smallest_share() -> None:
    """One error in two words, or one in three."""
    assert figure("word-error", ["a b c"], [["a b", "a b d"]]) == pytest.approx(1 / 3)
    assert figure("word-error", ["a b c"], [["a b d", "a b"]]) == pytest.approx(1 / 3)


def test_more_is_inserted_than_was_said() -> None:
    assert figure("word-error", ["a b c d"], [["a"]]) == 3.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't re-enter: it\u2019s 5 o'clock!", ["don't", "re", "enter", "it's", "5", "o'clock"]),
        ("\u0130stanbul \ufb01ve", ["i\u0307stanbul", "five"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs belong to words
        ("cafe\u0301 café", ["café", "café"]),
        ("_a_ --", ["a"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_rouge_l_is_the_mean_of_the_librarys_best() -> None:
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    best = [
        max(scorer.score(reference, text)["rougeL"].fmeasure for reference in references)
        for text, references in zip(HYPOTHESES, REFERENCES, strict=True)
    ]
    assert figure("rouge-l", HYPOTHESES, REFERENCES) == pytest.approx(100 * sum(best) / 5)


def test_rouge_l_worked_by_hand() -> None:
    """ "kill" and "killed" have the same stem: 4 words of 4, and of 6."""
    found = figure("rouge-l", ["police kill the gunman"], [["police killed the tall gunman now"]])
    assert found == pytest.approx(100 * 2 * 1 * (4 / 6) / (1 + 4 / 6))


def test_what_rouge_score_cannot_read_is_no_zero() -> None:
    with pytest.raises(DragomanError, match=r"^ROUGE-L: expected references with letters a to z"):
        figure("rouge-l", ["猫", "犬"], [["猫"], ["犬"]])
    assert figure("rouge-l", ["猫", "a dog"], [["猫"], ["a dog"]]) == 100


def test_exact_match_ignores_spaces_and_nothing_else() -> None:
    hypotheses = [" a  b\n", "a b.", "A b", "a b"]
    assert figure("exact-match", hypotheses, [["c", "a b"]] * 4) == 0.5


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("hypotheses", "references", "problem"),
    [
        ([], [], "expected at least one text to score, found none"),
        (["a"], [["a"], ["b"]], "expected references for 1 texts, found them for 2"),
        (["a", "b"], [["a"], []], "expected at least one reference for text 2, found none"),
    ],
)
def test_wrong_pairs_are_one_line(
    name: str, hypotheses: list[str], references: list[list[str]], problem: str
) -> None:
    for compute in (METRICS[name].figure, lambda h, r: METRICS[name].chance(h, h, r)):
        with pytest.raises(DragomanError, match=f"^{problem}$"):
            compute(hypotheses, references)


def test_references_without_words_have_no_word_error() -> None:
    with pytest.raises(DragomanError, match=r"^word error: expected references with words, found"):
        figure("word-error", ["a", "b"], [["..."], ["-"]])


def test_an_unknown_metric_is_one_line_with_the_known_ones() -> None:
    with pytest.raises(DragomanError) as caught:
        find_metric("blue")
    assert str(caught.value) == (
        "metric: expected one of bleu, chrf, word-error, character-error, exact-match, rouge-l, "
        "found 'blue'"
    )
    with pytest.raises(DragomanError, match=r"rouge-l, perplexity, found 'blue'$"):
        check_metrics(["bleu", "blue"])
    check_metrics(METRIC_NAMES)
    assert set(METRIC_NAMES) == {*METRICS, PERPLEXITY}


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("bleu", "sacrebleu", "sacrebleu"),
        ("rouge-l", "rouge_score", "rouge-score"),
        ("word-error", "rapidfuzz", "rapidfuzz"),
    ],
)
def test_a_missing_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, package: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda found: None if found == module else find_spec(found)
    )
    with pytest.raises(DragomanError, match=f"needs the package {package}: pip install"):
        find_metric(name)
    find_metric("exact-match")


@pytest.mark.parametrize(
    ("name", "text"),
    [("BLEU", "41.02"), ("chrF", "41.02"), ("ROUGE-L", "41.02"), ("word error", "4102.00%")],
)
def test_figures_as_people_read_them(name: str, text: str) -> None:
    assert shown_figure(name, 41.02) == text
    assert shown_figure("exact match", 0.056) == shown_figure("something else", 0.056) == "5.60%"


@pytest.mark.parametrize(
    ("language", "tokenization"),
    [
        *((code, "zh") for code in ("zh", "zh_CN", "zho_Hans", "zh-TW")),
        *((code, "char") for code in ("ja", "ja_XX", "jpn_Jpan", "th")),
        *((code, "13a") for code in (None, "de", "deu_Latn", "")),
    ],
)
def test_chinese_and_japanese_are_split_otherwise(language: str | None, tokenization: str) -> None:
    metric = find_metric("bleu", language)
    assert f"|tok:{tokenization}|" in metric.signature()
    texts, references = ["我喜欢猫和狗", "今天天气很好"], [["我喜欢猫和鱼"], ["今天天气不好"]]
    expected = sacrebleu.corpus_bleu(
        texts, [[r[0] for r in references]], tokenize=tokenization, force=True
    ).score
    assert metric.figure(texts, references) == pytest.approx(expected)
    assert (expected > 0) == (tokenization != "13a")


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "char", "zh"])
def test_the_tokenizer_of_bleu_is_chosen(tokenizer: str) -> None:
    metric = find_metric(f"bleu:{tokenizer}")
    assert f"|tok:{tokenizer}|" in metric.signature()
    texts, references = (
        ["我喜欢猫和狗", "今天 天气很 好"],
        [["我喜欢猫和鱼"], ["今天 天气不 好"]],
    )
    expected = sacrebleu.corpus_bleu(texts, [[r[0] for r in references]], tokenize=tokenizer)
    assert metric.figure(texts, references) == pytest.approx(expected.score)
    assert name_of(metric) == ("bleu" if tokenizer == "13a" else f"bleu:{tokenizer}")
    assert shown_figure(metric.name, 41.02) == "41.02"


def test_a_tokenizer_of_bleu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DragomanError, match=r"expected a tokenizer of 13a, intl, .*, found 'zz'"):
        find_metric("bleu:zz")
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(DragomanError, match="bleu:ja-mecab: sacrebleu cannot use it: "):
        find_metric("bleu:ja-mecab")


def test_character_errors_worked_by_hand() -> None:
    """Of the nearest reference, with single spaces: one substitution and one deletion of 7 + 3."""
    references = [["a kitten", "sitting"], ["abc"]]
    assert figure("character-error", ["sitfing ", "ab"], references) == pytest.approx(2 / 10)
    assert figure("character-error", ["a  b"], [["a b"]]) == 0


@pytest.mark.parametrize("texts", [["dog", "two words", "one two three"], ["我喜欢猫", "今天好"]])
def test_bleu_judges_no_texts_that_it_cannot(texts: list[str]) -> None:
    references = [[text] for text in texts]
    bleu, chrf = find_metric("bleu"), find_metric("chrf")
    assert bleu.figure(texts, references) == 0
    for metrics in ([bleu], [bleu, chrf]):
        found, remark = metrics_that_judge(metrics, references)
        assert [metric.name for metric in found] == ["chrF", "exact match"]
        assert [metric.figure(texts, references) for metric in found] == pytest.approx([100, 1])
        assert remark.startswith("BLEU is not computed, since it is 0 for the references")


def test_bleu_judges_texts_of_four_words() -> None:
    metrics = [find_metric("bleu"), find_metric("chrf")]
    assert metrics_that_judge(metrics, [["one"], ["one two three four"]]) == (metrics, "")


def test_signatures_name_version_and_references() -> None:
    assert find_metric("bleu").signature(REFERENCES) == (
        f"nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert find_metric("chrf").signature([["a", "b"]] * 3).startswith("nrefs:2|case:mixed|eff:yes")
    assert find_metric("word-error").signature().startswith("nrefs:1|norm:")
    for name in METRICS:
        assert METRICS[name].signature(REFERENCES).startswith("nrefs:var|")
