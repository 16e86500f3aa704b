"""Makes a kit: the parts of every pack, the list of them with their hashes, the script."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.runtime.format.writing import new_directory

from . import install
from .contents import LIBRARIES, PACKS, PART_BYTES, Pack
from .needs import Distribution, distributions, group_requirements, needs
from .packing import pack
from .wheels import build, download, pinned_versions, requirement, unpack

FILES = ("constraints.txt", "pyproject.toml")
CLIPS = Path("tests/real/clips")


def make_kit(
    project: Path,
    directory: Path,
    *,
    python: str,
    packs: Iterable[Pack] = PACKS,
    part_bytes: int = PART_BYTES,
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Write a kit into a new directory.

    Args:
        project: the repository
        python: version of the machine's Python, such as "3.12"
        progress: called with a description of each stage as it begins

    Returns:
        what is written as `kit.json`

    Raises:
        DragomanError: a package cannot be downloaded or built, versions do not fit each other, the
            project is not the repository, or the directory exists.
    """
    packs = list(packs)
    missing = [name for name in FILES if not (project / name).is_file()]
    if missing:
        raise DragomanError(f"{project}: expected the repository, found no {missing[0]}")
    if directory.exists():
        raise DragomanError(f"expected a new directory, found {directory}")
    with new_directory(directory) as unfinished, tempfile.TemporaryDirectory() as workspace:
        trees = {p.name: Path(workspace) / p.name for p in packs}
        for p in packs:
            progress(f"collecting {p.name}")
            _collect(p, trees[p.name], project, python)
        _check_apart(trees)
        held = {p.name: distributions(trees[p.name]) for p in packs}
        everything = [distribution for found in held.values() for distribution in found]
        more = group_requirements(project / "pyproject.toml")
        kit: dict[str, Any] = {
            "python": python,
            "needs": needs(everything, more, python),
            "libraries": list(LIBRARIES),
            "packs": [],
        }
        for p in packs:
            progress(f"packing {p.name}")
            kit["packs"].append(_packed(p, trees[p.name], held[p.name], unfinished, part_bytes))
        shutil.copyfile(str(install.__file__), unfinished / "install.py")
        (unfinished / "kit.json").write_text(json.dumps(kit, indent=1) + "\n", encoding="utf-8")
    return kit


def _collect(pack: Pack, tree: Path, project: Path, python: str) -> None:
    """Everything that a pack holds, as it will be installed."""
    tree.mkdir()
    pins = pinned_versions(project / "constraints.txt")
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder)
        if pack.wheels:
            download([requirement(name, pins) for name in pack.wheels], wheels, python)
        sources = [str(project) if s == "." else requirement(s, pins) for s in pack.sources]
        if sources:
            build(sources, wheels)
        unpack(sorted(wheels.glob("*.whl")), tree)
    if pack.model:
        from ...real_models import whisper

        shutil.copytree(whisper(pack.model), tree / f"whisper-{pack.model}")
        shutil.copytree(project / CLIPS, tree / "clips")


def _check_apart(trees: dict[str, Path]) -> None:
    """Packs are installed one by one: a package in two of them would be replaced as a whole."""
    owners: dict[str, str] = {}
    for name, tree in trees.items():
        for path in tree.iterdir():
            if owner := owners.get(path.name):
                raise DragomanError(f"{path.name} is in the packs {owner} and {name}")
            owners[path.name] = name


def _packed(
    p: Pack, tree: Path, held: list[Distribution], directory: Path, part_bytes: int
) -> dict[str, Any]:
    packed = pack(tree, directory, p.name, part_bytes)
    return {
        "name": p.name,
        "purpose": p.purpose,
        "optional": p.optional,
        "unless": dict(p.unless),
        "holds": {distribution.name: distribution.version for distribution in held},
        "size": packed.size,
        "sha256": packed.sha256,
        "parts": [part._asdict() for part in packed.parts],
    }
