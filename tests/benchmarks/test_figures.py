"""Figures of texts and of speech, computed by hand from turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.benchmarks.circumstances import Circumstances, command_line
from dragoman.benchmarks.harness import ContenderError, Failure, Turn, Turns
from dragoman.benchmarks.peers.interface import Batch, Stages
from dragoman.benchmarks.speech.contenders import load_transcriber
from dragoman.benchmarks.speech.measuring import Round, figures
from dragoman.benchmarks.speech.report import SpeechComparison
from dragoman.benchmarks.text.contenders import REFERENCE
from dragoman.benchmarks.text.measuring import check_lengths, measurements_of
from dragoman.benchmarks.text.report import Comparison

CIRCUMSTANCES = Circumstances("a machine", 0.5, {"dragoman": "0"}, "2026-01-01", "a command")


def turns(rows: list[list[int]], *seconds: float) -> Turns[list[list[int]]]:
    return Turns(Turn(rows, 9.0), [Turn(rows, s) for s in seconds])


def test_texts() -> None:
    right, half = [[1, 2], [3, 4]], [[1, 2], [3, 5]]
    ours, slow, fast = measurements_of(
        {
            REFERENCE: turns(right),
            "ours": turns(right, 0.2, 0.1, 0.4),
            "CTranslate2 slow": turns(right, 0.8),
            "CTranslate2 fast": turns(half, 0.3, 0.3),
        },
        2,
        2,
    )
    assert (ours.ms_per_step, ours.tokens_per_second) == ((100.0, 50.0, 200.0), 20.0)
    assert (ours.ratio, slow.ratio, fast.ratio) == (1.5, 0.375, 1.0)
    assert {m.best_ctranslate2 for m in (ours, slow, fast)} == {"CTranslate2 fast"}
    assert (ours.identical, fast.identical) == (2, 1)


@pytest.mark.parametrize("rows", [[[1, 2]], [[1, 2], [3]], [[1, 2, 3], [4, 5, 6]], []])
def test_rows_of_other_lengths(rows: list[list[int]]) -> None:
    check_lengths(Batch([[7], [8]], 2), [[1, 2], [3, 4]])
    with pytest.raises(ContenderError, match="expected 2 rows of 2 new tokens, found"):
        check_lengths(Batch([[7], [8]], 2), rows)


class Parrot:
    """Transcribes each clip to its name, in times that are known."""

    def transcribe(self, clip: Path) -> str:
        return clip.name

    def stages(self, clip: Path) -> Stages:
        return Stages(encoder=0.25, decoder=0.5, tokens=len(clip.name))


def test_speech() -> None:
    clips = {Path("yes"): "yes", Path("maybe"): "no"}
    transcripts = load_transcriber(Path(), 1, load=lambda directory, threads: Parrot())(list(clips))
    assert [t.text for t in transcripts] == ["yes", "maybe"]
    first = Round.of(list(clips), [t._replace(seconds=0.5) for t in transcripts])
    assert (first.seconds, first.encoder, first.decoder) == (1.0, 0.5, 1 / 8)
    slow = Round(3.0, 1.0, 1 / 4, first.texts)
    ours, theirs = figures({"ours": [first, slow], "faster-whisper": [slow]}, clips, 4.0)
    assert (ours.seconds, ours.real_time_factor) == ((2.0, 1.0, 3.0), 0.5)
    assert ours.ms_per_clip_encoder == (375.0, 250.0, 500.0)
    assert ours.ms_per_token_decoder == (187.5, 125.0, 250.0)
    assert (ours.word_error, ours.total_ratio, ours.decoder_ratio) == (0.5, 1.5, 1.333)
    assert (theirs.total_ratio, theirs.decoder_ratio) == (1.0, 1.0)
    (alone,) = figures({"ours": [first]}, clips, 4.0)
    assert (alone.total_ratio, alone.decoder_ratio) == (None, None)


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_records_have_the_keys_of_those_committed() -> None:
    failures = [Failure("a tool", "is missing")]
    text = Comparison("a shape", 1, 1, 1, 1, [], [], {}, failures, CIRCUMSTANCES)
    speech = SpeechComparison("a model", 1, 1.0, 1, 1, [], failures, CIRCUMSTANCES)
    for record, file in (
        (text, "cpu-base-2-threads.json"),
        (speech, "speech-whisper-base-2-threads.json"),
    ):
        committed = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        assert list(json.loads(record.to_json())) == list(committed)
    assert json.loads(speech.to_json())["failures"] == {"a tool": "is missing"}


def test_a_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "--only", "Dragoman fp32"])
    assert command_line("a.module") == "python -m a.module --only 'Dragoman fp32'"
