"""Large files on workers: order, workers that die, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.progress import Silent
from dragoman.runtime import Model
from dragoman.runtime.serving.file_blocks import BlockDecoder, DecodedBlock
from dragoman.runtime.serving.ray import files, run_file

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

WORDS = [f"{a}{b}{c}" for a in "bdgm" for b in "aeiou" for c in ("lt", "n", "ster")]
BLOCK = 7
BLOCKS = 9  # of 60 words: the last one is shorter


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(model: Model) -> str:
    return "".join(f"{result.text}\n" for result in model.generate(WORDS))


@pytest.fixture
def decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """How often each block was decoded, by its first word."""
    seen = tmp_path / "seen"
    seen.touch()
    monkeypatch.setattr(files, "BlockDecoder", watched(seen, None, once=True))
    return lambda: Counter(seen.read_text(encoding="utf-8").split())


def watched(seen: Path, deadly: str | None, *, once: bool) -> type[BlockDecoder]:
    """Decoders that write down what they decode, and are killed when they begin a block.

    Args:
        deadly: the first word of the block
        once: whether it kills no other worker
    """
    marker = seen.with_name("killed")

    class Watched(BlockDecoder):  # pickled by value: workers need not find this module
        def decode(self, data: bytes, prefixes: bytes | None = None) -> DecodedBlock:
            first = data.split()[0].decode()
            if first == deadly and not (once and marker.exists()):
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            outcome = super().decode(data, prefixes)
            with seen.open("a", encoding="utf-8") as file:
                file.write(f"{first}\n")
            return outcome

    return Watched


class Interrupting(Silent):
    """Interrupts when so many blocks are done."""

    def __init__(self, blocks: int) -> None:
        self._left = blocks

    def advance(self, done: int, total: int) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


FIRST_WORDS = WORDS[::BLOCK]


def test_the_order_is_kept(
    bundle: Path,
    source: Path,
    tmp_path: Path,
    expected: str,
    decoded: Callable[[], Counter[str]],
) -> None:
    joined = run_file(bundle, source, tmp_path / "out", workers=2, block_lines=BLOCK)
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
    assert (joined.lines, joined.rejected) == (len(WORDS), {})
    assert decoded() == Counter(FIRST_WORDS)
    assert not (tmp_path / "out.blocks").exists()


@pytest.mark.parametrize("block", [0, 4, BLOCKS - 1])
def test_a_killed_worker_loses_and_duplicates_nothing(
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    source: Path,
    tmp_path: Path,
    expected: str,
    decoded: Callable[[], Counter[str]],
    block: int,
) -> None:
    decoder = watched(tmp_path / "seen", FIRST_WORDS[block], once=True)
    monkeypatch.setattr(files, "BlockDecoder", decoder)
    run_file(bundle, source, tmp_path / "out", workers=2, block_lines=BLOCK)
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
    assert decoded() == Counter(FIRST_WORDS)


def test_a_block_that_kills_every_worker_is_named_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    source: Path,
    tmp_path: Path,
    expected: str,
    decoded: Callable[[], Counter[str]],
) -> None:
    deadly = watched(tmp_path / "seen", FIRST_WORDS[4], once=False)
    with monkeypatch.context() as patch:
        patch.setattr(files, "BlockDecoder", deadly)
        with pytest.raises(DragomanError, match="4 workers died of lines 29 to 35; finished"):
            run_file(bundle, source, tmp_path / "out", workers=1, block_lines=BLOCK)
    assert not (tmp_path / "out").exists()
    assert decoded() == Counter(FIRST_WORDS[:4])
    run_file(bundle, source, tmp_path / "out", workers=1, block_lines=BLOCK)
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected
    assert decoded() == Counter(FIRST_WORDS)


def test_what_was_done_before_an_interruption_is_not_done_again(
    bundle: Path,
    source: Path,
    tmp_path: Path,
    expected: str,
    decoded: Callable[[], Counter[str]],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_file(
            bundle,
            source,
            tmp_path / "out",
            workers=1,
            block_lines=BLOCK,
            progress=Interrupting(3),
        )
    assert not (tmp_path / "out").exists()
    kept = {path.name for path in (tmp_path / "out.blocks").glob("0*.json")}
    assert kept == {"00000000.json", "00000001.json", "00000002.json"}
    (tmp_path / "seen").write_text("", encoding="utf-8")
    run_file(bundle, source, tmp_path / "out", workers=2, block_lines=BLOCK)
    assert decoded() == Counter(FIRST_WORDS[3:])
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected


def test_more_workers_than_there_is_place_for(
    bundle: Path, source: Path, tmp_path: Path, expected: str
) -> None:
    run_file(bundle, source, tmp_path / "out", workers=5, block_lines=BLOCK)
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected


def test_what_a_worker_refuses_is_told_in_its_words(
    bundle: Path, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(DragomanError, match=r"^unknown backend 'none', expected one of") as caught:
        run_file(bundle, source, tmp_path / "out", backend="none")
    assert "Traceback" not in str(caught.value)


def test_without_a_connection(
    monkeypatch: pytest.MonkeyPatch, bundle: Path, source: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(DragomanError, match=r"found none: call ray\.init first"):
        run_file(bundle, source, tmp_path / "out")


def test_the_command(bundle: Path, tmp_path: Path, model: Model) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"dragoman\n\xff\n\nread")
    command = [sys.executable, "-m", "dragoman", "run-file", str(bundle), str(source)]
    options = ["-o", str(output), "--workers", "2", "--block-lines", "2", "--beams", "2"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    texts = [result.text for result in model.generate(["dragoman", "", "", "read"], num_beams=2)]
    texts[1] = ""
    assert output.read_text(encoding="utf-8") == "".join(f"{text}\n" for text in texts)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        "line 2: expected UTF-8 text: invalid start byte at byte 0"
    )
    again = subprocess.run([*command, *options], capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.startswith(f"Error: {output} already exists")
