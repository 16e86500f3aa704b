"""Trainings on corpora of the disk: cleaning, the file of tokens, weights, prefixes, references."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dragoman import DragomanError
from dragoman.metrics import find_metric
from dragoman.reference_model.recipes import (
    Data,
    Example,
    PairFiles,
    Recipe,
    read_examples,
    read_initial_model,
    read_training_file,
    run_recipe,
)
from dragoman.reference_model.recipes import corpora as corpora_module
from dragoman.reference_model.recipes import run as run_module
from dragoman.reference_model.recipes.corpora import Corpora, Corpus
from dragoman.reference_model.recipes.examples import Cleaning, clean, read_pairs
from dragoman.reference_model.recipes.tokenizers import read_tokenizers
from dragoman.reference_model.training import run as training_module
from dragoman.reference_model.training.loss import (
    TokenBatches,
    TokenPairs,
    projected_cross_entropy,
)
from dragoman.reference_model.training.state import read_tokens, write_tokens

from .test_training_file import PAIRS, SETTINGS

BACK_TRANSLATED = [(f"cheese the {s}", f"käse {t}") for s, t in PAIRS[:10]]
Folder = Callable[..., Recipe]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes a training file and its data, and reads it as the command does."""
    write(tmp_path / "train.tsv", [*PAIRS, *PAIRS[:3]])
    write(tmp_path / "back.tsv", [*BACK_TRANSLATED, BACK_TRANSLATED[0]])
    write(tmp_path / "dev.tsv", PAIRS[:4])

    def described(**changes: Any) -> Recipe:
        files = {"corpora": [{"files": ["train.tsv"]}], "dev": ["dev.tsv"]}
        (tmp_path / "en-de.json").write_text(json.dumps(SETTINGS | files | changes))
        return read_training_file(tmp_path / "en-de.json", PairFiles(), tmp_path / "work")

    return described


def write(path: Path, rows: Sequence[tuple[str, ...]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def trained(recipe: Recipe, directory: Path) -> bytes:
    run_recipe(recipe, recipe.load_data(None), directory / "model", directory / "work")
    return (directory / "model" / "model.safetensors").read_bytes()


def settle(path: Path) -> None:
    """Make a file one that did not change in the last seconds."""
    os.utime(path, ns=(10**18, 10**18))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora_module, "SURELY_OLDER", 0)


def test_corpora_are_the_clean_pairs_of_their_files(tmp_path: Path) -> None:
    generator = random.Random(4)
    words = ("a", "bb", "ccc  d", "", "e " * 30)
    pairs = [(generator.choice(words), generator.choice(words)) for _ in range(300)]
    for name, part in (("one", pairs[:170]), ("two", pairs[170:])):
        write(tmp_path / name, part)
    rules = Cleaning(longest=50, ratio=2)
    found = Corpora([Corpus((tmp_path / name,)) for name in ("one", "two")], rules)
    expected, dropped = clean(pairs, rules)
    assert [*found] == [*found] == expected and dict(found.dropped) == dropped
    first, _ = clean(pairs[:170], rules)
    assert len(found) == len(expected) and found.counts[0] == len(first)
    assert expected[0] in found and Example("none", ("none",)) not in found


@pytest.mark.parametrize("vocabulary", [300, 1 << 17])
@pytest.mark.parametrize("count", [1, 2, 501])
def test_a_file_of_tokens_is_one_of_tensors(tmp_path: Path, vocabulary: int, count: int) -> None:
    generator = random.Random(count)
    pairs = [
        tuple([generator.randrange(vocabulary) for _ in range(length)] for length in (n % 5, 3))
        for n in range(count)
    ]
    write_tokens(tmp_path, iter(pairs), vocabulary)  # type: ignore[arg-type]
    found = read_tokens(tmp_path)
    assert [*found] == pairs
    assert found.digest == TokenPairs(*flat(pairs, found.tokens.dtype)).digest
    tensors = load_file(tmp_path / "tokens.safetensors")
    assert tensors["lengths"].tolist() == [[len(side) for side in pair] for pair in pairs]
    ids = [token for pair in pairs for side in pair for token in side]
    assert tensors["tokens"][: len(ids)].tolist() == ids
    assert tensors["tokens"].dtype == (np.uint16 if vocabulary == 300 else np.int32)


def flat(pairs: Any, dtype: Any) -> tuple[Any, Any]:
    tokens = np.array([token for pair in pairs for side in pair for token in side], dtype)
    return tokens, np.array([[len(side) for side in pair] for pair in pairs])


def test_a_full_disk_leaves_no_file_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens.safetensors.partial").symlink_to("/dev/full")
    with pytest.raises(DragomanError, match=r"cannot write .*tokens.safetensors: .* No space left"):
        write_tokens(tmp_path, [([1, 2], [3])] * 9, 10)
    assert not [*tmp_path.iterdir()]


def test_what_is_encoded_is_what_the_tokenizers_say(folder: Folder, tmp_path: Path) -> None:
    trained(folder(), tmp_path)
    source, target = read_tokenizers(tmp_path / "work")
    expected = [(source.encode(s).ids, target.encode(t).ids) for s, t in PAIRS]
    assert [*read_tokens(tmp_path / "work")] == expected


@pytest.mark.usefixtures("no_waiting")
def test_the_second_start_reads_no_text(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SETTINGS["model"] | {"max_source_positions": 64, "max_target_positions": 64}
    recipe = folder(model=model, vocabulary={"kind": "characters", "coverage": 0.9})
    first = trained(recipe, tmp_path)
    record = json.loads((tmp_path / "model" / "recipe.json").read_text())
    assert record["unknown characters"]["training"]["sources"]["unknown"] > 0
    kept = read_tokenizers(tmp_path / "work").source.get_vocab()
    (tmp_path / "work" / "state.pt").unlink()

    def refuse(*arguments: object) -> None:
        raise AssertionError("the text is read again")

    for name in ("read_pairs", "hashlib"):
        monkeypatch.setattr(corpora_module, name, refuse)
    again = recipe.load_data(None)
    assert len(again.train) == 16 and again.dropped == {"a duplicate": 3}
    assert trained(recipe, tmp_path) == first
    assert json.loads((tmp_path / "model" / "recipe.json").read_text()) == record
    assert read_tokenizers(tmp_path / "work").source.get_vocab() == kept


@pytest.mark.usefixtures("no_waiting")
def test_files_are_identified_by_their_contents(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, file = folder(), tmp_path / "train.tsv"
    first = trained(recipe, tmp_path)
    reads: list[Path] = []

    def counted(files: tuple[Path, ...]) -> Any:
        reads.extend(files)
        return read_pairs(files)

    monkeypatch.setattr(corpora_module, "read_pairs", counted)
    copy = file.read_bytes()
    file.unlink()
    file.write_bytes(copy)  # another file of the same contents
    assert trained(recipe, tmp_path) == first and not reads
    record = json.loads((tmp_path / "work" / "corpora.json").read_text())
    assert record["files"][0][0]["status"][3] == file.stat().st_ino
    # The same size and, as `cp -p` leaves it, the same time.
    times = file.stat().st_mtime_ns
    file.write_bytes(copy.replace(b"otter", b"ottar"))
    os.utime(file, ns=(times, times))
    with pytest.raises(DragomanError, match="belongs to a training with other options or data"):
        trained(recipe, tmp_path)
    assert reads
    file.write_bytes(copy)
    assert trained(recipe, tmp_path) == first


def test_a_file_that_just_changed_is_read_the_next_time(folder: Folder, tmp_path: Path) -> None:
    """Within the resolution of its times it may change again."""
    trained(folder(), tmp_path)
    record = json.loads((tmp_path / "work" / "corpora.json").read_text())
    assert record["files"][0][0]["settled"] is False


@pytest.mark.parametrize("name", ["tokens.safetensors", "corpora.json"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", None, "cut", "changed"])
def test_what_is_damaged_is_made_again(
    folder: Folder, tmp_path: Path, name: str, damage: bytes | str | None
) -> None:
    recipe, file = folder(), tmp_path / "work" / name
    first = trained(recipe, tmp_path)
    whole = file.read_bytes()
    file.unlink()
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    elif damage == "cut":
        file.write_bytes(whole[: len(whole) * 2 // 3])
    elif damage == "changed":
        file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    (tmp_path / "work" / "state.pt").unlink()
    assert trained(recipe, tmp_path) == first
    assert (tmp_path / "work" / "tokens.safetensors").read_bytes() == (
        whole if name == "tokens.safetensors" else file.with_name("tokens.safetensors").read_bytes()
    )


def test_a_vocabulary_is_used_again_for_its_own_settings_only(
    folder: Folder, tmp_path: Path
) -> None:
    trained(folder(), tmp_path)
    work, other = tmp_path / "work", folder(vocabulary={"size": 38})
    (work / "tokens.safetensors").unlink()
    with pytest.raises(DragomanError, match=r"expected .*size=38.*, found .*size=40"):
        run_recipe(other, other.load_data(None), tmp_path / "model", work)
    (work / "state.pt").unlink()
    trained(other, tmp_path)
    assert read_tokenizers(work).source.get_vocab_size() == 38


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"corpora": [{"files": ["train.tsv"], "weight": 2}]},
            r"corpora\[0\].weight 2.0, found 1.0",
        ),
        (
            {"corpora": [{"files": ["train.tsv"], "prefix": "<X>"}]},
            r"corpora\[0\].prefix '<X>', found ''",
        ),
        (
            {"corpora": [{"files": ["back.tsv"]}]},
            r"corpora\[0\].files\[0\] \S+back.tsv \(SHA-256 \w+\), found \S+train.tsv \(SHA-256",
        ),
        ({"cleaning": {"longest": 20}}, r"cleaning.longest 20, found \d+"),
        (
            {"model": SETTINGS["model"] | {"max_source_positions": 12}},
            "max_source_positions 12, found 24",
        ),
        ({"vocabulary": {"size": 39}}, r"vocabulary .*size=39.*, found .*size=40"),
    ],
)
def test_a_refused_start_names_what_differs_and_changes_nothing(
    folder: Folder, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    first, work = trained(folder(), tmp_path), tmp_path / "work"
    before = {path: path.read_bytes() for path in work.iterdir()}
    with pytest.raises(DragomanError, match=f"state.pt belongs to .*: expected {named}[^;]*; ch"):
        trained(folder(**changes), tmp_path)
    assert {path: path.read_bytes() for path in work.iterdir()} == before
    recipe = folder(corpora=[{"files": ["train.tsv"], "weight": 1}])
    assert trained(recipe, tmp_path) == first, "a weight of 1 is that of a corpus without one"
    write(tmp_path / "dev.tsv", PAIRS[:3])
    with pytest.raises(DragomanError, match=r"expected validation pairs \(SHA-256\) [^;]*; choose"):
        trained(folder(), tmp_path)


def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = folder()
    data = recipe.load_data(None)
    write(tmp_path / "train.tsv", PAIRS)
    with pytest.raises(DragomanError, match=r"train.tsv: expected a file that stays as it is"):
        run_recipe(recipe, data, tmp_path / "model", tmp_path / "work")
    assert not (tmp_path / "work" / "corpora.json").exists()


def test_an_interruption_leaves_no_half_of_a_file(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "_fits", interrupt)
        trained(folder(), tmp_path)
    assert not [*(tmp_path / "work").glob("tokens*")]
    trained(folder(), tmp_path)


TWO: dict[str, Any] = {
    "corpora": [
        {"files": ["train.tsv"], "weight": 2},
        {"files": ["back.tsv"], "weight": 0.5, "prefix": "<BT>"},
    ],
}


@pytest.mark.parametrize("shared", [True, False])
def test_a_prefix_is_one_token(folder: Folder, tmp_path: Path, shared: bool) -> None:
    recipe = folder(**TWO, vocabulary={"size": 40, "shared": shared})
    data = recipe.load_data(None)
    assert len(data.train) == 26 and data.dropped == {"a duplicate": 4}
    trained(recipe, tmp_path)
    source, target = read_tokenizers(tmp_path / "model")
    tag = source.token_to_id("<BT>")
    assert tag == 39 and (target.token_to_id("<BT>") is None) is not shared
    assert source.get_vocab_size() == target.get_vocab_size() == 40
    pairs = [*read_tokens(tmp_path / "work")]
    assert [ids[0] == tag for ids, _ in pairs] == [False] * 16 + [True] * 10
    for (ids, targets), (text, expected) in zip(pairs[16:], BACK_TRANSLATED, strict=True):
        assert ids[1:] == source.encode(text).ids and tag not in ids[1:]
        assert targets == target.encode(expected).ids
        assert source.encode(f"<BT> {text}").ids == ids, "a text may begin with it, too"
    record = json.loads((tmp_path / "model" / "recipe.json").read_text())
    assert record["data"]["corpora"] == [
        {"files": ["train.tsv"], "weight": 2, "prefix": "", "pairs": 16},
        {"files": ["back.tsv"], "weight": 0.5, "prefix": "<BT>", "pairs": 10},
    ]


def test_weights_say_what_an_epoch_has(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[list[int]] = []

    def recorded(pairs: TokenPairs, limit: int, *, seed: int) -> Any:
        batches = TokenBatches(pairs, limit, seed=seed)
        epochs.append(sorted(int(index) for batch in batches for index in batch))
        return batches

    monkeypatch.setattr(training_module, "TokenBatches", recorded)
    training = SETTINGS["training"] | {"epochs": 3}
    trained(folder(**TWO, training=training), tmp_path)
    assert [epoch[:32] for epoch in epochs] == [sorted([*range(16)] * 2)] * 3
    drawn = [epoch[32:] for epoch in epochs]
    assert all(len(set(each)) == 5 and set(each) <= set(range(16, 26)) for each in drawn)
    assert len({tuple(each) for each in drawn}) > 1
    other = [TWO["corpora"][0], TWO["corpora"][1] | {"weight": 0.6}]
    with pytest.raises(DragomanError, match="belongs to a training with other options or data"):
        trained(folder(corpora=other, training=training), tmp_path)


def test_a_training_with_weights_resumes_where_it_was(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = SETTINGS["training"] | {"epochs": 2, "save_every": 1, "batch_tokens": 64}
    recipe = folder(**TWO, training=training)
    whole = trained(recipe, tmp_path / "whole")
    calls = 0

    def interrupt(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return projected_cross_entropy(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training_module, "projected_cross_entropy", interrupt)
        trained(recipe, tmp_path / "part")
    assert trained(recipe, tmp_path / "part") == whole


def test_several_references_are_used_and_recorded(folder: Folder, tmp_path: Path) -> None:
    references = [("die Katze frisst heute Fisch .", "die Katze isst heute Fisch ."), ("ein Hund",)]
    write(tmp_path / "dev.tsv", [("the cat", *references[0]), ("a  dog", *references[1])])
    recipe = folder(model=SETTINGS["model"] | {"max_target_positions": 40})
    data = recipe.load_data(None)
    assert data.validation == data.held_out
    assert data.held_out == [Example("the cat", references[0]), Example("a dog", references[1])]
    trained(recipe, tmp_path)
    assert read_examples(tmp_path / "model" / "held_out.tsv") == data.held_out
    assert recipe.score is not None
    for hypothesis in references[0]:
        figures = recipe.score([hypothesis, "ein Hund"], data.held_out)
        assert figures["BLEU"] == pytest.approx(100)
        one = recipe.score([hypothesis, "ein Hund"], first_only(data))
        assert (one["BLEU"] < 99) == (hypothesis != references[0][0])
    record = json.loads((tmp_path / "model" / "recipe.json").read_text())
    assert record["metrics"]["bleu"] == find_metric("bleu").signature(
        [example.references for example in data.held_out]
    )
    # The same in files of their own, which the command or the file names.
    texts = {"dev.en": "the cat\na dog\n", "1.de": "A\nB\n", "2.de": "C\nD\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    several = folder(dev=["dev.en", "1.de", "2.de"], test=["dev.en", "2.de"]).load_data(None)
    assert several.validation == [Example("the cat", ("A", "C")), Example("a dog", ("B", "D"))]
    assert several.held_out == [Example("the cat", ("C",)), Example("a dog", ("D",))]
    (tmp_path / "2.de").write_text("C\n")
    with pytest.raises(DragomanError, match=r"found 2 lines in .*dev.en and 1 in .*2.de"):
        folder(dev=["dev.en", "1.de", "2.de"]).load_data(None)
    (tmp_path / "2.de").write_text("C\nD\nE\n")
    with pytest.raises(DragomanError, match=r"found 2 lines in .*dev.en and 3 in .*2.de"):
        folder(dev=["dev.en", "1.de", "2.de"]).load_data(None)
    write(tmp_path / "dev.tsv", [("the cat", "die Katze", " ")])
    with pytest.raises(DragomanError, match=r"dev.tsv, line 1: expected a target, found none"):
        folder().load_data(None)


def first_only(data: Data) -> list[Example]:
    return [Example(each.source, each.references[:1]) for each in data.held_out]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpora": {}}, r"corpora: expected a list of objects, found \{\}"),
        ({"corpora": ["train.tsv"]}, r"corpora\[0\]: expected an object, found 'train.tsv'"),
        ({"corpora": [{"weight": 2}]}, r"corpora\[0\]: missing field 'files'"),
        ({"corpora": [{"files": "train.tsv"}]}, r"corpora\[0\]: files: expected a list of files"),
        ({"corpora": [{"files": ["a"], "weight": 0}]}, r"weight: expected more than 0, up to 1000"),
        ({"corpora": [{"files": ["a"], "weight": "2"}]}, r"weight must be a number, found '2'"),
        ({"corpora": [{"files": ["a"], "prefix": "a b"}]}, "prefix: expected a text without space"),
        ({"corpora": [{"files": ["a"], "prefix": " "}]}, "prefix: expected a text without spaces"),
        (
            {"corpora": [{"files": ["a"], "prefix": "\t"}]},
            "without spaces and invisible characters",
        ),
        ({"corpora": [{"files": ["a"], "prefix": "a\u200b"}]}, "spaces and invisible characters"),
        ({"corpora": [{"files": ["a"], "prefix": "</s>"}]}, "prefix: .* no special token, found"),
        (
            {"corpora": [{"files": ["train.tsv"], "prefix": "ea"}]},
            "found 'ea' within 'the cat eats",
        ),
        ({"corpora": [{"files": ["train.tsv"], "prefix": "ie"}]}, "found 'ie' within 'die cat"),
        ({"corpora": [{"files": ["a"], "speed": 1}]}, r"corpora\[0\]: unknown field 'speed'"),
        ({"corpora": [{"files": ["none.tsv"]}]}, "expected a file of examples, found nothing at "),
        ({"corpora": [{"files": ["."]}]}, "expected a regular file, found a directory"),
        ({"corpora": [{"files": ["dev.tsv"] * 3}]}, r"corpora\[0\]: files: .*, found 3 files"),
        ({"dev": "dev.tsv"}, "dev: expected a list of files, found 'dev.tsv'"),
        ({"test": []}, r"test: expected a list of files, found \[\]"),
    ],
)
def test_what_is_wrong_with_the_files_is_named(
    folder: Folder, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DragomanError, match=message):
        folder(**changes).load_data(None)


def test_files_are_stated_once(folder: Folder, tmp_path: Path) -> None:
    folder()
    path, dev = tmp_path / "en-de.json", [tmp_path / "dev.tsv"]
    with pytest.raises(DragomanError, match="expected --pairs or the section corpora, found both"):
        read_training_file(path, PairFiles(dev))
    with pytest.raises(DragomanError, match="expected --dev or the section dev, found both"):
        read_training_file(path, PairFiles((), dev))
    path.write_text(json.dumps(SETTINGS))
    with pytest.raises(DragomanError, match=r"--pairs: expected a file for .* no section corpora"):
        read_training_file(path, PairFiles((), dev))
    with pytest.raises(DragomanError, match=r"--dev: expected a file for .* no section dev"):
        read_training_file(path, PairFiles(dev))


def test_a_prefix_must_be_in_the_vocabulary(folder: Folder, tmp_path: Path) -> None:
    trained(folder(), tmp_path)
    work = tmp_path / "other"
    for prefix, problem in (("<BT>", "it lacks"), ("\u2581", "is a special token or a subword")):
        recipe = folder(corpora=[{"files": ["train.tsv"], "prefix": prefix}])
        initial, data = (
            read_initial_model(tmp_path / "model", recipe.config),
            recipe.load_data(None),
        )
        with pytest.raises(DragomanError, match=f"expected a token of the .* {problem}: choose"):
            run_recipe(recipe, data, tmp_path / "tuned", work, initial=initial)
    with pytest.raises(DragomanError, match="prefix: expected a text that is no subword of both"):
        run_recipe(recipe, data, tmp_path / "tuned", tmp_path / "new")


def test_texts_may_begin_with_a_prefix(folder: Folder, tmp_path: Path) -> None:
    """As those do whose tags are in the file already."""
    recipe = folder(**TWO)
    write(tmp_path / "train.tsv", [(f"<BT> {s}", t) for s, t in PAIRS])
    trained(recipe, tmp_path)
    tag = read_tokenizers(tmp_path / "work").source.token_to_id("<BT>")
    assert {ids.count(tag) for ids, _ in read_tokens(tmp_path / "work")} == {1}
    for pair in (("the cat <BT> eats", "t"), ("a", "<BT> t")):
        write(tmp_path / "train.tsv", [pair])
        with pytest.raises(DragomanError, match=r"train.tsv: prefix: .* found '<BT>' within '"):
            recipe.load_data(None)
