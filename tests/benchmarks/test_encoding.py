"""The table of encoders: texts of an exact length, cosines and ratios by hand, what is printed."""

from __future__ import annotations

from itertools import islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from dragoman.benchmarks.compare.contenders.encoding import (
    Calls,
    EncodingContender,
    calls,
    load_to_perform,
    pieces,
    queue,
)
from dragoman.benchmarks.compare.record import as_record
from dragoman.benchmarks.compare.rounds import Entrant, Failure, Footprint, Turn, Turns, unchanged
from dragoman.benchmarks.compare.tasks.encoding import (
    check_vectors,
    cosines,
    documentation,
    measurements_of,
    standings,
    tables,
    without_wrong,
)
from dragoman.benchmarks.processes import ProcessError

from .doubles import CIRCUMSTANCES

PROSE = "a dragoman was an interpreter between languages"


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Words are spelt; a token begins and one ends every text."""
    letters = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    made = Tokenizer(models.WordPiece(letters | {f"##{c}": 26 + i for c, i in letters.items()}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])  # whose ids follow
    made.post_processor = processors.BertProcessing(("[SEP]", 53), ("[CLS]", 52))
    return made


def test_texts_have_exactly_the_length_and_begin_with_words(tokenizer: Tokenizer) -> None:
    found = list(islice(pieces(PROSE, tokenizer, repeat(14)), 6))
    assert {len(tokenizer.encode(text).ids) for text in found} == {14}
    assert found[:3] == ["a dragoman was", "an interprete", "between langu"]
    assert all(f" {text}" in f" {PROSE}" for text in found)
    assert len(set(found)) > 3  # the prose is read again from elsewhere


def test_a_work_item_has_as_many_calls_as_can_be_timed(tokenizer: Tokenizer) -> None:
    few, many = calls(PROSE, tokenizer, 12, 200), calls(PROSE, tokenizer, 6, 2)
    assert (len(few.texts), few.batch_size) == (1, 200)
    assert (len(many.texts), many.batch_size) == (64, 2)
    assert str(many) == "6 tokens, batch 2"
    assert many == calls(PROSE, tokenizer, 6, 2)


def test_a_queue_has_unlike_texts_with_the_same_query(tokenizer: Tokenizer) -> None:
    prose = " ".join([PROSE] * 8)
    item = queue(prose, tokenizer, 40)
    (texts,) = item.texts
    lengths = [len(tokenizer.encode(text).ids) for text in texts if isinstance(text, str)]
    assert (len(lengths), min(lengths) >= 8, len(set(lengths)) > 20) == (40, True, True)
    assert (str(item), item) == ("queue of 40 texts", queue(prose, tokenizer, 40))
    asked = calls(prose, tokenizer, 30, 3, query="who was").texts[0]
    pairs = [pair for pair in asked if isinstance(pair, tuple)]
    assert {len(tokenizer.encode(*pair).ids) for pair in pairs} == {30}
    assert {query for query, _ in pairs} == {"who was"}


def test_a_queue_is_sorted_for_tools_that_do_not_form_batches() -> None:
    seen: list[int] = []

    def load(directory: Path, threads: int) -> Any:
        def encode(texts: list[str], batch_size: int = 0) -> Any:
            seen.append(batch_size or len(texts))
            return np.array([[len(text), 1] for text in texts], np.float32)

        return encode

    texts = ["a" * (n * 7 % 50) for n in range(50)]
    expected = [len(text) for text in texts]
    for own in (None, {"batch_size": 16}):
        found = load_to_perform(Path(), 1, load=load, queue=own)(Calls(None, [[*texts]]))
        assert found[:, 0].tolist() == expected
    assert seen == [32, 18, 16]


def test_scores_agree_up_to_their_difference() -> None:
    right = np.array([0.5, 0.25], np.float32)
    assert cosines(np.array([0.25, 0.25], np.float32), right) == pytest.approx([0.75, 1.0])
    with pytest.raises(ProcessError, match="expected a mean similarity"):
        check_vectors(np.array([0.25, 0.25], np.float32), right)


def test_cosines_by_hand() -> None:
    right = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)
    turned = np.array([[4.0, 3.0], [2.0, 0.0]], np.float32)
    assert cosines(turned, right) == pytest.approx([0.96, 1.0])
    check_vectors(turned, right)
    for wrong in (turned[:1], -right, np.full_like(right, np.nan)):
        with pytest.raises(ProcessError, match="expected"):
            check_vectors(wrong, right)


def contender(name: str, precision: str, *, peer: bool) -> EncodingContender:
    def load(directory: Path, threads: int) -> Any:
        raise AssertionError("nothing is loaded")

    return EncodingContender(name, unchanged, load, precision=precision, peer=peer)


def measured(**seconds: list[float]) -> list[dict[str, Any]]:
    """Of contenders, named by tool, precision and threads."""
    vectors = np.eye(4, dtype=np.float32)
    turns = {
        Entrant(f"{tool} {precision}", int(threads)): Turns(
            Turn(vectors, 9.0), [Turn(vectors, s) for s in values]
        )
        for name, values in seconds.items()
        for tool, precision, threads in [name.split("_")]
    }
    contenders = {
        e.contender: contender(
            e.contender,
            e.contender.split()[1],
            peer=not e.contender.startswith("Dragoman"),
        )
        for e in turns
    }
    item = Calls(16, [["a", "b"], ["c", "d"]])
    return list(map(dict, measurements_of(turns, contenders, item, vectors)))


def test_ratios_are_against_peers_with_as_many_threads_or_fewer() -> None:
    ours, more, low, _, fast, *_ = measured(
        Dragoman_fp32_1=[0.2, 0.1, 0.4],
        Dragoman_fp32_2=[0.1],
        Dragoman_int8_1=[0.05],
        Peer_fp32_1=[0.5],
        Peer_fp32_2=[0.2],
        Other_int8_1=[0.3],
        Other_bf16_2=[0.4],
    )
    assert ours["ms_per_call"] == (100.0, 50.0, 200.0)
    assert ours["texts_per_second"] == 20.0
    assert (ours["cosine"], ours["lowest_cosine"]) == (1.0, 1.0)
    in_fp32 = itemgetter("best_fp32_peer", "fp32_ratio")
    reduced = itemgetter("best_reduced_peer", "reduced_ratio")
    assert in_fp32(ours) == ("Peer fp32, 1 thread", 2.5)
    assert reduced(ours) == ("Other int8, 1 thread", 1.5)
    assert in_fp32(more) == ("Peer fp32, 2 threads", 2.0)
    assert reduced(more) == ("Other int8, 1 thread", 3.0)
    assert (low["fp32_ratio"], low["reduced_ratio"], fast["fp32_ratio"]) == (10.0, 6.0, 1.0)
    (alone,) = measured(Dragoman_fp32_1=[0.2])
    assert (alone["fp32_ratio"], alone["best_reduced_peer"]) == (None, None)


def test_where_we_stand() -> None:
    rows = measured(
        Dragoman_int8_1=[0.2], Dragoman_int8_2=[0.1], Peer_fp32_1=[0.5], Peer_fp32_2=[0.2]
    )
    lines = list(standings(rows))
    assert lines == [
        "Dragoman int8 against the best peer in fp32: 2.00 to 2.50 times as fast, least at "
        "16 tokens, batch 2, 2 threads, against Peer fp32, 2 threads"
    ]


def test_other_vectors_in_fp32_are_a_failure() -> None:
    right, low = measured(Peer_fp32_1=[0.5], Other_int8_1=[0.5])
    wrong = right | {"contender": "Wrong fp32", "lowest_cosine": 0.99}
    held = [Footprint(m["contender"], 1, 1.0, 1.0, 1.0) for m in (right, wrong)]
    figures = without_wrong([right, wrong, low | {"lowest_cosine": 0.9}], held, [])
    assert [m["contender"] for m in figures["measurements"]] == ["Peer fp32", "Other int8"]
    assert figures["footprints"] == held[:1]
    assert figures["failures"] == [
        Failure("Wrong fp32", "expected cosines of 0.999 at least in fp32, found 0.99")
    ]


def test_a_record_and_its_tables() -> None:
    measurements = measured(Peer_fp32_1=[0.5, 0.4, 0.6], Dragoman_fp32_1=[0.2])
    figures = {"measurements": measurements, "footprints": [], "failures": [Failure("a", "b")]}
    found = as_record({"model": "a model", "threads": [1], "rounds": 1} | figures, CIRCUMSTANCES)
    assert found["measurements"][0]["ms_per_call"] == [250.0, 200.0, 300.0]
    assert (found["machine"], found["command"]) == ("a machine", "a command")
    (shown,) = tables(found)
    assert shown.headings[-2:] == ["cosine", "lowest"]
    for row in found["measurements"]:  # those of a queue of scores
        scores = {"agreement": row["cosine"], "lowest_agreement": row["lowest_cosine"]}
        queued = {k: v for k, v in row.items() if "cosine" not in k} | scores | {"length": None}
        (shown,) = tables(found | {"measurements": [queued]})
        assert (shown.headings[1], shown.headings[-2]) == ("batch", "agreement")
        (table,) = documentation(found | {"measurements": [queued]})
        assert table.headings[1:] == ["queue of 2 texts", "agreement", "lowest"]
    (table,) = documentation(found)
    assert table.markdown().replace("\N{EN DASH}", "-").splitlines() == [
        "| 1 thread, ms per call | 16 tokens, batch 2 | cosine | lowest |",
        "| --- | --- | --- | --- |",
        "| Peer fp32 | 250.00 (200.00-300.00) | 1.0000 | 1.0000 |",
        "| Dragoman fp32 | **100.00 (100.00-100.00)** | 1.0000 | 1.0000 |",
    ]
