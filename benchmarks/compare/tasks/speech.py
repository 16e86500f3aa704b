"""Compares speed and word error of Whisper with other tools that run it on a processor.

The bundles and the models of other tools are first made from a CTranslate2 directory. In each
round, every contender transcribes all clips one by one with the library's standard call, including
reading files and computing features. Decoding is greedy, without timestamps; the clips are then
transcribed again to time encoder and decoder separately. Other ways (`--way`) are for long
recordings: with `--seconds`, the clips are joined to one, with pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.errors import DragomanError

from ...models.shapes import WHISPERS
from ...peers.interface import WAYS
from ...processes import HERE, call_in
from .. import options
from ..contenders.speech import Transcript, contenders
from ..contenders.text import DRAGOMAN
from ..record import Record, Row, Table, table_of
from ..rounds import Spread, against, spread
from ..task import Options, Run, Task

TRANSCRIPTS = "transcripts.tsv"
WINDOW = 30
"""Seconds that Whisper hears at once."""
PAUSES = (0.6, 1.2, 2.4, 4.0)
"""Seconds of silence before clips that are joined."""


def read_clips(directory: Path) -> dict[Path, str]:
    """Return the audio files of a folder with their transcripts, which `transcripts.tsv` lists.

    Its lines are the name of a file, a tab and the words; if not, a DragomanError is raised.
    """
    try:
        lines = (directory / TRANSCRIPTS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{directory}: expected a readable {TRANSCRIPTS}: {error}") from error
    clips = {}
    for number, line in enumerate(lines, 1):
        name, tab, words = line.partition("\t")
        if not tab or not (directory / name).is_file():
            raise DragomanError(
                f"{directory / TRANSCRIPTS}, line {number}: expected the name of a file in the "
                f"same folder, a tab and the words, found {line!r}"
            )
        clips[directory / name] = words
    return clips


def word_error(texts: Mapping[Path, str], transcripts: Mapping[Path, str]) -> float:
    """Return the word error rate of texts by clip."""
    from dragoman.metrics import METRICS

    references = [[transcripts[clip]] for clip in texts]
    return METRICS["word-error"].figure(list(texts.values()), references)


class Round(NamedTuple):
    """The figures of one round of a contender."""

    seconds: float
    encoder: float | None
    """Both in seconds, of all clips."""
    decoder: float | None
    """Seconds per token, the prompt's too; both None if the tool does not time them."""
    texts: dict[Path, str]

    @classmethod
    def of(cls, clips: Sequence[Path], transcripts: Sequence[Transcript]) -> Round:
        """Return the sums over all clips."""
        stages = [t.stages for t in transcripts if t.stages is not None]
        tokens = sum(s.tokens for s in stages)
        encoder = sum(s.encoder for s in stages) if stages else None
        decoder = sum(s.decoder for s in stages) / max(1, tokens) if stages else None
        texts = {clip: t.text for clip, t in zip(clips, transcripts, strict=True)}
        return cls(sum(t.seconds for t in transcripts), encoder, decoder, texts)


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders on all clips."""
    import soundfile

    from ...models.random_checkpoint import write_random_whisper
    from ...models.real_models import whisper_checkpoint

    if given.way == "greedy" and (given.seconds or 0) > WINDOW:
        raise DragomanError(f"--seconds: expected at most {WINDOW} with --way greedy")
    if given.way != "greedy" and given.shape:
        raise DragomanError("--shape: expected --way greedy, whose prompts have no timestamps")
    transcripts = read_clips(given.clips)
    chosen = run.chosen(contenders(run.checkpoint, run.openvino, given.way, given.beams))
    run.progress("writing a checkpoint")
    model = given.whisper
    if given.shape is not None:
        model = run.directory / f"whisper-{given.shape}"
        call_in(HERE, partial(write_random_whisper, given.shape, model, like=given.whisper))
    call_in(HERE, whisper_checkpoint, model, run.checkpoint)
    if given.seconds:
        transcripts = joined(transcripts, run.directory / "recording.wav", given.seconds)
    files = list(transcripts)
    audio_seconds = sum(soundfile.info(clip).duration for clip in files)
    ways = {"checkpoint": model, "threads": [given.threads], "rounds": given.rounds}
    results = run.take_turns(chosen, {"clips": files}, **ways)
    rounds_of = {
        entrant.contender: [Round.of(files, turn.outcome) for turn in turns.counted]
        for entrant, turns in results.turns["clips"].items()
    }
    rows = figures(rounds_of, transcripts, audio_seconds)
    if given.shape:
        rows = [{**row, "word_error": None} for row in rows]
    return {
        "model": given.name or model.name,
        "way": given.way,
        "num_beams": 1 if given.way == "greedy" else given.beams,
        "clips": len(files),
        "audio_seconds": round(audio_seconds, 2),
        "threads": given.threads,
        "rounds": given.rounds,
        "figures": rows,
        "footprints": results.footprints,
        "failures": results.failures,
    }


def joined(clips: Mapping[Path, str], path: Path, seconds: int) -> dict[Path, str]:
    """Write a recording of all clips again and again, with pauses; return its transcript, too."""
    import soundfile

    words, pauses, samples = list[str](), cycle(PAUSES), 0
    rate = soundfile.info(next(iter(clips))).samplerate
    with soundfile.SoundFile(path, "w", rate, 1, subtype="PCM_16") as file:
        for clip, said in cycle(clips.items()):
            signal, _ = soundfile.read(clip, dtype="int16")
            quiet = np.zeros(round(next(pauses) * rate), np.int16)
            samples += len(quiet) + len(signal)
            if samples > seconds * rate:
                break
            file.write(np.concatenate([quiet, signal]))
            words.append(said)
    if not words:
        raise DragomanError(f"expected a first clip of less than {seconds} s with a pause")
    return {path: " ".join(words)}


def figures(
    rounds_of: Mapping[str, Sequence[Round]], transcripts: Mapping[Path, str], audio_seconds: float
) -> list[Row]:
    """Return the figures of every contender from its counted rounds.

    Returns:
        rows of `seconds`: spread of the time of all clips with the tool's standard call;
        `real_time_factor`: its median over the duration of the clips; separate times of the
        encoder and the decoder, None if the tool does not time them; `word_error` of the last
        round; and `decoder_ratio` and `total_ratio` to the fastest peer, see `against`
    """

    def timed(field: str, name: str) -> list[float]:
        values = (getattr(found, field) for found in rounds_of[name])
        return [value for value in values if value is not None]

    def spread_of(field: str, name: str, scale: float) -> Spread | None:
        times = timed(field, name)
        return spread(times, scale) if times else None

    def ratio(field: str, name: str) -> float | None:
        of = {n: float(np.median(times)) for n in rounds_of if (times := timed(field, n))}
        peers = {n: m for n, m in of.items() if not n.startswith(DRAGOMAN)}
        found: float | None = against(of[name], peers)["ratio"] if name in of else None
        return found

    return [
        {
            "contender": name,
            "seconds": spread(timed("seconds", name)),
            "real_time_factor": round(float(np.median(timed("seconds", name))) / audio_seconds, 4),
            "ms_per_clip_encoder": spread_of("encoder", name, 1e3 / len(transcripts)),
            "ms_per_token_decoder": spread_of("decoder", name, 1e3),
            "word_error": round(word_error(rounds[-1].texts, transcripts), 4),
            "decoder_ratio": ratio("decoder", name),
            "total_ratio": ratio("seconds", name),
        }
        for name, rounds in rounds_of.items()
    ]


RANGE = "{X[0]:.2f} ({X[1]:.2f} to {X[2]:.2f})"
COLUMNS = (
    ("", "{contender}"),
    ("seconds", RANGE.replace("X", "seconds")),
    ("real-time factor", "{real_time_factor:.3f}"),
    ("encoder, ms per clip", RANGE.replace("X", "ms_per_clip_encoder")),
    ("decoder, ms per token", RANGE.replace("X", "ms_per_token_decoder")),
    ("word error", "{word_error:.1%}"),
    ("decoder, x best peer", "{decoder_ratio:.2f}"),
    ("total, x best peer", "{total_ratio:.2f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each contender."""
    way = record.get("way", "greedy")
    title = "{model}; {clips} clips of {audio_seconds} s, {rounds} rounds".format_map(record)
    columns = [column for column in COLUMNS if way == "greedy" or "coder" not in column[0]]
    if way != "greedy":
        title += f", {way}, beams: {record.get('num_beams', 5)}"
    yield table_of(record["figures"], columns, title=title)


RANDOM = "Random weights of this shape, with WHISPER's tokenizer, that hear one sentence."
CLIPS = "Folder of audio files and transcripts.tsv."
JOINED = "Join the clips to one recording of at most N seconds."
NAME = "The model's name in the record [default: the directory's, or whisper-SHAPE]."

SPEECH = Task(
    name="speech",
    help="Compare speed and word error of the Whisper model in WHISPER, a CTranslate2 directory.",
    options=(
        options.argument("whisper", Path),
        options.option("--shape", RANDOM, kind=[*WHISPERS]),
        options.option("--clips", CLIPS, kind=Path, required=True),
        *options.WAYS,
        options.option("--way", "How clips are transcribed.", "greedy", list(WAYS)),
        options.option("--beams", "Beams of other ways than greedy.", 5),
        options.option("--seconds", JOINED, kind=int),
        options.option("--name", NAME),
    ),
    measure=measure,
    rows="figures",
    file=lambda record, options: (
        f"speech-{record['model']}-{record['threads']}-threads"
        + ("" if record["way"] == "greedy" else f"-{record['way']}-{record['num_beams']}-beams")
        + (f"-{options['seconds']}-s" if options["seconds"] else "")
    ),
    tables=tables,
)
