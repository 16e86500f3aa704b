"""What docs/guides/embedding-in-services.md says: its examples, pickling, and interrupts."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.reference_model import Transformer
from dragoman.runtime import (
    Alignment,
    Answer,
    Candidate,
    Classification,
    Filling,
    GenerationOptions,
    Model,
    ScoredLabel,
    Tag,
    Tagging,
    load,
    read_bundle,
)
from dragoman.runtime.backends.onnxruntime.cpu_state import HostState

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "embedding-in-services.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
WORDS = ["dragoman", "transformer"]


@pytest.fixture
def folder(
    text_case: tuple[Transformer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A working directory with the bundle that the examples load."""
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "g2p-en").symlink_to(text_case[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def expected(text_model: Model) -> list[str]:
    return [result.text or "" for result in text_model.generate(WORDS)]


def example(part: str) -> str:
    found: list[str] = [each for each in EXAMPLES if part in each]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "part", ["threads=2) as model:", "ThreadPoolExecutor(2)", "threading.Event()"]
)
def test_examples_of_one_process(
    part: str, folder: Path, expected: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    exec(example(part), {})  # noqa: S102
    assert capfd.readouterr().out.splitlines() == expected


def test_the_example_of_asyncio(
    folder: Path, expected: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    exec(example("asyncio.run"), {})  # noqa: S102
    *texts, streamed = capfd.readouterr().out.splitlines()
    assert (texts, streamed.split()) == (expected, expected[0].split())


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
def test_examples_of_web_frameworks(
    framework: str, folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    testclient = importlib.import_module(f"{framework}.testclient")
    service = types.ModuleType("service")
    exec(example("StreamingResponse"), vars(service))  # noqa: S102
    monkeypatch.setitem(sys.modules, "service", service)
    names = vars(service)
    if framework == "fastapi":
        names = {}
        exec(example("FastAPI"), names)  # noqa: S102
    with testclient.TestClient(names["app"], raise_server_exceptions=False) as client:
        found = [client.get("/pronounce", params={"word": word}).json() for word in WORDS]
        assert found == [{"text": text, "error": None} for text in expected]
        if framework == "starlette":
            streamed = client.get("/stream", params={"word": WORDS[0]})
            assert streamed.text.split() == expected[0].split()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize(("part", "count"), [("os.fork()", 1), ("initializer=start", 2)])
def test_examples_with_children(part: str, count: int, folder: Path, expected: list[str]) -> None:
    (folder / "example.py").write_text(example(part))
    found = subprocess.run(
        [sys.executable, "example.py"], capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == expected[:count]


def test_the_application_for_gunicorn(folder: Path, expected: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(example("start_response"), names)  # noqa: S102
    answers: list[str] = []
    query = {"QUERY_STRING": "word=dragoman&word=transformer"}
    (body,) = names["application"](query, lambda status, headers: answers.append(status))
    assert (answers, json.loads(body)) == (["200 OK"], expected)


def test_progress_is_reported_to_the_object_of_the_guide() -> None:
    names: dict[str, Any] = {}
    exec(example("def advance"), names)  # noqa: S102
    shown = names["Printed"]()
    shown.stage("exporting")
    shown.advance(1, 2)


def test_results_options_and_bundles_are_pickled(text_model: Model) -> None:
    results: list[Any] = [
        *text_model.generate(WORDS, num_beams=3, num_return_sequences=2, alternatives=2),
        *text_model.score(list(zip(WORDS, WORDS, strict=True))),
        *text_model.stream(WORDS[0]),
        *text_model.generate(["!"]),
        GenerationOptions(num_beams=3, must_contain=["abc"]),
        Alignment(("a",), ("b",), ((0, 0),)),
        Answer(error="too long"),
        Classification((ScoredLabel("good", 0.9),), truncated=True),
        Filling("Paris", ((Candidate(3, "Paris", 0.9),),)),
        Tagging((Tag("LOC", 0.9, 0, 5, "Paris"),)),
    ]
    assert pickle.loads(pickle.dumps(results)) == results  # noqa: S301
    assert copy.deepcopy(results) == results
    bundle = pickle.loads(pickle.dumps(text_model.bundle))  # noqa: S301
    assert bundle == read_bundle(text_model.bundle.directory)
    with load(bundle, threads=1) as model:
        assert model.generate(WORDS) == text_model.generate(WORDS)


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.generate(WORDS),
        lambda model: model.generate(WORDS, num_beams=2),
        lambda model: list(model.stream(WORDS[0])),
    ],
)
def test_an_interrupt_leaves_the_model_usable(
    call: Callable[[Model], object], text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C in a terminal, and interrupting the kernel of a notebook, which send SIGINT."""
    expected, steps = call(text_model), iter(range(10))
    with monkeypatch.context() as patch:
        for name in ("step", "advance"):
            method = getattr(HostState, name)

            def interrupted(state: HostState, method: Any = method) -> Any:
                if next(steps) == 2:
                    signal.raise_signal(signal.SIGINT)
                return method(state)

            patch.setattr(HostState, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(text_model)
    assert next(steps) == 3
    assert call(text_model) == expected
