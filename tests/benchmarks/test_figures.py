"""Figures of texts and of speech, computed by hand from turns."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.benchmarks.compare.__main__ import TASKS, main
from dragoman.benchmarks.compare.contenders.speech import load_transcriber
from dragoman.benchmarks.compare.contenders.text import (
    AS_MANY_ROWS,
    BEFORE,
    REFERENCE,
    TextContender,
    Workload,
    load_as_many_rows,
    load_bundle,
)
from dragoman.benchmarks.compare.record import as_record, command_line
from dragoman.benchmarks.compare.rounds import Entrant, Failure, Footprint, Turn, Turns, unchanged
from dragoman.benchmarks.compare.tasks.decoding import (
    check_lengths,
    costs_of,
    documentation,
    measurements_of,
    standings,
)
from dragoman.benchmarks.compare.tasks.floor import Pace
from dragoman.benchmarks.compare.tasks.greedy import record_of
from dragoman.benchmarks.compare.tasks.speech import Round, figures
from dragoman.benchmarks.peers.interface import Batch, Stages, Transcriber
from dragoman.benchmarks.processes import ProcessError

from ..small_bundle import small_bundle
from .doubles import CIRCUMSTANCES, compared


def contender(name: str, *, fp32: bool = False, peer: bool = False) -> TextContender:
    """One of which nothing is run."""
    precision = "fp32" if fp32 else "int8"
    return TextContender(
        name, unchanged, lambda d, n: lambda batch: [], precision=precision, peer=peer
    )


CONTENDERS = {
    made.name: made
    for made in (
        contender(REFERENCE, fp32=True),
        contender("Dragoman", fp32=True),
        contender("Dragoman int8"),
        contender("CTranslate2 float32", fp32=True, peer=True),
        contender("OpenVINO int8", peer=True),
    )
}


def turns(rows: list[list[int]], *seconds: float) -> Turns[list[list[int]]]:
    return Turns(Turn(rows, 9.0), [Turn(rows, s) for s in seconds])


def test_texts() -> None:
    right, half = [[1, 2], [3, 4]], [[1, 2], [3, 5]]
    ours, more, slow, fast, faster = measurements_of(
        {
            Entrant(REFERENCE, 2): turns(right, 0.01),
            Entrant("Dragoman", 1): turns(right, 0.2, 0.1, 0.4),
            Entrant("Dragoman int8", 2): turns(half, 0.1),
            Entrant("CTranslate2 float32", 1): turns(right, 0.8),
            Entrant("OpenVINO int8", 1): turns(half, 0.3, 0.3),
            Entrant("CTranslate2 float32", 2): turns(right, 0.5),
            Entrant(f"Dragoman{AS_MANY_ROWS}", 1): turns(half, 0.1, 0.1, 0.1),
        },
        CONTENDERS,
        2,
        2,
    )[1:]
    both = itemgetter("ms_per_step", "tokens_per_second")
    assert both(ours) == ((100.0, 50.0, 200.0), 20.0)
    assert [m["ratio"] for m in (ours, slow, fast, faster)] == [1.5, 0.375, 1.0, 0.6]
    assert {m["best_peer"] for m in (ours, more, slow, fast)} == {"OpenVINO int8, 1 thread"}
    assert [m["fp32_ratio"] for m in (ours, slow, faster)] == [2.5, 0.625, 1.0]
    in_fp32 = {m["best_fp32_peer"] for m in (ours, slow, faster)}
    assert in_fp32 == {"CTranslate2 float32, 2 threads"}
    assert (more["fp32_ratio"], more["best_fp32_peer"]) == (None, None)
    assert (ours["identical"], fast["identical"]) == (2, 1)
    assert [m["thread_ratio"] for m in (ours, more, slow)] == [1.5, 5.0, 0.375]
    assert (ours["fp32_thread_ratio"], more["fp32_thread_ratio"]) == (4.0, None)
    assert [line for line in standings([ours, more]) if "as many" in line] == [
        "Dragoman, 1 thread against the best peer in fp32 with as many: 4.00 to 4.00 times as "
        "fast, least at batch 2",
        "Dragoman, 1 thread against the best peer of all with as many: 1.50 to 1.50 times as "
        "fast, least at batch 2",
        "Dragoman int8, 2 threads against the best peer of all with as many: 5.00 to 5.00 times "
        "as fast, least at batch 2",
    ]


def test_costs_of_beams_and_of_a_version() -> None:
    """Beams by the steps after the first, versions by whole calls; round by round."""
    rows = [[1, 2, 3]]
    beams, greedy = Entrant("Dragoman", 1), Entrant(f"Dragoman{AS_MANY_ROWS}", 1)
    now, before = Entrant("Dragoman int8", 2), Entrant(f"Dragoman int8{BEFORE}", 2)
    other = Entrant(f"Dragoman int8{BEFORE}", 1)
    calls = {
        beams: turns(rows, 0.5, 0.7),
        greedy: turns(rows, 0.5, 0.8),
        now: turns(rows, 0.2, 0.9),
        before: turns(rows, 0.1, 0.3),
        other: turns(rows, 0.1, 0.3),
    }
    first = {beams: turns(rows, 0.1, 0.1), greedy: turns(rows, 0.3, 0.4)}
    step, call = costs_of(calls, first, 8, 3)
    assert step == {
        "contender": "Dragoman",
        "compared_with": greedy.contender,
        "threads": 1,
        "batch_size": 8,
        "of": "step",
        "ms": (250.0, 200.0, 300.0),
        "compared_ms": (150.0, 75.0, 225.0),
        "ratio": (2.0, 1.333, 2.667),
    }
    assert call == {
        "contender": "Dragoman int8",
        "compared_with": before.contender,
        "threads": 2,
        "batch_size": 8,
        "of": "call",
        "ms": (550.0, 200.0, 900.0),
        "compared_ms": (200.0, 100.0, 300.0),
        "ratio": (2.5, 2.0, 3.0),
    }
    assert costs_of(calls, {}, 8, 3) == [call]


@pytest.mark.parametrize("rows", [[[1, 2]], [[1, 2], [3]], [[1, 2, 3], [4, 5, 6]], []])
def test_rows_of_other_lengths(rows: list[list[int]]) -> None:
    check_lengths(Batch([[7], [8]], 2), [[1, 2], [3, 4]])
    with pytest.raises(ProcessError, match="expected 2 rows of 2 new tokens, found"):
        check_lengths(Batch([[7], [8]], 2), rows)


PARROT = Transcriber(lambda clip: clip.name, lambda clip: Stages(0.25, 0.5, len(clip.name)))
"""Transcribes each clip to its name, in times that are known."""


def test_speech() -> None:
    clips = {Path("yes"): "yes", Path("maybe"): "no"}
    transcripts = load_transcriber(Path(), 1, load=lambda *given, **options: PARROT)(list(clips))
    assert [t.text for t in transcripts] == ["yes", "maybe"]
    first = Round.of(list(clips), [t._replace(seconds=0.5) for t in transcripts])
    assert (first.seconds, first.encoder, first.decoder) == (1.0, 0.5, 1 / 8)
    slow = Round(3.0, 1.0, 1 / 4, first.texts)
    silent = Round(5.0, None, None, first.texts)  # of a tool that does not time its stages
    rounds = {"Dragoman": [first, slow], "faster-whisper": [slow], "other": [silent]}
    ours, theirs, other = figures(rounds, clips, 4.0)
    assert (other["decoder_ratio"], other["total_ratio"]) == (None, 0.6)
    assert (other["ms_per_clip_encoder"], other["ms_per_token_decoder"]) == (None, None)
    assert ours == {
        "contender": "Dragoman",
        "seconds": (2.0, 1.0, 3.0),
        "real_time_factor": 0.5,
        "ms_per_clip_encoder": (375.0, 250.0, 500.0),
        "ms_per_token_decoder": (187.5, 125.0, 250.0),
        "word_error": 0.5,
        "decoder_ratio": 1.333,
        "total_ratio": 1.5,
    }
    assert (theirs["total_ratio"], theirs["decoder_ratio"]) == (1.0, 1.0)
    (alone,) = figures({"Dragoman": [first]}, clips, 4.0)
    assert (alone["total_ratio"], alone["decoder_ratio"]) == (None, None)


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def recorded(workload: Workload, **more: Any) -> dict[str, Any]:
    """The record of a workload; figures that are not given are empty."""
    lists: dict[str, Any] = {
        name: more.pop(name, []) for name in ("measurements", "footprints", "failures", "costs")
    }
    return as_record(record_of("a shape", workload, lists, **more), CIRCUMSTANCES)


def test_records_have_the_keys_of_those_committed() -> None:
    workload = Workload((1,), 1, 1, (1, 9), (1,), 1)
    failures = [Failure("a tool", "is missing")]
    paces, floors = [Pace(1, 1.0, {})], [{"contender": "Dragoman", "ms": 1.0}]
    text = recorded(workload, failures=failures)
    committed = json.loads((RESULTS / "cpu-big-1-2-threads.json").read_text(encoding="utf-8"))
    assert list(recorded(workload, paces=paces, floors=floors)) == list(committed)
    assert text["failures"] == [{"contender": "a tool", "reason": "is missing"}]
    beams = recorded(replace(workload, num_beams=4), costs=[{"of": "step"}])
    assert beams.keys() - text.keys() == {"num_beams", "costs"}


STORED = {
    "cpu-base-1-2-threads": "greedy",
    "cpu-base-1-2-threads-intel-xeon-amx": "greedy",
    "cpu-big-1-2-threads": "greedy",
    "cpu-base-4-beams-1-2-threads": "beams",
    "cpu-base-shortlist-1-threads": "greedy",
    "before-slots-base-batch-1": "greedy",
    "before-slots-base-batches-1-8-32": "greedy",
    "language-model-gpt2-1-2-threads": "language-model",
    "encoding-minilm-l6-1-2-threads": "encoding",
    "encoding-minilm-l6-openvino-1-2-threads": "encoding",
    "encoding-bge-base-random-2-threads": "encoding",
    "encoding-mpnet-base-random-2-threads": "encoding",
    "encoding-minilm-l6-queue-2-threads": "encoding",
    "reranking-minilm-l6-random-2-threads": "encoding",
    "growth-base-2-threads": "growth",
    "large-nllb-600m-2-threads": "large",
    "large-large-v3-turbo-2-threads": "large",
    "serving-base-2-cores": "serving",
    "speech-whisper-base-1-threads": "speech",
    "speech-whisper-tiny.en-2-threads": "speech",
    "throughput-base-2-cores": "throughput",
    "throughput-base-shortlist-2-cores": "throughput",
    "training-1-threads": "training",
    "translation-bible-en-es": "translation",
    "translation-multi30k-en-de": "translation",
}
"""Committed records, and the tasks that wrote them."""


@pytest.mark.parametrize("name", STORED)
def test_committed_records_can_be_shown_drawn_and_tabulated(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row has as many cells as there are headings, and every contender is shown."""
    task = TASKS[STORED[name]]
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for table in (*task.tables(record), *(task.documentation or task.tables)(record)):
        assert table.rows
        assert {len(row) for row in table.rows if row} == {len(table.headings)}
    task.show(record)
    shown = capsys.readouterr().out
    for row in record[task.rows]:
        assert next(iter(row.values())) in shown
    assert record["command"] in shown
    if task.picture is not None:
        assert all(axes.has_data() for axes in task.picture(record).axes)
    assert compared("tables", task.name, RESULTS / f"{name}.json").startswith("| ")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_help(name: str) -> None:
    assert "--output" in compared(name, "--help")
    assert name in compared("--help")


NO_ABACUS = "--only: expected part of a contender's name, found abacus"
REFUSED = {
    "greedy --shape base --source-length 513": "sources of at most 512 tokens",
    "greedy --shape base --new-tokens 512": "at most 511 new ones",
    "greedy --longest-source 8 --source-length 9": "--longest-source to be at least",
    "growth --shape tiny --only abacus": NO_ABACUS,
    "growth --shape tiny --source-length 513": "at most 512 tokens and at most 511 new ones",
    "growth --shape tiny --new-tokens 512": "found 512 and 512",
    "serving --whisper whisper": "--whisper and --clips go together",
    "throughput --shape tiny --only abacus": NO_ABACUS,
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_measured(words: str) -> None:
    outcome = CliRunner().invoke(main, words.split())
    assert outcome.exit_code == 1
    assert REFUSED[words] in " ".join(outcome.output.split())


def test_tables_of_a_record() -> None:
    """The best number of threads is in bold, and ratios are of the best."""

    def row(name: str, threads: int, size: int, ms: float, *, fp32: bool) -> dict[str, Any]:
        return {
            "contender": name,
            "threads": threads,
            "batch_size": size,
            "ms_per_step": (ms, ms - 0.5, ms + 1),
            "ratio": 6 / ms,
            "fp32_ratio": 6 / ms if fp32 else None,
            "identical": size - 1,
            "thread_ratio": 5 / ms,
            "fp32_thread_ratio": 5 / ms if fp32 else None,
        }

    measurements = [
        row(name, threads, size, ms * size, fp32=name != "Dragoman int8")
        for name, times in (("Dragoman int8", (2.0, 1.5)), ("A peer", (3.0, 4.0)))
        for size in (1, 2)
        for threads, ms in zip((1, 2), times, strict=True)
    ]
    footprints = [
        Footprint(name, threads, threads / 4, 1234.4, 20.6)
        for name in ("Dragoman int8", "A peer")
        for threads in (1, 2)
    ]
    ours = {"contender": "Dragoman int8"}
    floors = [ours | {"threads": 2, "batch_size": size, "ms": size / 2} for size in (1, 2)]
    spreads = {"ms": (2.0, 1, 3), "compared_ms": (1.6, 1, 2), "ratio": (1.25, 1.0, 1.5)}
    costs = [
        ours | {"threads": threads, "batch_size": size, "of": "step"} | spreads
        for threads in (1, 2)
        for size in (1, 2)
    ]
    record = recorded(
        Workload((1, 2), 1, 1, (1, 9), (1, 2), 1, num_beams=4),
        measurements=measurements,
        footprints=footprints,
        costs=costs,
        floors=floors,
    )
    found = [table.markdown() for table in documentation(record)]
    speed, held, lowest, steps = (table.replace("\N{EN DASH}", "-") for table in found)
    assert speed.splitlines() == [
        "|  | 1 source, 1 thread | 1 source, 2 threads | 2 sources, 1 thread | "
        "2 sources, 2 threads | against the best peer | in fp32 | with 1 thread for all | "
        "in fp32 | same tokens |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| Dragoman int8 | 2.00 (1.50-3.00) | **1.50 (1.00-2.50)** | 4.00 (3.50-5.00) | "
        "**3.00 (2.50-4.00)** | 4.00x / 2.00x |  | 2.50x / 1.25x |  | 1 of 3 |",
        "| A peer | **3.00 (2.50-4.00)** | 4.00 (3.50-5.00) | **6.00 (5.50-7.00)** | "
        "8.00 (7.50-9.00) | 2.00x / 1.00x | 2.00x / 1.00x | 1.67x / 0.83x | 1.67x / 0.83x | "
        "1 of 3 |",
    ]
    assert held.splitlines()[0] == (
        "|  | load, 1 thread | load, 2 threads | peak memory, 1 thread | peak memory, 2 threads | "
        "disk |"
    )
    assert held.splitlines()[2] == (
        "| Dragoman int8 | 0.25 s | 0.50 s | 1,234 MB | 1,234 MB | 21 MB |"
    )
    assert lowest.splitlines() == [
        "|  | threads | 1 source | 2 sources |",
        "| --- | --- | --- | --- |",
        "| Dragoman int8 | 2 | 0.50 of 1.50 ms, 33% | 1.00 of 3.00 ms, 33% |",
    ]
    assert steps.splitlines() == [
        "|  | threads | 1 source: ms per step, compared, ratio | "
        "2 sources: ms per step, compared, ratio |",
        "| --- | --- | --- | --- |",
        *(
            f"| Dragoman int8 | {n} | 2.00, 1.60, 1.250 (1.000-1.500) | "
            "2.00, 1.60, 1.250 (1.000-1.500) |"
            for n in (1, 2)
        ),
    ]


def test_a_file_that_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text("{}", encoding="utf-8")
    outcome = CliRunner().invoke(main, ["tables", "greedy", str(file)])
    assert outcome.exit_code == 1
    assert "expected a record of dragoman.benchmarks.compare greedy" in outcome.output
    file.write_text("{", encoding="utf-8")
    outcome = CliRunner().invoke(main, ["tables", "greedy", str(file)])
    assert outcome.exit_code == 1 and "expected a record in JSON" in outcome.output


def test_greedy_decoding_of_as_many_rows_as_beams(tmp_path: Path) -> None:
    """All rows of a source are those of the source in a batch of its own."""
    bundle = small_bundle(tmp_path, positions=12)
    sources = [[3, 4, 5], [6], [7, 8, 9, 3, 4]]
    answers = load_as_many_rows(bundle, 1)(Batch(sources, 9, num_beams=4))
    assert answers == [load_bundle(bundle, 1)(Batch([source], 9))[0] for source in sources]


def test_a_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "--only", "Dragoman fp32"])
    assert command_line("a.module") == "python -m a.module --only 'Dragoman fp32'"
