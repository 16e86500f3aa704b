"""What the guide shows, a real Triton answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from dragoman.runtime import Model

pytestmark = pytest.mark.triton

PAGE = (Path(__file__).parents[4] / "docs" / "guides" / "triton.md").read_text("utf-8")
CURL = re.compile(r"^\$ curl localhost:8000(/\S+) -d '(.*)'$", re.MULTILINE)


def test_the_guide_has_commands() -> None:
    assert len(CURL.findall(PAGE)) == 2


@pytest.mark.parametrize(("path", "body"), CURL.findall(PAGE))
def test_curl(triton: Any, model: Callable[[str], Model], path: str, body: str) -> None:
    connection = HTTPConnection(triton.http, timeout=60)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    last = answer.read().strip().splitlines()[-1].removeprefix(b"data: ")
    connection.close()
    assert answer.status == 200
    options = json.loads(body)
    options.pop("stream", None)
    (expected,) = model("letters").generate([options.pop("text")], **options)
    assert json.loads(last)["text"] == expected.text


def test_the_client(
    triton: Any, model: Callable[[str], Model], capfd: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(code.replace("localhost:8001", triton.grpc), "guide", "exec"), {})  # noqa: S102
    tokens = [token.text for token in model("letters").stream("dragoman")]
    (expected,) = model("letters").generate(["dragoman"])
    *parts, last = capfd.readouterr().out.splitlines()
    assert len(parts) == len(tokens)
    assert last == f"{expected.text} {expected.finish_reason}"
