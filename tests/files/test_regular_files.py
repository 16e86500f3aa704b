"""Only regular files of a bounded size are opened."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.errors import DragomanError
from dragoman.files.regular_files import (
    FileError,
    check_regular,
    memory_of_machine,
    read_regular,
    write_whole,
)
from dragoman.files.strict_json import read_json


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "expected a file, found none"),
    "a link to nothing": (
        lambda path: path.symlink_to("nowhere"),
        "expected a file, found none",
    ),
    "a directory": (Path.mkdir, "expected a regular file, found a directory"),
    "a pipe": (os.mkfifo, "expected a regular file, found a pipe"),
    "a device": (
        lambda path: path.symlink_to("/dev/zero"),
        "expected a regular file, found a device",
    ),
    "a sparse terabyte": (
        sparse,
        "expected a file of at most 100 bytes, found one of 1099511627776",
    ),
    "a file of one byte more": (
        lambda path: path.write_bytes(bytes(101)),
        "expected a file of at most 100 bytes, found one of 101",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_files_are_refused(other: str, tmp_path: Path) -> None:
    make, problem = OTHERS[other]
    path = tmp_path / "file"
    make(path)
    for read in (check_regular, read_regular):
        with pytest.raises(FileError) as caught:
            read(path, 100)
        assert (caught.value.path, caught.value.problem) == (path, problem)
        assert str(caught.value) == f"{path}: {problem}"


@pytest.mark.parametrize("name", ["a\0b", "a\udcff"])
def test_a_null_character_in_a_path_or_no_utf_8(name: str) -> None:
    with pytest.raises(FileError, match="expected a path in UTF-8"):
        check_regular(Path(name), 100)


def test_a_regular_file_of_up_to_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    (tmp_path / "link").symlink_to(path)  # as in the cache of Hugging Face
    for name in ("file", "link"):
        assert check_regular(tmp_path / name, 100) == 100
        assert read_regular(tmp_path / name, 100) == bytes(100)
    path.write_bytes(b"")
    assert read_regular(path, 100) == b""


def test_a_small_file_takes_no_more_memory_than_it_has(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert read_regular(tmp_path / "file", sys.maxsize - 1) == b"abc"


def test_without_a_limit_the_memory_is_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    assert check_regular(path) == 1 << 30
    with path.open("wb") as file:
        file.truncate(memory_of_machine() + 1)
    with pytest.raises(FileError, match=f"of at most {memory_of_machine()} bytes"):
        check_regular(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries take it for absent, or for damaged."""
    path = tmp_path / "file"
    path.touch()

    # The user of the tests may read all.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileError, match="expected a readable file: Permission denied"):
        check_regular(path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_file_whose_system_states_no_size_is_read_to_the_limit() -> None:
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert read_regular(path, 1 << 20).startswith(b"Name:")
    with pytest.raises(FileError, match="at most 10 bytes, found a longer one"):
        read_regular(path, 10)
    with pytest.raises(FileError, match="expected JSON"):
        read_json(path)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_file_of_a_closed_folder_is_refused_in_one_sentence(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, not even a file that does not exist can be removed."""

    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(DragomanError, match=f"cannot write {tmp_path}/file: "):
        write_whole(tmp_path / "file", lambda path: path.write_text("text"))
