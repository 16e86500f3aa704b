"""Speech whose model dates its output unasked is compared with the oracle in its first window."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.runtime import Model, Result
from dragoman.runtime.decoding.results import Token
from dragoman.verification.checks import tokens
from dragoman.verification.checks.tokens import bundle_outputs, results_of_first_windows


@pytest.mark.parametrize("speech", [None, "windows"])
def test_outputs_that_differ_are_decoded_in_one_window(
    speech: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed: list[Any] = []

    def stream(source: Any, options: None, *, max_new_tokens: int) -> list[Token]:
        streamed.append((source, max_new_tokens))
        return [Token(5, "a", -0.5), Token(9, "", -0.25, is_end=True)]

    model = cast(Model, SimpleNamespace(manifest=SimpleNamespace(speech=speech), stream=stream))
    monkeypatch.setattr(tokens, "greedy_options", lambda manifest: None)
    same = Result("b", (7,), -0.1, "end", end_token=9)
    longer = Result("a b", (5, 7, 7), -2.0, "end", end_token=9)
    found = results_of_first_windows(model, [[1], [2]], [[7, 9], [5, 9]], [same, longer], 4)
    if speech is None:
        assert found == [same, longer] and streamed == []
        return
    assert streamed == [([2], 4)]
    assert bundle_outputs(found) == [[7, 9], [5, 9]]
    assert (found[0], found[1].log_probability) == (same, -0.75)
