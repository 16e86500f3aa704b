"""From the package index to a folder that Python can import from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from dragoman.errors import DragomanError

PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
)
"""Linux on x86-64 with glibc 2.28 (2018) or newer; pip takes each of these by name only."""


def pinned_versions(constraints: Path) -> dict[str, str]:
    """Versions by normalized name, as a file of constraints pins them."""
    pins = re.findall(r"^([\w.-]+)==(\S+)$", constraints.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def requirement(name: str, pins: Mapping[str, str]) -> str:
    """A distribution in its pinned version; the newest one if no version is pinned."""
    version = pins.get(canonicalize_name(name))
    return f"{name}=={version}" if version else name


def download(requirements: Sequence[str], directory: Path, python: str) -> None:
    """Download wheels for another machine, without what they require.

    Args:
        python: its version, such as "3.12"

    Raises:
        DragomanError: pip failed; with what it says.
    """
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    _pip(
        *("download", "--only-binary", ":all:", "--no-deps", "--python-version", python),
        *("--implementation", "cp", *platforms, "--dest", str(directory), *requirements),
    )


def build(requirements: Sequence[str], directory: Path) -> None:
    """Build wheels of distributions in pure Python that the index has as sources only, or of
    folders.

    Raises:
        DragomanError: pip failed, or a wheel is not for every machine.
    """
    before = set(directory.glob("*.whl"))
    _pip("wheel", "--no-deps", "--wheel-dir", str(directory), *requirements)
    for wheel in set(directory.glob("*.whl")) - before:
        if not wheel.name.endswith("-none-any.whl"):
            raise DragomanError(f"expected a wheel of pure Python, found {wheel.name}")


def unpack(wheels: Iterable[Path], tree: Path) -> None:
    """Unpack wheels as an installer does, without their commands and data files.

    Raises:
        DragomanError: two of them have a file in common.
    """
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = _place(entry.filename)
                if entry.is_dir() or path is None:
                    continue
                target = tree / path
                if target.exists():
                    raise DragomanError(f"{wheel.name}: {path} is in another wheel too")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)


def _place(name: str) -> str | None:
    """Where a file of a wheel is installed; None: not at all."""
    data = re.fullmatch(r"[^/]+\.data/([^/]+)/(.+)", name)
    if data is None:
        return name
    return data[2] if data[1] in ("purelib", "platlib") else None


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((s for s in done.stderr.splitlines() if "ERROR" in s), done.stderr.strip())
        raise DragomanError(f"pip {arguments[0]}: {reason}")
