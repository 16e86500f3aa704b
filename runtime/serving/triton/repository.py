"""Writes a model repository, complete or not at all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from dragoman.errors import DragomanError

from ...format.bundle import read_bundle
from ...format.writing import new_directory
from .config import MARK, Deployment, config_text

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.py"
VERSION = "1"
BUNDLE = "bundle"
"""The folder of a model's version that holds its bundle."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def write_repository(
    directories: Mapping[str, Path],
    destination: Path,
    deployment: Deployment,
    *,
    link: bool = False,
    overwrite: bool = False,
) -> None:
    """
    Args:
        directories: of bundles, by the name of the model
        link: whether the repository points to the bundles in place of holding copies

    Raises:
        DragomanError: a name is none that Triton serves; the destination exists (without
            `overwrite`), holds other things than such a repository, or cannot be written.
        BundleError: a directory is no bundle.
    """
    for name in directories:
        if not NAME.fullmatch(name):
            raise DragomanError(
                f"expected a name of letters, digits, _, - and ., found {name!r:.80}: choose one "
                "with --name"
            )
    manifests = {name: read_bundle(path).manifest for name, path in directories.items()}
    with new_directory(
        destination, overwrite=overwrite, kind="model repository", is_one=is_repository
    ) as directory:
        for name, bundle in directories.items():
            version = directory / name / VERSION
            version.mkdir(parents=True)
            text = config_text(name, manifests[name], deployment)
            (directory / name / CONFIG_FILE).write_text(text, encoding="utf-8")
            shutil.copyfile(Path(__file__).with_name(MODEL_FILE), version / MODEL_FILE)
            if link:
                (version / BUNDLE).symlink_to(bundle.resolve(), target_is_directory=True)
            else:
                _copy(bundle, version / BUNDLE)


def _copy(directory: Path, destination: Path) -> None:
    """All files, such as a signature, too."""
    for path in directory.rglob("*"):
        if path.is_file():
            copied = destination / path.relative_to(directory)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


def is_repository(directory: Path) -> bool:
    """Whether a directory holds models that `write_repository` wrote, and nothing else."""
    return all(_is_ours(path / CONFIG_FILE) for path in directory.iterdir())


def _is_ours(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.readline(len(MARK)) == MARK.encode()
    except OSError:
        return False
