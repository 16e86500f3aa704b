"""Finds out from the structure of an audio file whether its end is missing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

PLACEHOLDER = 0x70000000
"""Programs that write WAV to a pipe do not know its size, and state this much or more, or 0."""
LARGEST_HEADER = 27 + 255
LARGEST_PAGE = LARGEST_HEADER + 255 * 255
"""Bytes of an Ogg page and of its header (RFC 3533)."""
TAGGED = 4096
"""Bytes in which the first frame of an MP3 file states its length (Xing, VBRI)."""
SLACK = 2048
"""Bytes that an MP3 file may lack, since some programs count tags that others remove."""


class Ending(NamedTuple):
    """What the structure of a file says about its end."""

    missing: str | None = None
    """What was expected and found at the end of a file that was cut, else None."""
    is_unsized: bool = False
    """Whether the samples of a WAV file are all that follows, whatever it states."""


def ending_of(file: BinaryIO) -> Ending:
    """Examine the end of a file; some formats cannot tell, and have no `missing`."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(12)
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64") and head[8:] == b"WAVE":
        return _wav(file, size, ">" if head[:4] == b"RIFX" else "<")
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free"):
        return _short(_end_of_boxes(file, size), size)
    if head[:4] == b"\x1aE\xdf\xa3":
        return _short(_end_of_segment(file), size)
    if head[:4] == b"OggS":
        return Ending(_missing_page(file, size))
    if head[:3] == b"ID3" or head[:1] == b"\xff":
        end = _end_of_frames(file)
        return _short(None if end is None else max(size, end - SLACK), size)
    return Ending()


def _short(end: int | None, size: int) -> Ending:
    if end is None or end <= size:
        return Ending()
    return Ending(f"expected {end} bytes, found {size}")


def _wav(file: BinaryIO, size: int, order: str) -> Ending:
    """Compare the data chunk of a WAV file with the file."""
    long_size = 0
    file.seek(12)
    while len(head := file.read(8)) == 8:
        (stated,) = struct.unpack(f"{order}I", head[4:])
        begin = file.tell()
        if head[:4] == b"ds64":  # RF64: sizes of 64 bits
            (long_size,) = struct.unpack(f"{order}8xQ", file.read(16).ljust(16, b"\0"))
        if head[:4] == b"data":
            is_long = stated == 0xFFFFFFFF and 0 < long_size < 1 << 62
            stated, found = long_size if is_long else stated, size - begin
            if found < stated and (is_long or stated < PLACEHOLDER):
                return Ending(f"expected {stated} bytes of samples, found {found}")
            after = begin + stated + stated % 2
            return Ending(is_unsized=not stated or not _is_chunk(file, after, order))
        file.seek(begin + stated + stated % 2)
    return Ending()


def _is_chunk(file: BinaryIO, begin: int, order: str) -> bool:
    """Return whether a file ends or has another chunk at a position."""
    left = file.seek(0, 2) - begin
    if left < 0:
        return False
    file.seek(begin)
    head = file.read(8)
    if len(head) < 8 or head[:3] == b"TAG":
        return True
    printable = all(32 <= byte < 127 for byte in head[:4])
    (stated,) = struct.unpack(f"{order}I", head[4:])
    return printable and bool(stated <= left)


def _end_of_boxes(file: BinaryIO, size: int) -> int | None:
    """Return where the boxes of an MP4 file end (ISO/IEC 14496-12, section 4.2)."""
    end = 0
    while end + 8 <= size:
        file.seek(end)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:], "big")
        if length < 8 or not head[4:8].isascii():
            return None  # the last box, of unknown length; or something else than boxes
        end += length
    return end


def _end_of_segment(file: BinaryIO) -> int | None:
    """Return where the segment of a Matroska or WebM file ends, if stated (RFC 8794)."""
    file.seek(4)
    length = _variable_integer(file)
    if length is None:
        return None
    file.seek(length + 4, 1)
    length = _variable_integer(file)
    return None if length is None else file.tell() + length


def _variable_integer(file: BinaryIO) -> int | None:
    """Read an integer of variable size; None: unknown, as in live streams."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    bits = 7 * (more + 1)
    value = int.from_bytes(first + file.read(more), "big") & (1 << bits) - 1
    return None if value == (1 << bits) - 1 else value


def _missing_page(file: BinaryIO, size: int) -> str | None:
    """Return what an Ogg file lacks at its end."""
    file.seek(max(0, size - 2 * LARGEST_PAGE))
    tail = file.read()
    tail = tail[max(0, tail.rfind(b"OggS")) :]
    segments = tail[27 : 27 + tail[26]] if len(tail) > 26 else b""
    if len(tail) < 27 or len(tail) < 27 + tail[26] + sum(segments):
        return "expected a whole last page, found a part of it"
    return None if tail[5] & 4 else "expected the last page of the stream, found another"


def parts_of(file: BinaryIO) -> list[tuple[int, int]]:
    """Return where the parts of a chained Ogg file, or all of another, begin and end."""
    size = file.seek(0, 2)
    begins, at, was_first = [0], 0, True
    file.seek(0)
    if file.read(4) != b"OggS":
        return [(0, size)]
    while at < size:
        file.seek(at)
        page = file.read(LARGEST_HEADER)
        if page[:4] != b"OggS" or len(page) < 27:  # damaged: search the next page
            found = page.find(b"OggS", 1)
            at += found if found > 0 else max(1, len(page) - 3)
            continue
        is_first = bool(page[5] & 2)
        if is_first and not was_first:
            begins.append(at)
        at, was_first = at + 27 + page[26] + sum(page[27 : 27 + page[26]]), is_first
    return list(zip(begins, [*begins[1:], size], strict=True))


def _end_of_frames(file: BinaryIO) -> int | None:
    """Return where the frames of an MP3 file end, if its first frame states it."""
    begin = 0
    while True:
        file.seek(begin)
        head = file.read(10)
        if head[:3] != b"ID3" or len(head) < 10:
            break
        begin += 10 + sum(
            byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True)
        )
    file.seek(begin)
    first = file.read(TAGGED)
    readers: tuple[tuple[bytes, Callable[[bytes], int | None]], ...] = (
        (b"Xing", _xing_bytes),
        (b"Info", _xing_bytes),
        (b"VBRI", lambda tag: int.from_bytes(tag[10:14], "big") or None),
    )
    for name, read in readers:
        at = first.find(name)
        if at >= 0:
            stated = read(first[at : at + 16])
            return None if stated is None else begin + stated
    return None


def _xing_bytes(tag: bytes) -> int | None:
    flags = int.from_bytes(tag[4:8], "big")
    at = 12 if flags & 1 else 8
    return int.from_bytes(tag[at : at + 4], "big") if flags & 2 else None
