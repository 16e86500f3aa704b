"""The quality of translations, in every precision and strategy."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from click.testing import CliRunner

from dragoman import DragomanError
from dragoman.benchmarks.compare.__main__ import main
from dragoman.benchmarks.compare.tasks.translation import HeldOut, held_out_sets, scores
from dragoman.reference_model.recipes import (
    PairFiles,
    multi30k_en_de,
    read_training_file,
    run_recipe,
)

from .doubles import compared

ANIMALS = ("cat", "dog", "otter", "mouse", "finch")
FOOD = {"bread": "brot", "cheese": "käse", "nuts": "nüsse", "fish": "fisch"}


def write(folder: Path, name: str, lines: list[str]) -> None:
    with gzip.open(folder / f"{name}.gz", "wt", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like Multi30k's, of few words."""
    folder = tmp_path_factory.mktemp("multi30k")
    english = [f"the {animal} eats {food} ." for animal in ANIMALS for food in FOOD]
    german = [f"{animal} frisst {food} ." for animal in ANIMALS for food in FOOD.values()]
    for name in ("train", "val", *multi30k_en_de.TESTS):
        kept = slice(None) if name == "train" else slice(0, 7)
        write(folder, f"{name}.lc.norm.tok.en", english[kept])
        write(folder, f"{name}.lc.norm.tok.de", german[kept])
        raw = [line.capitalize().replace(" .", ".") for line in german[kept]]
        write(folder, f"{name}.de", raw)
    return folder


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that calls itself the recipe's."""
    folder = tmp_path_factory.mktemp("model")
    pairs = multi30k_en_de.load_data(data).train
    lines = "".join(f"{pair.source}\t{pair.references[0]}\n" for pair in pairs)
    (folder / "pairs.tsv").write_text(lines, encoding="utf-8")
    settings = {
        "model": {"preset": "tiny", "max_source_positions": 24, "max_target_positions": 24},
        "vocabulary": {"size": 60, "tokenized": True},
        "training": {"epochs": 1, "batch_tokens": 64, "warmup_steps": 10},
    }
    path = folder / "multi30k-en-de.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    recipe = read_training_file(path, PairFiles([folder / "pairs.tsv"], [folder / "pairs.tsv"]))
    run_recipe(recipe, recipe.load_data(None), folder / "checkpoint", folder / "work")
    return folder / "checkpoint"


def test_the_folders_of_the_public_repository_do(data: Path, tmp_path: Path) -> None:
    """Tokens and raw texts apart."""
    for place in ("tok", "raw"):
        (tmp_path / place).mkdir()
    for file in data.iterdir():
        shutil.copy(file, tmp_path / ("tok" if ".tok." in file.name else "raw"))
    assert multi30k_en_de.load_data(tmp_path) == multi30k_en_de.load_data(data)
    found, expected = (held_out_sets("multi30k-en-de", tmp_path, f) for f in (tmp_path, data))
    assert found == expected


def test_a_damaged_file_is_one_line(data: Path, tmp_path: Path) -> None:
    damaged = bytearray((data / "train.lc.norm.tok.en.gz").read_bytes())
    damaged[20:40] = bytes(20)
    (tmp_path / "train.lc.norm.tok.en.gz").write_bytes(damaged)
    with pytest.raises(DragomanError, match=r"train\.lc\.norm\.tok\.en\.gz: expected UTF-8 text"):
        multi30k_en_de.load_data(tmp_path)


def test_the_recipe_reads_its_folder(data: Path, tmp_path: Path) -> None:
    read = multi30k_en_de.load_data(data)
    assert (len(read.train), len(read.validation), len(read.held_out)) == (20, 7, 7)
    second = [*read.train][1]
    assert second.source == "the cat eats cheese ."
    assert second.references == ("cat frisst käse .",)
    with pytest.raises(DragomanError, match=r"expected train\.lc\.norm\.tok\.en or .* neither"):
        multi30k_en_de.load_data(tmp_path)
    with pytest.raises(DragomanError, match=r"needs the folder data/task1 .*: --data FOLDER"):
        multi30k_en_de.load_data(None)
    write(tmp_path, "val.lc.norm.tok.en", ["one"])
    write(tmp_path, "val.lc.norm.tok.de", ["eins", "zwei"])
    with pytest.raises(DragomanError, match="as many lines of val in both languages, found 1 and"):
        multi30k_en_de.read_set(tmp_path, "val")
    (tmp_path / "val.lc.norm.tok.en.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(DragomanError, match=r"val\.lc\.norm\.tok\.en\.gz: expected UTF-8"):
        multi30k_en_de.read_set(tmp_path, "val")


def test_tokens_are_scored_as_they_are_and_texts_as_people_write_them() -> None:
    test = HeldOut(
        "some",
        ["a", "b"],
        ["Der Otter frisst Fisch, die Maus Nüsse.", "Ein Mann läuft."],
        "de",
        ["der otter frisst fisch , die maus nüsse .", "ein mann läuft ."],
        50.0,
    )
    perfect = scores(list(test.tokenized), test)
    assert perfect["bleu_of_tokens"] == pytest.approx(100)
    assert perfect["bleu"] == pytest.approx(100) and perfect["chrf"] == pytest.approx(100)
    assert "case:lc" in perfect["bleu_signature"] and "case:lc" in perfect["chrf_signature"]
    outputs = ["der otter frisst brot , die maus nüsse .", "ein mann läuft ."]
    found = scores(outputs, test)
    expected = sacrebleu.corpus_bleu(outputs, [list(test.tokenized)], tokenize="none", force=True)
    assert found["bleu_of_tokens"] == pytest.approx(expected.score)
    assert 0 < found["bleu"] < 100


def test_texts_are_scored_with_their_case() -> None:
    test = HeldOut("held out", ["a"], ["Der Otter frisst heute Fisch."], "de")
    assert scores(["Der Otter frisst heute Fisch."], test)["bleu"] == pytest.approx(100)
    lower = scores(["der otter frisst heute fisch."], test)
    assert lower["bleu"] < 50 and lower["bleu_of_tokens"] is None
    assert "case:mixed" in lower["bleu_signature"]


def test_the_command_records_every_precision_and_strategy(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    options = "--precision fp32 --precision int8 --beams 1 --beams 2 --threads 1"
    folders = ["--data", data, "--output", tmp_path / "results"]
    output = compared("translation", checkpoint, *folders, *options.split())
    path = tmp_path / "results" / "translation-multi30k-en-de.json"
    curve = path.with_suffix(".png").read_bytes()
    assert curve == (checkpoint / "curve.png").read_bytes()
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    combinations = [(f["test"], f["precision"], f["beams"]) for f in record["figures"]]
    assert combinations == [
        (test, precision, beams)
        for precision in ("fp32", "int8")
        for test in multi30k_en_de.TESTS
        for beams in (1, 2)
    ]
    assert all(figure["sentences"] == 7 for figure in record["figures"])
    assert [figure["published"] for figure in record["figures"][::2]][:3] == [41.02, 33.36, 29.88]
    assert record["training"]["history"][0]["epoch"] == 1
    assert "2 beams" in output and "41.02" in output


def test_a_recipe_with_its_own_held_out_data(checkpoint: Path) -> None:
    (test,) = held_out_sets("bible-en-es", checkpoint, None)
    assert test.language == "es" and len(test.sources) == 20 and not test.tokenized
    with pytest.raises(DragomanError, match="its data are needed: --data FOLDER"):
        held_out_sets("multi30k-en-de", checkpoint, None)


def test_a_checkpoint_of_no_recipe_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["translation", str(tmp_path)])
    assert done.exit_code == 1 and "Error: " in done.output
