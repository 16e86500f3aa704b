"""Transcripts that arrive segment by segment, what is left open, journals and languages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import soundfile

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.runtime import Result, load
from dragoman.runtime.decoding.results import clock, subtitles

from ..speech_models import MODELS, RATE, noise, save

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

THREAD = ("--threads", 1)
LOUD = ("--no-vad", "--max-new-tokens", 9, *THREAD)
"""Noise is no speech."""


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("speech")
    checkpoint = read_checkpoint(save(MODELS["multilingual"](), directory / "checkpoint"))
    (directory / "bundle").mkdir()
    export_bundle(
        checkpoint.model, directory / "bundle", name="whisper", tokenizers=checkpoint.tokenizers
    )
    return directory / "bundle"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of several windows, of one, and of several."""
    directory = tmp_path_factory.mktemp("recordings")
    found = []
    for seed, seconds in enumerate((3.3, 0.4, 4.13), start=10):
        found.append(directory / f"{seed}.wav")
        soundfile.write(found[-1], noise(seconds, seed), RATE)
    return found


@pytest.fixture(scope="module")
def results(speaker: Path, recordings: list[Path]) -> list[Result]:
    with load(speaker, threads=1) as model:
        updates = model.transcribe(recordings, vad=False, max_new_tokens=9)
        found = {u.index: u.result for u in updates if u.result is not None}
    return [found[index] for index in range(len(recordings))]


def lines(result: Result) -> str:
    return "".join(
        f"[{clock(s.start)} --> {clock(s.end)}] {(s.text or '').strip()}\n"
        for s in result.segments or ()
    )


def test_what_is_left_open_is_as_published(
    dragoman: Dragoman, speaker: Path, recordings: list[Path], results: list[Result]
) -> None:
    """Five beams, fallback and the text before, with or without times."""
    files = [recordings[0], recordings[0].with_name("missing.wav"), *recordings[1:]]
    done = dragoman("run", speaker, *files, *LOUD)
    first, *rest = ((result.text or "").strip() for result in results)
    assert done.stdout.splitlines() == [first, "", *rest]
    assert done.returncode == 1 and "line 2: " in done.stderr and "missing.wav" in done.stderr
    stdin = "".join(f"{file}\n" for file in files).encode()
    assert dragoman("run", speaker, *LOUD, stdin=stdin).stdout == done.stdout
    timed = dragoman("run", speaker, *recordings, "--timestamps", *LOUD)
    assert timed.stdout == "".join(lines(result) + "\n" for result in results)
    found = dragoman("run", speaker, *recordings, "--json", *LOUD).stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in found] == [list(r.tokens) for r in results]
    shown = dragoman("run", speaker, recordings[2], "--format", "srt", *LOUD)
    assert shown.stdout == subtitles(results[2], "srt")


def test_noise_is_left_out(dragoman: Dragoman, speaker: Path, recordings: list[Path]) -> None:
    found = json.loads(dragoman("run", speaker, recordings[1], "--json", *THREAD).stdout)
    assert (found["finish_reason"], found["voice"]) == ("empty", [])


def test_without_a_detector_there_is_a_warning(
    spawn: Dragoman, speaker: Path, recordings: list[Path]
) -> None:
    prelude = "import dragoman.runtime.audio.voice_activity as module; module.PACKAGES = ()"
    options = ("--max-new-tokens", 3, *THREAD)
    done = spawn("run", speaker, recordings[1], *options, prelude=prelude)
    assert done.returncode == 0 and done.stdout.strip()
    assert done.stderr == (
        "Warning: silence is transcribed, too, which invents text: pip install 'dragoman[vad]'\n"
    )
    for chosen in ("--no-vad", "--greedy"):
        done = spawn("run", speaker, recordings[1], chosen, *options, prelude=prelude)
        assert (done.returncode, done.stderr) == (0, "")


INTERRUPTING = """
import os, signal
from dragoman.runtime.speech.windows import Windows
before, count = Windows.add, [0]
def add(self, recording, *arguments):
    if count[0] == {windows}:
        os.kill(os.getpid(), signal.{name})
    position = recording.position
    before(self, recording, *arguments)
    count[0] += recording.position > position
Windows.add = add
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption_leaves_what_was_transcribed(
    spawn: Dragoman,
    dragoman: Dragoman,
    speaker: Path,
    recordings: list[Path],
    results: list[Result],
    tmp_path: Path,
    name: str,
    status: int,
) -> None:
    """The same command goes on, and its output is that of one without an interruption."""
    journal, recording = tmp_path / "journal", recordings[2]
    options = (recording, "--timestamps", "--resume", journal, *LOUD)
    whole, before = lines(results[2]) + "\n", ""
    for windows in (1, 2):
        prelude = INTERRUPTING.format(windows=windows, name=name)
        done = spawn("run", speaker, *options, prelude=prelude)
        assert done.returncode == status and "Traceback" not in done.stderr
        assert whole.startswith(done.stdout) and done.stdout.startswith(before)
        assert len(before) < len(done.stdout) < len(whole)
        before = done.stdout
    done = dragoman("run", speaker, *options)
    assert (done.returncode, done.stdout) == (0, whole)
    kept = journal.read_bytes()
    done = dragoman("run", speaker, recording, "--format", "vtt", "--resume", journal, *LOUD)
    assert done.stdout == subtitles(results[2], "vtt")
    refused = dragoman("run", speaker, *options, "--beams", 2)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert "expected a journal with the options of this call" in refused.stderr
    assert not refused.stdout and journal.read_bytes() == kept


def test_what_models_of_texts_refuse(dragoman: Dragoman, bundle: Path, tmp_path: Path) -> None:
    for options, problem in (
        (["--greedy"], "--greedy: for speech models"),
        (["--resume", tmp_path / "journal"], "--resume: for speech models"),
        (["--vad"], "--vad: for speech models, found a text model"),
        (["--hotwords", "a"], "--hotwords: for speech models, found a text model"),
    ):
        done = dragoman("run", bundle, "word", *options)
        assert done.returncode == 2 and problem in done.stderr
        assert not (tmp_path / "journal").exists()
    assert dragoman("run", bundle, "need", "--no-vad").returncode == 0
    done = dragoman("run", bundle, "need", "--stream", "--resume", tmp_path / "journal")
    assert "--stream and --resume exclude each other" in done.stderr


def test_texts_around_a_window(dragoman: Dragoman, speaker: Path, recordings: list[Path]) -> None:
    options = ("--hotwords", "w5 w9", "--prefix", "w8 w4", "--language", "en")
    found = json.loads(dragoman("run", speaker, recordings[0], *options, "--json", *LOUD).stdout)
    with load(speaker, threads=1) as model:
        *_, last = model.transcribe(
            recordings[:1],
            hotwords="w5 w9",
            prefix="w8 w4",
            language="en",
            vad=False,
            max_new_tokens=9,
        )
    assert last.result is not None and found["tokens"] == list(last.result.tokens)
    assert found["text"].startswith("w8 w4 ")


def test_parts_between_pauses(dragoman: Dragoman, speaker: Path, recordings: list[Path]) -> None:
    done = dragoman("run", speaker, recordings[0], "--cut-at-silence", "--json", *THREAD)
    assert json.loads(done.stdout)["voice"] == []
    done = dragoman("run", speaker, recordings[0], "--cut-at-silence", *LOUD)
    assert done.returncode == 2 and "--cut-at-silence: expected vad True" in done.stderr


def test_languages(dragoman: Dragoman, speaker: Path, recordings: list[Path]) -> None:
    files = [recordings[0], recordings[0].with_name("missing.wav"), recordings[2]]
    with load(speaker, threads=1) as model:
        found = model.detect_language(files, vad=False)
    done = dragoman("detect-language", speaker, *files, "--no-vad", *THREAD)
    first, second = (f"{one.language}\t{one.probability:.4f}" for one in (found[0], found[2]))
    assert done.stdout.splitlines() == [first, "", second]
    assert done.returncode == 1 and "line 2: " in done.stderr and "missing.wav" in done.stderr
    silent = dragoman("detect-language", speaker, recordings[1], *THREAD)
    assert (silent.returncode, silent.stdout) == (1, "\n")
    assert silent.stderr == "line 1: nobody speaks\n"


def test_models_of_texts_hear_nothing(dragoman: Dragoman, bundle: Path) -> None:
    done = dragoman("detect-language", bundle, "a.wav")
    assert done.returncode == 2 and "transcribe: " in done.stderr
