"""The versions that Dragoman requires, that are installed, and that this release was tested with.

`tested_versions.txt` is the repository's `constraints.txt`, which all tests ran with: a link in the
repository, a copy in the wheel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata, resources

TESTED_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that the tests ran on."""


def tested_versions() -> dict[str, str]:
    """Return the version of each package that this release of Dragoman was tested with.

    Returns:
        Versions by the names of distributions, normalized as in PEP 503: `huggingface-hub`. They
        include the packages of all extras, and those that only development needs.
    """
    text = resources.files(__package__).joinpath("tested_versions.txt").read_text(encoding="utf-8")
    pins = (line.partition("#")[0].strip().split("==") for line in text.splitlines())
    return {normalized(pin[0]): pin[1] for pin in pins if len(pin) == 2}


def normalized(name: str) -> str:
    """Return a distribution's name in the form of PEP 503, which all spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Package:
    """A distribution that Dragoman requires, always or for extras."""

    name: str
    """Normalized name."""
    extras: tuple[str, ...]
    """Extras that require it; empty: it is always required."""
    versions: str
    """The stated range, such as ">=1.28"."""
    installed: str | None
    """The installed version; None: it is not installed."""
    tested: str
    """The version that this release was tested with; empty if there is none."""

    @property
    def allowed(self) -> bool:
        """Whether the installed version is in the stated range."""
        from packaging.specifiers import SpecifierSet

        return self.installed is not None and SpecifierSet(self.versions).contains(
            self.installed, prereleases=True
        )

    @property
    def as_tested(self) -> bool:
        """Whether the installed version is allowed and the tested one, of whatever build."""
        return self.allowed and (self.installed or "").partition("+")[0] == self.tested


def required_packages(distribution: metadata.Distribution) -> list[Package]:
    """Return what a distribution requires: first what it always does, then what its extras do."""
    from packaging.requirements import Requirement

    tested = tested_versions()
    extras: dict[str, list[str]] = {}
    versions: dict[str, set[str]] = {}
    names = distribution.metadata.get_all("Provides-Extra") or []
    for requirement in map(Requirement, distribution.requires or []):
        name, marker = normalized(requirement.name), requirement.marker
        of = [extra for extra in names if marker and marker.evaluate({"extra": extra})]
        if of or marker is None or marker.evaluate({"extra": ""}):
            always = marker is None or marker.evaluate({"extra": ""})
            extras.setdefault(name, []).extend([] if always else of)
            versions.setdefault(name, set()).update(map(str, requirement.specifier))
    return [
        Package(
            name,
            tuple(of),
            ",".join(sorted(versions[name], reverse=True)),
            installed_version(name),
            tested.get(name, ""),
        )
        for name, of in sorted(extras.items(), key=lambda item: (bool(item[1]), item[0]))
    ]


def installed_version(name: str) -> str | None:
    """Return the version of a distribution; None: it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
