"""`api.report` and `dragoman report`, on bundles of a small model."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import DragomanError, api
from dragoman.cli.building.report import report as report_command
from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.plain_data import to_plain
from dragoman.runtime.format.writing import write_manifest
from dragoman.verification.report.contents import Part

from ..recorded_progress import RecordedProgress
from .conftest import Build, training
from .test_page import Page

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line: exit status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        from dragoman.cli import main

        monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capfd.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


def test_a_report_of_everything(build: Build, checkpoint: Path, tmp_path: Path) -> None:
    """Speed is measured in processes, sensitivity here."""
    bundle, other = build("int8", attention=True), build("fp32")
    progress = RecordedProgress()
    made = api.report(
        [bundle, other],
        tmp_path / "new" / "report.html",
        checkpoint=checkpoint,
        json=tmp_path / "report.json",
        threads=1,
        command="dragoman report ...",
        progress=progress,
    )
    page = Page((tmp_path / "new" / "report.html").read_text(encoding="utf-8"))
    plain = json.loads(json.dumps(to_plain(made)))
    assert json.loads(page.data) == plain
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == plain
    assert not [*tmp_path.rglob("*.partial")]
    first, second = made.bundles
    manifest = read_bundle(bundle).manifest
    assert (first.label, second.label) == (bundle.name, other.name)
    assert first.parity == manifest.parity and first.passes == manifest.passes
    assert first.files == manifest.files and first.size_bytes == read_bundle(bundle).size
    assert first.verdict.state == second.verdict.state == "passed"
    assert first.missing == {}
    assert set(second.missing) == {"sensitivity", "attention"}
    assert [licence.summary for licence in first.licences] == ["Licence of words"]
    assert (
        first.training
        == second.training
        == dataclasses.replace(
            training(),
            recipe="g2p-en",
            metric="word error",
            corpora=(),
            unknown=(),
            held_out={"word error": "25.00%", "phone error": "6.25%"},
        )
    )
    assert first.sensitivity is not None and first.sensitivity.differing == ()
    assert first.speed is not None
    sizes = [(t.source_length, t.batch_size) for t in first.speed.timings]
    assert sizes == [(length, batch) for length in (8, 20) for batch in (1, 8, 32)]
    assert all(t.new_tokens == 16 and t.tokens_per_second > 0 for t in first.speed.timings)
    assert made.machine and made.command == "dragoman report ..."
    assert "measuring speed" in progress.stages and progress.stages[-1] == "drawing"


def test_attention_is_the_model_s(build: Build, checkpoint: Path, tmp_path: Path) -> None:
    bundle = build("int8", attention=True)
    words = tmp_path / "words.txt"
    long = "a" * 25  # longer than the model's positions
    words.write_text(f"{long}\nencoder\nis\nall\n", encoding="utf-8")
    made = api.report([bundle], tmp_path / "r.html", inputs=words, measurements=False, threads=1)
    (report,) = made.bundles
    assert [example.text for example in report.attention] == ["encoder", "is"]
    with load(bundle, threads=1) as model:
        expected = model.attention("encoder")
    found = report.attention[0]
    assert (found.rows, found.columns) == (expected.target, expected.source)
    for row, other in zip(found.weights, expected.aligning, strict=True):
        assert list(row) == pytest.approx(other.tolist(), abs=1e-4)


def test_inputs_that_cannot_be_shown(build: Build, tmp_path: Path) -> None:
    bundle = build("int8", attention=True)
    (tmp_path / "long.txt").write_text("a" * 25 + "\n???\n", encoding="utf-8")
    made = api.report(
        [bundle], tmp_path / "r.html", inputs=tmp_path / "long.txt", measurements=False
    )
    assert (
        "no input of long.txt is one that the model reads" in made.bundles[0].missing["attention"]
    )
    for name, data in (("folder", None), ("binary", b"\xff\xfe")):
        path = tmp_path / name
        path.mkdir() if data is None else path.write_bytes(data)
        with pytest.raises(DragomanError, match=f"{name}: expected a file of texts, in UTF-8"):
            api.report([bundle], tmp_path / "x.html", inputs=path, measurements=False)
    assert not (tmp_path / "x.html").exists()


def test_without_measurements_nothing_is_measured(build: Build, tmp_path: Path) -> None:
    bundle = build("int8", attention=True)
    made = api.report([bundle], tmp_path / "r.html", measurements=False)
    (report,) = made.bundles
    assert made.machine is None and report.speed is None and report.sensitivity is None
    expected: dict[Part, str] = {
        "licences": "--checkpoint reads those of the checkpoint",
        "training": "known from the checkpoint: --checkpoint CHECKPOINT",
        "sensitivity": f"dragoman sensitivity {bundle} CHECKPOINT -o sensitivity.json",
        "speed": "not measured, as requested",
        "attention": "--inputs FILE",
    }
    assert set(report.missing) == set(expected)
    for part, text in expected.items():
        assert text in report.missing[part]
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert all(" ".join(text.split()) in page.text for text in report.missing.values())


def test_a_sensitivity_from_a_file(build: Build, checkpoint: Path, tmp_path: Path) -> None:
    bundle, other = build("int8", attention=True), build("fp32")
    found = api.sensitivity(bundle, checkpoint, limit=2, threads=1)
    found.write(tmp_path / "s.json")
    made = api.report(
        [other, bundle],
        tmp_path / "r.html",
        sensitivities=[tmp_path / "s.json"],
        measurements=False,
    )
    assert [report.sensitivity for report in made.bundles] == [None, found]
    with pytest.raises(DragomanError, match="found one of another g2p-en in int8") as caught:
        api.report([other], tmp_path / "x.html", sensitivities=[tmp_path / "s.json"])
    assert "\n" not in str(caught.value) and not (tmp_path / "x.html").exists()


def test_a_bundle_without_parity_and_one_that_failed(build: Build, tmp_path: Path) -> None:
    bundles = []
    manifest = read_bundle(build("fp32")).manifest
    assert manifest.parity is not None
    failed = dataclasses.replace(
        manifest.parity,
        passed=False,
        tensors=tuple(
            dataclasses.replace(t, passed=False, difference=0.5) for t in manifest.parity.tensors
        ),
    )
    for name, parity in (("unverified", None), ("failed", failed)):
        bundles.append(Path(shutil.copytree(build("fp32"), tmp_path / name / "bundle")))
        write_manifest(dataclasses.replace(manifest, parity=parity), bundles[-1])
    made = api.report(bundles, tmp_path / "r.html", measurements=False)
    assert [report.label for report in made.bundles] == ["bundle (1)", "bundle (2)"]
    assert [report.verdict.state for report in made.bundles] == ["not verified", "failed"]
    assert f"dragoman verify {bundles[0]} CHECKPOINT" in made.bundles[0].verdict.sentence
    assert "allowed 0.0001" in made.bundles[1].verdict.sentence


def test_a_bundle_that_cannot_run_here(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its speed is missing, and the reason is said."""
    bundle = Path(shutil.copytree(build("int8", attention=True), tmp_path / "bundle"))
    read = read_bundle(bundle)
    (bundle / "weights.bin").write_bytes(b"")  # once it has been read
    module = importlib.import_module("dragoman.api.report")
    monkeypatch.setattr(module, "read_bundle", lambda directory: read)
    made = api.report([bundle], tmp_path / "r.html", threads=1)
    assert "weights.bin: expected" in made.bundles[0].missing["speed"]
    assert made.machine is None


def test_a_checkpoint_of_another_model_is_refused(build: Build, run: Run, tmp_path: Path) -> None:
    """Before anything is measured: its licences must not be on a page to sign."""
    output = tmp_path / "r.html"
    bundle = build("int8", attention=True)
    status, out, err = run("report", bundle, "-o", output, "--checkpoint", "verses-en")
    assert (status, out) == (2, "") and not output.exists()
    (line,) = err.splitlines()
    assert line.startswith(
        f"Error: {bundle} was not made from a model like verses-en: their config"
    )


def test_a_bundle_of_another_model_has_nothing_of_the_checkpoint(
    build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    """Neither its licences nor its held-out data; its own licences stay."""
    own, foreign = build("int8", attention=True), tmp_path / "foreign"
    shutil.copytree(own, foreign)
    manifest = read_bundle(own).manifest
    architecture = manifest.architecture | {"norm_order": "post"}
    write_manifest(dataclasses.replace(manifest, architecture=architecture), foreign)
    why = f"{foreign} was not made from a model like {checkpoint}: their configurations differ in "
    asked = {"checkpoint": checkpoint, "measurements": False, "threads": 1}
    made = api.report([own, foreign], tmp_path / "r.html", **asked)  # type: ignore[arg-type]
    first, second = made.bundles
    assert len(first.licences) == 1 and first.attention and "licences" not in first.missing
    assert second.licences == () and second.attention == ()
    assert first.training and second.training is None
    for part in ("licences", "training", "attention", "sensitivity"):
        assert f"{why}norm_order" in second.missing[part]
    assert "no licence file next to the manifest" in second.missing["licences"]
    (foreign / "LICENSE").write_text("Licence of others\n", encoding="utf-8")
    words = tmp_path / "words.txt"
    words.write_text("encoder\n", encoding="utf-8")
    made = api.report([own, foreign], tmp_path / "s.html", inputs=words, **asked)  # type: ignore[arg-type]
    second = made.bundles[1]
    assert [licence.summary for licence in second.licences] == ["Licence of others"]
    assert "those of the checkpoint are another model's" in second.missing["licences"]
    assert [example.text for example in second.attention] == ["encoder"]
    page = Page((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert second.missing["licences"] in page.text


def test_inputs_that_are_no_texts_are_refused_at_once(
    build: Build, checkpoint: Path, tmp_path: Path
) -> None:
    """Also where what is wrong comes late, and before the checkpoint is read."""
    inputs, progress = tmp_path / "late.txt", RecordedProgress()
    inputs.write_bytes(b"encoder\n" * 300 + b"\xff\n")
    with pytest.raises(DragomanError, match=r"late\.txt: expected a file of texts, in UTF-8"):
        api.report(
            [build("int8", attention=True)],
            tmp_path / "r.html",
            checkpoint=checkpoint,
            inputs=inputs,
            progress=progress,
        )
    assert progress.stages == []


def test_the_command(build: Build, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    status, out, err = run("report", build("fp32"), "-o", output, "--no-measurements")
    assert (status, err) == (0, "")
    assert out == f"fp32: passed\nWrote {output}\n"
    page = Page(output.read_text(encoding="utf-8"))
    assert f"Written by dragoman report {build('fp32')} -o {output} --no-measurements" in page.text
    status, _, err = run("report", build("fp32"), "-o", output, "--no-measurements")
    assert status == 2 and "--force" in err
    assert run("report", build("fp32"), "-o", output, "--no-measurements", "--force")[0] == 0


def test_mistakes(build: Build, run: Run, tmp_path: Path) -> None:
    bundle, output = build("fp32"), tmp_path / "r.html"
    (tmp_path / "s.json").write_text("{}", encoding="utf-8")
    for arguments, problem in (
        ((), "Missing argument 'BUNDLE...'"),
        ((tmp_path / "none",), "expected a bundle, found no such directory"),
        ((bundle, bundle), "bundles: expected each once, found one of them twice"),
        ((bundle, "--inputs", "none.txt"), "found nothing at none.txt"),
        ((bundle, "--sensitivity", tmp_path / "s.json"), "s.json: expected what dragoman"),
        ((bundle, "--sensitivity", "none.json"), "none.json"),
        ((bundle, "--json", output), "json: expected another file than the page"),
        ((bundle, "--json", tmp_path), "already exists"),
        ((bundle, "--revision", "main"), "expected one only with a checkpoint"),
        ((bundle, "--checkpoint", tmp_path / "none"), "expected the directory of a checkpoint"),
        ((bundle, "--threads", "9999"), "found 9999"),
    ):
        status, out, err = run("report", *arguments, "-o", output)
        assert status == 2 and out == ""
        (line,) = err.splitlines()
        assert problem in line
        assert not output.exists()
    assert {parameter.name for parameter in report_command.params} >= {"sensitivities"}
