"""Decoding with engines, on a double that computes the same and enforces TensorRT's contract."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.files.regular_files import user_cache
from dragoman.reference_model import Transformer
from dragoman.runtime import (
    Bundle,
    DragomanError,
    Model,
    load,
)
from dragoman.runtime.backends.cuda import Gpu
from dragoman.runtime.backends.cuda import device as cuda_device
from dragoman.runtime.backends.cuda.layout import Sizes, as_numbers
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.tensorrt import workspace
from dragoman.runtime.backends.tensorrt.backend import sizes_after, sizes_for
from dragoman.runtime.backends.tensorrt.engines import load_engine
from dragoman.runtime.backends.tensorrt.packages import Messages, Package, logger_of
from dragoman.runtime.backends.tensorrt.workspace import KernelCache
from dragoman.runtime.format.manifest import Profile, Range

from ...device_double import DoubleDevice
from ...small_bundle import small_bundle
from ...tensorrt_double import package_module
from .gpu_models import (
    CAPACITY,
    ENGINES,
    PROFILES,
    RECORDS,
    engines_of,
    opened,
    repeats_without_allocating,
    same,
)

Sources = Callable[..., list[list[int]]]


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of a user with a driver."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "version").write_text("580.95.05\n")
    monkeypatch.setattr(cuda_device, "DRIVER_VERSION", tmp_path / "version")


@pytest.fixture
def model(engines: Bundle, device: DoubleDevice) -> Model:
    return opened(engines, device)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("count", [1, 2, 7, 21])
def test_engines_generate_what_the_graphs_generate(
    engines: Bundle,
    ids_case: tuple[Transformer, Path],
    ids_model: Model,
    random_sources: Sources,
    device: DoubleDevice,
    count: int,
    record: str,
) -> None:
    sources = random_sources(ids_case[0].config, count, seed=count)
    model = opened(engines, device, record)
    same(
        model.generate(sources, max_new_tokens=CAPACITY),
        ids_model.generate(sources, max_new_tokens=CAPACITY),
    )
    model.close()
    device.assert_empty()


def test_limits_and_minimums(
    model: Model,
    ids_case: tuple[Transformer, Path],
    ids_model: Model,
    random_sources: Sources,
) -> None:
    sources = random_sources(ids_case[0].config, 9, seed=3)
    for options in (
        {"max_new_tokens": 1},
        {"max_new_tokens": CAPACITY, "min_new_tokens": 6},
        {"max_new_tokens": 5, "min_new_tokens": 5},
        {"max_new_tokens": CAPACITY, "max_new_tokens_per_source_token": 0.5},
        {"max_new_tokens": CAPACITY, "max_batch_size": 3},
    ):
        same(model.generate(sources, **options), ids_model.generate(sources, **options))


def test_a_stream_gives_the_tokens_of_the_graphs(
    model: Model, ids_case: tuple[Transformer, Path], ids_model: Model, random_sources: Sources
) -> None:
    (source,) = random_sources(ids_case[0].config, 1, seed=8)
    found, expected = (list(m.stream(source, max_new_tokens=CAPACITY)) for m in (model, ids_model))
    assert [t.id for t in found] == [t.id for t in expected]


def test_a_step_allocates_nothing_and_is_captured_once(
    model: Model, ids_case: tuple[Transformer, Path], random_sources: Sources, device: DoubleDevice
) -> None:
    sources = random_sources(ids_case[0].config, 12, seed=4)
    repeats_without_allocating(model, device, sources, CAPACITY)


def long_model(
    tmp_path_factory: pytest.TempPathFactory, device: DoubleDevice
) -> tuple[Model, Model]:
    """The graphs and their engines, of a model with room for 64 target positions."""
    directory = small_bundle(tmp_path_factory.mktemp("long"), 64)
    built = dataclasses.replace(ENGINES, capacity=64)
    return load(directory, threads=1), opened(
        engines_of(directory, tmp_path_factory, built), device
    )


def first(source: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start token of each row."""
    return np.full((len(source), 1), 1)


def test_tokens_of_several_steps_are_read_together(
    tmp_path_factory: pytest.TempPathFactory, device: DoubleDevice
) -> None:
    """The host waits far less often than there are steps, even if rows leave in between."""
    graphs, model = long_model(tmp_path_factory, device)
    generator = np.random.default_rng(2)
    source, mask = generator.integers(0, 17, (9, 7)), np.ones((9, 7), np.bool_)
    expected, found = (m.backend.start(source, mask, first(source), 64) for m in (graphs, model))
    device.log.clear()
    kept = np.arange(9)
    for step in range(64):
        np.testing.assert_array_equal(found.step().tokens, expected.step().tokens[: len(kept)])
        if step in (30, 41, 50):  # in the middle of what was read at once
            kept = np.arange(len(kept) - 2)
            found.keep(kept)
            expected.keep(kept)
    assert device.log.count("wait") < 0.6 * 64
    assert device.log.count("download") == 64
    assert "synchronize" not in device.log
    found.close()
    model.close()
    device.assert_empty()


def test_the_device_runs_ahead_by_a_few_steps(model: Model, device: DoubleDevice) -> None:
    source, mask = np.full((1, 3), 5), np.ones((1, 3), np.bool_)
    for steps in (1, 2):  # no steps beyond the capacity
        state = model.backend.start(source, mask, first(source), steps)
        device.log.clear()
        state.step()
        assert device.log.count("download") == steps
        state.close()
    state = model.backend.start(source, mask, first(source), CAPACITY)
    device.log.clear()
    state.step()
    assert device.log.count("download") <= 3
    state.close()


def test_a_batch_that_does_not_fit_is_halved(
    engines: Bundle,
    ids_case: tuple[Transformer, Path],
    ids_model: Model,
    random_sources: Sources,
) -> None:
    sources = random_sources(ids_case[0].config, 16, seed=6)
    full = DoubleDevice()
    roomy = opened(engines, full)
    roomy.generate(sources, max_new_tokens=CAPACITY)
    tight = DoubleDevice(room=sum(block.size for block in full.blocks.values()) * 2 // 3)
    model = opened(engines, tight)
    same(
        model.generate(sources, max_new_tokens=CAPACITY),
        ids_model.generate(sources, max_new_tokens=CAPACITY),
    )
    model.close()
    tight.assert_empty()


def test_batches_adapt_to_free_memory_on_request(
    engines: Bundle,
    ids_case: tuple[Transformer, Path],
    ids_model: Model,
    random_sources: Sources,
) -> None:
    """No batch fails and is halved: each is as large as the free memory allows."""
    sources = random_sources(ids_case[0].config, 16, seed=6)
    device = DoubleDevice()
    roomy = opened(engines, device)
    roomy.generate(sources, max_new_tokens=CAPACITY)
    tight = DoubleDevice(room=sum(block.size for block in device.blocks.values()) * 2 // 3)
    model = opened(engines, tight)
    same(
        model.generate(sources, max_new_tokens=CAPACITY, max_batch_size=None),
        ids_model.generate(sources, max_new_tokens=CAPACITY, max_batch_size=None),
    )
    assert "free_stream" not in tight.log  # what fails is closed
    assert opened(engines, DoubleDevice(room=1000)).backend.rows_that_fit(33, CAPACITY) == 1
    assert opened(engines, DoubleDevice()).backend.rows_that_fit(33, CAPACITY) == 16


def test_a_device_without_memory_rejects_the_input(engines: Bundle) -> None:
    (result,) = opened(engines, DoubleDevice(room=1000)).generate([[3, 4]], max_new_tokens=CAPACITY)
    assert result.finish_reason == "rejected"
    assert result.error is not None and "out of memory" in result.error


def test_a_batch_stays_in_a_profile_that_takes_its_sources(
    ids_case: tuple[Transformer, Path], tmp_path_factory: pytest.TempPathFactory, ids_model: Model
) -> None:
    """A profile for fewer rows is used only if it takes sources as long as the batch's."""
    profiles = (
        Profile(Range(1, 1, 2), Range(20, 20, 33)),
        Profile(Range(1, 4, 8), Range(1, 8, 24)),
    )
    built = dataclasses.replace(ENGINES, profiles=profiles)
    model = opened(engines_of(ids_case[1], tmp_path_factory, built), DoubleDevice())
    generator = np.random.default_rng(4)
    source, mask = generator.integers(0, 17, (7, 5)), np.ones((7, 5), np.bool_)
    found, expected = (
        m.backend.start(source, mask, first(source), CAPACITY) for m in (model, ids_model)
    )
    for kept in ([3, 1, 6], [0, 2], [1]):
        np.testing.assert_array_equal(found.step().tokens, expected.step().tokens)
        found.keep(np.array(kept))
        expected.keep(np.array(kept))
    np.testing.assert_array_equal(found.step().tokens, expected.step().tokens)


def test_inputs_beyond_the_engines_limits_are_reported(
    engines: Bundle, model: Model, ids_model: Model
) -> None:
    with pytest.raises(DragomanError, match="at most 13, the capacity of its engines, found 14"):
        model.generate([[3]], max_new_tokens=14)
    short = dataclasses.replace(ENGINES, profiles=(Profile(Range(1, 1, 2), Range(1, 4, 4)),))
    bundle = dataclasses.replace(
        engines, manifest=dataclasses.replace(engines.manifest, executable=short)
    )
    model = opened(bundle, DoubleDevice())
    rejected, *others = model.generate([[3] * 5, [4], [5, 6], [7] * 4], max_new_tokens=CAPACITY)
    assert rejected.error == (
        "source has 5 tokens, expected at most 4, the limit of its engines; truncate=True "
        "(--truncate) cuts it"
    )
    same(others, ids_model.generate([[4], [5, 6], [7] * 4], max_new_tokens=CAPACITY))


def test_a_file_that_is_not_an_engine_is_reported(engines: Bundle, tmp_path: Path) -> None:
    for file in ("encoder.onnx", "decoder.onnx"):
        (tmp_path / file).write_bytes(b"something else")
    bundle = dataclasses.replace(engines, directory=tmp_path)
    with pytest.raises(BackendError, match=r"cannot load this engine: the magic tag does not"):
        opened(bundle, DoubleDevice())


def _kernel_cache(device: DoubleDevice) -> Any:
    """The cache that models use, attached to a context."""
    package = Package("tensorrt-rtx", package_module(device), "1.7.1.116", "13")
    cache: Any = KernelCache(package, device)
    assert cache.file.name == (
        "tensorrt-rtx-1.7.1.116.NVIDIA-Double-2-8.9-driver-580.95.05.kernels"
    )
    cache.attach(package.module.IRuntimeConfig())
    return cache


def test_compiled_kernels_are_cached_and_a_damaged_cache_is_replaced(
    engines: Bundle, device: DoubleDevice
) -> None:
    file = _kernel_cache(device).file
    for before in (None, b"rubbish"):
        if before is not None:
            file.write_bytes(before)
        model = opened(engines, device)
        model.generate([[3, 4]], max_new_tokens=CAPACITY)
        assert file.read_bytes().startswith(b"kernels ."), "before anything is closed"
        model.close()
    cache = _kernel_cache(device)
    written = file.stat().st_mtime_ns
    cache.save()  # nothing new
    assert file.stat().st_mtime_ns == written


def test_kernels_of_another_gpu_or_driver_are_left_alone(
    engines: Bundle, device: DoubleDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_device, "DRIVER_VERSION", Path("none"))
    opened(engines, device).generate([[3, 4]], max_new_tokens=CAPACITY)
    monkeypatch.setattr(device, "gpu", lambda: Gpu("NVIDIA L4", "8.9", "13.0"))
    opened(engines, device).generate([[3, 4]], max_new_tokens=CAPACITY)
    assert sorted(file.name for file in user_cache().iterdir()) == [  # type: ignore[union-attr]
        "tensorrt-rtx-1.7.1.116.NVIDIA-Double-2-8.9-driver-cuda-13.0.kernels",
        "tensorrt-rtx-1.7.1.116.NVIDIA-L4-8.9-driver-cuda-13.0.kernels",
    ]


def test_kernels_are_written_at_most_so_often_and_at_the_end(
    engines: Bundle, device: DoubleDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    now: Any = SimpleNamespace(monotonic=lambda: now.time, time=100.0)
    monkeypatch.setattr(workspace, "time", now)
    model = opened(engines, device)
    file = _kernel_cache(device).file

    model.generate([[3, 4]], max_new_tokens=CAPACITY)
    first = file.read_bytes()
    model.generate([[3, 4]] * 3, max_new_tokens=CAPACITY)
    assert file.read_bytes() == first, "written a moment ago"
    now.time += 10
    model.generate([[3, 4]], max_new_tokens=CAPACITY)
    second = file.read_bytes()
    assert len(second) > len(first)
    model.generate([[3, 4]] * 5, max_new_tokens=CAPACITY)
    assert file.read_bytes() == second
    del model  # nobody has closed it
    gc.collect()
    assert len(file.read_bytes()) > len(second)


def test_messages_are_those_of_the_engine(
    engines: Bundle, device: DoubleDevice, tmp_path: Path
) -> None:
    """TensorRT hands all messages to the first logger that it was given."""
    package = Package("tensorrt-rtx", package_module(device), "1.7.1.116", "13")
    device.enter()
    first = load_engine(package, engines, "decoder.onnx")
    (tmp_path / "decoder.onnx").write_bytes(b"something else")
    with pytest.raises(BackendError, match="cannot load this engine: the magic tag does not"):
        load_engine(package, dataclasses.replace(engines, directory=tmp_path), "decoder.onnx")
    assert not first.messages.errors


def test_messages_are_those_of_the_thread(device: DoubleDevice) -> None:
    """Threads of TensorRT's own report to everybody who works at the moment."""
    trt = package_module(device)
    logger, error = logger_of(trt), trt.ILogger.Severity.ERROR
    assert logger_of(trt) is logger
    one, other, inner = Messages(), Messages(), Messages()
    with one, ThreadPoolExecutor(1) as threads:

        def works() -> None:
            with other:
                logger.log(error, "other's")

        threads.submit(works).result()
        threads.submit(logger.log, error, "TensorRT's").result()
        with inner:
            logger.log(trt.ILogger.Severity.WARNING, "inner's")
        logger.log(error, "one's")
    logger.log(error, "nobody's")
    assert list(one.errors) == ["TensorRT's", "one's"]
    assert list(other.errors) == ["other's"]
    assert list(inner.warnings) == ["inner's"] and not one.warnings


@pytest.mark.parametrize(
    ("rows", "source", "expected"),
    [
        (1, 1, Sizes(0, 1, 16)),
        (2, 17, Sizes(0, 2, 32)),
        (3, 33, Sizes(1, 3, 33)),
        (9, 16, Sizes(1, 12, 16)),
        (16, 33, Sizes(1, 16, 33)),
    ],
)
def test_sizes_are_rounded_within_the_profiles(rows: int, source: int, expected: Sizes) -> None:
    assert sizes_for(PROFILES, rows, source) == expected


@pytest.mark.parametrize(
    ("sources", "width", "expected"),
    [
        (1, 2, Sizes(0, 1, 16, width=2)),
        (1, 3, Sizes(1, 1, 16, width=3)),
        (3, 3, Sizes(1, 3, 16, width=3)),
        (5, 3, Sizes(1, 5, 16, width=3)),  # 8 sources would be 24 rows
        (1, 16, Sizes(1, 1, 16, width=16)),
    ],
)
def test_rows_of_several_beams_are_within_the_profiles(
    sources: int, width: int, expected: Sizes
) -> None:
    assert sizes_for(PROFILES, sources, 16, width) == expected


def test_sizes_outside_all_profiles() -> None:
    with pytest.raises(BackendError, match="at most 2 rows of 33 tokens; 16 rows of 33 tokens"):
        sizes_for(PROFILES, 17, 3)
    with pytest.raises(BackendError, match="found 18 rows of 3 tokens"):
        sizes_for(PROFILES, 6, 3, 3)
    with pytest.raises(BackendError, match="found 4 rows of 3 tokens"):
        sizes_for((Profile(Range(5, 6, 6), Range(20, 20, 40)),), 1, 3, 4)  # no 5 or 6 is 4 times n
    least = (Profile(Range(4, 4, 6), Range(20, 20, 40)),)
    assert sizes_for(least, 1, 2) == Sizes(0, 4, 20)
    assert sizes_for(least, 5, 33) == Sizes(0, 6, 40)
    assert sizes_for(least, 1, 33, 3) == Sizes(0, 2, 40, width=3)
    assert sizes_after(least, Sizes(0, 2, 40, width=3), 1) == Sizes(0, 2, 40, width=3)


def test_bfloat16_becomes_float32() -> None:
    halves = np.array([0x3F80, 0xC040, 0x0000], np.uint16)  # 1, -3, 0
    found = as_numbers(halves.view(np.uint8), "bfloat16", (3, 1))
    np.testing.assert_array_equal(found, np.array([[1.0], [-3.0], [0.0]], np.float32))
