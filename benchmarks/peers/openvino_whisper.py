"""OpenVINO GenAI's `WhisperPipeline` with a Whisper that Optimum-Intel exported. Loads without
PyTorch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dragoman.runtime.audio import read_audio

from . import openvino
from .interface import LANGUAGE, Stages
from .library import import_library
from .openvino import CONFIGURATIONS, GROUP, Mode

FEATURES = "preprocessor_config.json"


def prepare(source: Path, directory: Path, *, mode: Mode) -> Path:
    """Export a checkpoint in Hugging Face's format, its tokenizer included.

    See `openvino.prepare`, of which this is the use for speech.

    Returns:
        the directory to load
    """
    exported = openvino.prepare(source, directory, mode=mode, kind="SpeechSeq2Seq")
    if not (exported / FEATURES).exists():
        save = import_library("openvino", group=GROUP).save_model
        convert = import_library("openvino_tokenizers", group=GROUP).convert_tokenizer
        transformers = import_library("transformers", group=GROUP)
        models = convert(transformers.AutoTokenizer.from_pretrained(source), with_detokenizer=True)
        for name, model in zip(("tokenizer", "detokenizer"), models, strict=True):
            save(model, exported / f"openvino_{name}.xml")
        shutil.copyfile(source / FEATURES, exported / FEATURES)
    return exported


class OpenVINOWhisperPeer:
    """What `prepare` wrote, loaded for the lowest latency; decodes greedily, without timestamps."""

    def __init__(self, directory: Path, threads: int, mode: Mode) -> None:
        library = import_library("openvino_genai", group=GROUP)
        self._pipeline = library.WhisperPipeline(
            str(directory),
            "CPU",
            PERFORMANCE_HINT="LATENCY",
            INFERENCE_NUM_THREADS=threads,
            **CONFIGURATIONS[mode],
        )
        settings = self._pipeline.get_generation_config()
        settings.num_beams = 1
        settings.do_sample = False
        settings.return_timestamps = False
        if settings.is_multilingual:
            settings.language = f"<|{LANGUAGE}|>"
            settings.task = "transcribe"
        self._settings = settings

    def transcribe(self, clip: Path) -> str:
        """Read the file and transcribe it by `WhisperPipeline.generate`."""
        (text,) = self._generate(clip).texts
        return str(text).strip()

    def stages(self, clip: Path) -> Stages:
        """By the pipeline's own clock: the encoder's calls; and what else `generate` takes except
        for the features, which is the decoder, the choice of tokens and their text. Keys and values
        of cross-attention are the decoder's, whose first call computes them.
        """
        metrics = self._generate(clip).perf_metrics
        parts, total = metrics.whisper_raw_metrics, metrics.raw_metrics.generate_durations
        encoder = sum(parts.encode_inference_durations)
        decoder = sum(total) - sum(parts.features_extraction_durations) - encoder
        return Stages(encoder / 1e6, decoder / 1e6, metrics.get_num_generated_tokens())

    def _generate(self, clip: Path) -> Any:
        return self._pipeline.generate(read_audio(clip).tolist(), self._settings)
