"""Captures of CUDA graphs, and what other threads may do meanwhile."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle, GenerationOptions, Model, Token, read_bundle
from dragoman.runtime.backends.cuda import Device
from dragoman.runtime.backends.cuda.backend import DeviceBackend
from dragoman.runtime.backends.interface import BackendError, Steps
from dragoman.runtime.backends.onnxruntime import cuda as provider_backend
from dragoman.runtime.backends.tensorrt import backend as tensorrt_backend
from dragoman.runtime.backends.tensorrt import workspace as tensorrt_workspace
from dragoman.runtime.serving.engine.engine import DecodingEngine
from dragoman.runtime.serving.engine.request_handle import DecodingHandle

from ... import provider_double
from ...device_double import UNSAFE, DoubleDevice
from ...tensorrt_double import CONTEXT_BYTES
from .conftest import Open
from .gpu_models import CAPACITY, ENGINES, opened, same

Case = tuple[Transformer, Path]
Sources = Callable[..., list[list[int]]]

runtime: Any = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")


class Recorded:
    """The functions of the CUDA runtime: they succeed, and their calls are recorded."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("cudaError_t", "cudaStreamCaptureMode"):
            return getattr(runtime, name)

        def call(*arguments: Any) -> tuple[Any, int]:
            self.calls.append((name, *arguments))
            return runtime.cudaError_t.cudaSuccess, 1

        return call


def test_each_thread_selects_the_device_and_ignores_captures_of_others() -> None:
    device, cuda = Device(), Recorded()
    device._cuda = cuda
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    selected = ("cudaSetDevice", 0)

    def work() -> None:
        device.synchronize(7)
        device.enter()
        device.begin_capture(7)

    for _ in range(2):
        cuda.calls.clear()
        thread = Thread(target=work)
        thread.start()
        thread.join()
        assert cuda.calls == [
            selected,
            ("cudaThreadExchangeStreamCaptureMode", mode),
            ("cudaStreamSynchronize", 7),
            selected,
            selected,
            ("cudaStreamBeginCapture", 7, mode),
        ]


def steps_of(model: Model) -> Steps:
    backend = model.backend
    assert isinstance(backend, DeviceBackend)
    return backend.steps


def alive(device: DoubleDevice, size: int) -> int:
    """The number of blocks of this size."""
    return sum(block.size == size for block in device.blocks.values())


def in_another_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()


def meanwhile(device: DoubleDevice, work: Callable[[], object]) -> None:
    """Do work in another thread during every capture."""

    def interrupt(name: str) -> None:
        if name == "captured run":
            in_another_thread(work)

    device.refuse = interrupt


def unsafe_call(device: DoubleDevice, name: str) -> Callable[[], object]:
    """A call with arguments that are valid, once."""
    stream, event = device.new_stream(), device.new_event()
    device.record(event, stream)
    arguments: dict[str, Any] = {
        "allocate": 7,
        "allocate_host": 7,
        "wait": event,
        "free": device.allocate(7),
        "free_host": device.allocate_host(7),
        "synchronize": stream,
        "free_stream": stream,
    }
    given = [arguments[name]] if name in arguments else []
    return functools.partial(getattr(device, name), *given)


@pytest.fixture
def provider(ids_case: Case, device: DoubleDevice) -> Model:
    """A model on the double of ONNX Runtime's CUDA provider."""
    return provider_double.opened(read_bundle(ids_case[1]), device)


def test_threads_allocate_and_wait_while_another_one_captures(
    provider: Model, ids_model: Model, device: DoubleDevice
) -> None:
    stream, event = device.new_stream(), device.new_event()
    device.record(event, stream)

    def work() -> None:
        device.free(device.allocate(7))
        device.free_host(device.allocate_host(7))
        device.wait(event)
        device.synchronize(stream)
        device.free_stream(device.new_stream())
        device.free_memory()

    meanwhile(device, work)
    same(
        provider.generate([[3, 4]] * 3, max_new_tokens=CAPACITY),
        ids_model.generate([[3, 4]] * 3, max_new_tokens=CAPACITY),
    )
    assert steps_of(provider).direct == 0
    assert steps_of(provider).captured > 0


@pytest.mark.parametrize("name", sorted(UNSAFE))
def test_a_thread_that_has_not_entered_fails_and_so_does_the_capture(
    name: str,
    provider: Model,
    ids_model: Model,
    device: DoubleDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The double refuses what CUDA refuses; the batch goes on without a graph."""
    refused, call = [], unsafe_call(device, name)

    def work() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DoubleDevice, "enter", lambda self: None)
            with pytest.raises(BackendError, match="cudaErrorStreamCaptureUnsupported") as error:
                call()
        refused.append(error)

    meanwhile(device, work)
    same(
        provider.generate([[3, 4]], max_new_tokens=CAPACITY),
        ids_model.generate([[3, 4]], max_new_tokens=CAPACITY),
    )
    assert len(refused) == 1
    assert steps_of(provider).captured == 0
    assert "cudaErrorStreamCaptureInvalidated" in caplog.text


@pytest.mark.parametrize("name", sorted(UNSAFE))
def test_the_capturing_thread_itself_is_refused_too(name: str, device: DoubleDevice) -> None:
    call, stream = unsafe_call(device, name), device.new_stream()
    device.begin_capture(stream)
    with pytest.raises(BackendError, match="cudaErrorStreamCaptureUnsupported"):
        call()
    with pytest.raises(BackendError, match="cudaErrorStreamCaptureInvalidated"):
        device.clear(7, 7, stream)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(BackendError, match="cudaErrorStreamCaptureWrongThread"),
    ):
        executor.submit(device.end_capture, stream).result()
    with pytest.raises(BackendError, match="cudaErrorStreamCaptureInvalidated"):
        device.end_capture(stream)
    assert not device.capturing
    call()


def test_three_threads_capture_all_their_steps(
    provider: Model,
    ids_case: Case,
    ids_model: Model,
    random_sources: Sources,
    device: DoubleDevice,
    caplog: pytest.LogCaptureFixture,
) -> None:
    batches = [random_sources(ids_case[0].config, 1 + seed % 7, seed=seed) for seed in range(24)]
    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(lambda s: provider.generate(s, max_new_tokens=CAPACITY), batches))
    for one, sources in zip(found, batches, strict=True):
        same(one, ids_model.generate(sources, max_new_tokens=CAPACITY))
    assert steps_of(provider).direct == 0
    assert not caplog.records
    provider.close()
    device.assert_empty()


def fail(device: DoubleDevice, times: int) -> None:
    """Let this number of captures fail."""
    calls = iter(range(times))

    def refuse(name: str) -> None:
        for capture in list(device.capturing.values()):
            last = "captured run" if capture.mode == "global" else "end_capture"
            if name != last or next(calls, None) is None:
                continue
            if name == "end_capture":
                device.capturing.clear()
            raise BackendError("CUDA failure 901: a call of another thread is not permitted")

    device.refuse = refuse


@pytest.mark.parametrize("times", [2, 3])
def test_failed_captures_are_logged_once_counted_and_tried_again_in_later_batches(
    model: Model,
    ids_model: Model,
    device: DoubleDevice,
    caplog: pytest.LogCaptureFixture,
    times: int,
) -> None:
    fail(device, times)
    expected = ids_model.generate([[3, 4]], max_new_tokens=CAPACITY)
    for _ in range(5):
        same(model.generate([[3, 4]], max_new_tokens=CAPACITY), expected)
    assert device.log.count("begin_capture") == 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "could not be captured as a CUDA graph: " in record.message
    assert "CUDA failure 901: a call of another thread" in record.message
    captured, direct = steps_of(model)
    assert direct >= times * len(expected[0].tokens)
    assert (captured > 0) is (times < 3)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dragoman"):
        model.close()
        model.close()
    (record,) = caplog.records
    assert record.message == f"decoding steps: {captured} as CUDA graphs, {direct} directly"
    device.assert_empty()


def test_an_interrupted_capture_is_ended(
    engines: Bundle, ids_model: Model, device: DoubleDevice, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = opened(engines, device)

    def interrupt(name: str) -> None:
        if name == "execute" and device.capturing:
            raise KeyboardInterrupt

    device.refuse = interrupt
    with pytest.raises(KeyboardInterrupt):
        model.generate([[3, 4]], max_new_tokens=CAPACITY)
    device.refuse = lambda name: None
    assert not device.capturing
    same(
        model.generate([[3, 4]], max_new_tokens=CAPACITY),
        ids_model.generate([[3, 4]], max_new_tokens=CAPACITY),
    )
    model.close()
    device.assert_empty()


def test_one_decoding_loop_holds_the_weights_once(
    provider: Model,
    ids_case: Case,
    ids_model: Model,
    random_sources: Sources,
    device: DoubleDevice,
) -> None:
    """Requests that are admitted to a running batch use its stream and its sessions."""
    sources = random_sources(ids_case[0].config, 30, seed=1)
    options = [GenerationOptions(max_new_tokens=3 + 5 * i % 9) for i in range(len(sources))]
    engine = DecodingEngine(provider, batch_size=4)
    handles = []
    for request in zip(sources, options, strict=True):
        handle = engine.prepare(*request)
        assert isinstance(handle, DecodingHandle)
        engine.submit(handle)
        handles.append(handle)
    found = [handle.future.result() for handle in handles]
    same(found, ids_model.generate(sources, options))
    assert "copy_2d" in device.log  # some were admitted
    assert alive(device, provider_double.WEIGHTS) == len(provider.manifest.graphs)
    assert device.log.count("new_stream") == 1
    engine.close()
    device.assert_empty()


def test_a_batch_goes_on_in_another_thread_beside_those_of_its_stream(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    sources = [[3, 4, 5], [6, 7]]
    options = GenerationOptions(max_new_tokens=CAPACITY, min_new_tokens=9)
    expected = [list(ids_model.stream(source, options)) for source in sources]
    streams = [model.stream(source, options) for source in sources]
    begun = [next(stream) for stream in streams]
    assert len(device.streams) == 1
    with ThreadPoolExecutor(2) as executor:
        rest: list[list[Token]] = list(executor.map(list, streams))
    for first, others, tokens in zip(begun, rest, expected, strict=True):
        assert [token.id for token in (first, *others)] == [token.id for token in tokens]
    model.close()
    device.assert_empty()


def test_garbage_is_not_collected_during_a_capture(
    engines: Bundle, ids_model: Model, device: DoubleDevice, tmp_path: Path, monkeypatch: Any
) -> None:
    """A finalizer may free the memory of another model, in whatever thread."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = opened(engines, device)
    collecting: list[bool] = []

    def refuse(name: str) -> None:
        if device.capturing:
            collecting.append(gc.isenabled())

    device.refuse = refuse
    same(
        model.generate([[3, 4]], max_new_tokens=CAPACITY),
        ids_model.generate([[3, 4]], max_new_tokens=CAPACITY),
    )
    assert collecting and not any(collecting)
    assert gc.isenabled()


def test_random_sizes_need_few_contexts_and_no_more_memory_than_reckoned(
    engines: Bundle,
    ids_case: Case,
    ids_model: Model,
    random_sources: Sources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tensorrt_workspace, "MOST_GRAPHS", 8)
    monkeypatch.setattr(tensorrt_backend, "MOST_GRAPHS", 8)
    monkeypatch.setattr(tensorrt_backend, "CONTEXT_MEMORY", CONTEXT_BYTES)
    rows, room = 0, 1 << 17
    while rows < 8:
        room += 1 << 14
        with opened(engines, DoubleDevice(room=room)) as model:
            rows = model.backend.rows_that_fit(33, CAPACITY) or 0
    device = DoubleDevice(room=room)
    model = opened(engines, device)
    for sources, options in random_batches(random_sources, ids_case):
        same(model.generate(sources, options), ids_model.generate(sources, options))
    assert "free_stream" not in device.log  # no batch was too large
    workspaces = device.log.count("new_event")  # each has one
    assert workspaces == 2
    most = 8 + len(ENGINES.profiles) * len(model.manifest.graphs)
    assert alive(device, CONTEXT_BYTES) <= workspaces * most
    assert len(device.graphs) <= workspaces * 8 < device.log.count("begin_capture")
    captured, direct = steps_of(model)
    assert captured > direct
    model.close()
    device.assert_empty()


def test_random_sizes_need_few_graphs_of_the_provider(
    provider: Model,
    ids_case: Case,
    ids_model: Model,
    random_sources: Sources,
    device: DoubleDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(provider_backend, "MOST_GRAPHS", 40)
    monkeypatch.setattr(provider_backend, "MOST_BINDINGS", 8)
    held = []
    for sources, options in random_batches(random_sources, ids_case):
        same(provider.generate(sources, options), ids_model.generate(sources, options))
        held.append(len(device.blocks))
    assert len(device.graphs) == 40
    (record,) = caplog.records
    assert record.message.endswith("as a CUDA graph: the sessions hold 40 graphs, the maximum")
    assert held[-1] < 1.1 * held[200]  # the provider allocates for each new size
    captured, direct = steps_of(provider)
    assert captured > direct
    provider.close()
    device.assert_empty()


def random_batches(
    random_sources: Sources, ids_case: Case
) -> Iterator[tuple[list[list[int]], GenerationOptions]]:
    """400 batches of up to 8 rows."""
    generator = np.random.default_rng(0)
    for seed in range(400):
        count, beams, limit = (int(number) for number in generator.integers(1, [9, 4, 7]))
        options = GenerationOptions(max_new_tokens=limit, num_beams=beams, max_batch_size=8)
        yield random_sources(ids_case[0].config, count, seed=seed), options


def test_what_a_forgotten_model_holds_is_freed_in_whatever_thread(
    open_on: Open, device: DoubleDevice
) -> None:
    """The thread enters the device, whose libraries free memory there."""
    models = [open_on(device)]
    in_another_thread(lambda: models[0].generate([[3, 4]], max_new_tokens=CAPACITY))
    in_another_thread(models.clear)
    gc.collect()
    models = [open_on(device)]  # has not decoded
    in_another_thread(models.clear)
    gc.collect()
    device.assert_empty()
