"""The table of backends: which bundles each refuses, and which one runs a bundle by default."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.reference_model import Transformer
from dragoman.runtime import BackendError, Bundle, Manifest
from dragoman.runtime.backends import BACKEND_NAMES, BACKENDS, default_backend, open_backend
from dragoman.runtime.format.manifest import EngineReport, Profile, Range, TensorRTEngines
from dragoman.runtime.format.validation import manifest_from_json

ONE = Range(1, 1, 1)
REPORT = EngineReport({}, {}, 0, None, None)
ENGINES = TensorRTEngines(
    version="1",
    cuda_version="13",
    compute_capabilities=(),
    capacity=9,
    profiles=(Profile(ONE, ONE),),
    refittable=False,
    reports={"encoder": REPORT, "decoder": REPORT},
)
RECORDS = {record.name: record for record in BACKENDS}


@pytest.fixture
def manifest(plain_manifest: dict[str, Any]) -> Manifest:
    return manifest_from_json(json.dumps(plain_manifest), "p")


def graphs(manifest: Manifest, target: str = "neutral", precision: Any = "fp32") -> Bundle:
    changed = dataclasses.replace(manifest, target=target, precision=precision)
    return Bundle(Path("b"), changed)


def engines(manifest: Manifest, target: str = "tensorrt-rtx", precision: Any = "fp16") -> Bundle:
    changed = dataclasses.replace(manifest, target=target, precision=precision, executable=ENGINES)
    return Bundle(Path("b"), changed)


def test_every_row_names_a_module_that_opens_a_backend() -> None:
    assert [*RECORDS] == list(BACKEND_NAMES) == list(dict.fromkeys(BACKEND_NAMES))
    for record in BACKENDS:
        module = importlib.import_module(f"dragoman.runtime.backends.{record.module}")
        assert callable(module.open_backend)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("target", ["neutral", "cpu", "tensorrt-rtx", "a newer one"])
def test_the_processor_takes_graphs_of_every_target_and_precision(
    manifest: Manifest, target: str, precision: str
) -> None:
    bundle = graphs(manifest, target, precision)
    assert RECORDS["onnxruntime"].refusal(bundle) is None
    assert default_backend(bundle) == "onnxruntime"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_the_cuda_provider_takes_neutral_graphs(manifest: Manifest, precision: str) -> None:
    assert RECORDS["onnxruntime-cuda"].refusal(graphs(manifest, "neutral", precision)) is None


@pytest.mark.parametrize(
    ("target", "precision", "message"),
    [
        (
            "cpu",
            "fp32",
            "b: its graphs are for target cpu: onnxruntime-cuda lacks kernels for it (the CUDA "
            "provider has no ArgMax in bf16, and few of the cpu target's operators): expected "
            "target neutral (dragoman build --target neutral)",
        ),
        (
            "neutral",
            "bf16",
            "b: its precision is bf16: onnxruntime-cuda lacks kernels for it (the CUDA provider "
            "has no ArgMax in bf16, and few of the cpu target's operators): expected fp32, fp16, "
            "int8, int4",
        ),
    ],
)
def test_the_cuda_provider_refuses_graphs_it_has_no_kernels_for(
    manifest: Manifest, target: str, precision: str, message: str
) -> None:
    bundle = graphs(manifest, target, precision)
    assert RECORDS["onnxruntime-cuda"].refusal(bundle) == message
    with pytest.raises(BackendError) as caught:
        open_backend(bundle, "onnxruntime-cuda", None)
    assert str(caught.value) == message


@pytest.mark.parametrize("target", ["tensorrt-rtx", "tensorrt"])
def test_engines_run_on_the_package_that_built_them(manifest: Manifest, target: str) -> None:
    bundle = engines(manifest, target)
    assert default_backend(bundle) == target
    for name, record in RECORDS.items():
        expected = {
            "onnxruntime": f"b holds engines: expected backend {target}, which runs them, found "
            "onnxruntime, which runs ONNX graphs",
            "onnxruntime-cuda": f"b holds engines: expected backend {target}, which runs them, "
            "found onnxruntime-cuda, which runs ONNX graphs",
            "openvino": f"b holds engines: expected backend {target}, which runs them, found "
            "openvino, which runs ONNX graphs",
            target: None,
        }.get(name, f"b holds engines of {target}: expected that backend, found {name}")
        assert record.refusal(bundle) == expected
        if expected is not None:
            with pytest.raises(BackendError) as caught:
                open_backend(bundle, name, None)
            assert str(caught.value) == expected


@pytest.mark.parametrize("target", ["neutral", "cpu", "tensorrt-rtx"])
@pytest.mark.parametrize("name", ["tensorrt-rtx", "tensorrt"])
def test_graphs_are_not_engines(manifest: Manifest, name: str, target: str) -> None:
    """Not even the graphs that engines of the same target are built from."""
    bundle = graphs(manifest, target)
    message = (
        f"b holds ONNX graphs: backend {name} runs engines, which dragoman build --target {name} "
        "builds from its checkpoint"
    )
    assert RECORDS[name].refusal(bundle) == message


def test_engines_of_an_unknown_target_are_refused_with_an_upgrade(manifest: Manifest) -> None:
    """A target that engines are built for later; `cpu` has none."""
    for target in ("another", "cpu"):
        bundle = engines(manifest, target)
        assert all(record.refusal(bundle) is not None for record in BACKENDS)
        for opening in (default_backend, lambda bundle: open_backend(bundle, None, None)):
            with pytest.raises(BackendError) as caught:
                opening(bundle)
            assert str(caught.value) == (
                "b: expected a bundle that one of openvino, onnxruntime, onnxruntime-cuda, "
                f"tensorrt-rtx, tensorrt runs, found target {target}: upgrade with pip install "
                "--upgrade dragoman"
            )


def test_the_processor_does_not_import_what_gpus_need(text_case: tuple[Transformer, Path]) -> None:
    script = """
import json, sys
from dragoman.runtime import load
model = load(sys.argv[1], threads=1)
assert model.generate(["dragoman"])[0].tokens
assert list(model.stream("dragoman"))
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(text_case[1])],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert "dragoman.runtime.backends.onnxruntime.cpu" in loaded
    unneeded = (
        "dragoman.runtime.backends.cuda",
        "dragoman.runtime.backends.onnxruntime.cuda",
        "dragoman.runtime.backends.tensorrt",
        "cuda",
        "tensorrt",
        "tensorrt_rtx",
    )
    assert [name for name in loaded if name.startswith(unneeded)] == []
