"""README is read in three minutes, and its links lead somewhere."""

from __future__ import annotations

import json
import re
from typing import Any

from .conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FIGURES = (ROOT / "docs/figures.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 90
    assert [line for line in lines if len(line) > 120] == []


def test_links_to_files_of_the_repository_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_target_of_make_that_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", README, re.MULTILINE))
    assert {block or inline for block, inline in named} <= targets


Row = dict[str, Any]
QUANTIZED = ("Dragoman int8", "Dragoman int4")


def record(name: str) -> dict[str, Any]:
    text = (ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def ratios_of(case: str, page: str) -> list[str]:
    """The ratios that a page's table of speed states for a case: quantized, and in fp32."""
    (row,) = re.findall(rf"^\| {case}[^|]*\| (.*) \|$", page, re.MULTILINE)
    return str(row).split(" | ")


def check(case: str, expected: list[str], *, in_readme: bool = True) -> None:
    """Check a row of the summary in the page of figures, and of the table in README."""
    assert ratios_of(case, FIGURES) == expected
    if in_readme:
        assert ratios_of(case, README) == expected


def best(rows: list[Row], ratio: str, contenders: tuple[str, ...]) -> str:
    """The largest ratio of these contenders at each batch size."""
    sizes = dict.fromkeys(row["batch_size"] for row in rows)
    return " / ".join(
        f"{max(r[ratio] for r in rows if (r['batch_size'], r['contender']) in cases):.2f}x"
        for size in sizes
        for cases in [[(size, name) for name in contenders]]
    )


def test_the_ratios_of_batches_are_those_of_the_record() -> None:
    rows = record("cpu-base-1-2-threads")["measurements"]
    one_thread = [row for row in rows if row["threads"] == 1]
    for case, found, key in (
        (r"\[1 / 8 / 32 sentences\]\([^)]*\), one thread", one_thread, "thread_ratio"),
        (r"\[1 / 8 / 32 sentences\]\([^)]*\) at once", rows, "ratio"),
    ):
        expected = [best(found, key, QUANTIZED), best(found, f"fp32_{key}", ("Dragoman fp32",))]
        check(case, expected, in_readme=key == "ratio")


def test_the_ratios_of_the_queue_are_those_of_the_record() -> None:
    """The least favourable of all to Dragoman stands above them."""
    tools = {tool["tool"]: tool for tool in record("throughput-base-2-cores")["tools"]}
    quantized = max(tools[name]["ratio"] for name in QUANTIZED)
    check(
        r"\[500 sentences\]",
        [f"{quantized:.2f}x", f"{tools['Dragoman fp32']['fp32_ratio']:.2f}x"],
    )
    rows = record("cpu-base-1-2-threads")["measurements"]
    least = min(
        float(ratio.removesuffix("x"))
        for key, found in (
            ("ratio", rows),
            ("thread_ratio", [r for r in rows if r["threads"] == 1]),
        )
        for ratio in best(found, key, QUANTIZED).split(" / ")
    )
    assert f"at least {min(least, round(quantized, 2)):.2f} times as fast" in FIGURES


def test_the_range_of_encoders_is_that_of_the_record() -> None:
    """Times as fast as the best peer: in fp32 as the best in fp32, below it as the best of all."""
    rows = record("encoding-minilm-l6-1-2-threads")["measurements"]
    cases: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["threads"], row["length"], row["batch_size"]), []).append(row)
    assert len(cases) == 12
    ranges = []
    for ratio, names in (("reduced_ratio", QUANTIZED), ("fp32_ratio", ("Dragoman fp32",))):
        own = [max(r[ratio] for r in case if r["contender"] in names) for case in cases.values()]
        ranges.append(f"{min(own):.2f}x to {max(own):.2f}x")
    check(re.escape("[embeddings of MiniLM-L6]"), ranges)


def test_the_ratios_of_the_queue_of_texts_are_those_of_the_record() -> None:
    """int8 beside the best peer of lower precision, fp32 beside fp32; the queue has no length."""
    rows = record("encoding-minilm-l6-queue-2-threads")["measurements"]
    of = {row["contender"]: row for row in rows if row["length"] is None}
    targets = ("Dragoman", "Dragoman openvino")
    quantized = [f"{of[f'{target} int8']['reduced_ratio']:.2f}x" for target in targets]
    exact = [f"{of[f'{target} fp32']['fp32_ratio']:.2f}x" for target in targets]
    check(re.escape("[2,000 unlike texts]"), [" / ".join(quantized), " / ".join(exact)])


def test_the_ratios_of_speech_are_those_of_the_records() -> None:
    """Seconds from files to texts: quantized beside the best mode of all, fp32 beside fp32."""
    for case, way in ((r"\[Whisper\]", ""), (r"\[30 s of speech\]", "-published-5-beams-30-s")):
        check(case, ratios_of_speech(way), in_readme=not way)


def ratios_of_speech(way: str) -> list[str]:
    quantized, in_fp32 = [], []
    for model in ("tiny.en", "base"):
        figures = record(f"speech-whisper-{model}-2-threads{way}")["figures"]
        seconds = {row["contender"]: row["seconds"][0] for row in figures}
        ratios = {row["contender"]: row["total_ratio"] for row in figures}
        peers = {name: s for name, s in seconds.items() if not name.startswith("Dragoman")}
        exact = [s for name, s in peers.items() if name.endswith((" f32", " float32", " fp32"))]
        quantized.append(f"{max(ratios[name] for name in QUANTIZED):.2f}x")
        in_fp32.append(f"{min(exact) / seconds['Dragoman fp32']:.2f}x")
    return [" / ".join(quantized), " / ".join(in_fp32)]
