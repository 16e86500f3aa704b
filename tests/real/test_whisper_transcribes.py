"""Whisper on real clips: the text that Hugging Face's implementation gives for the same weights,
and few words wrong."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile

from dragoman.api import build
from dragoman.benchmarks.compare.tasks.speech import read_clips, word_error
from dragoman.benchmarks.models.real_models import whisper
from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.exporter import audio_features
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.audio import LogMel
from dragoman.runtime.backends import open_backend
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.inputs.sources import windows_of
from dragoman.verification.parity import check_parity

from ..verification.damage import damaged, three_bits

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
transformers: Any = importlib.import_module("transformers")

CLIPS = read_clips(Path(__file__).parent / "clips")
LIBRIVOX = [clip for clip in CLIPS if clip.name.startswith("librivox")]
ALLOWED = {"tiny.en": 0.057, "base": 0.029}
"""Share of the words of LibriVox that may be wrong: 4 and 2 of 71."""
TIMES = {
    "tiny.en": ([0.0, 0.52, 0.74, 1.0, 1.22, 1.4, 1.78, 2.32], 2.8),
    "base": ([0.0, 0.36, 0.58, 0.84, 1.1, 1.24, 1.58, 2.14], 2.7),
}
"""Where the words of a clip begin, and the last one ends."""
JUDGED = {"tiny.en": (-0.231180, 0.0289717), "base": (-0.163355, 0.00111592)}
"""The mean log-probability of a clip's tokens, and the probability that it has no speech."""


@pytest.fixture(scope="module", params=["tiny.en", "base"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Size, checkpoint, and bundles by precision."""
    directory, workspace = whisper(request.param), tmp_path_factory.mktemp("whisper")
    read = read_checkpoint(directory)
    neutral = workspace / "neutral"
    neutral.mkdir()
    export_bundle(read.model, neutral, name=request.param, tokenizers=read.tokenizers)
    bundles = {}
    for precision in ("fp32", "int8"):
        bundles[precision] = workspace / precision
        bundles[precision].mkdir()
        optimize_bundle(read_bundle(neutral), bundles[precision], precision=precision)
    return request.param, directory, bundles


@pytest.mark.parametrize("size", ["tiny.en", "base"])
def test_builds_in_int8_without_inputs(size: str, tmp_path: Path) -> None:
    """On random sound base fails: its outputs are long, and rounding changes what comes next."""
    parity = build(whisper(size), tmp_path / "bundle", precision="int8").parity
    assert parity.passed and parity.inputs == "4 beginnings of a sentence"


def test_text_is_that_of_hugging_face(
    model: Any, whisper_at_hugging_face: Callable[[Path], Any]
) -> None:
    size, directory, bundles = model
    theirs = whisper_at_hugging_face(directory)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json")
    )
    settings = json.loads((directory / "config.json").read_text())
    extractor = transformers.WhisperFeatureExtractor()

    def token(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(f"<|{name}|>"))

    multilingual = size == "base"
    theirs.generation_config = transformers.GenerationConfig(
        eos_token_id=token("endoftext"),
        pad_token_id=token("endoftext"),
        bos_token_id=token("endoftext"),
        decoder_start_token_id=token("startoftranscript"),
        no_timestamps_token_id=token("notimestamps"),
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        is_multilingual=multilingual,
        max_length=448,
        return_timestamps=False,
        **(
            {
                "lang_to_id": {"<|en|>": token("en")},
                "task_to_id": {"transcribe": token("transcribe")},
            }
            if multilingual
            else {}
        ),
    )
    language: dict[str, Any] = {"language": "en"} if multilingual else {}
    found = load(bundles["fp32"], threads=2).generate(list(CLIPS), **language)
    for clip, result in zip(CLIPS, found, strict=True):
        samples, _ = soundfile.read(clip, dtype="float32")
        features = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
        row = theirs.generate(features, num_beams=1, do_sample=False, **language)[0].tolist()
        expected = [i for i in row if i < token("endoftext")]
        assert list(result.tokens) == expected, clip.name
        assert result.text == tokenizer.decode(expected, skip_special_tokens=True)


def test_distributions_are_what_8_bits_make_of_them(model: Any, tmp_path: Path) -> None:
    """In three bits they are not."""
    _, directory, bundles = model
    reference = read_checkpoint(directory).model
    features = audio_features(reference.config)
    assert features is not None
    log_mel = LogMel.of(features)
    windows = [window for clip in LIBRIVOX[:3] for window in windows_of(clip, log_mel)]
    inputs = ParityInputs("clips", windows)
    sound = read_bundle(bundles["int8"])
    for bundle, passes in ((sound, True), (damaged(sound, tmp_path, three_bits), False)):
        with Model(bundle, open_backend(bundle, "onnxruntime", 2)) as loaded:
            parity = check_parity(loaded, reference, inputs, backend="onnxruntime")
        assert parity.distributions is not None
        assert parity.distributions.passed is passes
        assert parity.passed or not passes


def test_times_of_words_are_those_of_openai_whisper(model: Any) -> None:
    """By openai-whisper 20250625, of the same weights, features and tokens."""
    size, _, bundles = model
    language: dict[str, Any] = {"language": "en", "task": "transcribe"} if size == "base" else {}
    clip = next(clip for clip in LIBRIVOX if clip.stem == "librivox-0930")
    (result,) = load(bundles["fp32"], threads=2).generate([clip], word_timestamps=True, **language)
    words = [word for segment in result.segments or () for word in segment.words or ()]
    starts, end = TIMES[size]
    assert [word.start for word in words] == starts and words[-1].end == end
    assert " ".join(word.text.strip() for word in words) == (
        "He might even have been made amiable himself."
    )


@pytest.mark.parametrize("beams", [1, 5])
def test_a_window_is_judged_as_by_openai_whisper(model: Any, beams: int) -> None:
    """By openai-whisper 20250625, of the same weights and features."""
    size, _, bundles = model
    language: dict[str, Any] = {"language": "en", "task": "transcribe"} if size == "base" else {}
    clip = next(clip for clip in LIBRIVOX if clip.stem == "librivox-0870")
    (result,) = load(bundles["fp32"], threads=2).generate(
        [clip], fallback=True, timestamps=True, num_beams=beams, **language
    )
    (segment,) = result.segments or ()
    quality, (mean, no_speech) = segment.quality, JUDGED[size]
    assert quality is not None and quality.temperature == 0
    assert quality.average_log_probability == pytest.approx(mean, abs=5e-5)
    assert quality.no_speech_probability == pytest.approx(no_speech, rel=1e-3)
    assert quality.compression_ratio == pytest.approx(1.1414141414)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_word_error_is_low(model: Any, precision: str) -> None:
    size, _, bundles = model
    results = load(bundles[precision], threads=2).generate(
        LIBRIVOX, language="en" if size == "base" else None
    )
    found = {clip: r.text or "" for clip, r in zip(LIBRIVOX, results, strict=True)}
    assert word_error(found, CLIPS) <= ALLOWED[size]


SAID = {
    "speech_44100_vbr_noxing.mp3": ("John Dashwood", "amiable himself"),
    "sil_speech_16000_vbr_noxing.mp3": ("John Dashwood", "amiable himself"),
    "tag_noxing.mp3": ("John Dashwood",),
    "chained_opus.ogg": ("John Dashwood", "amiable himself"),
    "cut_opus.ogg": ("John Dashwood",),
    "pipe.flac": ("amiable himself",),
    "h_zero_zero.wav": ("amiable himself",),
    "h_2000000000.wav": ("amiable himself",),
    "h_data_plus36.wav": ("amiable himself",),
}


def test_files_whose_headers_are_wrong_are_transcribed_whole(model: Any) -> None:
    size, _, bundles = model
    cases = Path(__file__).parents[1] / "runtime" / "audio" / "cases"
    language: dict[str, Any] = {"language": "en"} if size == "base" else {}
    results = load(bundles["fp32"], threads=2).generate([cases / name for name in SAID], **language)
    for (name, words), result in zip(SAID.items(), results, strict=True):
        assert all(some in (result.text or "") for some in words), (name, result.text)
        assert bool(result.warnings) == (name in ("cut_opus.ogg", "h_data_plus36.wav"))
