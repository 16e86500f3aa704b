"""Decodes audio files with FFmpeg (package `av`), imported when needed."""

from __future__ import annotations

import codecs
import importlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown

from .endings import ending_of, parts_of

Samples = NDArray[np.float32]

FORMATS = "WAV, FLAC, MP3, Ogg (Opus, Vorbis), M4A, MP4, WebM, AAC, AIFF, AMR or WMA"
"""The formats that errors name; FFmpeg reads a few more."""
DEMUXERS = "aac,aiff,amr,asf,au,caf,flac,ircam,matroska,mov,mp3,nistsphere,ogg,voc,w64,wav"
"""Formats of files with audio. Others of FFmpeg's are refused, since some of them, such as
playlists, open further files and addresses."""
FULL_SCALE = {
    "u8": (np.uint8, 7),
    "s16": (np.int16, 15),
    "s32": (np.int32, 31),
    "s64": (np.int64, 63),
}
"""The type of integer samples, and the power of two that is full scale."""
STATING = {"flac": 0.0, "aiff": 0.0, "au": 0.0, "nistsphere": 0.0, "ogg": 0.1}
"""Formats whose headers or last pages state the number of samples, and by how many seconds that may
be too large, since it includes samples that decoders skip."""
MOST_CHANNELS = 64
BLOCK = 1 << 16
"""Bytes that are read together."""
MISREAD = {("wav", "g726"), ("w64", "g726"), ("au", "g726le"), ("wav", "amrnb")}
"""Formats and codecs of telephony of which FFmpeg makes noise: G.721, G.723, NMS ADPCM."""
UNTRIMMED = {("ogg", "vorbis"), ("caf", "alac")}
"""Formats and codecs of which FFmpeg cuts more at the end than what is no audio."""
LARGEST_VORBIS_BLOCK = 8192
MANY_CHANNELS = 8
"""From so many planes on, `av` reads past their list to count them; FFmpeg packs them before."""
DAMAGED_SHARE = 0.01
"""MP3 files have this share of bytes that are no frames, such as tags in the middle."""


class AudioError(DragomanError):
    """Audio cannot be read or is not a valid input."""


class _Content:
    """A part of a file, without a name by which FFmpeg guesses the format."""

    def __init__(self, file: BinaryIO, begin: int, end: int, head: bytes = b"") -> None:
        self._file, self._begin, self._size, self._head = file, begin, end - begin, head
        self._at = 0

    def read(self, size: int) -> bytes:
        self._file.seek(self._begin + self._at)
        data = self._file.read(max(0, min(size, self._size - self._at)))
        head = self._head[self._at : self._at + len(data)]
        self._at += len(data)
        return head + data[len(head) :]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def decoded(file: BinaryIO, name: str, defects: list[str]) -> Iterator[tuple[int, Samples]]:
    """Decode the first audio stream of a file to its end, whatever its header states.

    Args:
        defects: receives what is missing or damaged, after the last samples

    Yields:
        the rate and the mean of the channels of each frame
    """
    ending, parts = ending_of(file), parts_of(file)
    options, head = {"format_whitelist": DEMUXERS}, b""
    if ending.is_unsized:
        file.seek(0)
        # Of RF64 and BW64, FFmpeg would use the length.
        head = b"RIFX" if file.read(4) == b"RIFX" else b"RIFF"
        options["ignore_length"] = "1"
    for number, (begin, end) in enumerate(parts):
        content = _Content(file, begin, end, head)
        missing = ending.missing if number == len(parts) - 1 else None
        try:
            yield from _decoded_part(content, name, options, missing, defects)
        except AudioError as error:
            if not number:
                raise
            defects.append(str(error))


def _decoded_part(
    content: _Content,
    name: str,
    options: dict[str, str],
    missing: str | None,
    defects: list[str],
) -> Iterator[tuple[int, Samples]]:
    av, is_rifx = imported("av"), content.read(4) == b"RIFX"
    content.seek(0)
    try:
        container = av.open(content, options=options, metadata_errors="ignore", buffer_size=BLOCK)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise _unknown(content, name) from error
    with container:
        if not container.streams.audio:
            found = "a video without sound" if container.streams.video else "none"
            raise AudioError(f"{name}: expected an audio stream, found {found}")
        stream = container.streams.audio[0]
        if stream.codec_context is None:
            raise AudioError(f"{name}: expected audio in a codec of FFmpeg's, found another")
        form, codec = container.format.name, stream.codec_context.name
        if (form, codec) in MISREAD:
            raise AudioError(f"{name}: expected another codec in {form} than {codec}: convert it")
        decoder = _big_endian_decoder(av, stream) if is_rifx else stream.codec_context
        packets = _Packets(av, container, stream, decoder)
        pieces: Iterator[tuple[int, Samples]] = (
            (frame.sample_rate, _mono(frame, name)) for frame in packets.frames()
        )
        if codec == "flac":  # frames whose checksum is wrong are dropped
            stream.codec_context.options = {"err_detect": "crccheck+explode"}
        if (form, codec) in UNTRIMMED:
            stream.codec_context.options = {"flags2": "+skip_manual"}
        if codec == "vorbis" and form == "ogg" and stream.duration is not None:
            # The first block has no samples yet.
            pieces = _trimmed(islice(pieces, 1, None), _stated_samples(stream))
        yield from pieces
        defects += (f"{name}: {defect}" for defect in _defects(form, stream, packets, missing))


TEXT_BYTES = 64
"""Bytes of a file that are looked at and, if they are a text, shown."""


def _unknown(content: _Content, name: str) -> AudioError:
    content.seek(0)
    if not content.read(1):
        return AudioError(f"{name}: expected an audio file, found an empty file")
    content.seek(4)
    if content.read(4) == b"ftyp":
        return AudioError(
            f"{name}: the file ends early: expected the index of an MP4 file (moov), found none"
        )
    content.seek(0)
    found = _begun_text(content.read(TEXT_BYTES))
    return AudioError(
        f"{name}: expected an audio file, intact and in a known format ({FORMATS}), found "
        + (f"a text: {shown(found)}" if found else "another")
    )


def _begun_text(data: bytes) -> str:
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data)
    except UnicodeDecodeError:
        return ""
    is_text = all(character.isprintable() or character in "\t\r\n" for character in text)
    return text.strip().partition("\n")[0].strip() if is_text else ""


def _big_endian_decoder(av: Any, stream: Any) -> Any:
    """Return the decoder of RIFX, which FFmpeg takes for RIFF."""
    codec = stream.codec_context.name
    if not codec.endswith("le"):
        return stream.codec_context
    decoder = av.CodecContext.create(f"{codec.removesuffix('le')}be", "r")
    decoder.sample_rate, decoder.layout = stream.rate, stream.layout
    return decoder


class _Packets:
    """The packets of an audio stream, and how many of them cannot be decoded."""

    def __init__(self, av: Any, container: Any, stream: Any, decoder: Any) -> None:
        self._av, self._container, self._stream, self._decoder = av, container, stream, decoder
        self.count = self.samples = self.damaged = 0
        self.last_is_whole = True
        """Whether the last packet is complete and can be decoded."""

    def frames(self) -> Iterator[Any]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except (self._av.FFmpegError, OSError):
                self.last_is_whole = False  # the rest of the file cannot be read
                return
            if packet is None:
                return
            if packet.size:
                self.count += 1
                self.last_is_whole = not packet.is_corrupt
            try:
                frames = self._decoder.decode(packet if packet.size else None)
            except self._av.FFmpegError:
                self.damaged += 1
                self.last_is_whole = False
                continue
            for frame in frames:
                self.samples += frame.samples
                yield frame


def _defects(form: str, stream: Any, packets: _Packets, missing: str | None) -> Iterator[str]:
    counts_samples = form != "aiff" or stream.codec_context.name.startswith("pcm")  # or packets
    if missing is None and form in STATING and stream.duration is not None and counts_samples:
        stated = _stated_samples(stream)
        if packets.samples + STATING[form] * stream.rate < stated:
            found = packets.samples
            yield f"a part of the file is missing: expected {stated} samples, found {found}"
            return
    # Tags at the end of an MP3 file, and what follows the samples of WAV and AIFF, are not audio.
    if missing is None and form not in ("aiff", "mp3", "wav") and not packets.last_is_whole:
        missing = "expected a whole last packet, found a part of it"
    if missing is not None:
        yield f"the file ends early: {missing}"
    damaged = packets.damaged - (not packets.last_is_whole)
    if damaged > (DAMAGED_SHARE * packets.count if form == "mp3" else 0):
        yield f"{damaged} of {packets.count} packets of audio cannot be decoded"


def _stated_samples(stream: Any) -> int:
    samples: int = round(stream.duration * stream.time_base * stream.rate)
    return samples


def _trimmed(pieces: Iterator[tuple[int, Samples]], end: int) -> Iterator[tuple[int, Samples]]:
    """Cut the last block of Vorbis at the last sample, since FFmpeg cuts short files wrongly."""
    held: list[tuple[int, Samples]] = []
    count = 0
    for rate, piece in pieces:
        held.append((rate, piece))
        count += len(piece)
        if not end < count <= end + LARGEST_VORBIS_BLOCK:
            yield from held
            held = []
    left = end - count + sum(len(piece) for _, piece in held)
    for rate, piece in held:
        yield rate, piece[: max(0, left)]
        left -= len(piece)


def _mono(frame: Any, name: str) -> Samples:
    form, channels = frame.format.name, frame.layout.nb_channels
    if channels > MOST_CHANNELS:
        raise AudioError(f"{name}: expected at most {MOST_CHANNELS} channels, found {channels}")
    kind = form.removesuffix("p")
    dtype, bits = FULL_SCALE.get(kind, (np.float32 if kind == "flt" else np.float64, 0))
    if frame.format.is_planar and channels >= MANY_CHANNELS:
        (frame,) = imported("av").AudioResampler(format=kind).resample(frame)
    planes = [np.frombuffer(plane, dtype) for plane in frame.planes[:channels]]
    if frame.format.is_planar:
        samples = np.stack([plane[: frame.samples] for plane in planes], axis=1)
    else:
        samples = planes[0][: frame.samples * channels].reshape(-1, channels)
    if bits:
        samples = samples.astype(np.float32 if bits < 24 else np.float64)
        samples = (samples - (128 if kind == "u8" else 0)) * 2.0**-bits
    mono = samples[:, 0] if channels == 1 else samples.mean(axis=1)
    return np.array(mono, np.float32)


def imported(package: str) -> Any:
    """Import a library that reads audio."""
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as error:  # OSError: its library cannot be loaded
        raise AudioError(
            f"the package {package} cannot be imported ({error}): pip install 'dragoman[audio]'"
        ) from error
