"""What the machine must have besides the kit, by the metadata of everything in the kit."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from dragoman.errors import DragomanError

from .contents import EXTRAS, GROUPS

PROJECT = "dragoman"
OPERATORS = frozenset({">=", ">", "<=", "<", "==", "!="})
"""Those that `install` compares, which has nothing but the standard library."""


class Distribution(NamedTuple):
    name: str
    version: str
    requires: tuple[str, ...]


def distributions(tree: Path) -> list[Distribution]:
    """Everything that is installed in a folder, sorted by name."""
    found = []
    for file in sorted(tree.glob("*.dist-info/METADATA")):
        metadata = HeaderParser().parsestr(file.read_text(encoding="utf-8"))
        requires = tuple(metadata.get_all("Requires-Dist", []))
        name = canonicalize_name(str(metadata["Name"]))
        found.append(Distribution(name, str(metadata["Version"]), requires))
    return sorted(found)


def group_requirements(pyproject: Path) -> list[str]:
    """The requirements of the dependency groups in `GROUPS`."""
    groups = tomllib.loads(pyproject.read_text(encoding="utf-8"))["dependency-groups"]
    return [requirement for group in GROUPS for requirement in groups[group]]


def needs(kit: Iterable[Distribution], more: Iterable[str], python: str) -> dict[str, str]:
    """Accepted versions by name of everything that is required and not in the kit.

    Args:
        more: requirements besides those of the distributions
        python: version of the machine's Python, such as "3.12"

    Raises:
        DragomanError: the kit has a version that something in it does not accept, or a version is
            required in a way that the script on the machine cannot compare.
    """
    present: dict[str, str] = {d.name: d.version for d in kit}
    accepted: dict[str, SpecifierSet] = {}
    for origin, requirement in _requirements(kit, more, python):
        name = canonicalize_name(requirement.name)
        if name not in present:
            accepted[name] = accepted.get(name, SpecifierSet()) & requirement.specifier
        elif not requirement.specifier.contains(present[name], prereleases=True):
            raise DragomanError(f"{origin} needs {requirement}, found {name} {present[name]}")
    for required, specifiers in accepted.items():
        for specifier in specifiers:
            number = re.fullmatch(r"\d+(\.\d+)*", specifier.version)
            if specifier.operator not in OPERATORS or not number:
                raise DragomanError(
                    f"{required}{specifier}: expected plain numbers to compare with"
                )
    return {name: _text(specifiers) for name, specifiers in sorted(accepted.items())}


def _requirements(
    kit: Iterable[Distribution], more: Iterable[str], python: str
) -> Iterator[tuple[str, Requirement]]:
    """Those that hold on the machine, each with who requires it."""
    environment = {
        "implementation_name": "cpython",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "os_name": "posix",
        "sys_platform": "linux",
    }
    for distribution in kit:
        extras = ("", *EXTRAS) if distribution.name == PROJECT else ("",)
        for text in distribution.requires:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate(environment | {"extra": e}) for e in extras):
                yield distribution.name, requirement
    for text in more:
        yield "pyproject.toml", Requirement(text)


def _text(specifiers: SpecifierSet) -> str:
    """Of several lower bounds, the highest alone."""
    bounds = [Version(s.version) for s in specifiers if s.operator == ">="]
    kept = {str(s) for s in specifiers if s.operator != ">=" or Version(s.version) == max(bounds)}
    return ",".join(sorted(kept, reverse=True))
