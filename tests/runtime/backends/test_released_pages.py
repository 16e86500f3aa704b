"""The pages of a mapped file are released, and read again where they are needed."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest

from dragoman.runtime.backends.onnxruntime.sessions import releasing_pages

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are resident"
)
SIZE = 1 << 20


def resident(file: Path) -> int:
    """The resident kB of the mappings of a file, as the kernel counts them."""
    blocks = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    own = [
        block for block in blocks if block.splitlines()[:1] and str(file) in block.split("\n")[0]
    ]
    return sum(int(size) for block in own for size in re.findall(r"(?m)^Rss: +(\d+) kB", block))


@pytest.mark.parametrize("name", ["weights.bin", "a name with spaces"])
def test_pages_are_released(name: str, tmp_path: Path) -> None:
    file, other = tmp_path / name, tmp_path / "other"
    for path in (file, other):
        path.write_bytes(b"\1" * SIZE)
    link = tmp_path / "link"
    link.symlink_to(file)
    whole = b"\1" * SIZE
    with file.open("rb") as opened, other.open("rb") as kept:
        earlier = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        assert earlier[:] == whole
        with releasing_pages(link):
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            untouched = mmap.mmap(kept.fileno(), 0, access=mmap.ACCESS_READ)
            assert mapped[:] == untouched[:] == whole
            assert (resident(file), resident(other)) == (2 * SIZE >> 10, SIZE >> 10)
        assert (resident(file), resident(other)) == (SIZE >> 10, SIZE >> 10)
        assert earlier[:] == mapped[:] == whole


def test_a_file_that_is_not_mapped_is_no_error(tmp_path: Path) -> None:
    with releasing_pages(tmp_path / "none"):
        pass
