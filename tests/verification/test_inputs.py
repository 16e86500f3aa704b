"""The inputs of a comparison: files, references in them or apart, and metrics."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import OpenedCheckpoint, open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import save_checkpoint
from dragoman.reference_model.recipes import Example, write_examples
from dragoman.verification.inputs.choosing import inputs_for
from dragoman.verification.inputs.items import Comparison, recording_items
from dragoman.verification.inputs.parity_inputs import ParityInputs

from ..speech_models import save, whisper
from ..zoo import letters_model, letters_tokenizers

WORDS = ["dragoman", "need", "a", "encoder", "all", "you", "is"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of words, with tokenizers and nothing else."""
    made = tmp_path_factory.mktemp("checkpoints") / "small"
    save_checkpoint(letters_model(), made)
    letters_tokenizers(made)
    return made


@pytest.fixture(scope="module")
def checkpoint(directory: Path) -> OpenedCheckpoint:
    return open_checkpoint(locate_checkpoint(str(directory)))


def lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def words(tmp_path: Path) -> Path:
    return lines(tmp_path / "words.txt", *WORDS)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """In another order than the words, the second with two references."""
    texts = [f"{word}\tN 1 2 3\tD" if i == 1 else f"{word}\tN" for i, word in enumerate(WORDS)]
    return lines(tmp_path / "pairs.tsv", *reversed(texts))


def metrics_of(inputs: ParityInputs) -> list[str]:
    return [] if inputs.task is None else [metric.name for metric in inputs.task.metrics]


def test_without_references_nothing_is_judged(checkpoint: OpenedCheckpoint, words: Path) -> None:
    inputs = inputs_for(checkpoint, Comparison(words))
    assert (inputs.task, inputs.references) == (None, None)
    assert inputs.texts == WORDS
    assert inputs.origins == [f"words.txt, line {n}" for n in range(1, 8)]


def test_references_after_tabs_judge_in_the_order_of_lines(
    checkpoint: OpenedCheckpoint, pairs: Path
) -> None:
    inputs = inputs_for(checkpoint, Comparison(pairs))
    assert metrics_of(inputs) == ["BLEU", "chrF"]
    assert inputs.task is not None and inputs.references is not None
    assert inputs.texts == WORDS[::-1]
    assert inputs.task.references == [("N",)] * 5 + [("N 1 2 3", "D"), ("N",)]
    assert inputs.task.parts == [[i] for i in range(7)]
    assert len(inputs.references.pairs) == 8
    assert inputs.references.origin == "pairs.tsv"


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> OpenedCheckpoint:
    """A model that hears a second."""
    made = save(whisper(multilingual=False), tmp_path_factory.mktemp("whisper"))
    return open_checkpoint(locate_checkpoint(str(made)))


@pytest.mark.parametrize(("limit", "count"), [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_speech_is_compared_on_beginnings_of_a_sentence(
    speech: OpenedCheckpoint, limit: int | None, count: int
) -> None:
    inputs = inputs_for(speech, Comparison(limit=limit))
    assert inputs.recorded == f"{count} beginnings of a sentence"
    assert inputs.origins[-1] == f"beginning {count} of the sentence"
    assert inputs.random and inputs.task is None
    features = [np.asarray(source) for source in inputs.sources]
    quiet = [f.min() for f in features]
    # A column whose every bin is at the floor is silence: what follows the beginning.
    spoken = [
        int((f > low + 1e-3).any(0).nonzero()[0].max())
        for f, low in zip(features, quiet, strict=True)
    ]
    assert spoken == sorted(set(spoken))
    np.testing.assert_allclose(spoken, [100 * n / count for n in range(1, count + 1)], atol=4)


def test_random_sound_takes_the_place_of_a_sentence_that_cannot_be_read(
    speech: OpenedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert inputs_for(speech, Comparison(limit=2)).recorded == "2 windows of random sound (seed 0)"


def test_a_limit_takes_inputs_and_their_references_together(
    checkpoint: OpenedCheckpoint, pairs: Path
) -> None:
    inputs = inputs_for(checkpoint, Comparison(pairs, limit=3))
    assert inputs.texts == [WORDS[::-1][i] for i in (0, 2, 4)]
    assert inputs.origins == [f"pairs.tsv, line {n}" for n in (1, 3, 5)]
    assert inputs.task is not None and inputs.references is not None
    assert inputs.task.references == [("N",)] * 3
    assert [pair[0] for pair in inputs.references.pairs] == inputs.texts
    assert list(inputs.references.lines) == [1, 3, 5]
    assert inputs.references.origin == "pairs.tsv, 3 of 7 lines"
    assert inputs.description == "pairs.tsv, 7 lines, 3 of them spread evenly"


def test_only_references_are_one_for_each_input(
    checkpoint: OpenedCheckpoint, words: Path, tmp_path: Path
) -> None:
    alone = lines(tmp_path / "alone.txt", *(f"N{'' if i else ' AH'}" for i in range(7)))
    inputs = inputs_for(checkpoint, Comparison(words, limit=2, references=alone))
    assert inputs.task is not None and inputs.references is not None
    assert inputs.task.references == [("N AH",), ("N",)]
    assert inputs.origins == ["words.txt, line 1", "words.txt, line 4"]
    assert inputs.references.pairs == [(WORDS[0], "N AH"), (WORDS[3], "N")]
    assert inputs.references.origin == "alone.txt, 2 of 7 lines"


@pytest.mark.parametrize("count", [0, 1, 6, 8])
def test_another_number_of_references_is_one_line(
    checkpoint: OpenedCheckpoint, words: Path, tmp_path: Path, count: int
) -> None:
    alone = lines(tmp_path / "alone.txt", *["N"] * count)
    with pytest.raises(DragomanError) as caught:
        inputs_for(checkpoint, Comparison(words, references=alone))
    assert str(caught.value) == (
        f"{alone}: expected 7 references, one for each input of {words}, or lines of a source, a "
        f"tab and a reference; found {count} lines without tabs"
        if count
        else f"{alone}: expected at least one line, found none"
    )


@pytest.mark.parametrize("line", ["a\t", "a\tAH\t", "a\t \tAH"])
def test_an_empty_reference_is_one_line(
    checkpoint: OpenedCheckpoint, words: Path, tmp_path: Path, line: str
) -> None:
    file = lines(tmp_path / "empty.tsv", "need\tN", line)
    for asked in (Comparison(file), Comparison(words, references=file)):
        with pytest.raises(DragomanError) as caught:
            inputs_for(checkpoint, asked)
        assert str(caught.value) == (
            f"{file}, line 2: expected a reference after the tab, found none"
        )


def test_an_empty_line_among_only_references_is_one_line(
    checkpoint: OpenedCheckpoint, words: Path, tmp_path: Path
) -> None:
    alone = lines(tmp_path / "alone.txt", "N", *[""] * 6)
    with pytest.raises(DragomanError) as caught:
        inputs_for(checkpoint, Comparison(words, references=alone))
    assert str(caught.value) == f"{alone}, line 2: expected a reference, found none"


def test_an_empty_transcript_is_one_line(tmp_path: Path) -> None:
    listed = lines(tmp_path / "clips.tsv", "a.wav\tone", "", "b.wav\t")
    with pytest.raises(DragomanError) as caught:
        recording_items(listed)
    assert str(caught.value) == f"{listed}, line 3: expected a reference after the tab, found none"


def test_references_that_some_inputs_lack_are_said_not_to_be_compared(
    checkpoint: OpenedCheckpoint, words: Path, pairs: Path, tmp_path: Path
) -> None:
    """In the record: the third level would disappear without a word."""
    some = lines(tmp_path / "some.tsv", "need\tN", "a", "all\tL", "is\tS")
    inputs = inputs_for(checkpoint, Comparison(some, limit=2))
    assert inputs.task is None and inputs.references is None
    assert inputs.description == "some.tsv, 4 lines, 2 of them spread evenly"
    assert inputs.recorded == (
        f"{inputs.description}; references are not compared: found for 3 of 4 inputs, none for "
        "some.tsv, line 2"
    )
    for asked in (
        Comparison(words),
        Comparison(pairs),
        Comparison(words, references=pairs),
        Comparison(words, references=lines(tmp_path / "other.tsv", "is\tS")),  # scored apart
    ):
        inputs = inputs_for(checkpoint, asked)
        assert inputs.recorded == inputs.description


def test_only_references_need_inputs(checkpoint: OpenedCheckpoint, tmp_path: Path) -> None:
    alone = lines(tmp_path / "alone.txt", "N")
    with pytest.raises(DragomanError, match=r"found only references, and no inputs$"):
        inputs_for(checkpoint, Comparison(references=alone))


def test_pairs_belong_to_the_inputs_with_the_same_source(
    checkpoint: OpenedCheckpoint, words: Path, pairs: Path
) -> None:
    inputs = inputs_for(checkpoint, Comparison(words, references=pairs))
    assert inputs.texts == WORDS
    assert inputs.task is not None and inputs.references is not None
    assert inputs.task.references == [("N",), ("N 1 2 3", "D"), *[("N",)] * 5]
    assert inputs.origins[1] == "words.txt, line 2"
    assert (inputs.references.origin, inputs.references.lines[:3]) == ("pairs.tsv", (7, 6, 6))


def test_a_source_that_comes_again_has_the_references_of_its_line(
    checkpoint: OpenedCheckpoint, tmp_path: Path
) -> None:
    inputs = lines(tmp_path / "inputs.txt", "is", "a", "is")
    same = lines(tmp_path / "same.tsv", "is\tS", "a\tAH", "is\tZ")
    task = inputs_for(checkpoint, Comparison(inputs, references=same)).task
    assert task is not None and task.references == [("S",), ("AH",), ("Z",)]


def test_a_source_that_comes_again_elsewhere_has_all_its_references(
    checkpoint: OpenedCheckpoint, tmp_path: Path
) -> None:
    inputs = lines(tmp_path / "inputs.txt", "is", "a")
    other = lines(tmp_path / "other.tsv", "a\tAH", "is\tZ\tS", "is\tZ\tS Z")
    found = inputs_for(checkpoint, Comparison(inputs, references=other))
    assert found.task is not None and found.references is not None
    assert found.task.references == [("Z", "S", "S Z"), ("AH",)]
    assert found.references.pairs == [("is", "Z"), ("is", "S"), ("is", "S Z"), ("a", "AH")]


def test_without_inputs_the_sources_of_pairs_are_compared_on(
    checkpoint: OpenedCheckpoint, pairs: Path
) -> None:
    inputs = inputs_for(checkpoint, Comparison(references=pairs))
    assert dataclasses.replace(inputs, decode=None) == dataclasses.replace(
        inputs_for(checkpoint, Comparison(pairs)), decode=None
    )


def test_pairs_of_other_sources_are_scored_apart(
    checkpoint: OpenedCheckpoint, words: Path, tmp_path: Path
) -> None:
    """Their probability says something about the bundle, too."""
    others = lines(tmp_path / "others.tsv", "is\tN", "not\tN", "there\tN")
    inputs = inputs_for(checkpoint, Comparison(words, limit=2, references=others))
    assert inputs.texts == [WORDS[0], WORDS[3]] and inputs.task is None
    assert inputs.references is not None
    assert inputs.references.pairs == [("is", "N"), ("not", "N")]
    with pytest.raises(DragomanError) as caught:
        inputs_for(checkpoint, Comparison(words, references=others, metrics=["perplexity", "chrf"]))
    assert str(caught.value) == (
        "metric chrf: expected a reference for each input, found none for words.txt, line 1"
    )
    assert (
        inputs_for(
            checkpoint, Comparison(words, references=others, metrics=["perplexity"])
        ).references
        is not None
    )


def test_only_perplexity_decodes_nothing_for_metrics(
    checkpoint: OpenedCheckpoint, pairs: Path
) -> None:
    inputs = inputs_for(checkpoint, Comparison(pairs, metrics=["perplexity"]))
    assert inputs.task is None and inputs.references is not None


def test_metrics_in_the_order_they_are_named_in(checkpoint: OpenedCheckpoint, pairs: Path) -> None:
    named = ["exact-match", "perplexity", "bleu", "exact-match"]
    assert metrics_of(inputs_for(checkpoint, Comparison(pairs, metrics=named))) == [
        "exact match",
        "BLEU",
    ]


@pytest.mark.parametrize("name", ["bleu", "perplexity"])
def test_a_metric_without_references_is_one_line(
    checkpoint: OpenedCheckpoint, tmp_path: Path, name: str
) -> None:
    with pytest.raises(DragomanError) as caught:
        inputs_for(checkpoint, Comparison(limit=3, metrics=[name]))
    assert str(caught.value) == (
        f"metric {name}: expected inputs with references, found 3 random sources (seed 0) without"
    )
    mixed = lines(tmp_path / "mixed.tsv", "need\tN", "a")
    assert inputs_for(checkpoint, Comparison(mixed)).task is None
    with pytest.raises(DragomanError, match=f"^metric {name}: expected .*found .*mixed.tsv"):
        inputs_for(checkpoint, Comparison(mixed, metrics=[name]))


def test_outputs_without_tokenizers_have_no_metrics(
    checkpoint: OpenedCheckpoint, tmp_path: Path
) -> None:
    without = dataclasses.replace(checkpoint, tokenizers=None)
    ids = lines(tmp_path / "ids.tsv", "3 4\t5", "6\t7 8")
    inputs = inputs_for(without, Comparison(limit=5, references=ids))
    assert inputs.description == "5 random sources (seed 0)" and inputs.task is None
    assert inputs.references is not None
    assert inputs.references.pairs == [([3, 4], [5]), ([6], [7, 8])]
    with pytest.raises(DragomanError, match=r"^metric bleu: expected a checkpoint with tokenizers"):
        inputs_for(without, Comparison(limit=5, references=ids, metrics=["bleu"]))


def test_a_recipe_is_judged_by_its_own_score(directory: Path, pairs: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(directory, tmp_path / "own"))
    (own / "recipe.json").write_text('{"recipe": "g2p-en"}', encoding="utf-8")
    write_examples([Example("need", ("N", "D")), Example("a", ("AH",))], own / "held_out.tsv")
    opened = open_checkpoint(locate_checkpoint(str(own)))
    held_out = inputs_for(opened, Comparison())
    assert held_out.texts == ["need", "a"]
    assert (
        metrics_of(held_out) == metrics_of(inputs_for(opened, Comparison(pairs))) == ["word error"]
    )
    assert held_out.task is not None
    (metric,) = held_out.task.metrics
    assert metric.figure(["D", "x"], held_out.task.references) == 0.5
    assert not metric.higher_is_better
    assert metrics_of(inputs_for(opened, Comparison(pairs, metrics=["chrf"]))) == ["chrF"]


def test_summaries_are_judged_by_rouge(checkpoint: OpenedCheckpoint, pairs: Path) -> None:
    """BART's and Pegasus's checkpoints say so when they are read."""
    summarizing = dataclasses.replace(checkpoint, summarizes=True)
    texts = pairs.with_name("ascii.tsv")
    texts.write_text("need\ta b c\n")
    assert metrics_of(inputs_for(summarizing, Comparison(texts))) == ["ROUGE-L"]


@pytest.mark.parametrize("side", ["source", "target"])
def test_languages_of_a_model_that_has_none(
    checkpoint: OpenedCheckpoint, pairs: Path, side: str
) -> None:
    with pytest.raises(DragomanError, match=f"^{side}_language: expected none, .*found 'de'$"):
        inputs_for(checkpoint, Comparison(pairs, **{f"{side}_language": "de"}))  # type: ignore[arg-type]
