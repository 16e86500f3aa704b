"""Puts the parts of a kit together on a machine without a network.

    python3 install.py [FOLDER...] --to TARGET

Takes whatever parts are in the folders (by default that of this script), in any order; verifies
them; unpacks every pack that is complete into TARGET; and says what is missing or damaged. Parts of
incomplete packs are kept in TARGET, so that the next run, with the next parts, continues.

Needs nothing but Python's standard library, and the file kit.json beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import lzma
import platform
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
COMPARISONS = {
    ">=": lambda sign: sign >= 0,
    "<=": lambda sign: sign <= 0,
    "==": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
    ">": lambda sign: sign > 0,
    "<": lambda sign: sign < 0,
}


class KitError(Exception):
    """A message for the user."""


class Target:
    """The folder that packs are installed into, with what is known about them in `.kit`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records = directory / ".kit"
        self.parts = self.records / "parts"
        self.parts.mkdir(parents=True, exist_ok=True)

    def has(self, pack: Mapping[str, Any]) -> bool:
        """Whether a pack is installed in exactly this version."""
        return bool(self._record(pack).get("sha256") == pack["sha256"])

    def install(self, pack: Mapping[str, Any], parts: Sequence[Path]) -> None:
        """Unpack a complete pack. What it holds appears only when all of it has been verified.

        Raises:
            KitError: the parts are not those of the pack.
        """
        unpacked = self.records / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            digest = unpack(parts, unpacked)
            if digest != pack["sha256"]:
                raise KitError(
                    f"{pack['name']}: expected SHA-256 {pack['sha256']} of all parts together, "
                    f"found {digest}"
                )
            self._replace(pack, unpacked)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        for part in pack["parts"]:
            (self.parts / part["file"]).unlink(missing_ok=True)

    def _replace(self, pack: Mapping[str, Any], unpacked: Path) -> None:
        """Move what was unpacked to its place, after removing an older version of it."""
        entries = sorted(path.name for path in unpacked.iterdir())
        file = self.records / f"{pack['name']}.json"
        for entry in [*self._record(pack).get("entries", []), *entries]:
            path = self.directory / entry
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        for entry in entries:
            (unpacked / entry).rename(self.directory / entry)
        file.write_text(json.dumps({"sha256": pack["sha256"], "entries": entries}) + "\n")

    def _record(self, pack: Mapping[str, Any]) -> dict[str, Any]:
        try:
            record = json.loads((self.records / f"{pack['name']}.json").read_text())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}


class Joined:
    """Parts read as one file, hashed on the way."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._blocks = blocks(parts)
        self._rest = b""
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """As a file's: fewer bytes than `size` at the end only."""
        while len(self._rest) < size and (block := next(self._blocks, b"")):
            self.hash.update(block)
            self._rest += block
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def blocks(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block


def unpack(parts: Sequence[Path], directory: Path) -> str:
    """Unpack joined parts. Returns the SHA-256 of all of them together.

    Raises:
        KitError: together they are no archive.
    """
    stream: Any = Joined(parts)
    try:
        with tarfile.open(fileobj=stream, mode="r|xz", bufsize=BLOCK) as archive:
            archive.extractall(directory, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise KitError(f"{parts[0].name} and on: expected a .tar.xz, found: {error}") from error
    while stream.read(BLOCK):
        pass
    return str(stream.hash.hexdigest())


def find_part(part: Mapping[str, Any], folders: Iterable[Path]) -> tuple[Path | None, str]:
    """The part in the first folder that has it whole; or None and what is wrong."""
    damage = ""
    for folder in folders:
        path = folder / part["file"]
        if not path.is_file():
            continue
        size = path.stat().st_size
        if size != part["size"]:
            damage = f"{path}: expected {part['size']} bytes, found {size}"
        elif (digest := sha256_of(path)) != part["sha256"]:
            damage = f"{path}: expected SHA-256 {part['sha256']}, found {digest}"
        else:
            return path, ""
    return None, damage


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add(pack: Mapping[str, Any], target: Target, folders: Sequence[Path]) -> list[str]:
    """Install a pack if all its parts are there.

    Returns:
        what is missing or damaged, a line each; nothing if the pack is now installed
    """
    found: list[Path] = []
    lines = []
    count = len(pack["parts"])
    for number, part in enumerate(pack["parts"], 1):
        path, damage = find_part(part, [*folders, target.parts])
        if path is not None:
            found.append(path)
        elif damage:
            lines.append(f"  damaged: {damage}: bring it again")
        else:
            lines.append(
                f"  missing: {part['file']} (part {number} of {count}, {part['size']} bytes)"
            )
    if lines:
        keep(found, target)
        return lines
    target.install(pack, found)
    return []


def keep(parts: Iterable[Path], target: Target) -> None:
    """Copy parts into the target: the folders they came in may be gone the next time."""
    for part in parts:
        kept = target.parts / part.name
        if part.parent != target.parts:
            partial = kept.with_suffix(".partial")
            shutil.copyfile(part, partial)
            partial.replace(kept)


def unmet(needs: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Requirements that the machine does not meet, a line each."""
    lines = []
    for name, accepted in needs.items():
        version = installed.get(normalized(name))
        if version is None:
            lines.append(f"  {name}: expected {accepted or 'any version'}, found none")
        elif not accepts(accepted, version):
            lines.append(f"  {name}: expected {accepted}, found {version}")
    return lines


def accepts(accepted: str, version: str) -> bool:
    """Whether a version is in a range such as ">=1.26,<3". Only the numbers are compared: 2.0rc1
    counts as 2.0.
    """
    found = numbers(version)
    for operator, bound in re.findall(r"([<>=!]+)([\d.]+)", accepted):
        pairs = list(zip_longest(found, numbers(bound), fillvalue=0))
        sign = next(((a > b) - (a < b) for a, b in pairs if a != b), 0)
        if not COMPARISONS[operator](sign):
            return False
    return True


def numbers(version: str) -> list[int]:
    match = re.match(r"[\d.]*\d", version)
    return [int(number) for number in match[0].split(".")] if match else []


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_versions(target: Path) -> dict[str, str]:
    """What the machine itself has, by normalized name."""
    paths = [path for path in sys.path if Path(path).resolve() != target.resolve()]
    versions: dict[str, str] = {}
    for distribution in metadata.distributions(path=paths):
        name = distribution.metadata["Name"]
        if name is not None:  # else the remains of what was removed by hand
            versions.setdefault(normalized(name), distribution.version)
    return versions


def missing_libraries(names: Iterable[str]) -> list[str]:
    """Libraries that are neither beside the machine's packages (as PyTorch brings CUDA's) nor known
    to the loader.
    """
    lines = []
    for name in names:
        if not any(next(Path(path).glob(f"nvidia/*/lib/{name}"), None) for path in sys.path):
            try:
                ctypes.CDLL(name)
            except OSError:
                lines.append(f"  {name}: found neither in nvidia/*/lib nor by the system's loader")
    return lines


def check_machine(kit: Mapping[str, Any]) -> None:
    """Raises KitError if the kit is for another kind of machine."""
    python = ".".join(platform.python_version_tuple()[:2])
    found = f"Python {python}, {platform.system()}, {platform.machine()}"
    expected = f"Python {kit['python']}, Linux, x86_64"
    if found != expected:
        raise KitError(f"expected {expected}, found {found}")


def read_kit(directory: Path) -> dict[str, Any]:
    """What the kit consists of."""
    file = directory / "kit.json"
    try:
        kit: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KitError(f"{file}: expected the list of the kit's parts, found {error}") from error
    return kit


def run(kit: Mapping[str, Any], folders: Sequence[Path], directory: Path) -> int:
    """Install what can be installed, and report. Returns the exit status: 0 if everything that is
    not optional is there and the machine has what it needs.
    """
    check_machine(kit)
    for folder in folders:
        if not folder.is_dir():
            raise KitError(f"{folder}: expected a folder with parts")
    target, installed = Target(directory), installed_versions(directory)
    complete = True
    for pack in kit["packs"]:
        optional = " (optional)" if pack["optional"] else ""
        title = f"{pack['name']}{optional}: {pack['purpose']}"
        if pack["unless"] and not unmet(pack["unless"], installed):
            has = ", ".join(f"{name} {installed[normalized(name)]}" for name in pack["unless"])
            print(f"{title}: not needed, the machine has {has}")
            continue
        lines = [] if target.has(pack) else add(pack, target, folders)
        print(f"{title}: {'incomplete' if lines else 'installed'}", *lines, sep="\n", flush=True)
        complete = complete and (not lines or pack["optional"])
    lines = unmet(kit["needs"], installed) + missing_libraries(kit["libraries"])
    if lines:
        print("The machine itself lacks:", *lines, sep="\n")
    print(f"To use what is installed: make gpu GPU_KIT={directory}")
    return 0 if complete and not lines else 1


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[here], help="with parts")
    parser.add_argument("--to", type=Path, required=True, help="the folder to install into")
    arguments = parser.parse_args()
    try:
        return run(read_kit(here), arguments.folders, arguments.to)
    except (KitError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
