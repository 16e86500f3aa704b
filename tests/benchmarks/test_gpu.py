"""What `make gpu` does without a GPU: it survives failing parts, and computes from figures."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.benchmarks.compare.rounds import unchanged
from dragoman.benchmarks.compare.tasks.decoding import Workload
from dragoman.benchmarks.compare.tasks.gpu_contenders import (
    BackendContender,
    engine_sizes,
    gpu_contenders,
)
from dragoman.benchmarks.compare.tasks.text_contenders import TextContender
from dragoman.benchmarks.gpu import __main__ as gpu
from dragoman.benchmarks.gpu import report, time_split
from dragoman.benchmarks.gpu.device import bandwidth, launch_latency, shortest_step
from dragoman.benchmarks.gpu.parts import NO_TIME, PARTS, Part
from dragoman.benchmarks.gpu.report import Record, read_records, write_records
from dragoman.benchmarks.gpu.time_split import Activity, split, stream_times
from dragoman.benchmarks.peers.interface import Batch
from dragoman.runtime import load
from dragoman.runtime.format.manifest import Range

from ..device_double import DoubleDevice
from ..provider_double import opened
from ..small_bundle import small_bundle

WORKLOAD = Workload((1, 8, 32, 128), 260, 128, (1, 50263), (1,), 3, longest_source=440)
DEVICE = {"gigabytes_per_second": 3000.0, "microseconds_per_launch": 2.0}
BASE = "Marian base, vocabulary 32000, random weights"
BART = "BART bart-large-cnn, vocabulary 50264, random weights"


def part(tmp_path: Path, name: str, code: str, seconds: int = 30) -> Part:
    """A part that runs this code, with its output folder as `folder`."""
    (tmp_path / f"{name}.py").write_text(f"import sys; folder = sys.argv[-1]\n{code}")
    return Part(name, seconds, name)


def written(name: str, results: object) -> str:
    """Code of a part that writes these results."""
    return f"import json; json.dump({results!r}, open(folder + '/{name}.json', 'w'))"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    device = part(tmp_path, "device", written("device", DEVICE))

    def run_parts(*parts: Part, options: tuple[str, ...] = ()) -> tuple[int, str, dict[str, Any]]:
        """Exit status, output, and the records by part."""
        monkeypatch.setattr(gpu, "PARTS", (device, *parts))
        result = CliRunner().invoke(gpu.main, ["--output", str(tmp_path / "out"), *options])
        file = tmp_path / "out" / "gpu.json"
        records = json.loads(file.read_text())["parts"] if file.exists() else {}
        return result.exit_code, result.output, records

    return run_parts


def test_parts_that_fail_leave_the_others(run: Any, tmp_path: Path) -> None:
    code, output, records = run(
        part(tmp_path, "fails", "raise SystemExit('no such library')"),
        part(tmp_path, "hangs", "import time; time.sleep(60)", seconds=1),
        part(tmp_path, "halves", "open(folder + '/halves.json', 'w').write('[1, 2'); sys.exit(3)"),
        part(tmp_path, "works", written("rows", [{"a": 1}])),
    )
    assert code == 0
    assert list(records) == ["device", "fails", "hangs", "halves", "works"]
    assert records["works"]["results"] == {"rows": [{"a": 1}]}
    assert {name: record["failure"] for name, record in records.items()} == {
        "device": "",
        "fails": "exit status 1: no such library",
        "hangs": "took more than 1 s: ",
        "halves": "exit status 3: ",
        "works": "",
    }
    assert "not complete: fails: exit status 1: no such library" in output
    for record in records.values():
        assert record["device"] == DEVICE
        assert record["versions"]["torch"]
        assert record["command"].startswith("python -m dragoman.benchmarks.gpu")


def test_a_record_is_written_as_soon_as_its_part_ends(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "out" / "gpu.json"
    copy = f"open(folder + '/seen.json', 'w').write(open({str(file)!r}).read())"
    _, _, records = run(
        part(tmp_path, "first", written("rows", [{"a": 1}])), part(tmp_path, "second", copy)
    )
    seen = records["second"]["results"]["seen"]["parts"]
    assert seen == {name: records[name] for name in ("device", "first")}


def test_calls_are_joined(run: Any, tmp_path: Path) -> None:
    """What was not reached is done by the next call, and what is there is kept."""
    count = tmp_path / "count"
    one = f"open({str(count)!r}, 'a').write('x'); {written('rows', [{'a': 1}])}"
    first = part(tmp_path, "first", one)
    second = part(tmp_path, "second", written("rows", [{"a": 2}]))
    _, _, records = run(first, second, options=("--only", "first"))
    assert list(records) == ["device", "first"]
    _, _, joined = run(first, second, options=("--resume",))
    assert joined["first"] == records["first"]
    assert joined["second"]["results"] == {"rows": [{"a": 2}]}
    assert count.read_text() == "x"


def test_a_part_without_time_keeps_its_earlier_record(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = part(tmp_path, "first", written("rows", [{"a": 1}]))
    second = part(tmp_path, "second", "")
    _, _, records = run(first)

    def out_of_time(row: Part, folder: Path, left: float) -> tuple[dict[str, Any], str]:
        return ({"device": DEVICE}, "") if row.name == "device" else ({}, NO_TIME)

    monkeypatch.setattr(gpu, "run", out_of_time)
    _, output, again = run(first, second)
    assert again["first"] == records["first"]
    assert again["second"]["failure"] == "no time was left"
    assert "first: no time was left" in output


@pytest.mark.parametrize("limit", ["first", "first=soon", "fourth=3", "=3"])
def test_limits_that_are_none(run: Any, tmp_path: Path, limit: str) -> None:
    code, output, records = run(part(tmp_path, "first", ""), options=("--limit", limit))
    assert (code, records) == (1, {})
    expected = f"expected PART=SECONDS with part of the name of device, first, found {limit}"
    assert f"--limit: {expected}" in " ".join(output.split())


def test_limits_of_parts(run: Any, tmp_path: Path) -> None:
    hangs = part(tmp_path, "hangs", "import time; time.sleep(60)")
    _, _, records = run(hangs, options=("--limit", "ang=1"))
    assert records["hangs"]["failure"] == "took more than 1 s: "


def test_a_file_that_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text('{"parity": []}')
    result = CliRunner().invoke(gpu.main, ["--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "gpu.json: expected records of `make gpu`" in result.output


def test_records_of_two_machines_are_joined(tmp_path: Path) -> None:
    old, new, other = (
        Record("2026-01-01", "", 1.0, {"gpu": gpu, "driver": "D"}, {}, "", {"rows": [{"a": a}]})
        for gpu, a in (("A100", "old"), ("H100", "new"), ("H100", "other"))
    )
    write_records(tmp_path / "one.json", {"first": old, "second": other})
    write_records(tmp_path / "two.json", {"first": new})
    files = [str(tmp_path / name) for name in ("one.json", "two.json")]
    result = CliRunner().invoke(report.main, [*files, "--output", str(tmp_path / "all.json")])
    assert result.exit_code == 0
    assert read_records(tmp_path / "all.json") == {"first": new, "second": other}
    assert "first: H100, driver D" in result.output
    assert "old" not in result.output
    missing = CliRunner().invoke(report.main, [*files, str(tmp_path / "three.json")])
    assert "three.json: expected records of `make gpu`, found no such file" in missing.output


def test_without_a_gpu_nothing_is_written(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "device.py").write_text("raise SystemExit('found no NVIDIA GPU')")
    monkeypatch.setattr(gpu, "show", lambda results: None)
    code, output, records = run()
    assert (code, records) == (1, {})
    assert "there is no GPU to measure: exit status 1: found no NVIDIA GPU" in output


def comparison(shape: str, contender: str, batch: int, tokens_per_second: float) -> dict[str, Any]:
    return {
        "shape": shape,
        "source_length": 32,
        "new_tokens": 64,
        "machine": "a GPU",
        "measurements": [
            {
                "contender": contender,
                "batch_size": batch,
                "ms_per_step": [0.1, 0.09, 0.11],
                "tokens_per_second": tokens_per_second,
                "identical": 1,
            }
        ],
        "failures": [{"contender": "CTranslate2 float16", "reason": "is not installed"}],
    }


def test_figures_are_shown_with_the_floor(run: Any, tmp_path: Path) -> None:
    measured = comparison(BASE, "Dragoman RTX fp16", 1, 10000.0)
    status, output, _ = run(part(tmp_path, "speed", written("gpu-base", measured)))
    assert status == 0
    share = shortest_step(DEVICE, BASE, "Dragoman RTX fp16", 1) / 0.1
    assert f"{share:.0%}" in output
    assert "not measured: CTranslate2 float16: is not installed" in output
    assert "NVIDIA" not in output


def test_figures_are_shown_with_those_of_nvidia(run: Any, tmp_path: Path) -> None:
    """12,611 and 10,662 tokens a second at batch 32."""
    measured = comparison(BART, "Dragoman RTX bf16", 32, 25222.0)
    measured |= {"source_length": 260, "longest_source": 440, "new_tokens": 128}
    status, output, _ = run(part(tmp_path, "speed", written("gpu-bart-large-cnn", measured)))
    assert status == 0
    assert "25,222" in output
    assert "12,611 (2.00x)" in output
    assert "10,662 (2.37x)" in output
    floor = shortest_step(DEVICE, BART, "bf16", 32, source_length=350, new_tokens=128)
    weights = 12 * (6 * 1024**2 + 2 * 1024 * 4096) + 50264 * 1024
    caches = 32 * 12 * 2 * (350 + 64) * 1024
    assert floor == pytest.approx((weights + caches) * 2 / 3000e9 * 1e3 + 0.002)


def test_the_floor_by_hand() -> None:
    """6 layers of 512: 6 * (6 * 512^2 + 2 * 512 * 2048) weights, 32000 * 512 for the vocabulary."""
    weights = 6 * (6 * 512 * 512 + 2 * 512 * 2048) + 32000 * 512
    caches = 6 * 2 * (32 + 32) * 512
    expected = (weights * 2 + 8 * caches * 2) / 3000e9 * 1e3 + 0.002
    assert shortest_step(DEVICE, BASE, "PyTorch fp16", 8) == pytest.approx(expected)
    assert shortest_step({}, BASE, "PyTorch fp16", 8) == 0
    assert shortest_step(DEVICE, BASE, "Reference (PyTorch)", 8) == 0


def test_the_device_is_measured_and_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.benchmarks.gpu.device.BYTES", 1 << 12)
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
    status, output, records = run(part(tmp_path, "split", written("time_split", rows)))
    assert status == 0
    assert "kernels beyond the floor" in output
    floor = shortest_step(DEVICE, BASE, "PyTorch fp16", 1)
    one, other, unknown = records["split"]["results"]["time_split"]
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
    contender = TextContender("other fp16", unchanged, lambda d, n: lambda batch: [])
    (row,) = time_split.measure(contender, bundle)
    assert row["ms/step"] >= 0
    assert row["kernels"] == ""
    assert row["error"].startswith("RuntimeError: PyTorch, whose profiler times the kernels")


def test_contenders_with_a_backend_of_dragoman() -> None:
    contenders = gpu_contenders(engine_sizes(WORKLOAD))
    backends = {c.name: c.backend for c in contenders if isinstance(c, BackendContender)}
    assert backends["Dragoman CUDA int4"] == "onnxruntime-cuda"
    assert backends["Dragoman RTX fp16"] == "tensorrt-rtx"
    assert backends["Dragoman RTX bf16"] == "tensorrt-rtx"
    others = {c.name for c in contenders} - backends.keys()
    assert {"PyTorch fp16", "PyTorch bf16, CUDA graphs", "CTranslate2 bfloat16"} <= others


def test_engines_are_built_for_the_workload() -> None:
    """Sizes at run time are rounded up, to powers of two and multiples of 16."""
    sizes = engine_sizes(WORKLOAD)
    assert sizes.batches == (Range(1, 1, 1), Range(1, 32, 128))
    assert (sizes.source, sizes.capacity) == (Range(1, 350, 448), 128)
    one = engine_sizes(dataclasses.replace(WORKLOAD, batch_sizes=(3,), longest_source=None))
    assert (one.batches, one.source) == ((Range(1, 3, 4),), Range(1, 260, 272))


def test_every_part_is_a_module_with_these_options(tmp_path: Path) -> None:
    """Nothing is run; an unknown option or choice would be refused."""
    for row in PARTS:
        module = importlib.import_module(row.module)
        arguments = [*row.arguments, "--output", str(tmp_path)]
        if hasattr(module, "__path__"):  # a package, whose command is a group
            tasks = importlib.import_module(f"{row.module}.__main__").main.commands
            command = tasks[arguments.pop(0)]
        else:
            command = module.main
        command.make_context(row.name, arguments)
