"""What the project says about versions, in its metadata, constraints and workflows, agrees."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

import dragoman.tested_versions as tested

from .conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def pins(name: str) -> list[str]:
    """The lines of a file of constraints, without comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def test_the_package_names_what_it_was_tested_with() -> None:
    versions = tested.tested_versions()
    spelled = [pin.partition("==") for pin in pins("constraints.txt")]
    assert len(versions) == len(spelled) > 100
    for name, _, version in spelled:
        assert versions[canonicalize_name(name)] == version


def bounds(requirements: list[str]) -> Iterator[tuple[NormalizedName, str]]:
    for requirement in map(Requirement, requirements):
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                yield canonicalize_name(requirement.name), specifier.version


def test_the_lowest_versions_that_are_tested_are_those_that_are_admitted() -> None:
    """Each bound is the version in constraints-lowest.txt, as far as that has its package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (tested_extras,) = re.findall(r"^EXTRAS := (.*)$", makefile, re.MULTILINE)
    extras = project["optional-dependencies"]
    untested = {"cuda", "microphone", "ray", "tensorrt", "tensorrt-rtx"}
    assert {*tested_extras.split(",")} == extras.keys() - untested
    lowest = {
        canonicalize_name(name): Version(version)
        for name, _, version in (pin.partition("==") for pin in pins("constraints-lowest.txt"))
    }
    named = dict(bounds(project["dependencies"]))
    for extra in tested_extras.split(","):
        named |= bounds(extras[extra])
    assert len(named) > 25
    # The lowest release that a bound admits, such as 1.26.0 for >=1.26.
    assert {name: lowest[name] for name in named} == {
        name: Version(version) for name, version in named.items()
    }
    # The same package has the same bound in every extra.
    for extra in extras:
        assert {name: named.get(name, version) for name, version in bounds(extras[extra])} == dict(
            bounds(extras[extra])
        )


def test_the_workflow_tests_every_version_of_python_that_is_named() -> None:
    jobs = workflow(ROOT / ".github/workflows/ci.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == [*tested.TESTED_PYTHONS]
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in tested.TESTED_PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={tested.TESTED_PYTHONS[0]}"
    classifiers = [f"Programming Language :: Python :: {v}" for v in tested.TESTED_PYTHONS]
    assert [c for c in project["classifiers"] if re.search(r"[0-9]\.[0-9]+$", c)] == classifiers


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    steps = [step for job in workflow(path)["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    for command in commands:
        program, *arguments = command.split()
        assert program == "make"
        assert {word for word in arguments if "=" not in word} <= targets
