"""faster-whisper, which runs Whisper on CTranslate2."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO

from .interface import LANGUAGE, Stages, import_library


class FasterWhisperPeer:
    """A loaded faster-whisper model, which decodes greedily without timestamps.

    Args:
        threads: threads per clip
        mode: compute type
        workers: maximum number of clips transcribed in parallel, each from its own thread
    """

    def __init__(self, directory: Path, threads: int, mode: str, *, workers: int = 1) -> None:
        self._library = import_library("faster_whisper")
        self._model = self._library.WhisperModel(
            str(directory),
            device="cpu",
            compute_type=mode,
            cpu_threads=threads,
            num_workers=workers,
            local_files_only=True,
        )

    def transcribe(self, clip: Path | BinaryIO) -> str:
        """Transcribe with `WhisperModel.transcribe`."""
        segments, _ = self._model.transcribe(
            str(clip) if isinstance(clip, Path) else clip,
            language=LANGUAGE,
            beam_size=1,
            best_of=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)

    def stages(self, clip: Path) -> Stages:
        """Time the stages of `WhisperModel.transcribe` separately, with the same settings."""
        model = self._model
        audio = self._library.audio.decode_audio(str(clip))
        features = model.feature_extractor(audio, padding=True)
        window = self._library.audio.pad_or_trim(
            features[:, : model.feature_extractor.nb_max_frames]
        )
        tokenizer = self._library.tokenizer.Tokenizer(
            model.hf_tokenizer, model.model.is_multilingual, task="transcribe", language=LANGUAGE
        )
        prompt = model.get_prompt(tokenizer, [], without_timestamps=True)
        started = time.perf_counter()
        encoded = model.encode(window)
        encoded_at = time.perf_counter()
        (result,) = model.model.generate(
            encoded,
            [prompt],
            beam_size=1,
            suppress_blank=True,
            suppress_tokens=[-1],
            max_length=448,
        )
        ended = time.perf_counter()
        tokens = len(result.sequences_ids[0]) + 1
        return Stages(encoded_at - started, ended - encoded_at, tokens)
