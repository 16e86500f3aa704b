"""From a directory of Whisper and audio files to text, by commands."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import soundfile

from dragoman.runtime import load
from dragoman.runtime.decoding.results import subtitles
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.runtime.speech.prompts import prompt_options

from ..speech_models import RATE, noise, save, whisper
from .test_run import documented

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clips")
    for name, seconds in (("a.wav", 0.7), ("b.flac", 2.3)):
        soundfile.write(directory / name, noise(seconds, seed=int(seconds)), RATE)
    (directory / "list.tsv").write_text("a.wav\tsaid there\n\nb.flac\n")
    (directory / "notes.txt").write_text("")
    return directory


@pytest.fixture(scope="module")
def speech_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    layers: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 1}
    model = whisper(multilingual=True, seed=5, d_model=32, **heads, **layers)
    return save(model, tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def built(
    build_here: Dragoman,
    speech_checkpoint: Path,
    clips: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    directory = tmp_path_factory.mktemp("bundles") / "whisper"
    done = build_here(
        "build", speech_checkpoint, "-o", directory, "--inputs", clips, "--threads", 1
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def manifest(built: Path) -> Manifest:
    return manifest_from_json((built / "manifest.json").read_text(), "built")


def test_a_shorter_window(
    dragoman: Dragoman, build_here: Dragoman, speech_checkpoint: Path, clips: Path, tmp_path: Path
) -> None:
    output, inputs = tmp_path / "short", ("--inputs", clips, "--threads", 1)
    done = build_here("build", speech_checkpoint, "-o", output, "--audio-window", 0.5, *inputs)
    assert done.returncode == 0, done.stderr
    assert "the encoder reads 0.5 s of audio at once" in done.stderr
    manifest = manifest_from_json((output / "manifest.json").read_text(), "short")
    assert manifest.audio is not None and manifest.audio.chunk_seconds == 0.5
    assert manifest.model.max_source_positions == 25
    done = dragoman("verify", output, speech_checkpoint, *inputs)
    assert done.returncode == 0, done.stderr
    assert dragoman("run", output, clips / "b.flac", "--greedy").returncode == 0
    for checkpoint, wrong, problem in (
        (speech_checkpoint, 1.5, "seconds up to 1, in steps of 0.02, found 1.5"),
        (speech_checkpoint, 0.33, "in steps of 0.02"),
        ("g2p-en", 1, "a speech model"),
    ):
        done = build_here("build", checkpoint, "-o", tmp_path / "x", "--audio-window", wrong)
        assert done.returncode == 2 and "--audio-window: expected " in done.stderr
        assert problem in done.stderr
        assert not (tmp_path / "x").exists()


def test_parity_is_of_all_windows(manifest: Manifest) -> None:
    parity = manifest.parity
    assert parity is not None and parity.passed
    assert parity.tokens.sequences == parity.tokens.identical == 1 + 3
    assert parity.inputs.endswith("2 files, 4 windows")


@pytest.fixture(scope="module")
def windows(built: Path, clips: Path) -> dict[str, list[str]]:
    """The text of each second of each clip, as the bundle writes it."""
    texts = {}
    with load(built, threads=1) as model:
        for name in ("a.wav", "b.flac"):
            signal, _ = soundfile.read(clips / name, dtype="float32")
            seconds = [signal[i : i + RATE] for i in range(0, len(signal), RATE)]
            results = model.generate(seconds, prompt_options(model.manifest))
            texts[name] = [(result.text or "").strip() for result in results]
    assert [len(each) for each in texts.values()] == [1, 3]
    return texts


def verified(
    dragoman: Dragoman, built: Path, checkpoint: Path, copy: Path, *options: object
) -> Parity:
    shutil.copytree(built, copy)
    done = dragoman("verify", copy, checkpoint, "--record", "--threads", 1, *options)
    assert done.returncode == 0, done.stderr
    parity = manifest_from_json((copy / "manifest.json").read_text(), "copy").parity
    assert parity is not None and parity.passed
    return parity


def test_transcripts_judge_whole_recordings(
    dragoman: Dragoman,
    built: Path,
    speech_checkpoint: Path,
    clips: Path,
    windows: dict[str, list[str]],
    tmp_path: Path,
) -> None:
    """The windows of a recording are one text; here one word too many was said in one of them."""
    said = {name: " ".join(texts) for name, texts in windows.items()}
    listed = clips / "said.tsv"
    listed.write_text(f"a.wav\t{said['a.wav']}\nb.flac\t{said['b.flac'].upper()}, more!\n")
    parity = verified(dragoman, built, speech_checkpoint, tmp_path / "copy", "--inputs", listed)
    words = len(f"{said['a.wav']} {said['b.flac']} more".split())
    (task,) = parity.tasks
    assert (task.metric, task.pairs, task.higher_is_better) == ("word error", 2, False)
    assert task.bundle == task.oracle == pytest.approx(1 / words)
    assert parity.tokens.sequences == 4
    # A model reads one window at once, so that only these references have a probability.
    assert parity.references is not None
    assert (parity.references.pairs, parity.references.references) == (1, "said.tsv, 1 of 2 lines")
    by_file = ("--inputs", clips, "--references", listed, "--metric", "exact-match")
    parity = verified(dragoman, built, speech_checkpoint, tmp_path / "other", *by_file)
    assert [task.metric for task in parity.tasks] == ["exact match"]
    assert parity.tasks[0].oracle == 0.5


def test_a_limit_takes_whole_recordings(
    dragoman: Dragoman, built: Path, speech_checkpoint: Path, clips: Path, tmp_path: Path
) -> None:
    listed = clips / "limited.tsv"
    listed.write_text("b.flac\tone\na.wav\ttwo\nb.flac\tthree\n")
    limited = ("--inputs", listed, "--limit", 4)
    parity = verified(dragoman, built, speech_checkpoint, tmp_path / "copy", *limited)
    assert parity.inputs == "limited.tsv, 3 files, 7 windows, those of 2 files spread evenly"
    assert (parity.tasks[0].pairs, parity.tokens.sequences) == (2, 4)
    refused = dragoman(
        *("verify", built, speech_checkpoint, "--inputs", listed, "--limit", 2),
        *("--metric", "word-error"),
    )
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line == (
        "Error: metric word-error: expected inputs with references, found limited.tsv, 3 files, 7 "
        "windows, the first 2 of them without"
    )


def test_windows_that_diverge_are_named(
    dragoman: Dragoman,
    built: Path,
    speech_checkpoint: Path,
    clips: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle is made to choose otherwise at the end of every window."""
    from dragoman.reference_model import greedy_verified as real

    def other(*arguments: Any) -> list[list[int]]:
        return [[*row[:-1], 5] for row in real(*arguments)]

    monkeypatch.setattr("dragoman.verification.oracle.greedy_verified", other)
    copy = Path(shutil.copytree(built, tmp_path / "copy"))
    done = dragoman("verify", copy, speech_checkpoint, "--inputs", clips, "--threads", 1)
    assert done.returncode == 1
    parity = manifest_from_json((copy / "manifest.json").read_text(), "copy").parity
    assert parity is not None
    named = [divergence.named for divergence in parity.tokens.divergences]
    expected = ["a.wav, window 1", *(f"b.flac, window {n}" for n in (1, 2, 3))]
    assert named == [f"{clips.name}/{name}" for name in expected]
    for divergence in parity.tokens.divergences:
        assert divergence.source is None
        assert divergence.expected != divergence.found is not None


def test_every_attention_is_fused(built: Path, manifest: Manifest) -> None:
    import onnx_ir as ir

    def count(file: str, operator: str) -> int:
        return sum(node.op_type == operator for node in ir.load(built / file).graph)

    encoder, decoder = manifest.graphs["encoder"].file, manifest.graphs["decoder"].file
    assert count(encoder, "MultiHeadAttention") == 2
    assert count(decoder, "MultiHeadAttention") == 0
    assert count(decoder, "Softmax") == 1  # of cross-attention, row by row
    assert count(decoder, "GroupQueryAttention") == 1
    assert count(encoder, "Attention") == count(decoder, "Attention") == 0


def test_a_line_for_each_file(dragoman: Dragoman, built: Path, clips: Path) -> None:
    files = [clips / "a.wav", clips / "missing.wav", clips / "b.flac"]
    done = dragoman("run", built, "--greedy", *files, "--threads", 1)
    with load(built, threads=1) as model:
        expected = [(result.text or "").strip() for result in model.generate(files)]
    assert done.stdout.splitlines() == expected
    assert expected[0] and expected[2] and not expected[1]
    assert done.returncode == 1
    assert "line 2: " in done.stderr and "missing.wav" in done.stderr
    lines = "".join(f"{file}\n" for file in files).encode()
    assert dragoman("run", built, "--greedy", "--threads", 1, stdin=lines).stdout == done.stdout


def test_a_block_of_lines_with_times(dragoman: Dragoman, built: Path, clips: Path) -> None:
    files = [clips / "a.wav", clips / "b.flac"]
    done = dragoman("run", built, "--greedy", *files, "--timestamps", "--threads", 1)
    with load(built, threads=1) as model:
        results = model.generate(files, timestamps=True)
    blocks = done.stdout.removesuffix("\n\n").split("\n\n")
    for block, result in zip(blocks, results, strict=True):
        for line, segment in zip(block.splitlines(), result.segments or (), strict=True):
            start, end = (f"00:00:{time:06.3f}" for time in (segment.start, segment.end))
            assert line == f"[{start} --> {end}] {(segment.text or '').strip()}"


def test_json_has_segments(dragoman: Dragoman, built: Path, clips: Path) -> None:
    options = ("--json", "--language", "German", "--task", "translate", "--threads", 1)
    found = json.loads(dragoman("run", built, "--greedy", clips / "b.flac", *options).stdout)
    assert found["language"] == "de"
    assert len(found["segments"]) > 1
    assert set(found["segments"][0]) == {"start", "end", "text", "tokens"}


def test_json_has_the_same_keys_for_every_file(
    dragoman: Dragoman, built: Path, clips: Path
) -> None:
    lines = f"{clips / 'a.wav'}\n{clips / 'missing.wav'}\n".encode() + b"\xff.wav\n"
    done = dragoman("run", built, "--greedy", "--json", "--threads", 1, stdin=lines)
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    of_texts = ("hypotheses", "truncated")
    keys = [key for key in documented("### The object of a line") if key not in of_texts]
    assert [[*each] for each in found] == [keys] * 3
    assert [each["error"] is None for each in found] == [True, False, False]
    assert [each["segments"] == [] for each in found] == [False, True, True]


def test_a_file_that_ends_early_is_transcribed_with_a_warning(
    dragoman: Dragoman, spawn: Dragoman, built: Path, clips: Path, tmp_path: Path
) -> None:
    cut, whole = tmp_path / "cut.wav", clips / "a.wav"
    cut.write_bytes(whole.read_bytes()[:12_000])
    with load(built, threads=1) as model:
        (expected,) = model.generate([soundfile.read(whole, dtype="float32")[0][: 11_956 // 2]])
    done = dragoman("run", built, "--greedy", cut, "--json", "--threads", 1)
    found = json.loads(done.stdout)
    assert (done.returncode, found["text"], found["error"]) == (0, expected.text, None)
    (warning,) = found["warnings"]
    assert warning == (f"{cut}: the file ends early: expected 22400 bytes of samples, found 11956")
    assert done.stderr == f"line 1: {warning}\n"
    done = dragoman("run", built, "--greedy", cut, whole, "--strict-audio", "--threads", 1)
    assert (done.returncode, done.stderr) == (1, f"line 1: {warning}\n")
    assert done.stdout.splitlines()[0] == "" != done.stdout.splitlines()[1]
    pairs = f"{cut}\t w1\n".encode()
    done = spawn("score", built, "--threads", 1, stdin=pairs)
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, f"Warning: {warning}")
    done = spawn("score", built, "--strict-audio", "--threads", 1, stdin=pairs)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, f"line 1: {warning}")


def test_names_that_are_not_utf_8(
    spawn: Dragoman, built: Path, clips: Path, tmp_path: Path
) -> None:
    good, odd = tmp_path / "good.wav", Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.wav"))
    gone = os.fsdecode(b"gone\xff.wav")
    for path in (good, odd):
        path.write_bytes((clips / "a.wav").read_bytes())
    for given in (
        spawn("run", built, "--greedy", odd, gone, good, "--json", "--threads", 1),
        spawn(
            *("run", built, "--greedy", "--json", "--threads", 1),
            stdin=b"\n".join(os.fsencode(name) for name in (odd, gone, good)),
        ),
    ):
        assert given.returncode == 1
        assert "Traceback" not in given.stderr and r"gone\udcff.wav" in given.stderr
        first, missing, last = map(json.loads, given.stdout.splitlines())
        assert first == last and first["text"]
        assert "No such file" in missing["error"]


def test_beams_and_scores(dragoman: Dragoman, built: Path, clips: Path) -> None:
    files = [clips / "b.flac", clips / "missing.wav", clips / "a.wav"]
    with load(built, threads=1) as model:
        expected = model.generate([files[0], files[2]], num_beams=3, length_penalty=0.5)
    options = ("--beams", 3, "--length-penalty", 0.5, "--scores", "--threads", 1)
    done = dragoman("run", built, "--greedy", *files, *options)
    first, second = (f"{r.score:.4f}\t{(r.text or '').strip()}" for r in expected)
    assert done.stdout == f"{first}\n\n{second}\n"


def test_options_for_texts(dragoman: Dragoman, built: Path) -> None:
    options = ("--must-contain", "a", "--beams", 2, "--n-best", 2)
    done = dragoman("run", built, "--greedy", *options, "a.wav")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: --must-contain, --n-best: for text models; a speech model takes language and task\n"
    )


def test_segments_have_no_scores(dragoman: Dragoman, built: Path) -> None:
    done = dragoman("run", built, "--greedy", "--timestamps", "--scores", "a.wav")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--scores: expected --no-timestamps" in done.stderr


def test_other_commands(
    dragoman: Dragoman, built: Path, clips: Path, speech_checkpoint: Path
) -> None:
    shown = dragoman("inspect", built).stdout
    assert "windows of 1 s, 16000 Hz, 80 mel bins" in shown
    assert "4: de, en, fr, haw (default: detected)" in shown
    listed = clips / "list.tsv"
    verified = dragoman("verify", built, speech_checkpoint, "--inputs", listed, "--limit", 2)
    assert verified.returncode == 0, verified.stderr
    measured = dragoman("bench", built, "--runs", 1, "--new-tokens", 2, "--threads", 1)
    assert measured.returncode == 0, measured.stderr
    assert "source 50" in measured.stdout


@pytest.mark.parametrize("options", [["--language", "de"], ["--timestamps"], ["--strict-audio"]])
def test_a_model_of_texts_refuses_them(
    dragoman: Dragoman, bundle: Path, options: list[str]
) -> None:
    done = dragoman("run", bundle, "word", *options)
    assert done.returncode == 2
    assert "language, task, timestamps and --strict-audio are for speech models" in done.stderr


def test_missing_or_unreadable_clips(
    dragoman: Dragoman, speech_checkpoint: Path, tmp_path: Path, clips: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.txt").write_text("gone.wav\n")
    for inputs, message in (
        (tmp_path / "empty", "expected at least one audio file, found none"),
        (tmp_path / "nowhere.txt", "expected a file or a directory of inputs, found nothing at"),
        (tmp_path / "broken.txt", "gone.wav: expected a readable audio file"),
    ):
        done = dragoman("build", speech_checkpoint, "-o", tmp_path / "out", "--inputs", inputs)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        assert not (tmp_path / "out").exists()


def test_source_length_is_for_texts(
    dragoman: Dragoman, speech_checkpoint: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    options = ("--target", "tensorrt-rtx", "--source-length", "8")
    done = dragoman("build", speech_checkpoint, "-o", tmp_path / "out", *options)
    assert done.returncode == 2
    assert "source length: expected none for a speech model" in done.stderr


@pytest.mark.parametrize("option", ["--alignments", "--replace-unknown"])
def test_words_are_aligned_of_texts_only(option: str, dragoman: Dragoman, built: Path) -> None:
    outcome = dragoman("run", built, "--greedy", "any.wav", option)
    assert outcome.returncode == 2
    assert "expected a model that reads a text and writes another one, found " in outcome.stderr
    assert "a model that transcribes speech" in outcome.stderr


def test_words_and_subtitles(dragoman: Dragoman, built: Path, clips: Path) -> None:
    clip = clips / "b.flac"
    with load(built, threads=1) as model:
        (result,) = model.generate([str(clip)], word_timestamps=True)
    assert result.segments is not None
    words = [word for segment in result.segments for word in segment.words or ()]
    shown = dragoman("run", built, "--greedy", clip, "--words", "--threads", 1)
    assert [line.partition("] ")[2] for line in shown.stdout.splitlines()[:-1]] == [
        word.text.strip() for word in words
    ]
    for form in ("srt", "vtt", "tsv", "lrc"):
        outcome = dragoman(
            "run", built, "--greedy", clip, "--words", "--format", form, "--threads", 1
        )
        assert outcome.returncode == 0
        assert outcome.stdout == subtitles(result, form)
    (data,) = map(
        json.loads,
        dragoman("run", built, "--greedy", clip, "--words", "--json").stdout.splitlines(),
    )
    assert [w["text"] for s in data["segments"] for w in s.get("words", ())] == [
        word.text for word in words
    ]
    segments = dragoman("run", built, "--greedy", clip, "--format", "srt", "--threads", 1).stdout
    assert segments.startswith("1\n00:00:0") and segments.endswith("\n\n")


def test_doubtful_windows_and_prompts(dragoman: Dragoman, built: Path, clips: Path) -> None:
    clip, options = clips / "b.flac", ("--fallback", "--previous-text", "--initial-prompt", " w5")
    with load(built, threads=1) as model:
        (result,) = model.generate(
            [str(clip)],
            timestamps=True,
            fallback=True,
            condition_on_previous_text=True,
            initial_prompt=" w5",
        )
    outcome = dragoman(
        "run", built, "--greedy", clip, *options, "--timestamps", "--json", "--threads", 1
    )
    (data,) = map(json.loads, outcome.stdout.splitlines())
    expected = [vars(s.quality) for s in result.segments or () if s.quality is not None]
    assert expected and data["tokens"] == list(result.tokens)
    assert [{name: s[name] for name in expected[0]} for s in data["segments"]] == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--format", "srt", "--json"), "--format and --json exclude each other"),
        (("--format", "srt", "--stream"), "--format and --stream exclude each other"),
        (("--format", "srt", "--no-timestamps"), "--format: expected without --no-timestamps"),
        (("--format", "srt", "b.flac"), "--format: expected one file, found 2"),
        (("--format", "ass"), "expected"),
        (("--words", "--stream"), "--stream and --words exclude each other"),
        (("--words", "--scores"), "--scores: expected without --words"),
    ],
)
def test_subtitles_that_cannot_be_written(
    dragoman: Dragoman, built: Path, clips: Path, options: tuple[str, ...], problem: str
) -> None:
    outcome = dragoman("run", built, "--greedy", clips / "a.wav", *options)
    assert outcome.returncode == 2
    assert problem in outcome.stderr or "is not one of" in outcome.stderr
    assert not outcome.stdout


def test_a_recording_without_sound_has_no_subtitles(
    dragoman: Dragoman, built: Path, tmp_path: Path
) -> None:
    outcome = dragoman("run", built, "--greedy", tmp_path / "none.wav", "--format", "srt")
    assert outcome.returncode == 1 and not outcome.stdout
    assert "none.wav" in outcome.stderr


def test_noise_is_not_transcribed(dragoman: Dragoman, built: Path, clips: Path) -> None:
    outcome = dragoman("run", built, clips / "b.flac", "--json", "--threads", 1)
    (data,) = map(json.loads, outcome.stdout.splitlines())
    assert outcome.returncode == 0
    assert (data["text"], data["segments"], data["voice"]) == ("", [], [])
    assert data["finish_reason"] == "empty"
    assert dragoman("run", built, clips / "b.flac", "--threads", 1).stdout == "\n"
    for form, empty in (("srt", ""), ("vtt", "WEBVTT\n\n"), ("tsv", "start\tend\ttext\n")):
        outcome = dragoman("run", built, clips / "b.flac", "--format", form, "--threads", 1)
        assert outcome.stdout == empty
