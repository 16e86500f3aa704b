"""The guides to serving and scaling say what the command, the protocols and the records say."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dragoman.cli.serve import serve
from dragoman.runtime.serving.apis.bodies import OPTION_NAMES
from dragoman.runtime.serving.middleware import LOGGED_BYTES
from dragoman.runtime.serving.options import EngineOptions, ListenOptions, ServerOptions

ROOT = Path(__file__).parents[2]
SERVING = (ROOT / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
NATIVE = (ROOT / "docs" / "apis" / "native.md").read_text(encoding="utf-8")
SCALING = (ROOT / "docs" / "guides" / "scaling.md").read_text(encoding="utf-8")


def record(name: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def tool(name: str) -> dict[str, Any]:
    tools = record("throughput-base-2-cores")["tools"]
    (found,) = [one for one in tools if one["tool"] == name]
    return dict(found)


def test_every_option_of_a_request_is_there() -> None:
    table = NATIVE.partition("| field | meaning |")[2].partition("\n\n")[0]
    fields = set(re.findall(r"`(\w+)`", table.replace("`true`", "")))
    assert fields == OPTION_NAMES | {"model", "stream", "timeout"}


@pytest.mark.parametrize("flag", [o.opts[0] for o in serve.params if o.opts[0].startswith("--")])
def test_every_option_of_the_command_is_there(flag: str) -> None:
    assert re.search(rf"{flag}\b(?!-)", SERVING)


def test_defaults() -> None:
    options = ServerOptions()
    assert f"`--max-waiting {EngineOptions().max_waiting}`" in SERVING
    assert f"`--max-body {options.max_body_bytes >> 20}`" in SERVING
    assert f"`--max-audio {options.max_audio:g}`" in SERVING
    assert f"`--max-open-audio {options.max_open_audio:g}`" in SERVING
    assert f"`--timeout {options.timeout:g}`" in SERVING
    assert f"`--drain-seconds` [{ListenOptions().drain_seconds}]" in SERVING
    assert f"first {LOGGED_BYTES:,}\nbytes" in SERVING


def test_workers() -> None:
    trials = {tuple(t["arrangement"]): t for t in tool("Dragoman int8")["trials"]}
    two, one = (trials[key]["tokens_per_second"] for key in ((2, 1, 64), (1, 2, 64)))
    assert f"{two:,.0f} tokens a second, one worker of two threads {one:,.0f}" in SERVING


def test_the_calculation_of_machines() -> None:
    int8, fp32 = tool("Dragoman int8"), tool("Dragoman fp32")
    sentences = record("throughput-base-2-cores")["sentences"]
    requests, share = 250, 0.6
    tokens = round(int8["tokens"] / sentences)
    busiest = round(requests + 1.645 * math.sqrt(requests))
    speeds = [round(median(one["tokens_per_second"])) for one in (int8, fp32)]
    wanted = busiest * tokens
    machines, in_fp32 = (math.ceil(wanted / (share * speed)) for speed in speeds)
    for words in (
        f"{int8['tokens']:,} tokens, a median of {speeds[0]:,} a second",
        f"= {busiest} requests",
        f"= {busiest} x {tokens} = {wanted:,} tokens a second",
        f"= {share} x {speeds[0]:,} = {share * speeds[0]:,.0f} tokens a second",
        f"= {machines}\n    n + 1 = {machines + 1} machines",
        f"the other five are at {requests} x {tokens} / ({machines} x {speeds[0]:,}) = "
        f"{requests * tokens / (machines * speeds[0]):.0%}".replace("%", " %"),
        f"⌉ + 1 = {in_fp32 + 1}.",
        f"{int8['memory_mb']:.0f} MB in int8, {fp32['memory_mb']:,.0f} MB in fp32",
    ):
        assert words in SCALING


@pytest.mark.parametrize("rows", [1, 4, 8, 32])
def test_times_of_steps(rows: int) -> None:
    (found,) = [
        case
        for case in record("growth-base-2-threads")["by_batch"]
        if (case["contender"], case["batch_size"]) == ("Dragoman int8", rows)
    ]
    step = round(median(found["ms_per_step"]), 2)
    row = f"| {rows} | {step:.2f} | {found['tokens_per_second']:,.0f} | {43 * step:.0f} ms |"
    assert row in SCALING
