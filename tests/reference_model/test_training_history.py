"""The files of a training's history are written whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.reference_model.training import Epoch
from dragoman.reference_model.training.history import plot_history, write_history

EPOCHS = [Epoch(1, 10, 4.0, 3.5, 0.9, 12.5), Epoch(2, 20, 2.0, 1.75, 0.4, 12.25)]

Write = Callable[[list[Epoch], Path], None]


def plot(epochs: list[Epoch], path: Path) -> None:
    plot_history(epochs, "word error", path)


def test_what_is_written(tmp_path: Path) -> None:
    write_history(EPOCHS, tmp_path / "history.jsonl")
    plot(EPOCHS, tmp_path / "curve.png")
    lines = (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [Epoch(**json.loads(line)) for line in lines] == EPOCHS
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("write", [write_history, plot])
def test_a_file_that_cannot_be_written(write: Write, tmp_path: Path) -> None:
    place = tmp_path / "history"
    place.mkdir()
    with pytest.raises(DragomanError, match=f"cannot write {place}: "):
        write(EPOCHS, place)
    assert [*tmp_path.iterdir()] == [place]
