"""The device that runs a bundle, on a double of a machine with two GPUs."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman.api import verify_known_answers
from dragoman.errors import DragomanError
from dragoman.reference_model import Transformer
from dragoman.runtime import BackendError, Bundle, load, loading, read_bundle
from dragoman.runtime import backends as module
from dragoman.runtime.backends import check_backend, default_backend, gpu_index, open_backend
from dragoman.runtime.backends.cuda import Device, find_gpu
from dragoman.runtime.backends.machine import describe_machine
from dragoman.runtime.loading import machine_of
from dragoman.verification.parity import running

from ...bundle_files import add_answers

runtime: Any = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")

Case = tuple[Transformer, Path]
NAMES = ("NVIDIA L4", "NVIDIA H100")
CAPABILITIES = ({"major": 8, "minor": 9}, {"major": 9, "minor": 0})
OK = runtime.cudaError_t.cudaSuccess


class TwoGpus:
    """The functions of the CUDA runtime on a machine with two GPUs.

    Memory, streams and events belong to the device that is current when they are made. Every later
    use must come from a thread in which that device is current.

    Attributes:
        owners: device of each address, stream and event
        used: current device of each call but `cudaSetDevice`
    """

    def __init__(self) -> None:
        self.owners: dict[int, int] = {}
        self.used: list[int] = []
        self._current = threading.local()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda") or name[4:5].islower() or name.endswith("_t"):
            return getattr(runtime, name)
        if isinstance(getattr(runtime, name), int | type):
            return getattr(runtime, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            device = getattr(self._current, "index", 0)
            self.used.append(device)
            for argument in arguments:
                assert self.owners.get(argument, device) == device, f"{name} on GPU {device}"
            if not name.startswith(("cudaMalloc", "cudaStreamCreate", "cudaEventCreate")):
                return OK, 1
            made = 1 << 40 | len(self.owners) << 20
            self.owners[made] = device
            return OK, made

        return call

    def cudaSetDevice(self, index: int) -> tuple[Any]:  # noqa: N802
        assert index < len(NAMES)
        self._current.index = index
        return (OK,)

    def cudaDriverGetVersion(self) -> tuple[Any, int]:  # noqa: N802
        return OK, 13000

    def cudaGetDeviceCount(self) -> tuple[Any, int]:  # noqa: N802
        return OK, len(NAMES)

    def cudaGetDeviceProperties(self, index: int) -> tuple[Any, Any]:  # noqa: N802
        return OK, SimpleNamespace(name=NAMES[index].encode(), **CAPABILITIES[index])


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> TwoGpus:
    found = TwoGpus()
    monkeypatch.setattr("cuda.bindings.runtime", found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


@pytest.fixture
def bundle(ids_case: Case) -> Bundle:
    return read_bundle(ids_case[1])


def use(device: Device) -> None:
    """Make memory, a stream and an event, and use them."""
    address, stream, event = device.allocate(8), device.new_stream(), device.new_event()
    device.upload(address, np.arange(1), stream)
    device.clear(address, 8, stream)
    device.record(event, stream)
    device.wait(event)
    device.free_graph(device.end_capture(stream))
    device.free_event(event)
    device.free_stream(stream)
    device.free(address)


def test_every_call_comes_from_a_thread_of_its_device(two_gpus: TwoGpus) -> None:
    """In new threads, beside another device in the same thread."""
    first, second = Device(), Device(1)
    for device in (second, first, second):
        two_gpus.used.clear()
        thread = Thread(target=use, args=[device])
        thread.start()
        thread.join()
        assert len(two_gpus.used) > 10 and {*two_gpus.used} == {device.index}
        use(first)
        use(second)
    assert [*two_gpus.owners.values()].count(0) == 12
    assert [*two_gpus.owners.values()].count(1) == 15


def test_a_host_program_may_change_the_current_device_between_calls(two_gpus: TwoGpus) -> None:
    """As `torch.cuda.set_device` does."""
    device = Device(1)
    stream = device.new_stream()
    two_gpus.cudaSetDevice(0)
    device.synchronize(stream)
    two_gpus.cudaSetDevice(0)
    assert two_gpus.owners[device.allocate(8)] == 1


def test_gpus_have_their_own_names_and_capabilities(two_gpus: TwoGpus) -> None:
    assert find_gpu() == find_gpu(0) == ("NVIDIA L4", "8.9", "13.0")
    assert find_gpu(1) == ("NVIDIA H100", "9.0", "13.0")


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(
    two_gpus: TwoGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "device: expected cpu, cuda or cuda:N with N below 2, found cuda:5: "
    with pytest.raises(DragomanError) as caught:
        find_gpu(5)
    assert str(caught.value) == f"{expected}this machine has 2 GPUs (NVIDIA L4, NVIDIA H100)"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    with pytest.raises(DragomanError) as caught:
        find_gpu(5)
    names = "(NVIDIA L4, NVIDIA H100)"
    assert str(caught.value) == f"{expected}CUDA_VISIBLE_DEVICES=3,2 shows 2 GPUs {names}"


def test_bindings_that_raise_without_a_driver_give_one_line(
    two_gpus: TwoGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cuda-bindings 12.8 does."""

    def raises() -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(two_gpus, "cudaDriverGetVersion", raises, raising=False)
    with pytest.raises(BackendError) as caught:
        find_gpu()
    assert str(caught.value) == (
        "found no NVIDIA GPU: cuda-bindings cannot load the NVIDIA driver (Failed to dlopen "
        "libcuda.so.1)"
    )


@pytest.mark.parametrize(
    ("device", "index"),
    [(None, None), ("cpu", None), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("cuda:12", 12)],
)
def test_names_of_devices(device: str | None, index: int | None) -> None:
    assert gpu_index(device) == index


@pytest.mark.parametrize(
    "device",
    [
        *("", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cuda: 1", "cuda:1 ", "cuda:1\n"),
        *("cuda:x", "cuda:1.0", "cpu:0", "cuda:\u0661", "cuda:99999"),
        *(True, False, 0, 1, 1.0, b"cuda", ["cuda"], ("cuda", 1)),
    ],
    ids=repr,
)
def test_other_names_and_types_are_refused_by_a_line(device: Any, ids_case: Case) -> None:
    with pytest.raises(DragomanError) as caught:
        load(ids_case[1], device=device)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("device: expected cpu, cuda or cuda:N, such as cuda:1, found ")


def test_a_device_selects_the_first_backend_that_runs_on_it(bundle: Bundle) -> None:
    assert default_backend(bundle) == default_backend(bundle, "cpu") == "onnxruntime"
    for device in ("cuda", "cuda:1"):
        assert default_backend(bundle, device) == "onnxruntime-cuda"
        assert check_backend(bundle, None, device).name == "onnxruntime-cuda"


def test_a_backend_that_contradicts_the_device_is_refused(bundle: Bundle) -> None:
    for name, device, expected in (
        ("onnxruntime", "cuda:1", "cpu"),
        ("onnxruntime-cuda", "cpu", "cuda"),
        ("tensorrt", "cpu", "cuda"),
    ):
        with pytest.raises(DragomanError) as caught:
            open_backend(bundle, name, None, device)
        assert str(caught.value) == (
            f"device: expected {expected} for the backend {name}, found {device}: leave out one of "
            "the two"
        )


def test_a_backend_on_a_gpu_opens_on_the_named_one(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def import_module(name: str) -> Any:
        return SimpleNamespace(open_backend=lambda bundle, *rest: opened.append(rest))

    monkeypatch.setattr(module, "import_module", import_module)
    for name, device in (
        (None, None),
        ("onnxruntime", "cpu"),
        ("onnxruntime-cuda", None),
        (None, "cuda"),
        ("onnxruntime-cuda", "cuda:1"),
    ):
        open_backend(bundle, name, 3, device)
    assert opened == [(3,), (3,), (3, 0), (3, 0), (3, 1)]


def test_known_answers_are_compared_on_the_device(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def open_cpu(
        bundle: Bundle, name: str | None, threads: int, device: str | None, **_: object
    ) -> Any:
        found.append((name, device))
        return open_backend(bundle, None, threads)

    monkeypatch.setattr(loading, "open_backend", open_cpu)
    monkeypatch.setattr(loading, "check_known_answers", lambda model, *rest: found.append(rest))
    load(bundle, threads=1, device="cuda:1")
    load(bundle, threads=1, device="cpu")
    assert found == [
        *((None, "cuda:1"), ("onnxruntime-cuda", "once", 1)),
        *((None, "cpu"), ("onnxruntime", "once", 0)),
    ]


def test_verify_runs_the_bundle_on_the_device(
    two_gpus: TwoGpus, text_case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And names its GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory, devices = shutil.copytree(text_case[1], tmp_path / "bundle"), list[Any]()
    add_answers(directory, text_case[0], ["a", "dragoman"])

    def load_cpu(bundle: Bundle, *, backend: Any, device: Any, **options: Any) -> Any:
        devices.append(device)
        return load(bundle, **options)

    monkeypatch.setattr(sys.modules[verify_known_answers.__module__], "load", load_cpu)
    assert verify_known_answers(directory, device="cuda:1").machine.startswith("NVIDIA H100, ")
    assert devices == ["cuda:1", "cuda:1"]


def test_parity_is_checked_on_the_device(bundle: Bundle) -> None:
    with (
        pytest.raises(DragomanError, match="device: expected cpu for the backend onnxruntime"),
        running(bundle, 1, "onnxruntime", "cuda:1"),
    ):
        pass


def test_the_machine_is_described_with_the_gpu_that_runs_the_bundle(
    two_gpus: TwoGpus, bundle: Bundle
) -> None:
    assert describe_machine("onnxruntime-cuda").gpu == ("NVIDIA L4", "8.9", "13.0")
    assert str(machine_of(bundle, "onnxruntime-cuda", 1)).startswith("NVIDIA H100, ")
    assert machine_of(bundle, "onnxruntime", 1).gpu is None
