"""What `make gpu` does without a GPU: it survives failing parts, and computes from figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.benchmarks.gpu import __main__ as gpu
from dragoman.benchmarks.gpu import time_split
from dragoman.benchmarks.gpu.contenders import BackendContender, gpu_contenders
from dragoman.benchmarks.gpu.environment import bandwidth, launch_latency
from dragoman.benchmarks.gpu.floor import shortest_step
from dragoman.benchmarks.gpu.kernel_times import Activity, split
from dragoman.benchmarks.gpu.parts import Part
from dragoman.benchmarks.gpu.time_split import stream_times
from dragoman.benchmarks.harness import Contender, unchanged
from dragoman.benchmarks.peers.interface import Batch
from dragoman.benchmarks.text.contenders import TextContender
from dragoman.runtime import load

from ..device_double import DoubleDevice
from ..provider_double import opened
from ..small_bundle import small_bundle

DEVICE = {"gigabytes_per_second": 3000.0, "microseconds_per_launch": 2.0}
BASE = "Marian base, vocabulary 32000, random weights"


def part(tmp_path: Path, name: str, code: str, seconds: int = 30) -> Part:
    """A part that runs this code, with its output folder as `folder`."""
    (tmp_path / f"{name}.py").write_text(f"import sys; folder = sys.argv[-1]\n{code}")
    return Part(name, seconds, name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    device = part(tmp_path, "device", "open(folder + '/device.json', 'w').write('{}')")

    def run_parts(*parts: Part) -> tuple[int, str, dict[str, Any]]:
        monkeypatch.setattr(gpu, "PARTS", (device, *parts))
        result = CliRunner().invoke(gpu.main, ["--output", str(tmp_path / "out")])
        file = tmp_path / "out" / "gpu.json"
        report = json.loads(file.read_text()) if file.exists() else {}
        return result.exit_code, result.output, report

    return run_parts


def test_parts_that_fail_leave_the_others(run: Any, tmp_path: Path) -> None:
    code, output, report = run(
        part(tmp_path, "fails", "raise SystemExit('no such library')"),
        part(tmp_path, "hangs", "import time; time.sleep(60)", seconds=1),
        part(tmp_path, "halves", "open(folder + '/halves.json', 'w').write('[1, 2'); sys.exit(3)"),
        part(tmp_path, "works", "open(folder + '/parity.json', 'w').write('[{\"a\": 1}]')"),
    )
    assert code == 0
    assert report["parity"] == [{"a": 1}]
    assert report["failures"] == {
        "fails": "exit status 1: no such library",
        "hangs": "took more than 1 s: ",
        "halves": "exit status 3: ",
    }
    assert "not measured: fails: exit status 1: no such library" in output


def test_without_a_gpu_nothing_is_written(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "device.py").write_text("raise SystemExit('found no NVIDIA GPU')")
    monkeypatch.setattr(gpu, "show", lambda results: None)
    code, output, report = run()
    assert (code, report) == (1, {})
    assert "there is no GPU to measure: exit status 1: found no NVIDIA GPU" in output


def test_figures_are_shown_beside_the_floor(run: Any, tmp_path: Path) -> None:
    measured = {
        "shape": BASE,
        "machine": "a GPU",
        "measurements": [
            {
                "contender": "Dragoman RTX fp16",
                "batch_size": 1,
                "ms_per_step": [0.1, 0.09, 0.11],
                "tokens_per_second": 10000.0,
            }
        ],
        "failures": [{"contender": "CTranslate2 float16", "reason": "is not installed"}],
    }
    code = f"import json; json.dump({measured!r}, open(folder + '/gpu-base.json', 'w'))"
    environment = f"import json; json.dump({DEVICE!r}, open(folder + '/device.json', 'w'))"
    (tmp_path / "device.py").write_text(f"import sys; folder = sys.argv[-1]\n{environment}")
    status, output, _ = run(part(tmp_path, "speed", code))
    assert status == 0
    share = shortest_step(DEVICE, BASE, "Dragoman RTX fp16", 1) / 0.1
    assert f"{share:.0%}" in output
    assert "not measured: CTranslate2 float16: is not installed" in output


def test_the_floor_by_hand() -> None:
    """6 layers of 512: 6 * (6 * 512^2 + 2 * 512 * 2048) weights, 32000 * 512 for the vocabulary."""
    weights = 6 * (6 * 512 * 512 + 2 * 512 * 2048) + 32000 * 512
    caches = 6 * 2 * (32 + 32) * 512
    expected = (weights * 2 + 8 * caches * 2) / 3000e9 * 1e3 + 0.002
    assert shortest_step(DEVICE, BASE, "PyTorch fp16", 8) == pytest.approx(expected)
    assert shortest_step({}, BASE, "PyTorch fp16", 8) == 0
    assert shortest_step(DEVICE, BASE, "Reference (PyTorch)", 8) == 0


def test_the_device_is_measured_and_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.benchmarks.gpu.environment.BYTES", 1 << 12)
    device = DoubleDevice()
    assert bandwidth(device) > 0
    assert launch_latency(device) > 0
    device.assert_empty()


def test_the_time_of_a_step_by_hand() -> None:
    """Two steps, in microseconds: kernels of 30, 20 (which overlaps the first by 10) and 40, one of
    50 after a gap of 5, and after 100 without work a copy of 10."""
    activities = [
        *(Activity(100, 130), Activity(120, 140), Activity(140, 180)),
        *(Activity(285, 295), Activity(185, 235)),
    ]
    found = split(activities[:-1], 0.2, 2)
    assert found["kernels"] == pytest.approx((80 + 10) / 2e3)
    found = split(activities, 0.2, 2)
    assert found == {
        "kernels": pytest.approx((80 + 50 + 10) / 2e3),
        "kernels per step": 2.5,
        "launch gaps": pytest.approx(5 / 2e3),
        "host": pytest.approx(0.2 - 0.0725),
    }
    assert split([], 0.2, 2)["host"] == 0.2


def test_kernel_time_beyond_the_floor(run: Any, tmp_path: Path) -> None:
    """The columns stay empty where either is unknown."""
    row = {"contender": "PyTorch fp16", "batch": 1, "shape": BASE, "ms/step": 0.5}
    rows = [{**row, "kernels": 0.4}, {**row, "kernels": ""}, {**row, "contender": "PyTorch"}]
    rows[2]["kernels"] = 0.4
    environment = f"import json; json.dump({DEVICE!r}, open(folder + '/device.json', 'w'))"
    (tmp_path / "device.py").write_text(f"import sys; folder = sys.argv[-1]\n{environment}")
    code = f"import json; json.dump({rows!r}, open(folder + '/time_split.json', 'w'))"
    status, output, report = run(part(tmp_path, "split", code))
    assert status == 0
    assert "time split" in output
    floor = shortest_step(DEVICE, BASE, "PyTorch fp16", 1)
    one, other, unknown = report["time_split"]
    assert one["kernels beyond the floor"] == pytest.approx(0.4 - floor, abs=1e-4)
    assert (other["floor"], other["kernels beyond the floor"]) == (round(floor, 4), "")
    assert (unknown["floor"], unknown["kernels beyond the floor"]) == ("", "")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bundle(tmp_path_factory.mktemp("small"), 64)


def test_steps_in_a_stream_are_timed_and_memory_is_freed(bundle: Path) -> None:
    device, graphs = DoubleDevice(), load(bundle, threads=1)
    model = opened(graphs.bundle, device)
    times = stream_times(model, Batch([[3, 4, 5]] * 3, 12))
    assert 0 < times["enqueueing"] < times["back-to-back steps"]
    assert device.log.count("download") == 0
    model.close()
    device.assert_empty()
    assert stream_times(graphs, Batch([[3, 4, 5]], 2)) == {}


def test_without_a_profiler_the_rest_is_still_measured(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_split, "BATCH_SIZES", (1,))
    monkeypatch.setattr(time_split, "VOCABULARY", 17)
    contender: TextContender = Contender("other fp16", unchanged, lambda d, n: lambda batch: [])
    (row,) = time_split.measure(contender, bundle)
    assert row["ms/step"] >= 0
    assert row["kernels"] == ""
    assert row["error"].startswith("RuntimeError: PyTorch, whose profiler times the kernels")


def test_contenders_with_a_backend_of_dragoman() -> None:
    contenders = gpu_contenders()
    backends = {c.name: c.backend for c in contenders if isinstance(c, BackendContender)}
    assert backends["Dragoman CUDA int4"] == "onnxruntime-cuda"
    assert backends["Dragoman RTX fp16"] == "tensorrt-rtx"
    assert "PyTorch fp16" in {c.name for c in contenders} - backends.keys()
