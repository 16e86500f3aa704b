"""A closed model frees what it holds, and says that it is closed."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dragoman.runtime import ClosedModelError, Model, Result, load
from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend
from dragoman.runtime.serving.engine.engine import DecodingEngine

STORED = Path(__file__).parent / "format" / "stored_bundle" / "bundle"
CLOSED = r"^the model is closed: load it again$"


def opened(threads: int = 1) -> Model:
    return load(STORED, threads=threads)


def sessions_of(model: Model) -> list[weakref.ref[Any]]:
    backend = model.backend
    assert isinstance(backend, OnnxRuntimeBackend)
    return [weakref.ref(session) for session in backend.sessions.values()]


def alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [found for found in (reference() for reference in references) if found is not None]


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of Linux")
def test_closing_ends_the_threads_of_the_sessions() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    opened().close()  # the library's own threads start with its first session
    before = count()
    models = [opened(threads=3) for _ in range(3)]
    assert count() >= before + 3 * 2 * 2  # two sessions each, which use the calling thread, too
    for model in models:
        model.close()
    assert count() == before


def test_closing_frees_sessions_that_unfinished_calls_have_used() -> None:
    model = opened()
    sessions, backend = sessions_of(model), model.backend
    stream = model.stream([3, 4, 5], min_new_tokens=6)
    next(stream)
    assert len(alive(sessions)) == 2
    model.close()
    assert not alive(sessions)
    assert isinstance(backend, OnnxRuntimeBackend)
    with pytest.raises(ClosedModelError, match=CLOSED):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(ClosedModelError, match=CLOSED):
        backend.session("attention")


def test_a_forgotten_model_is_closed() -> None:
    model = opened()
    model.generate([[3, 4]])
    sessions = sessions_of(model)
    del model
    assert not alive(sessions)


def test_a_stream_keeps_a_forgotten_model_open() -> None:
    model = opened()
    expected = list(model.stream([3, 4, 5]))
    assert len(expected) > 2
    assert list(opened().stream([3, 4, 5])) == expected


RESULT = Result(None, (3,), 0.0, "end")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **{name: ([3],) for name in ("tokenize", "detokenize", "stream", "attention")},
    **dict.fromkeys(("text_stream", "check_attention", "backend"), ()),
    "replace_unknown": ([3], RESULT),
    "token_text": (3,),
}
"""Arguments of the methods that do not take a list of inputs."""
REMAIN = {"bundle", "manifest", "close"}


@pytest.mark.parametrize("name", [n for n in vars(Model) if n[0] != "_" and n not in REMAIN])
def test_everything_public_of_a_closed_model_raises_one_error(name: str) -> None:
    with opened() as model:
        pass
    with pytest.raises(ClosedModelError, match=CLOSED):
        getattr(model, name)(*ARGUMENTS.get(name, ([],)))


def test_what_remains_of_a_closed_model() -> None:
    model = opened()
    with model:
        pass
    model.close()
    with model:
        assert model.manifest.name == "stored"
    assert model.bundle.directory == STORED


def test_threads_that_decode_while_a_model_is_closed_end_with_one_error() -> None:
    model, begun = opened(threads=2), threading.Barrier(5)

    def decode(calls: Callable[[], object]) -> str:
        calls()
        begun.wait(60)
        with pytest.raises(ClosedModelError) as caught:
            while True:
                calls()
        return str(caught.value)

    sources = [[3, 4, 5], [6], [7, 8]] * 4
    calls: list[Callable[[], object]] = [
        lambda: model.generate(sources),
        lambda: model.generate(sources, num_beams=3),
        lambda: list(model.stream([3, 4])),
        lambda: model.score([([3, 4], [5, 6])] * 5),
    ]
    sessions = sessions_of(model)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(decode, call) for call in calls]
        begun.wait(60)
        model.close()
        assert {each.result() for each in found} == {"the model is closed: load it again"}
    assert not alive(sessions)


def test_a_call_that_checks_its_inputs_while_the_model_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = opened()
    monkeypatch.setattr("dragoman.runtime.model.check_list", lambda inputs: model.close())
    with pytest.raises(ClosedModelError, match=CLOSED):
        model.score([([3, 4], [5, 6])])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_closes_its_copy_of_a_model() -> None:
    model = opened(threads=2)
    expected = model.generate([[3, 4, 5]])
    child = os.fork()
    if not child:
        same = model.generate([[3, 4, 5]]) == expected
        model.close()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert model.generate([[3, 4, 5]]) == expected


def test_what_holds_sessions_says_how_to_load_in_a_worker() -> None:
    with opened() as model:
        engine = DecodingEngine(model)
        for held in (model, model.backend, engine):
            name = type(held).__name__
            article = "an" if name.startswith("O") else "a"
            expected = (
                f"{article} {name} cannot be pickled: load the bundle in each worker, such as "
                r"ProcessPoolExecutor\(initializer=\.\.\.\)"
            )
            with pytest.raises(TypeError, match=f"^{expected}$"):
                pickle.dumps(held)
        engine.close()
