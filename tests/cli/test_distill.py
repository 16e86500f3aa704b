"""`dragoman distill`: from a teacher's bundle and pairs of texts to a student's bundle."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from dragoman.api import distill
from dragoman.distillation import translations
from dragoman.distillation.student import read_student_file, student_recipe
from dragoman.distillation.translations import DataFiles, translate_sources
from dragoman.errors import DragomanError
from dragoman.progress import Silent
from dragoman.reference_model import load_checkpoint
from dragoman.reference_model.recipes import Data, Example, Recipe, find_recipe
from dragoman.reference_model.training.state import locked
from dragoman.runtime import load, read_bundle
from dragoman.runtime.serving.file_blocks import BlockDecoder
from dragoman.settings.generation import GenerationOptions

from .conftest import status_of

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

ANIMALS, FOOD = ("cat", "dog", "otter", "mouse"), ("bread", "cheese", "nuts", "fish")
PAIRS = [(f"the {a} eats {f}", f"el {a} come {f}") for a in ANIMALS for f in FOOD]
MORE = ["the otter eats otter nuts", "bread", PAIRS[0][0]]
TRAINING = {"batch_tokens": 64, "warmup_steps": 20, "average_epochs": 1}
TEACHER = {
    "model": {"preset": "tiny", "max_source_positions": 24, "max_target_positions": 24},
    "vocabulary": {"size": 60},
    "training": {"epochs": 12, **TRAINING},
}
STUDENT = {
    "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24},
    "training": TRAINING,
}
ROWS = [
    "teacher, 2 beams",
    "teacher, greedy",
    "student, 2 beams",
    "student, whole vocabulary",
    "student, in PyTorch, greedy",
    "student, greedy",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a teacher's and of a student's training."""
    directory = tmp_path_factory.mktemp("distillation")
    rows = ["\t".join(pair) + "\n" for pair in PAIRS]
    (directory / "train.tsv").write_text("".join(rows), encoding="utf-8")
    (directory / "dev.tsv").write_text("".join(rows[:6]), encoding="utf-8")
    (directory / "more.txt").write_text("\n".join(MORE) + "\n\n", encoding="utf-8")
    (directory / "en-es.json").write_text(json.dumps(TEACHER), encoding="utf-8")
    (directory / "student.json").write_text(json.dumps(STUDENT), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def teacher(files: Path) -> Path:
    data = ["--pairs", str(files / "train.tsv"), "--dev", str(files / "dev.tsv")]
    model, bundle = str(files / "model"), str(files / "teacher")
    assert status_of(["train", str(files / "en-es.json"), *data, "-o", model]) == 0
    assert status_of(["build", model, "-o", bundle]) == 0
    return files / "teacher"


def arguments(teacher: Path, files: Path) -> list[object]:
    data = ["--pairs", files / "train.tsv", "--dev", files / "dev.tsv"]
    data += ["--sources", files / "more.txt", "--student", files / "student.json"]
    return ["distill", teacher, *data, "--beams", 2, "--epochs", 1, "--threads", 1]


@pytest.fixture(scope="module")
def student(teacher: Path, files: Path) -> Path:
    """The directory of a distillation."""
    output = files / "student"
    words = [*arguments(teacher, files), "--within", 100, "-o", output]
    assert status_of(list(map(str, words))) == 0
    return output


def test_the_student_learns_the_teachers_beams(student: Path, teacher: Path) -> None:
    sources = list(dict.fromkeys([*(source for source, _ in PAIRS), *MORE]))
    with load(teacher, threads=1) as model:
        outputs = [result.text for result in model.generate(sources, num_beams=2)]
    rows = (student / "translations.tsv").read_text(encoding="utf-8").splitlines()
    assert rows == [f"{s}\t{o}" for s, o in zip(sources, outputs, strict=True) if o]


def test_the_student_is_small_recurrent_and_has_a_shortlist(student: Path, teacher: Path) -> None:
    config = load_checkpoint(student / "checkpoint").config
    assert (config.decoder_kind, config.d_model, config.norm_order) == ("ssru", 16, "pre")
    assert (config.max_source_positions, config.max_target_positions) == (24, 24)
    manifest = read_bundle(student / "bundle").manifest
    assert manifest.precision == "int8" and manifest.shortlist is not None
    assert manifest.parity is not None and manifest.parity.passed
    for side in ("source", "target"):  # the ids of the teacher's tokens are the student's
        name = f"{side}_tokenizer.json"
        own, its = (json.loads((d / name).read_bytes()) for d in (student / "bundle", teacher))
        assert own["model"]["vocab"] == its["model"]["vocab"]


@pytest.mark.parametrize("beams", [1, 3])
def test_the_students_bundle_runs(dragoman: Dragoman, student: Path, beams: int) -> None:
    sources = [source for source, _ in PAIRS[:7]]
    found = dragoman("run", student / "bundle", "--beams", beams, *sources)
    with load(student / "bundle", threads=1) as model:
        results = model.generate(sources, num_beams=beams)
    assert found.stdout.splitlines() == [result.text for result in results]


def test_figures_are_those_of_the_bundles(student: Path, teacher: Path) -> None:
    record = json.loads((student / "figures.json").read_bytes())
    assert [row["name"] for row in record["rows"]] == ROWS
    sources, references = zip(*PAIRS[:6], strict=True)
    chosen = [(teacher, 2, True), (teacher, 1, True)]
    chosen += [(student / "bundle", 2, True), (student / "bundle", 1, False)]
    for (bundle, beams, shortlist), row in zip(chosen, record["rows"], strict=False):
        with load(bundle, threads=1) as model:
            results = model.generate(sources, num_beams=beams, shortlist=shortlist)
        texts = [result.text or "" for result in results]
        assert row["figures"] == {
            "BLEU": pytest.approx(corpus_bleu(texts, [references]).score),
            "chrF": pytest.approx(corpus_chrf(texts, [references]).score),
        }
        assert row["sentences_per_second"] > 0
        assert row["megabytes"] == read_bundle(bundle).size / 1e6
    first, last = (record["rows"][n]["figures"]["BLEU"] for n in (0, -1))
    assert record["loss"] == pytest.approx(first - last)
    assert (student / "figures.png").read_bytes().startswith(b"\x89PNG")
    assert "int8" in (student / "report.html").read_text(encoding="utf-8")


def test_a_student_that_loses_too_much_has_no_bundle(
    dragoman: Dragoman,
    teacher: Path,
    student: Path,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is translated or trained again, and the earlier bundle stays."""
    student = Path(shutil.copytree(student, tmp_path / "student"))

    def decode(*_: object) -> None:
        raise AssertionError("translated again")

    monkeypatch.setattr(BlockDecoder, "decode", decode)
    weights = (student / "checkpoint" / "model.safetensors").read_bytes()
    manifest = (student / "bundle" / "manifest.json").read_bytes()
    words = [*arguments(teacher, files), "-o", student]
    refused = dragoman(*words)
    assert refused.returncode == 2 and "already exists" in refused.stderr
    failed = dragoman(*words, "--within", 0, "--metric", "exact-match", "--force")
    record = json.loads((student / "figures.json").read_bytes())
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr.splitlines()[-1] == (
        f"Error: --within: expected a student that loses at most 0 points of exact match, found "
        f"{record['loss']:.2f}; {student / 'bundle'} was not written"
    )
    assert all(name in failed.stdout for name in ROWS)
    assert (student / "checkpoint" / "model.safetensors").read_bytes() == weights
    assert (student / "bundle" / "manifest.json").read_bytes() == manifest
    assert not (student / "bundle.candidate").exists()


def test_an_interrupted_translation_goes_on(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translations, "BLOCK_LINES", 4)
    decode, given = BlockDecoder.decode, list[bytes]()

    def counted(self: BlockDecoder, lines: bytes, *more: Any) -> Any:
        given.append(lines)
        if len(given) == 3:
            raise KeyboardInterrupt
        return decode(self, lines, *more)

    data = Data([Example(source, (target,)) for source, target in PAIRS], [], [])
    files, options = DataFiles(tmp_path), GenerationOptions(num_beams=2)
    translate = partial(
        translate_sources, read_bundle(teacher), data, [], files, options, 1, Silent()
    )
    monkeypatch.setattr(BlockDecoder, "decode", counted)
    with pytest.raises(KeyboardInterrupt):
        translate()
    assert not files.translations.exists()
    translate()
    sources = list(dict.fromkeys(source for source, _ in PAIRS))
    assert b"".join(given[3:]).decode().splitlines() == sources[8:]
    with load(teacher, threads=1) as model:
        outputs = [result.text for result in model.generate(sources, num_beams=2)]
    rows = files.translations.read_text(encoding="utf-8").splitlines()
    assert rows == [f"{s}\t{o}" for s, o in zip(sources, outputs, strict=True) if o]


def test_a_text_that_is_too_long_to_judge_on_is_refused_before_the_work(
    teacher: Path, files: Path, tmp_path: Path
) -> None:
    long = " ".join(["the cat eats bread"] * 20)
    (tmp_path / "dev.tsv").write_text(f"{long}\tel gato come pan\n", encoding="utf-8")
    with pytest.raises(DragomanError, match="expected texts of at most 24 tokens, the model's pos"):
        distill(
            teacher,
            tmp_path / "out",
            pairs=[files / "train.tsv"],
            dev=[tmp_path / "dev.tsv"],
            student=files / "student.json",
            threads=1,
        )
    assert not list((tmp_path / "out").glob("outputs*"))


def test_another_directory_is_needed_for_two_at_once(
    dragoman: Dragoman, teacher: Path, files: Path, tmp_path: Path
) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            held.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    try:
        refused = dragoman(*arguments(teacher, files), "-o", tmp_path)
    finally:
        done.set()
        other.join()
    assert refused.returncode == 2 and "no other training uses" in refused.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": []}, "pairs: expected files to train on .*, found too few of them"),
        ({"data": "folder"}, "pairs: expected files to train on .* found files and a folder"),
        ({"pairs": [], "data": "folder"}, "pairs: .* found files and a folder"),
        ({"pairs": [], "dev": [], "data": "folder"}, "data: expected a teacher of one of the"),
        ({"within": float("inf")}, "within: expected at least 0 points, found inf"),
        ({"source_language": "de"}, "rejects all 16 sources: source_language: expected none"),
        ({"within": -1.0}, "within: expected at least 0 points, found -1.0"),
        ({"metrics": ["bleurt"]}, "metric: expected one of"),
        ({"beams": 0}, "num_beams: expected"),
        ({"precision": "bf16"}, "expected a precision"),
        ({"teacher": "absent"}, "absent"),
        ({"pairs": ["absent.tsv"]}, "expected a file of examples, found nothing at absent.tsv"),
        ({"sources": ["absent.txt"]}, "expected a file of examples, found nothing at absent.txt"),
        ({"student": "absent.json"}, "absent.json"),
    ],
)
def test_refused_arguments(
    changes: dict[str, object], message: str, teacher: Path, files: Path, tmp_path: Path
) -> None:
    given = {"teacher": teacher, "output": tmp_path / "out", "beams": 1, "threads": 1}
    given |= {"pairs": [files / "train.tsv"], "dev": [files / "dev.tsv"]}
    with pytest.raises(DragomanError, match=message):
        distill(**(given | changes))  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "bundle").exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"dev": ["dev.tsv"]}, "student.json: expected no section dev"),
        ({"modle": {}}, "some of the sections model, vocabulary, .* metrics, found 'modle'"),
    ],
)
def test_sections_that_a_students_file_must_not_have(
    sections: dict[str, object], message: str, teacher: Path, files: Path, tmp_path: Path
) -> None:
    path = tmp_path / "student.json"
    path.write_text(json.dumps(sections), encoding="utf-8")
    pairs, dev = [files / "train.tsv"], [files / "dev.tsv"]
    with pytest.raises(DragomanError, match=message):
        distill(teacher, tmp_path / "out", pairs=pairs, dev=dev, student=path, threads=1)
    assert not (tmp_path / "out").exists()


def test_a_teacher_translates_texts(token_bundle: Path, files: Path, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="to learn from, found one without tokenizers"):
        distill(
            token_bundle, tmp_path / "out", pairs=[files / "train.tsv"], dev=[files / "dev.tsv"]
        )


def recipe_of_file(
    teacher: Path, path: Path, stated: dict[str, object], of_teacher: Recipe | None = None
) -> Recipe:
    path.write_text(json.dumps(stated), encoding="utf-8")
    files, checkpoint = DataFiles(path.parent), path.parent / "checkpoint"
    stated = read_student_file(path)
    return student_recipe(path, stated, read_bundle(teacher), files, checkpoint, of_teacher)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({}, (20, 10)),
        ({"epochs": 5}, (5, 2)),
        ({"schedule": "cosine"}, (20, 0)),
        ({"epochs": 4, "cool_down_epochs": 3}, (4, 3)),
        (None, (20, 10)),
    ],
)
def test_a_file_states_what_differs(
    training: dict[str, object] | None, expected: tuple[int, int], teacher: Path, tmp_path: Path
) -> None:
    stated: dict[str, object] = {"training": training, "vocabulary": None}
    options = recipe_of_file(teacher, tmp_path / "student.json", stated).options
    assert (options.epochs, options.cool_down_epochs) == expected


def test_the_file_decides_before_the_recipe_of_the_teacher(teacher: Path, tmp_path: Path) -> None:
    of_teacher = find_recipe("bible-en-es")
    chrf = recipe_of_file(teacher, tmp_path / "a.json", {"metrics": ["chrf"]}, of_teacher)
    neither = recipe_of_file(teacher, tmp_path / "b.json", {}, of_teacher)
    assert (chrf.metric, neither.metric) == ("chrF", "BLEU")
    assert chrf.licences == neither.licences == of_teacher.licences


def test_a_file_is_not_named_like_a_recipe(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="expected a file of another name, found that of"):
        recipe_of_file(teacher, tmp_path / "g2p-en.json", {})


def test_pairs_are_cleaned_as_the_file_says_and_bleu_does_not_judge_words(
    teacher: Path, files: Path, tmp_path: Path
) -> None:
    """A target is five times as long as its source; references of one word have no BLEU."""
    long = (
        "the cat eats\tel gato come pan y queso y nueces y pescado y mucho mas pan y queso y pan\n"
    )
    train = (files / "train.tsv").read_text(encoding="utf-8") + long
    (tmp_path / "train.tsv").write_text(train, encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("bread\tpan\ncheese\tqueso\n", encoding="utf-8")
    stated = STUDENT | {"cleaning": {"ratio": 8}}
    (tmp_path / "student.json").write_text(json.dumps(stated), encoding="utf-8")
    found = distill(
        teacher,
        tmp_path / "out",
        pairs=[tmp_path / "train.tsv"],
        dev=[tmp_path / "dev.tsv"],
        student=tmp_path / "student.json",
        beams=1,
        epochs=1,
        shortlist=False,
        within=100,
        threads=1,
    )
    names = ["teacher, greedy", "student, in PyTorch, greedy", "student, greedy"]
    assert [row.name for row in found.rows] == names
    assert "the cat eats" in (tmp_path / "out" / "sources.txt").read_text("utf-8").splitlines()
    assert found.metric == "chrF" and found.sources == len(PAIRS) + 1
    assert all("BLEU" not in row.figures for row in found.rows)
