"""Files are decoded to their end, whatever their headers state; what really is missing is said."""

from __future__ import annotations

import io
import os
import struct
import wave
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from dragoman.runtime.audio import AudioError, AudioWarning, read_audio, read_blocks

RATE = 16_000
CASES = Path(__file__).parent / "cases"
CLIPS = Path(__file__).parents[2] / "real" / "clips"
Samples = NDArray[np.float32]


def clip(number: str) -> Samples:
    samples: Samples = soundfile.read(CLIPS / f"librivox-{number}.flac", dtype="float32")[0]
    return samples


SPEECH = clip("0930")
"""3.29 seconds."""


def file_of(
    form: str, subtype: str | None = None, rate: int = RATE, samples: Any = SPEECH
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def encoded(path: Path, codec: str, *, video: bool = False, **options: str) -> bytes:
    """SPEECH at 48 kHz by FFmpeg, in the container that the name of the path says."""
    with av.open(str(path), "w", options=options) as container:
        pictures: Any = container.add_stream("mpeg4", rate=5) if video else None
        stream: Any = container.add_stream(codec, rate=48_000, layout="mono") if codec else None
        if video:
            pictures.width = pictures.height = 32
            for number in range(5):
                picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
                picture.pts, picture.time_base = number, Fraction(1, 5)
                container.mux(pictures.encode(picture))
            container.mux(pictures.encode(None))
        if codec:
            samples = np.repeat(SPEECH, 3)[np.newaxis]
            frame = av.AudioFrame.from_ndarray(samples, format="flt", layout="mono")
            frame.sample_rate = 48_000
            sizes: Any = {"format": stream.format.name, "layout": "mono", "rate": 48_000}
            for part in av.AudioResampler(**sizes, frame_size=stream.frame_size).resample(frame):
                container.mux(stream.encode(part))
            container.mux(stream.encode(None))
    return path.read_bytes()


def similarity(found: Samples, expected: Samples) -> float:
    """The largest correlation over shifts of up to 0.2 s, by which encoders delay."""
    length = min(len(found), len(expected)) - 3200
    reference = expected[1600 : 1600 + length]
    products = np.correlate(found[: length + 3200], reference)
    return float(products.max() / np.linalg.norm(reference) ** 2)


def read_early(content: bytes | Path) -> tuple[Samples, str]:
    """The samples and the only warning."""
    with pytest.warns(AudioWarning) as warned:
        samples = read_audio(content)
    (warning,) = warned
    with pytest.raises(AudioError) as refused:
        read_audio(content, strict=True)
    assert str(refused.value) == str(warning.message)
    return samples, str(warning.message)


def after_header(name: str) -> Samples:
    values = np.frombuffer((CASES / name).read_bytes(), "<i2", offset=44)
    return values.astype(np.float32) / np.float32(32768)


@pytest.mark.parametrize("name", ["h_zero_zero.wav", "h_2000000000.wav"])
def test_headers_that_state_nothing_of_use(name: str) -> None:
    assert np.array_equal(read_audio(CASES / name), after_header(name))
    assert np.array_equal(read_audio(CASES / "pipe.flac"), SPEECH)


def test_a_header_that_counts_itself() -> None:
    samples, warning = read_early(CASES / "h_data_plus36.wav")
    assert np.array_equal(samples, after_header("h_data_plus36.wav"))
    assert "expected 105316 bytes of samples, found 105280" in warning


@pytest.mark.parametrize(
    ("name", "expected", "silence"),
    [
        ("speech_44100_vbr_noxing.mp3", [clip("0870"), SPEECH], 0),
        ("sil_speech_16000_vbr_noxing.mp3", [clip("0870"), SPEECH], 8 * RATE),
        ("tag_noxing.mp3", [clip("0870")], 0),
        ("chained_opus.ogg", [clip("0870"), SPEECH], 0),
    ],
)
def test_lengths_that_are_estimates(name: str, expected: list[Samples], silence: int) -> None:
    samples, whole = read_audio(CASES / name), np.concatenate(expected)
    assert silence + len(whole) <= len(samples) + 800 <= silence + len(whole) + 3200
    assert similarity(samples[silence:], whole) > 0.9


def test_an_ogg_file_that_was_cut() -> None:
    samples, warning = read_early(CASES / "cut_opus.ogg")
    assert similarity(samples, clip("0870")) > 0.9
    assert len(samples) == pytest.approx(3.97 * RATE, rel=0.01)
    assert warning.startswith(f"{CASES / 'cut_opus.ogg'}: the file ends early: ")


SIZES = [0, 1, 100, 52_640, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFDB, 0xFFFFFFFE, 0xFFFFFFFF]


@pytest.mark.parametrize("size", SIZES, ids=hex)
@pytest.mark.parametrize("order", ["<", ">"], ids=["RIFF", "RIFX"])
def test_sizes_in_headers_of_wav_are_hints(size: int, order: str) -> None:
    file = io.BytesIO()
    endian = "LITTLE" if order == "<" else "BIG"
    soundfile.write(file, SPEECH, RATE, format="WAV", subtype="PCM_16", endian=endian)
    content = bytearray(file.getvalue())
    content[4:8] = content[40:44] = struct.pack(f"{order}I", size)
    assert np.array_equal(read_audio(bytes(content)), SPEECH)


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


PCM = (SPEECH * 32768).astype("<i2").tobytes()
FORM = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
EXTENSIBLE = struct.pack("<HHIIHHHHI", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 22, 16, 4) + bytes.fromhex(
    "0100000000001000800000aa00389b71"
)
TAGS = chunk(b"LIST", b"INFO" + chunk(b"INAM", b"an odd name"))


@pytest.mark.parametrize(
    "body",
    [
        chunk(b"fmt ", EXTENSIBLE) + chunk(b"data", PCM),
        chunk(b"bext", bytes(603)) + chunk(b"fmt ", FORM) + chunk(b"data", PCM),
        chunk(b"fmt ", FORM) + TAGS + chunk(b"data", PCM) + TAGS,
        chunk(b"fmt ", FORM) + chunk(b"fact", bytes(4)) + chunk(b"data", PCM) + b"TAG" + bytes(125),
    ],
    ids=["extensible", "broadcast", "tags", "ID3"],
)
def test_chunks_around_the_samples(body: bytes) -> None:
    content = b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body
    assert np.array_equal(read_audio(content), SPEECH)


@pytest.mark.parametrize("stated", [len(PCM), 0, (1 << 64) - 1], ids=["right", "zero", "unknown"])
def test_sizes_of_64_bits(stated: int) -> None:
    sizes = chunk(b"ds64", struct.pack("<QQQI", stated, stated, stated // 2, 0))
    head = b"RF64\xff\xff\xff\xffWAVE" + sizes + chunk(b"fmt ", FORM) + b"data\xff\xff\xff\xff"
    assert np.array_equal(read_audio(head + PCM), SPEECH)
    if stated == len(PCM):
        samples, warning = read_early(head + PCM[:1000])
        assert (len(samples), "expected 105280 bytes of samples, found 1000" in warning) == (
            500,
            True,
        )


@pytest.mark.parametrize(
    "subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]
)
@pytest.mark.parametrize("form", ["WAV", "WAVEX", "RF64"])
def test_kinds_of_samples(form: str, subtype: str) -> None:
    content = file_of(form, subtype)
    expected, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    np.testing.assert_allclose(read_audio(content), expected, rtol=0, atol=1e-6)


def test_integers_of_64_bits() -> None:
    form = struct.pack("<HHIIHH", 1, 1, RATE, 8 * RATE, 8, 64)
    values = (SPEECH.astype(np.float64) * 2.0**63).astype("<i8").tobytes()
    body = chunk(b"fmt ", form) + chunk(b"data", values)
    found = read_audio(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    np.testing.assert_allclose(found, SPEECH, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("form", "subtype"), [("WAV", "IMA_ADPCM"), ("AIFF", "GSM610")])
def test_codecs_of_telephony(form: str, subtype: str) -> None:
    content = file_of(form, subtype)
    expected, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    np.testing.assert_allclose(read_audio(content), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("form", "subtype"), [("WAV", "G721_32"), ("AU", "G723_40"), ("WAV", "NMS_ADPCM_16")]
)
def test_codecs_that_would_be_noise(form: str, subtype: str) -> None:
    with pytest.raises(AudioError, match=r"expected another codec in .*: convert it"):
        read_audio(file_of(form, subtype, 8000))


def test_an_au_file_of_unknown_size() -> None:
    content = bytearray(file_of("AU", "PCM_16"))
    content[8:12] = b"\xff\xff\xff\xff"
    assert np.array_equal(read_audio(bytes(content)), SPEECH)


@pytest.mark.parametrize("channels", [2, 8, 9, 32])
def test_many_channels(channels: int) -> None:
    """The module `wave` writes what speakers the channels are for: none."""
    values = np.random.default_rng(0).integers(-3000, 3000, (5000, channels)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((channels, 2, RATE, 0, "NONE", ""))
        written.writeframes(values.tobytes())
    expected = values.mean(axis=1) / 32768
    np.testing.assert_allclose(read_audio(file.getvalue()), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("channels", [7, 8, 9, 24])
def test_channels_in_planes(channels: int, subtype: str) -> None:
    values = np.random.default_rng(0).normal(0, 0.05, (4800, channels))
    content = file_of("OGG", subtype, 48_000, values)
    expected: Samples = soundfile.read(io.BytesIO(content), dtype="float32")[0].mean(axis=1)
    samples = read_audio(content, 48_000)
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rate", [8000, 11_025, 12_000, 24_000, 32_000, 88_200, 96_000, 192_000])
def test_rates(rate: int) -> None:
    time = np.arange(rate) / rate
    tone = (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
    samples = read_audio(file_of("FLAC", "PCM_24", rate, tone))
    assert len(samples) == RATE
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(samples[800:-800], expected[800:-800], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("form", "subtype"),
    [("OGG", "VORBIS"), ("MP3", None), ("FLAC", None), ("AIFF", None), ("CAF", "ALAC_16")],
)
@pytest.mark.parametrize("seconds", [0.3, 2, 3.29])
def test_samples_are_those_of_another_decoder(
    tmp_path: Path, form: str, subtype: str | None, seconds: float
) -> None:
    path = tmp_path / "x"
    path.write_bytes(file_of(form, subtype, samples=SPEECH[: round(RATE * seconds)]))
    expected, _ = soundfile.read(path, dtype="float32")
    np.testing.assert_allclose(read_audio(path), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("x.m4a", "aac"),
        ("x.mp4", "aac"),
        ("x.3gp", "aac"),
        ("x.mov", "pcm_s16le"),
        ("alac.m4a", "alac"),
        ("x.webm", "libopus"),
        ("x.mka", "libmp3lame"),
        ("x.aac", "aac"),
    ],
)
def test_files_of_phones_and_browsers(tmp_path: Path, name: str, codec: str) -> None:
    content = encoded(tmp_path / name, codec, video=name == "x.mp4")
    samples = read_audio(content)
    assert len(SPEECH) - 10 <= len(samples) <= len(SPEECH) + 2500
    assert similarity(samples, SPEECH) > 0.9
    assert np.array_equal(read_audio(tmp_path / name), samples)


def test_a_recording_in_fragments(tmp_path: Path) -> None:
    """Browsers write MP4 and WebM while they record, without an index or a length."""
    fragments: Any = {"movflags": "frag_keyframe+empty_moov", "frag_duration": "500000"}
    content = encoded(tmp_path / "x.mp4", "aac", **fragments)
    assert similarity(read_audio(content), SPEECH) > 0.9
    assert "the file ends early" in read_early(content[: len(content) * 6 // 10])[1]
    live = encoded(tmp_path / "x.webm", "libopus", live="1")
    assert similarity(read_audio(live), SPEECH) > 0.9


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(b"")
    for empty in (b"", path):
        with pytest.raises(AudioError, match=r": expected an audio file, found an empty file$"):
            read_audio(empty)


def test_a_video_without_sound(tmp_path: Path) -> None:
    content = encoded(tmp_path / "x.mp4", "", video=True)
    with pytest.raises(AudioError, match="expected an audio stream, found a video without sound"):
        read_audio(content)


def test_an_mp4_file_without_its_index(tmp_path: Path) -> None:
    """It is written when the recording ends."""
    content = encoded(tmp_path / "x.m4a", "aac")
    with pytest.raises(AudioError, match=r"the file ends early: .* \(moov\)"):
        read_audio(content[: len(content) // 2])


EARLY: dict[str, Callable[[Path], bytes]] = {
    "wav": lambda _: file_of("WAV"),
    "w64": lambda _: file_of("W64"),
    "aiff": lambda _: file_of("AIFF"),
    "au": lambda _: file_of("AU"),
    "caf": lambda _: file_of("CAF"),
    "nist": lambda _: file_of("NIST", "PCM_16"),
    "flac": lambda _: file_of("FLAC"),
    "vorbis": lambda _: file_of("OGG", "VORBIS", samples=np.tile(SPEECH, 5)),
    "opus": lambda _: file_of("OGG", "OPUS", samples=np.tile(SPEECH, 5)),
    "mp3": lambda _: file_of("MP3"),
    "m4a": lambda path: encoded(path / "x.m4a", "aac", movflags="faststart"),
    "webm": lambda path: encoded(path / "x.webm", "libopus"),
    "aac": lambda path: encoded(path / "x.aac", "aac"),
}


@pytest.mark.parametrize("form", EARLY)
def test_a_file_that_ends_early_gives_what_is_there(tmp_path: Path, form: str) -> None:
    whole = EARLY[form](tmp_path)
    expected = read_audio(whole)
    samples, warning = read_early(whole[: len(whole) * 6 // 10])
    assert 0.3 * len(expected) < len(samples) < 0.8 * len(expected)
    end = len(samples) - 4000
    np.testing.assert_allclose(samples[:end], expected[:end], rtol=0, atol=2e-3)
    assert "the file ends early" in warning or "a part of the file is missing" in warning
    assert "\n" not in warning


@pytest.mark.parametrize(("form", "subtype"), [("FLAC", None), ("OGG", "OPUS")])
def test_a_file_that_is_damaged(form: str, subtype: str | None) -> None:
    content = bytearray(file_of(form, subtype, samples=np.tile(SPEECH, 5)))
    middle = len(content) // 2
    content[middle : middle + 10] = bytes(10)
    samples, warning = read_early(bytes(content))
    assert "a part of the file is missing: expected " in warning
    assert 0.5 < len(samples) / (5 * len(SPEECH)) < 1


def id3(*frames: bytes, padding: int) -> bytes:
    content = b"".join(frames) + bytes(padding)
    size = bytes(len(content) >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + size + content


COVER = b"\0image/png\0\x03\0\x89PNG\r\n\x1a\n" + bytes(5000)
PICTURE = b"APIC" + struct.pack(">I", len(COVER)) + b"\0\0" + COVER
APE = b"APETAGEX" + struct.pack("<IIII8x", 2000, 56, 1, 0xA0000000)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (id3(PICTURE, padding=90_000), b""),
        (b"", b"TAG" + b"x" * 125),
        (b"", APE + bytes(24) + APE + b"TAG" + b"x" * 125),
        (b"", bytes(4000)),
    ],
    ids=["cover", "ID3v1", "APE", "zeros"],
)
def test_tags_of_mp3_are_not_audio(before: bytes, after: bytes) -> None:
    plain = file_of("MP3")
    samples, expected = read_audio(before + plain + after), read_audio(plain)
    assert abs(len(samples) - len(expected)) < 1152  # the end of the last frame is cut, or not
    assert np.array_equal(samples[: len(expected) - 1152], expected[:-1152])


def test_files_one_after_another() -> None:
    """Parts may have other rates and numbers of channels."""
    stereo = file_of("MP3", None, 44_100, np.zeros((44_100, 2)))
    samples = read_audio(file_of("MP3") + stereo)
    assert len(SPEECH) + RATE <= len(samples) <= len(SPEECH) + RATE + 4000
    assert similarity(samples[: len(SPEECH)], SPEECH) > 0.9
    parts = [file_of("OGG", "VORBIS", 44_100, np.zeros(44_100)), file_of("OGG", "VORBIS")]
    assert np.array_equal(
        read_audio(b"".join(parts)), np.concatenate([read_audio(part) for part in parts])
    )


@pytest.mark.parametrize("name", [b"x.raw", b"x.mp3", b"caf\xe9.wav", b"\xff\xfe", b"concat:x"])
def test_the_name_says_nothing(tmp_path: Path, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.write_bytes(file_of("WAV"))
    assert np.array_equal(read_audio(path), SPEECH)
    path.write_bytes(file_of("WAV")[:2000])
    assert read_early(path)[1].isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile '{}'\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
    ],
    ids=["playlist", "concat", "session"],
)
def test_no_further_file_or_address_is_opened(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret.wav").write_bytes(file_of("WAV"))
    path = tmp_path / "x.wav"
    path.write_bytes(content.replace(b"{}", os.fsencode(tmp_path / "secret.wav")))
    with pytest.raises(AudioError, match=r"known format \(WAV, FLAC, MP3, Ogg .*, found a text: '"):
        read_audio(path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\xef\xbb\xbf  Sehr geehrte Damen,\r\nund so weiter\n", "a text: 'Sehr geehrte Damen,'"),
        ("é".encode() * 40, f"a text: '{'é' * 32}'"),
        (b"x" + "é".encode() * 40, f"a text: '{'x' + 'é' * 31}'"),  # cut within a character
        (b"text\x00text" * 20, "another"),
        (b"\xff\xfe\xfd" * 40, "another"),
        (b" \n\t" * 40, "another"),
    ],
)
def test_a_text_is_named(content: bytes, found: str) -> None:
    with pytest.raises(AudioError) as error:
        read_audio(content)
    assert str(error.value).endswith(f", found {found}")


def test_long_files_are_read_in_blocks() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((2, 2, 48_000, 0, "NONE", ""))
        written.writeframes(bytes(4 * 48_000 * 60))
    sizes = [len(block) for block in read_blocks(file.getvalue(), RATE, [])]
    assert sum(sizes) == 60 * RATE
    assert max(sizes) < 1 << 17
