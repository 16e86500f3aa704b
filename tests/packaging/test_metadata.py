"""What a package index shows: links that lead somewhere, versions of Python, licences."""

from __future__ import annotations

import re
from email import message_from_bytes
from email.message import Message

import pytest

import dragoman
from dragoman.tested_versions import TESTED_PYTHONS

from .conftest import ROOT, Contents

pytestmark = pytest.mark.dist

LINK = re.compile(r"\]\(([^)]+)\)")
PYTHON = "Programming Language :: Python :: "


def metadata_of(contents: Contents) -> Message:
    (name,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(contents[name])


@pytest.fixture(scope="module")
def metadata(wheel: Contents) -> Message:
    return metadata_of(wheel)


@pytest.fixture(scope="module")
def models_metadata(models_wheel: Contents) -> Message:
    return metadata_of(models_wheel)


def urls(metadata: Message) -> dict[str, str]:
    pairs = (entry.partition(", ") for entry in metadata.get_all("Project-URL", []))
    return {label: url for label, _, url in pairs}


def licences(contents: Contents) -> set[str]:
    return {name.partition("/licenses/")[2] for name in contents if "/licenses/" in name}


def test_links_of_the_description_are_absolute_and_those_of_readme(metadata: Message) -> None:
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    text = payload.decode()
    folder = f"{urls(metadata)['Source']}/blob/v{dragoman.__version__}/"
    links = LINK.findall(text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert text.replace(folder, "").strip() == (ROOT / "README.md").read_text("utf-8").strip()


def test_urls_share_one_repository_and_lead_to_files(
    metadata: Message, models_metadata: Message
) -> None:
    found = urls(metadata)
    assert {"Source", "Documentation", "Changelog", "Issues"} == set(found)
    assert urls(models_metadata).items() <= found.items()
    source = found["Source"]
    assert all(url.startswith(source) for url in found.values())
    for label in ("Documentation", "Changelog"):
        assert (ROOT / found[label].removeprefix(f"{source}/blob/main/")).is_file()


def test_versions_of_python_are_those_that_are_tested(metadata: Message) -> None:
    classifiers = metadata.get_all("Classifier", [])
    versions = [name.removeprefix(PYTHON) for name in classifiers if name.startswith(PYTHON)]
    assert [version for version in versions if "." in version] == [*TESTED_PYTHONS]
    assert "Typing :: Typed" in classifiers
    assert metadata["Author"]


def test_licences_are_those_of_what_is_inside(
    metadata: Message, models_metadata: Message, wheel: Contents, models_wheel: Contents
) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert licences(wheel) == {"LICENSE"}
    expression = "Apache-2.0 AND LicenseRef-CMUdict AND LicenseRef-Public-Domain"
    assert models_metadata["License-Expression"] == expression
    data = {name.partition("/")[2] for name in models_wheel if "/LICENSE-" in name}
    assert len(data) > 2
    assert licences(models_wheel) == {"LICENSE"} | {
        name for name in data if not name.startswith("licenses/")
    }
    (licence,) = (name for name in models_wheel if name.endswith("/licenses/LICENSE"))
    assert models_wheel[licence] == (ROOT / "LICENSE").read_bytes()


def test_only_requirements_of_users_are_published(
    metadata: Message, models_metadata: Message
) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "audio",
        "cpu",
        "cuda",
        "detect",
        "export",
        "html",
        "metrics",
        "microphone",
        "openvino",
        "pictures",
        "polygraphy",
        "ray",
        "report",
        "sentencepiece",
        "sentences",
        "serve",
        "sign",
        "tensorboard",
        "tensorrt",
        "tensorrt-rtx",
        "train",
        "vad",
        "verify",
    }
    assert models_metadata.get_all("Requires-Dist") is None
