"""`dragoman doctor`: a page for reports of bugs, and an exit status for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from dragoman import __version__, tested_versions
from dragoman.api.doctor import Examination, Fact, Finding
from dragoman.tested_versions import Package

Dragoman = Callable[..., CompletedProcess[str]]

FOUND = Examination(
    (Fact("Versions", "Dragoman", __version__), Fact("Machine", "processor", "Some\x1b CPU")),
    (
        Package("numpy", (), ">=1.26", "2.4.6", "2.4.6"),
        Package("torch", ("export",), ">=2.9", "2.13.0+cpu", "2.13.0"),
        Package("onnx", ("export",), ">=1.20", "1.19.0", "1.23.2"),
        Package("ray", ("ray",), ">=2.60", None, "2.60.0"),
    ),
    (
        Finding("error", "onnx 1.19.0 is outside of the stated range >=1.20", "pip install onnx"),
        Finding("error", "something else"),
        Finding("note", "PyTorch is large"),
    ),
)
PAGE = f"""\
### Versions
- Dragoman: {__version__}
- as tested: torch 2.13.0+cpu (>=2.9)

| package | installed | required | tested with |
| ------- | --------- | -------- | ----------- |
| numpy   | 2.4.6     | >=1.26   | 2.4.6       |
| onnx    | 1.19.0    | >=1.20   | 1.23.2      |

### Machine
- processor: Some\\x1b CPU

### Notes
- PyTorch is large

### What is wrong
- onnx 1.19.0 is outside of the stated range >=1.20
  mend: pip install onnx
- something else
"""


def test_the_page(dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.doctor.examine", lambda bundles: FOUND)
    outcome = dragoman("doctor")
    assert (outcome.stdout, outcome.stderr, outcome.returncode) == (PAGE, "", 1)


def test_nothing_is_wrong(dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = Examination(FOUND.facts, FOUND.packages, FOUND.findings[2:])
    monkeypatch.setattr("dragoman.cli.doctor.examine", lambda bundles: healthy)
    outcome = dragoman("doctor")
    assert outcome.stdout.endswith("\n### What is wrong\nNothing.\n")
    assert outcome.returncode == 0
    values = json.loads(dragoman("doctor", "--json").stdout)
    assert values["healthy"] is True
    assert values["findings"] == [{"kind": "note", "problem": "PyTorch is large", "mend": ""}]


def test_this_machine(spawn: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    """One page. PyTorch, whose import takes seconds, is not imported."""
    missing = tmp_path / "missing"
    prelude = "sys.modules['torch'] = None"
    outcome = spawn("doctor", missing, prelude=prelude)
    lines = outcome.stdout.splitlines()
    assert outcome.returncode == 1 and outcome.stderr == ""
    assert 20 < len(lines) <= 60
    assert f"- {missing} does not exist" in lines
    assert any(line.startswith("| onnxruntime") for line in lines)
    assert f"| {tested_versions.tested_versions()['onnxruntime']} " in outcome.stdout


def test_reports_of_bugs_ask_for_the_page() -> None:
    folder = Path(__file__).parents[2] / ".github" / "ISSUE_TEMPLATE"
    form = yaml.safe_load((folder / "bug.yml").read_text())
    fields = {field["id"]: field for field in form["body"]}
    assert "`dragoman doctor`" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"] is True
