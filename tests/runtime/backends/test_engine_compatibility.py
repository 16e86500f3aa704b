"""Engines that cannot run on this machine are refused before they are loaded, with what to do."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.optimize.tensorrt.request import check_capabilities
from dragoman.runtime import BackendError, Bundle, BundleError
from dragoman.runtime.backends import open_backend
from dragoman.runtime.backends.cuda import Gpu, find_gpu
from dragoman.runtime.backends.tensorrt import engines
from dragoman.runtime.backends.tensorrt.engines import usable_package
from dragoman.runtime.backends.tensorrt.packages import (
    Package,
    compute_capabilities,
    find_package,
)
from dragoman.runtime.format.manifest import (
    EngineReport,
    Precision,
    Profile,
    Range,
    TensorRTEngines,
)
from dragoman.runtime.format.plain_data import to_plain
from dragoman.runtime.format.validation import manifest_from_json

from ...tensorrt_api import checked_module, recorded

ADA, HOPPER = Gpu("NVIDIA L4", "8.9", "13.0"), Gpu("NVIDIA H100", "9.0", "13.0")
ONE = Range(1, 1, 1)
REPORT = EngineReport({"cast": 3}, {"float16": 12}, 1, {"_gemv_mha_v1": 1}, 0)
ENGINES = TensorRTEngines(
    version="1.7.1.116",
    cuda_version="13",
    compute_capabilities=(),
    capacity=9,
    profiles=(Profile(ONE, ONE),),
    refittable=False,
    reports={"encoder": REPORT, "decoder": REPORT},
)


def _gpu_works() -> bool:
    try:
        find_gpu()
    except BackendError:
        return False
    return True


WAYS_OUT = {
    "VERSION_MISMATCH": "pip install tensorrt-rtx==1.7.1.116, or rebuild them with",
    "UNSUPPORTED_CC": "rebuild them with --target tensorrt-rtx --compute-capability 8.9",
    "OLD_CUDA_DRIVER": "install a newer NVIDIA driver",
    "OLD_CUDA_RUNTIME": "pip install --upgrade --force-reinstall tensorrt-rtx",
    "INSUFFICIENT_GPU_MEMORY": "free memory of the GPU, choose another with --device",
    "MALFORMED_ENGINE": "copy the bundle again, or rebuild them with --target tensorrt-rtx",
    "CUDA_ERROR": "repair the CUDA driver or runtime; dragoman doctor shows what is found",
}
"""What to do about each of TensorRT-RTX's diagnostics, in their order, on a GPU that it knows."""


class Double:
    """TensorRT-RTX on a machine with a GPU that it finds valid, or not."""

    __version__ = "1.7.1.116"
    verdict = (0, 0)

    class ILogger:
        class Severity:
            ERROR, INTERNAL_ERROR, WARNING = range(3)

    class EngineValidity:
        VALID, SUBOPTIMAL, INVALID = range(3)

    class EngineInvalidityDiagnostics:
        __members__ = {name: 1 << bit for bit, name in enumerate(WAYS_OUT)}  # noqa: RUF012

    class ComputeCapability:
        __members__ = {"NONE": 0, "CURRENT": 1} | {
            f"SM{number}": number for number in (75, 80, 86, 89, 120, 121)
        }

    class Runtime:
        engine_header_size = 8

        def __init__(self, logger: Any) -> None:
            pass

        def get_engine_validity(self, buffer: bytes) -> tuple[int, int]:
            assert len(buffer) == 8
            return Double.verdict


@pytest.fixture
def bundle(plain_manifest: dict[str, Any], tmp_path: Path) -> Bundle:
    plain_manifest |= {"target": "tensorrt-rtx", "executable": to_plain(ENGINES)}
    manifest = manifest_from_json(json.dumps(plain_manifest), "here")
    for graph in manifest.graphs.values():
        (tmp_path / graph.file).write_bytes(b"an engine, or its beginning")
    return Bundle(tmp_path, manifest)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with these GPUs and this package, to be changed; `entered` is the current GPU."""
    module = checked_module(Double, recorded("tensorrt_rtx-1.7.1.116"))
    package = Package("tensorrt-rtx", module, "1.7.1.116", "13")
    found = SimpleNamespace(gpu=ADA, others=(), package=package, entered=None)

    def device(index: int) -> SimpleNamespace:
        return SimpleNamespace(enter=lambda: setattr(found, "entered", index))

    monkeypatch.setattr(engines, "find_gpu", lambda index: (found.gpu, *found.others)[index])
    monkeypatch.setattr(engines, "Device", device)
    monkeypatch.setattr(engines, "find_package", lambda target: found.package)
    return found


def test_a_fitting_package_and_gpu_are_used(bundle: Bundle, machine: SimpleNamespace) -> None:
    assert usable_package(bundle, ENGINES) is machine.package


def test_engines_are_judged_on_the_gpu_that_runs_them(
    bundle: Bundle, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first GPU cannot run them, the second can."""
    named = dataclasses.replace(ENGINES, compute_capabilities=("8.9",))
    machine.gpu, machine.others = HOPPER, (ADA,)
    with pytest.raises(BackendError, match=r"found 9\.0"):
        usable_package(bundle, named)
    judged: list[int] = []
    monkeypatch.setattr(engines, "check_validity", lambda *_: judged.append(machine.entered))
    assert usable_package(bundle, named, 1) is machine.package
    assert judged == [1]


def test_another_version_of_the_package_is_refused_with_the_one_to_install(
    bundle: Bundle, machine: SimpleNamespace
) -> None:
    machine.package = dataclasses.replace(machine.package, version="1.8.0.1")
    with pytest.raises(BackendError) as error:
        usable_package(bundle, ENGINES)
    assert "built by tensorrt-rtx 1.7.1.116, found 1.8.0.1" in str(error.value)
    assert "pip install tensorrt-rtx==1.7.1.116, or rebuild them" in str(error.value)


def test_a_driver_that_is_too_old_is_refused(bundle: Bundle, machine: SimpleNamespace) -> None:
    machine.gpu = ADA._replace(cuda="12.8")
    with pytest.raises(BackendError, match=r"for CUDA 13, .* runs up to 12\.8: install a newer"):
        usable_package(bundle, ENGINES)


def test_engines_built_for_other_gpus_are_refused(bundle: Bundle, machine: SimpleNamespace) -> None:
    named = dataclasses.replace(ENGINES, compute_capabilities=("8.9", "12.0"))
    usable_package(bundle, named)
    machine.gpu = HOPPER
    with pytest.raises(BackendError, match=r"for compute capability 8\.9, 12\.0, found 9\.0"):
        usable_package(bundle, named)


def test_the_package_itself_refuses_an_engine(
    bundle: Bundle, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reason has its own way out."""
    for number, (reason, way_out) in enumerate(WAYS_OUT.items()):
        monkeypatch.setattr(Double, "verdict", (Double.EngineValidity.INVALID, 1 << number))
        with pytest.raises(BackendError) as error:
            usable_package(bundle, ENGINES)
        assert f"compute capability 8.9 ({reason}): {way_out}" in str(error.value)
        machine.gpu = HOPPER
        with pytest.raises(BackendError) as error:
            usable_package(bundle, ENGINES)
        assert "9.0" not in str(error.value).partition(f"({reason})")[2], "which is not built"
        machine.gpu = ADA
    monkeypatch.setattr(Double, "verdict", (Double.EngineValidity.INVALID, 4 + 16))
    with pytest.raises(BackendError, match=r"newer NVIDIA driver; free memory of the GPU"):
        usable_package(bundle, ENGINES)
    monkeypatch.setattr(Double, "verdict", (Double.EngineValidity.INVALID, 1 << 10))
    with pytest.raises(BackendError, match=r"\(diagnostics 1024\): rebuild them with"):
        usable_package(bundle, ENGINES)


def test_the_diagnostics_are_those_of_the_package() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    members = trt.EngineInvalidityDiagnostics.__members__
    assert {name: int(kind) for name, kind in members.items()} == (
        Double.EngineInvalidityDiagnostics.__members__
    )
    package = Package("tensorrt-rtx", trt, trt.__version__, "13")
    double = Package("tensorrt-rtx", Double, "1.7.1.116", "13")
    assert list(compute_capabilities(package)) == list(compute_capabilities(double))


@pytest.mark.parametrize("target", ["tensorrt-rtx", "tensorrt"])
@pytest.mark.parametrize(
    "capability",
    ["6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "11.0", "12.0", "12.1", "13.0"],
)
def test_advice_for_a_gpu_can_be_followed(
    bundle: Bundle, machine: SimpleNamespace, target: str, capability: str
) -> None:
    """The builder does not refuse what the runtime advises."""
    module: Any = Double if target == "tensorrt-rtx" else SimpleNamespace()
    machine.package = package = Package(target, module, "1.7.1.116", "13")
    machine.gpu = Gpu("Some GPU", capability, "13.0")
    named = dataclasses.replace(ENGINES, compute_capabilities=("4.2",))
    with pytest.raises(BackendError) as error:
        usable_package(bundle, named)
    advice = str(error.value).partition("(Some GPU): ")[2]
    neutral = "build graphs with --target neutral, and run them with --backend onnxruntime-cuda"
    if float(capability) < 7.5:
        assert advice == f"no engines are built for it: {neutral}"
        return
    requested = re.findall(r"--compute-capability (\S+)", advice)
    precision: Precision = "fp16" if "--precision fp16" in advice else "fp32"
    check_capabilities(package, requested, precision)  # raises nothing
    if target == "tensorrt-rtx" and capability in compute_capabilities(package):
        assert requested == [capability]
    else:
        assert not requested and "--target tensorrt on this machine" in advice
        assert (neutral in advice) == (target == "tensorrt-rtx")


def test_a_package_that_cannot_judge_engines_is_skipped(
    bundle: Bundle, machine: SimpleNamespace
) -> None:
    module = checked_module(Double, recorded("tensorrt-11.4.0.106"))
    machine.package = Package("tensorrt", module, "1.7.1.116", "13")
    usable_package(bundle, ENGINES)


@pytest.mark.skipif(_gpu_works(), reason="this machine has a GPU")
def test_without_a_gpu_there_is_one_line_that_says_what_to_do(bundle: Bundle) -> None:
    pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")
    with pytest.raises(BackendError) as error:
        open_backend(bundle, None, None)
    assert "engines of tensorrt-rtx need an NVIDIA GPU (found no NVIDIA GPU" in str(error.value)
    assert "run it on a machine with one, or build a bundle for target cpu" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_the_bindings_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendError, match="pip install cuda-bindings"):
        find_gpu()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BackendError, match=r"pip install 'dragoman\[tensorrt\]'"):
        find_package("tensorrt")


def test_a_package_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="8.6.1"))
    with pytest.raises(BackendError, match=r"tensorrt 8\.6\.1 is too old, it has no Builder"):
        find_package("tensorrt")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"profiles": []}, r"executable\.profiles: expected at least one"),
        ({"capacity": 21}, r"executable\.capacity: expected 1 to 20"),
        (
            {
                "profiles": [
                    {"batch": {"smallest": 2, "best": 1, "largest": 3}, "source": to_plain(ONE)}
                ]
            },
            r"executable\.profiles\[0\]\.batch: expected 1 <= smallest",
        ),
        (
            {"reports": {"decoder": to_plain(REPORT)}},
            r"executable\.reports: expected encoder, decoder, found decoder",
        ),
        ({"format": "openvino"}, r"manifest\.executable\.format: expected one of 'onnx', "),
        ({"version": 7}, r"manifest\.executable\.version: expected a text"),
    ],
)
def test_problems_of_engines_in_a_manifest_are_reported(
    plain_manifest: dict[str, Any], change: dict[str, Any], problem: str
) -> None:
    plain_manifest |= {"target": "tensorrt-rtx", "executable": to_plain(ENGINES) | change}
    with pytest.raises(BundleError, match=problem):
        manifest_from_json(json.dumps(plain_manifest), "here")
