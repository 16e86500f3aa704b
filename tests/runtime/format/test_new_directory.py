"""`new_directory` makes a directory appear complete or not at all, and replaces bundles only."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.runtime import read_bundle
from dragoman.runtime.format import writing
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.runtime.format.writing import new_directory, write_manifest


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_directory_appears_complete_when_the_block_ends(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "er" / "bundle"
    with new_directory(destination) as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "file").write_text("x")
        assert not destination.exists()
        assert directory.parent == destination.parent  # a rename must not cross file systems
    assert (destination / "sub" / "file").read_text() == "x"
    assert names_in(destination.parent) == ["bundle"]


@pytest.mark.parametrize(
    "raised", [ValueError("x"), DragomanError("y"), KeyboardInterrupt(), SystemExit(1)]
)
@pytest.mark.parametrize("existing", [False, True])
def test_an_exception_leaves_everything_unchanged(
    tmp_path: Path, small_bundle: Path, raised: BaseException, existing: bool
) -> None:
    destination = small_bundle if existing else tmp_path / "new"
    before = names_in(tmp_path)
    with (
        pytest.raises(type(raised)) as caught,
        new_directory(destination, overwrite=existing) as directory,
    ):
        (directory / "file").write_text("half")
        raise raised
    assert caught.value is raised
    assert names_in(tmp_path) == before
    read_bundle(small_bundle)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_full_or_failing_disk_is_reported_in_one_line(tmp_path: Path, code: int) -> None:
    with (
        pytest.raises(DragomanError, match=r"cannot write .*new.*nothing was left behind"),
        new_directory(tmp_path / "new") as directory,
    ):
        (directory / "file").write_text("half")
        raise OSError(code, "message of the system")
    assert names_in(tmp_path) == []


def test_other_system_errors_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), new_directory(tmp_path / "new"):
        (tmp_path / "input that is not there").read_text()
    assert names_in(tmp_path) == []


def test_an_existing_directory_is_refused_before_any_work(small_bundle: Path) -> None:
    with pytest.raises(DragomanError, match="already exists"), new_directory(small_bundle):
        pytest.fail("the block ran")
    read_bundle(small_bundle)


def test_a_directory_created_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with (
        pytest.raises(DragomanError, match="already exists"),
        new_directory(tmp_path / "new") as directory,
    ):
        (directory / "file").write_text("late")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "file").write_text("early")
    assert (tmp_path / "new" / "file").read_text() == "early"
    assert names_in(tmp_path) == ["new"]


def test_overwrite_replaces_a_bundle_completely(small_bundle: Path) -> None:
    with new_directory(small_bundle, overwrite=True) as directory:
        (directory / "only").write_text("new")
        read_bundle(small_bundle)
    assert names_in(small_bundle) == ["only"]
    assert names_in(small_bundle.parent) == [small_bundle.name]


@pytest.mark.parametrize("renames", [1, 2])
def test_an_interrupt_between_renames_leaves_the_old_or_the_new(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    before, done, rename = names_in(small_bundle), list[Path](), Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        done.append(renamed)
        if len(done) == renames:
            raise KeyboardInterrupt
        return renamed

    monkeypatch.setattr(Path, "rename", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        new_directory(small_bundle, overwrite=True) as directory,
    ):
        (directory / "only").write_text("new")
    assert names_in(small_bundle) == (before if renames == 1 else ["only"])
    assert names_in(small_bundle.parent) == [small_bundle.name]


def test_overwrite_accepts_an_empty_or_missing_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        with new_directory(tmp_path / name, overwrite=True) as directory:
            (directory / "file").write_text(name)
    assert (tmp_path / "empty" / "file").read_text() == "empty"
    assert names_in(tmp_path) == ["empty", "new"]


def test_only_bundles_are_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    (tmp_path / "note").write_text("n")
    for name in ("home", "note"):
        with (
            pytest.raises(DragomanError, match=f"is not part of a bundle: .*{name} will not be"),
            new_directory(tmp_path / name, overwrite=True),
        ):
            pytest.fail("the block ran")
    assert (tmp_path / "home" / "letter").read_text() == "dear"
    assert names_in(tmp_path) == ["home", "note"]


@pytest.mark.parametrize(
    ("manifest", "stranger"),
    [
        ({"name": "app", "icons": []}, "manifest.json"),
        ({"schema_version": 1, "files": [{"path": "encoder.onnx"}]}, "encoder.onnx"),
        ({}, "thesis/chapter1.tex"),
        ({}, "link"),
    ],
)
def test_a_bundle_with_other_files_is_not_replaced(
    small_bundle: Path, manifest: dict[str, Any], stranger: str
) -> None:
    if manifest:
        shutil.rmtree(small_bundle)
    path = small_bundle / stranger
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("/") if stranger == "link" else path.write_text("x")
    if manifest:
        (small_bundle / "manifest.json").write_text(json.dumps(manifest))
    before = names_in(small_bundle)
    with (
        pytest.raises(DragomanError, match="is not part of a bundle"),
        new_directory(small_bundle, overwrite=True),
    ):
        pytest.fail("the block ran")
    assert names_in(small_bundle) == before


def test_a_damaged_or_signed_bundle_is_replaced(small_bundle: Path) -> None:
    text = (small_bundle / "manifest.json").read_text()
    newer = json.loads(text) | {"schema_version": 99, "kind": "unheard of"}
    (small_bundle / "manifest.json").write_text(json.dumps(newer))
    for name in ("manifest.json.partial", "model.sig"):
        (small_bundle / name).write_text("x")
    with new_directory(small_bundle, overwrite=True) as directory:
        (directory / "only").write_text("new")
    assert names_in(small_bundle) == ["only"]


def test_what_a_link_leads_to_is_replaced(small_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(small_bundle)
    with new_directory(tmp_path / "link", overwrite=True) as directory:
        (directory / "only").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert names_in(small_bundle) == ["only"]
    assert names_in(tmp_path) == ["link", small_bundle.name]


@pytest.mark.parametrize("target", ["nowhere", "link"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path, target: str, overwrite: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / target)
    with (
        pytest.raises(DragomanError, match="not part of a bundle" if overwrite else "exists"),
        new_directory(tmp_path / "link", overwrite=overwrite),
    ):
        pytest.fail("the block ran")
    assert names_in(tmp_path) == ["link"]


def test_a_parent_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """A file in place of the parent directory, which, unlike permissions, stops root too."""
    (tmp_path / "file").write_text("x")
    for destination in (tmp_path / "file" / "new", tmp_path / "file" / "deep" / "new"):
        with (
            pytest.raises(DragomanError, match=r"cannot write .*new: "),
            new_directory(destination),
        ):
            pytest.fail("the block ran")
    assert names_in(tmp_path) == ["file"]


def test_a_name_that_is_too_long_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="cannot write"), new_directory(tmp_path / ("x" * 250)):
        pytest.fail("the block ran")
    assert names_in(tmp_path) == []


def test_of_two_concurrent_writers_one_wins_and_the_other_fails(tmp_path: Path) -> None:
    both_are_inside = threading.Barrier(2, timeout=60)
    outcomes: dict[str, str] = {}

    def write(name: str) -> None:
        try:
            with new_directory(tmp_path / "new") as directory:
                for i in range(5):
                    (directory / f"file{i}").write_text(name)
                both_are_inside.wait()
        except DragomanError as error:
            outcomes[name] = str(error)
        else:
            outcomes[name] = "won"

    threads = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [name for name, outcome in outcomes.items() if outcome == "won"]
    (message,) = [outcome for outcome in outcomes.values() if outcome != "won"]
    assert "already exists" in message or "cannot write" in message
    assert {path.read_text() for path in (tmp_path / "new").iterdir()} == {winner}
    assert len(names_in(tmp_path / "new")) == 5
    assert names_in(tmp_path) == ["new"]


def test_a_writer_that_checked_too_early_does_not_replace_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowest race: both have found that the destination does not exist."""
    monkeypatch.setattr(writing, "check_destination", lambda *_: None)
    with (
        pytest.raises(DragomanError, match="cannot write"),
        new_directory(tmp_path / "new") as late,
    ):
        (late / "file").write_text("late")
        with new_directory(tmp_path / "new") as early:
            (early / "file").write_text("early")
    assert (tmp_path / "new" / "file").read_text() == "early"
    assert names_in(tmp_path) == ["new"]


def test_a_manifest_is_written_and_replaced(tmp_path: Path, plain_manifest: dict[str, Any]) -> None:
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    for name in ("first", "second"):
        changed = manifest_from_json(json.dumps(plain_manifest | {"name": name}), "p")
        write_manifest(changed, tmp_path)
        assert manifest_from_json((tmp_path / "manifest.json").read_text(), "p") == changed
        assert changed != manifest
    assert names_in(tmp_path) == ["manifest.json"]


def test_a_manifest_that_cannot_be_written_is_reported(
    tmp_path: Path, plain_manifest: dict[str, Any]
) -> None:
    manifest = manifest_from_json(json.dumps(plain_manifest), "p")
    with pytest.raises(DragomanError, match=r"cannot write .*manifest\.json"):
        write_manifest(manifest, tmp_path / "not there")
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DragomanError, match=r"cannot write .*manifest\.json"):
        write_manifest(manifest, tmp_path)
    assert names_in(tmp_path) == ["manifest.json"]
