"""The command `dragoman listen`."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from dragoman.errors import DragomanError
from dragoman.runtime import GenerationOptions, LiveUpdate, Model, load
from dragoman.runtime.decoding.results import json_of_update, span

from .shared.options import (
    backend_option,
    bundle_argument,
    counted,
    device_option,
    gathered,
    json_option,
    option_names,
    threads_option,
)

BYTES = 1 << 16


@click.command(short_help="Transcribe speech while it is spoken.")
@bundle_argument
@click.option("--microphone", is_flag=True, help="Listen to the microphone [standard input].")
@click.option("--language", metavar="CODE", help="Spoken language, such as de [detected].")
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    help="Transcribe, or translate to English [the bundle's].",
)
@click.option("--initial-prompt", metavar="TEXT", help="Names and words as they are spelled.")
@click.option("--hotwords", metavar="TEXT", help="Words that may be said.")
@counted("--beams", "num_beams", help="Beams [1].")
@click.option("--vad/--no-vad", default=None, help="End lines at pauses, leave out noise [yes].")
@click.option("--timestamps", is_flag=True, help="Write whole lines, with their times.")
@json_option(help="Write a JSON object for each update.")
@gathered("loading", backend_option, device_option, threads_option)
@click.pass_context
def listen(
    context: click.Context,
    /,
    bundle: Path,
    microphone: bool,
    timestamps: bool,
    as_json: bool,
    loading: dict[str, Any],
    **given_options: Any,
) -> None:
    """Transcribe speech from standard input, and write words as soon as they are certain.

    The input is raw: 16-bit little-endian samples of one channel, 16,000 in a second.

    \b
    ffmpeg -loglevel error -f pulse -i default -ar 16000 -ac 1 -f s16le - |
    dragoman listen bundles/whisper-tiny.en
    """
    if timestamps and as_json:
        raise click.UsageError("--timestamps and --json exclude each other")
    with option_names(context.command), load(bundle, **loading) as model:
        options = GenerationOptions(**given_options, word_timestamps=as_json)
        updates = model.listen(_chunks(model, microphone=microphone), options)
        for piece in _pieces(updates, timestamps=timestamps, as_json=as_json):
            click.echo(piece, nl=False)
            sys.stdout.flush()


def _pieces(updates: Iterable[LiveUpdate], *, timestamps: bool, as_json: bool) -> Iterator[str]:
    begun = False
    for update in updates:
        segment = update.segment
        if as_json:
            yield json_of_update(update) + "\n"
        elif not timestamps:
            yield update.text if begun else update.text.lstrip()
            begun = segment is None and (begun or bool(update.text.strip()))
            yield "" if segment is None else "\n"
        elif segment is not None:
            yield f"[{span(segment)}] {(segment.text or '').strip()}\n"


def _chunks(model: Model, *, microphone: bool) -> Iterator[bytes]:
    """Yield raw samples until the input ends or Ctrl-C; a second Ctrl-C interrupts all."""
    audio = model.manifest.audio
    if audio is None:
        return
    blocks = _recorded(audio.sampling_rate) if microphone else _read()
    before, state = signal.getsignal(signal.SIGINT), {"waiting": False, "ended": False}

    def end(number: int, frame: FrameType | None) -> None:
        if state["waiting"] or state["ended"]:
            raise KeyboardInterrupt
        state["ended"] = True

    signal.signal(signal.SIGINT, end)
    try:
        while not state["ended"]:
            state["waiting"] = True
            block = next(blocks, b"")
            state["waiting"] = False
            if not block:
                return
            yield block
    except KeyboardInterrupt:
        if not state["waiting"]:
            raise
        state["waiting"], state["ended"] = False, True
    finally:
        signal.signal(signal.SIGINT, before)


def _read() -> Iterator[bytes]:
    while sys.stdin is not None and (data := os.read(sys.stdin.fileno(), BYTES)):
        yield data


def _recorded(rate: int) -> Iterator[bytes]:
    try:
        import sounddevice
    except OSError as error:  # its own library is missing
        raise DragomanError(f"microphone: {error}") from error
    blocks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(block: Any, *_: Any) -> None:
        blocks.put(bytes(block))

    try:
        with sounddevice.RawInputStream(rate, channels=1, dtype="int16", callback=put):
            while True:
                yield blocks.get()
    except sounddevice.PortAudioError as error:
        raise DragomanError(f"microphone: {error}") from error
