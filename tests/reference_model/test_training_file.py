"""Trainings that a file describes, and trainings that go on from a checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import DragomanError
from dragoman.reference_model import Transformer, load_checkpoint
from dragoman.reference_model.recipes import (
    Example,
    PairFiles,
    Recipe,
    evaluate,
    read_examples,
    read_initial_model,
    read_training_file,
    run_recipe,
)
from dragoman.reference_model.recipes import run as run_module
from dragoman.reference_model.recipes.tokenizers import read_tokenizers
from dragoman.reference_model.settings import read_settings_file
from dragoman.verification.report.gathering import training_of

SETTINGS: dict[str, Any] = {
    "model": {
        "preset": "tiny",
        "d_model": 16,
        "d_ff": 24,
        "max_source_positions": 24,
        "max_target_positions": 20,
    },
    "vocabulary": {"size": 40},
    "training": {"epochs": 1, "batch_tokens": 128, "warmup_steps": 10, "average_epochs": 1},
}
END = 2
PAIRS = [
    (f"the {animal} eats {food}", f"die {animal} frisst {food}")
    for animal in ("cat", "dog", "otter", "mouse")
    for food in ("bread", "cheese", "nuts", "fish")
]


@pytest.fixture
def files(tmp_path: Path) -> PairFiles:
    for name, pairs in (("train", PAIRS + PAIRS[:3]), ("dev", PAIRS[:5]), ("test", PAIRS[5:7])):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (tmp_path / f"{name}.tsv").write_text(lines, encoding="utf-8")
    names = ([tmp_path / f"{name}.tsv"] for name in ("train", "dev", "test"))
    return PairFiles(*names)


def described(directory: Path, files: PairFiles, **changes: Any) -> Recipe:
    path = directory / "en-de.json"
    path.write_text(json.dumps(SETTINGS | changes), encoding="utf-8")
    return read_training_file(path, files)


def test_a_file_makes_a_checkpoint(tmp_path: Path, files: PairFiles) -> None:
    recipe = described(tmp_path, files, vocabulary={"size": 40, "shared": False})
    data = recipe.load_data(None)
    assert len(data.train) == 16 and data.dropped == {"a duplicate": 3}
    assert data.held_out == [Example(source, (target,)) for source, target in PAIRS[5:7]]
    directory = tmp_path / "model"
    figures = run_recipe(recipe, data, directory, tmp_path / "work").figures
    assert list(figures) == ["BLEU", "chrF"]
    assert read_examples(directory / "held_out.tsv") == data.held_out
    record = json.loads((directory / "recipe.json").read_text(encoding="utf-8"))
    assert record["recipe"] == "en-de" and record["from"] is None
    assert record["data"] == {
        "train": 16,
        "validation": 5,
        "held_out": 2,
        "dropped": {"a duplicate": 3},
    }
    model = load_checkpoint(directory)
    assert model.config == recipe.config
    assert (model.config.d_model, model.config.num_heads, model.config.encoder_layers) == (16, 4, 2)
    assert not model.config.tie_source_target


def test_a_file_names_its_metrics(tmp_path: Path, files: PairFiles) -> None:
    recipe = described(tmp_path, files, metrics=["character-error", "bleu:char"])
    assert not recipe.higher_is_better
    data = recipe.load_data(None)
    result = run_recipe(recipe, data, tmp_path / "model", tmp_path / "work")
    assert list(result.figures) == ["character error", "BLEU (char)"]
    assert list(result.signatures) == ["character-error", "bleu:char"]
    assert "|tok:char|" in result.signatures["bleu:char"]


def test_without_held_out_pairs_those_of_validation_are_scored(
    tmp_path: Path, files: PairFiles
) -> None:
    data = described(tmp_path, PairFiles(files.train, files.validation)).load_data(None)
    assert data.held_out == data.validation


def test_a_training_goes_on_from_a_checkpoint(tmp_path: Path, files: PairFiles) -> None:
    recipe = described(tmp_path, files)
    data = recipe.load_data(None)
    figures = run_recipe(recipe, data, tmp_path / "first", tmp_path / "work").figures
    rates = {"dropout": 0.5, "attention_dropout": 0.25}
    dropped_out = described(tmp_path, files, model={**SETTINGS["model"], **rates})
    initial = read_initial_model(tmp_path / "first", dropped_out.config)
    # It begins where the other one ended, with the same tokenizers, and its own dropout.
    assert isinstance(initial.model, torch.nn.Module)
    found = evaluate(initial.model, recipe, initial.tokenizers, data.held_out)
    assert found == figures
    found_rates = {m.p for m in initial.model.modules() if isinstance(m, torch.nn.Dropout)}
    assert found_rates == {0.5, 0.25, 0.0}
    run_recipe(dropped_out, data, tmp_path / "second", tmp_path / "work-2", initial=initial)
    first, second = (load_checkpoint(tmp_path / name) for name in ("first", "second"))
    assert isinstance(first, Transformer) and isinstance(second, Transformer)
    assert second.config.dropout == 0.5
    assert not torch.equal(first.output.weight, second.output.weight)
    reported = training_of(tmp_path / "second")
    assert reported is not None and reported.metric == recipe.metric
    assert len(reported.epochs) == recipe.options.epochs
    assert [candidate.delivered for candidate in reported.candidates].count(True) == 1
    assert reported.pairs["train"] == len(data.train)
    record = json.loads((tmp_path / "second" / "recipe.json").read_text(encoding="utf-8"))
    assert record["from"] == initial.digest and len(record["from"]) == 64
    tokenizers = [
        (tmp_path / name / "source_tokenizer.json").read_bytes() for name in ("first", "second")
    ]
    assert tokenizers[0] == tokenizers[1]


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path, files: PairFiles) -> None:
    recipe = described(tmp_path, files)
    run_recipe(recipe, recipe.load_data(None), tmp_path / "first", tmp_path / "work")
    other = described(tmp_path, files, model={**SETTINGS["model"], "d_ff": 32})
    with pytest.raises(
        DragomanError, match=r"first: expected a model of the shape .* d_ff 24 inst"
    ):
        read_initial_model(tmp_path / "first", other.config)
    (tmp_path / "first" / "target_tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DragomanError, match=r"target_tokenizer\.json: expected a tokenizer"):
        read_initial_model(tmp_path / "first", recipe.config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"modell": {}},
            "expected the sections model, vocabulary, cleaning, training, metrics, corpora, dev, "
            "test, found model",
        ),
        ({"metrics": "bleu"}, "metrics: expected a list of names, found 'bleu'"),
        ({"metrics": ["blue"]}, "metric: expected one of bleu, chrf"),
        ({"model": []}, r"model: expected an object, found \[\]"),
        ({"model": {"preset": "huge"}}, "model: unknown preset 'huge', expected one of tiny, base"),
        ({"model": {"layers": 3}}, "model: unknown field 'layers'"),
        ({"model": {"preset": []}}, r"model: unknown preset \[\], expected one of tiny, base"),
        ({"model": {"end_token_id": 7}}, "model: end_token_id: expected none, the vocabulary "),
        ({"model": {"source_vocab_size": 9}}, "model: source_vocab_size: expected none, the voca"),
        ({"model": {"d_ff": 0}}, "model: d_ff must be at least 1, found 0"),
        ({"vocabulary": {"size": 40, "kind": "words"}}, "vocabulary: kind must be one of bpe, uni"),
        ({"vocabulary": {}}, "vocabulary: missing field 'size'"),
        ({"vocabulary": 40}, "vocabulary: expected an object, found 40"),
        ({"cleaning": {"ratio": "2"}}, "cleaning: ratio must be a number, found '2'"),
        ({"training": {"epochs": 1, "speed": 9}}, "training: unknown field 'speed'"),
        ({"training": {"epochs": 0}}, "training: epochs: expected at least 1, found 0"),
        (
            {"training": {"epochs": 1, "learning_rate_scale": -1}},
            "training: learning_rate_scale: expected more than 0, found -1",
        ),
        (
            {"training": {"epochs": 1, "adam_betas": [1.5, 0.9], "adam_epsilon": 0}},
            r"training: adam_epsilon: expected more than 0, found 0; adam_betas: .* \[1.5, 0.9\]",
        ),
        ({"training": {"epochs": 1, "seed": 2**62}}, "training: seed: expected 0 to below 2"),
        (
            {"training": {"epochs": 3, "cool_down_epochs": 4}},
            "training: cool_down_epochs: expected at most 3, the epochs of the training, found 4",
        ),
        (
            {"vocabulary": {"size": 40, "shared": False}, "model": {"tie_source_target": True}},
            "model: tie_source_target: expected false, because source and target have vocabular",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    tmp_path: Path, files: PairFiles, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DragomanError, match=f"en-de.json: {message}"):
        described(tmp_path, files, **changes)


YAML = """\
# A comment
model: {preset: tiny, d_model: 0x10, d_ff: 24, norm_epsilon: 1e-4}
vocabulary:
  size: 40
  lowercase: true
cleaning:
  ratio: ~
training: &options
  epochs: 1
  adam_betas: [.9, 98e-2]
metrics:
- 'chrf'
- exact-match
"""


@pytest.mark.parametrize("name", ["en-de.yaml", "en-de.yml", "en-de.YAML"])
def test_yaml_describes_what_json_does(tmp_path: Path, files: PairFiles, name: str) -> None:
    (tmp_path / name).write_text(YAML, encoding="utf-8")
    found = read_training_file(tmp_path / name, files)
    changes = {
        "model": {"preset": "tiny", "d_model": 16, "d_ff": 24, "norm_epsilon": 0.0001},
        "vocabulary": {"size": 40, "lowercase": True},
        "cleaning": {"ratio": None},
        "training": {"epochs": 1, "adam_betas": [0.9, 0.98]},
        "metrics": ["chrf", "exact-match"],
    }
    expected = described(tmp_path, files, **changes)
    for field in ("name", "config", "options", "vocabulary", "metrics", "lowercase"):
        assert getattr(found, field) == getattr(expected, field)


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """In version 1.1, most of them are something else."""
    texts = "on", "no", "off", "y", "1_000", "12:30:45", "2026-01-01", "<<", ".inf", "0b11", "="
    numbers = {"017": 17, "0o17": 15, "-0": 0, "1e-4": 1e-4, "1E3": 1000.0, "+.5": 0.5, "1.": 1.0}
    others = {"TRUE": True, "false": False, "Null": None, "~": None, "": None, '"40"': "40"}
    expected = {text: text for text in texts} | numbers | others | {"!!str 40": "40"}
    lines = (f"{number}k: {text}\n" for number, text in enumerate(expected))
    (tmp_path / "all.yml").write_text("".join(lines), encoding="utf-8")
    found = [*read_settings_file(tmp_path / "all.yml").values()]
    assert found == [*expected.values()]
    assert [*map(type, found)] == [*map(type, expected.values())]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:\n  b: 1\n  b: 2\n", ", line 3, column 3: expected each name once, found 'b' twice"),
        ("a: [1, 2\nb: 3\n", ", line 2, column 2: expected YAML: while parsing a flow sequence, "),
        ("a: 1\n---\nb: 2\n", ", line 2, column 1: expected YAML: expected a single document"),
        ("a: !!python/name:os.system ''\n", ", line 1, column 4: .*, found the tag !!python/name"),
        ("a: !mine {b: 1}\n", ", line 1, column 4: .*, found the tag !mine"),
        ("a: 1e999\n", ", line 1, column 4: expected a finite number, found '1e999'"),
        (f"a: {'9' * 5000}\n", ", line 1, column 4: expected int, found '9999"),
        ("a: !!int x\n", ", line 1, column 4: expected int, found 'x'"),
        ("1: x\n", ", line 1, column 1: expected a text as a name, found '1'"),
        ('a: "\\ud800"\n', ", line 1, column 4: expected text, found half of a surrogate pair"),
        ("a: &a [*a]\n", ", line 1, column 4: expected at most 100 levels"),
        ("[" * 5000, ": expected at most 100 levels, found more"),
        (
            "a: &a [1,1,1,1]\n"
            + "".join(f"{c}: &{c} [{f'*{p},' * 9}]\n" for p, c in pairwise("abcdefghij")),
            r", line 1, column \d+: expected at most 100 levels and few references, found more",
        ),
        ("a: \x07\n", ": expected YAML: unacceptable character"),
        ("- a\n", ": expected names with values, found \\['a'\\]"),
        ("", ": expected names with values, found None"),
        ("a: 1\nb: é\n", r": expected UTF-8 text, found byte 0xe9 at offset 8 \(line 2\)"),
    ],
)
def test_what_is_no_yaml_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "en-de.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DragomanError, match=f"en-de.yaml{problem}"):
        read_settings_file(path)


@pytest.mark.parametrize("name", ["en-de.json", "en-de.yaml"])
def test_a_byte_order_mark_and_empty_sections_are_no_settings(
    tmp_path: Path, files: PairFiles, name: str
) -> None:
    empty = {"cleaning": None, "metrics": None, "test": None}
    text = json.dumps(SETTINGS | empty)
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert [*read_settings_file(tmp_path / name)] == [*SETTINGS, *empty]
    found, expected = read_training_file(tmp_path / name, files), described(tmp_path, files)
    assert (found.config, found.metrics) == (expected.config, expected.metrics)
    assert found.load_data(None).dropped == expected.load_data(None).dropped
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf{\n\xff}")
    with pytest.raises(DragomanError, match=r"found byte 0xff at offset 5 \(line 2\)"):
        read_settings_file(tmp_path / name)


def test_rows_without_text_at_the_end_are_none(tmp_path: Path, files: PairFiles) -> None:
    recipe = described(tmp_path, files)
    for blank in ("\t\n", " \t \n\t\n\n", "\u3000\t\n"):
        with (tmp_path / "dev.tsv").open("a", encoding="utf-8") as file:
            file.write(blank)
        assert len(recipe.load_data(None).validation) == 5
    with (tmp_path / "dev.tsv").open("a", encoding="utf-8") as file:
        file.write("the cat\tdie Katze\n")
    with pytest.raises(DragomanError, match=r"dev\.tsv, line 6: expected a source, found none"):
        recipe.load_data(None)


def test_many_pairs_of_unequal_lengths_are_what_an_error_begins_with(
    tmp_path: Path, files: PairFiles
) -> None:
    with (tmp_path / "train.tsv").open("a", encoding="utf-8") as file:
        file.writelines(f"{n}\t{'one thousand and ' * 9}{n}\n" for n in range(2))
    recipe = described(tmp_path, files, vocabulary={"size": 8000})
    data = recipe.load_data(None)
    with pytest.raises(DragomanError, match=r"^vocabulary: expected 8000 tokens, but both sides "):
        recipe.make_tokenizers(data)
    with (tmp_path / "train.tsv").open("a", encoding="utf-8") as file:
        file.writelines(f"{n}\t{'one thousand and ' * 9}{n}\n" for n in range(2, 4))
    data = recipe.load_data(None)
    expected = r'^4 of 23 pairs \(17%\) are left out .* raise "ratio" .*; vocabulary: expected 8000'
    with pytest.raises(DragomanError, match=expected):
        recipe.make_tokenizers(data)


def test_pairs_that_cannot_be_used_are_refused(tmp_path: Path, files: PairFiles) -> None:
    (tmp_path / "dev.tsv").write_text("the cat\t\n", encoding="utf-8")
    with pytest.raises(DragomanError, match=r"dev\.tsv, line 1: expected a target, found none"):
        described(tmp_path, files).load_data(None)
    (tmp_path / "dev.tsv").write_text("", encoding="utf-8")
    with pytest.raises(DragomanError, match=r"dev\.tsv: expected at least one pair, found none"):
        described(tmp_path, files).load_data(None)
    with pytest.raises(DragomanError, match=r"expected a JSON object, found \[\]"):
        (tmp_path / "list.json").write_text("[]", encoding="utf-8")
        read_training_file(tmp_path / "list.json", files)
    three = PairFiles([tmp_path / "train.tsv"] * 3, files.validation)
    with pytest.raises(DragomanError, match=r"--pairs: files: expected one file .* found 3 files"):
        described(tmp_path, three)


LONG = "the cat eats\t" + "Brot " * 30 + "\n"


def test_pairs_longer_than_the_model_are_left_out_and_counted(
    tmp_path: Path, files: PairFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "train.tsv").open("a", encoding="utf-8") as file:
        file.write(LONG)
    recipe = described(tmp_path, files, cleaning={"ratio": None})
    data = recipe.load_data(None)
    run_recipe(recipe, data, tmp_path / "model", tmp_path / "work")
    reason = "more tokens than the model has positions"
    assert f"left out: 1 pairs of {reason}" in " ".join(capsys.readouterr().err.split())
    record = json.loads((tmp_path / "model" / "recipe.json").read_text(encoding="utf-8"))
    assert record["data"]["train"] == len(PAIRS)
    assert record["data"]["dropped"] == {"a duplicate": 3, reason: 1}
    recipe = described(tmp_path, files, vocabulary={"size": 20})
    with pytest.raises(DragomanError, match=r"at most 24 and 20 tokens, .* all 1 are longer"):
        only = replace(data, train=[Example("the cat eats", ("Brot " * 30,))])
        run_recipe(recipe, only, tmp_path / "other", tmp_path / "other-work")


@pytest.mark.parametrize("name", ["dev", "test"])
def test_a_text_to_score_that_is_longer_than_the_model_is_refused_at_once(
    tmp_path: Path, files: PairFiles, name: str
) -> None:
    with (tmp_path / f"{name}.tsv").open("a", encoding="utf-8") as file:
        file.write(LONG)
    recipe = described(tmp_path, files)
    with pytest.raises(DragomanError, match="at most 20 tokens, the model's positions, found one "):
        run_recipe(recipe, recipe.load_data(None), tmp_path / "model", tmp_path / "work")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "work" / "state.pt").exists()


def test_an_interrupted_training_keeps_its_unigram_vocabulary(
    tmp_path: Path, files: PairFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is trained with other ids each time."""
    training = SETTINGS["training"] | {"epochs": 2}
    unigram = described(
        tmp_path, files, vocabulary={"size": 24, "kind": "unigram"}, training=training
    )
    data, evaluations = unigram.load_data(None), 0

    def interrupt(*arguments: Any) -> dict[str, float]:
        nonlocal evaluations
        evaluations += 1
        if evaluations == 2:
            raise KeyboardInterrupt
        return {"BLEU": 0.0}

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "evaluate", interrupt)
        run_recipe(unigram, data, tmp_path / "model", tmp_path / "work")
    (kept, _) = read_tokenizers(tmp_path / "work")
    run_recipe(unigram, data, tmp_path / "model", tmp_path / "work")
    (found, _) = read_tokenizers(tmp_path / "model")
    assert found.get_vocab() == kept.get_vocab()
    history = (tmp_path / "model" / "history.jsonl").read_text(encoding="utf-8")
    assert len(history.splitlines()) == 2
    bpe = described(tmp_path, files, vocabulary={"size": 24}, training=training)
    with pytest.raises(DragomanError, match=r"kind='bpe'.*, found .*kind='unigram'"):
        run_recipe(bpe, data, tmp_path / "model", tmp_path / "work")


def test_what_is_finished_keeps_its_vocabulary(tmp_path: Path, files: PairFiles) -> None:
    recipe, work, model = described(tmp_path, files), tmp_path / "work", tmp_path / "model"
    data = recipe.load_data(None)
    with pytest.raises(DragomanError, match="expected a training to finish, found none of an "):
        run_recipe(recipe, data, model, work, finish=True)
    assert not work.exists()
    run_recipe(recipe, data, model, work)
    weights = (model / "model.safetensors").read_bytes()
    kept = [(work / f"{side}_tokenizer.json").read_bytes() for side in ("source", "target")]
    (work / "state.pt").unlink()
    other = described(tmp_path, files, vocabulary={"size": 40, "lowercase": True})
    with pytest.raises(DragomanError, match=r"vocabulary .*lowercase=True.*, found .*=False"):
        run_recipe(other, data, model, work, finish=True)
    (work / "corpora.json").unlink()
    run_recipe(recipe, data, model, work, finish=True)
    for directory in (work, model):
        names = [directory / f"{side}_tokenizer.json" for side in ("source", "target")]
        assert [name.read_bytes() for name in names] == kept
    assert (model / "model.safetensors").read_bytes() == weights


def test_a_new_vocabulary_ends_what_could_be_finished(
    tmp_path: Path, files: PairFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    recipe, work, model = described(tmp_path, files), tmp_path / "work", tmp_path / "model"
    data = recipe.load_data(None)
    run_recipe(recipe, data, model, work)
    (work / "state.pt").unlink()
    other = described(tmp_path, files, vocabulary={"size": 40, "lowercase": True})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "_fits", interrupt)
        run_recipe(other, data, model, work)
    with pytest.raises(DragomanError, match="expected a training to finish, found none of an "):
        run_recipe(other, data, model, work, finish=True)


def test_a_model_that_writes_no_capitals_is_scored_without(
    tmp_path: Path, files: PairFiles
) -> None:
    examples = [Example("Katze", ("Die Katze frisst heute Fisch.",))]
    outputs = ["die katze frisst heute fisch."]
    for lowercase in (True, False):
        recipe = described(tmp_path, files, vocabulary={"size": 40, "lowercase": lowercase})
        assert recipe.score is not None
        assert (recipe.score(outputs, examples)["BLEU"] > 99) == lowercase


def test_special_tokens_are_text_when_a_training_goes_on(tmp_path: Path, files: PairFiles) -> None:
    recipe = described(tmp_path, files)
    run_recipe(recipe, recipe.load_data(None), tmp_path / "first", tmp_path / "work")
    initial = read_initial_model(tmp_path / "first", recipe.config)
    for tokenizer in initial.tokenizers:
        assert tokenizer.encode("the </s> cat").ids.count(END) == 1
