"""What `make gpu` does without a GPU: it survives failing parts, and computes from figures."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.benchmarks.compare.contenders.gpu import engine_sizes, gpu_contenders
from dragoman.benchmarks.compare.contenders.text import Workload
from dragoman.benchmarks.gpu import __main__ as gpu
from dragoman.benchmarks.gpu.device import bandwidth_share
from dragoman.benchmarks.gpu.parts import DEVICE as DEVICE_PART
from dragoman.benchmarks.gpu.parts import MESSAGES, NO_TIME, Part, command, parts_on
from dragoman.runtime.format.manifest import Range

WORKLOAD = Workload((1, 8, 32, 128), 260, 128, (1, 50263), (1,), 3, longest_source=440)
DEVICE = {"peak_gb_per_second": 3000.0, "copied_gb_per_second": 2500.0}
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
        monkeypatch.setattr(gpu, "parts_on", lambda name: (device, *parts))
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


def test_a_file_that_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text('{"parity": []}')
    result = CliRunner().invoke(gpu.main, ["--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "gpu.json: expected records of `make gpu`" in result.output


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


def test_figures_are_shown_with_the_share_of_the_bandwidth(run: Any, tmp_path: Path) -> None:
    """A step of 0.1 ms, which reads 6 layers of 512 and 32000 * 512 weights for the vocabulary."""
    measured = comparison(BASE, "Dragoman RTX fp16", 1, 10000.0)
    status, output, _ = run(part(tmp_path, "speed", written("gpu-base", measured)))
    assert status == 0
    weights = 6 * (6 * 512 * 512 + 2 * 512 * 2048) + 32000 * 512
    caches = 6 * 2 * (32 + 32) * 512
    share = (weights + caches) * 2 / 0.1e-3 / 3000e9
    assert bandwidth_share(
        DEVICE, BASE, "PyTorch fp16", 1, 0.1, source_length=32, new_tokens=64
    ) == pytest.approx(share)
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
    weights = 12 * (6 * 1024**2 + 2 * 1024 * 4096) + 50264 * 1024
    caches = 32 * 12 * 2 * (350 + 64) * 1024
    assert f"{(weights + caches) * 2 / 0.1e-3 / 3000e9:.0%}" in output


def test_the_share_of_what_is_unknown() -> None:
    lengths: dict[str, Any] = {"source_length": 32, "new_tokens": 64}
    assert bandwidth_share({}, BASE, "PyTorch fp16", 8, 0.1, **lengths) is None
    assert bandwidth_share(DEVICE, BASE, "Reference (PyTorch)", 8, 0.1, **lengths) is None
    assert bandwidth_share(DEVICE, "GPT-2", "PyTorch fp16", 8, 0.1, **lengths) is None


def test_contenders() -> None:
    names = {contender.name for contender in gpu_contenders(engine_sizes(WORKLOAD))}
    assert {"Dragoman CUDA int4", "Dragoman RTX bf16", "PyTorch fp16"} <= names
    assert {"transformers fp16", "transformers compiled fp16", "CTranslate2 bfloat16"} <= names


def test_engines_are_built_for_the_workload() -> None:
    """Sizes at run time are rounded up, to powers of two and multiples of 16."""
    sizes = engine_sizes(WORKLOAD)
    assert sizes.batches == (Range(1, 1, 1), Range(1, 32, 128))
    assert (sizes.source, sizes.capacity) == (Range(1, 350, 448), 128)
    one = engine_sizes(dataclasses.replace(WORKLOAD, batch_sizes=(3,), longest_source=None))
    assert (one.batches, one.source) == ((Range(1, 3, 4),), Range(1, 260, 272))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_part_is_a_module_with_these_options(device: str, tmp_path: Path) -> None:
    """Nothing is run; an unknown option or choice would be refused."""
    for row in parts_on(device):
        module = importlib.import_module(row.module)
        arguments = [*row.arguments, "--output", str(tmp_path)]
        if hasattr(module, "__path__"):  # a package, whose command is a group
            tasks = importlib.import_module(f"{row.module}.__main__").main.commands
            command = tasks[arguments.pop(0)]
        else:
            command = module.main
        command.make_context(row.name, arguments)


def test_all_parts_fit_into_half_an_hour() -> None:
    parts = parts_on("cuda")
    assert parts[0].name == DEVICE_PART
    assert sum(part.seconds for part in parts) <= 30 * 60
    assert max(part.seconds for part in parts) <= 540 - parts[0].seconds
    assert len({part.name for part in parts}) == len(parts)


def test_a_part_without_its_libraries_is_left_out(run: Any, tmp_path: Path) -> None:
    needs = dataclasses.replace(part(tmp_path, "needs", "raise SystemExit(1)"), needs=("no_such",))
    _, output, records = run(needs)
    assert records["needs"]["failure"] == "left out: no_such is not installed"
    assert "not complete: needs: left out: no_such is not installed" in output


def test_what_failed_before_comes_last(run: Any, tmp_path: Path) -> None:
    order = tmp_path / "order"
    names = ("fails", "works", "new")
    fails, works, new = (
        part(tmp_path, name, f"open({str(order)!r}, 'a').write({name + ' '!r})") for name in names
    )
    (tmp_path / "fails.py").write_text("raise SystemExit(1)")
    run(fails, works)
    order.write_text("")
    (tmp_path / "fails.py").write_text(
        (tmp_path / "works.py").read_text().replace("works", "fails")
    )
    _, _, records = run(fails, works, new, options=("--resume",))
    assert order.read_text() == "new fails "
    assert not any(record["failure"] for record in records.values())


def test_a_part_may_write_what_it_has_when_its_time_is_over(run: Any, tmp_path: Path) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    "
    _, _, records = run(part(tmp_path, "slow", code + written("rows", [{"a": 1}]), seconds=2))
    assert records["slow"]["results"] == {"rows": [{"a": 1}]}
    assert records["slow"]["failure"].startswith("took more than 2 s")


def test_what_the_library_logs_is_kept(tmp_path: Path) -> None:
    def measure(workspace: Path, device: str) -> Any:
        log = logging.getLogger("dragoman.runtime.backends.onnxruntime.cuda")
        for _ in range(2):
            log.info("decoding without CUDA graphs: %s", "a reason")
        yield [device]

    outcome = CliRunner().invoke(command("rows", measure), ["--output", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads((tmp_path / "rows.json").read_text()) == ["cuda"]
    assert (tmp_path / MESSAGES).read_text() == "decoding without CUDA graphs: a reason\n" * 2


def test_a_dry_run_fails_with_any_part(run: Any, tmp_path: Path) -> None:
    fails, works = (part(tmp_path, n, c) for n, c in (("a", "raise SystemExit(1)"), ("b", "")))
    code, output, records = run(fails, works, options=("--device", "cpu"))
    assert (code, list(records)) == (1, ["device", "a", "b"])
    assert "the dry run is not complete" in output
    assert run(works, options=("--device", "cpu"))[0] == 0
