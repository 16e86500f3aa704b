"""The server's loggers write to standard error, wherever that leads at the moment."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from dragoman.errors import DragomanError
from dragoman.runtime.serving import arrangement
from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.options import ListenOptions, ServerOptions
from dragoman.runtime.serving.process import LOGGERS, bind, json_logs, run_app

NAMES = pytest.mark.parametrize("name", LOGGERS)


def states() -> list[object]:
    loggers = map(logging.getLogger, LOGGERS)
    return [(list(each.handlers), each.propagate, each.level) for each in loggers]


@NAMES
def test_standard_error_that_is_replaced_and_closed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As pytest does with it after each test, and whoever redirects it."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    with json_logs():
        logging.getLogger(name).info("one", extra={"status": 200})
        lines = first.getvalue()
        monkeypatch.setattr(sys, "stderr", second)
        first.close()
        logging.getLogger(name).info("two")
    assert json.loads(lines)["status"] == 200
    assert json.loads(second.getvalue())["event"] == "two"


def test_loggers_are_as_before_when_the_server_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuses_to_start(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no memory"})

    before, error, listen = states(), io.StringIO(), ListenOptions(port=0)
    monkeypatch.setattr(sys, "stderr", error)
    with pytest.raises(DragomanError, match="the server could not start"):
        run_app(refuses_to_start, bind(listen), listen)
    assert states() == before
    assert "no memory" in [json.loads(line)["event"] for line in error.getvalue().splitlines()]


def test_a_bundle_that_does_not_load_is_one_line_of_the_log(
    bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DragomanError("letters gives other tokens")

    error = io.StringIO()
    monkeypatch.setattr(arrangement, "load", refuse)
    monkeypatch.setattr(sys, "stderr", error)
    app, listen = create_app({"letters": bundle("letters")}, ServerOptions()), ListenOptions(port=0)
    with pytest.raises(DragomanError, match="the server could not start"):
        run_app(app, bind(listen), listen)
    events = [json.loads(line)["event"] for line in error.getvalue().splitlines()]
    assert "letters cannot be loaded: letters gives other tokens" in events
    assert not any("Traceback" in event for event in events)
