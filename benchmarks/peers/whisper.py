"""Transcribes with openai-whisper, whisper.cpp and transformers, from the same checkpoint.

openai-whisper is installed by `pip install --no-deps`, since it requires Triton, which computes on
GPUs only. Audio is read as Dragoman reads it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from .interface import LANGUAGE, Transcriber, Way, import_library

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
COMPRESSION_OF_TOKENS = 1.35
"""Threshold of transformers, which compresses token ids: the value of its documentation."""

OPENAI_FILE, GGML_FILE = "model.pt", "model.bin"
RENAMED = (
    ("model.", ""),
    (".layers.", ".blocks."),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn_layer_norm", "attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
)
"""Replacements, in this order, that make OpenAI's name of a weight from that of Hugging Face."""

GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
GGML_FILE_TYPES = {"f16": 1, "q8_0": 2007}
"""By the type of matrices; of a quantized type with 1,000 times the version of its format."""
GGML_BLOCK = 32
CONVOLUTION_BIASES = ("conv1.bias", "conv2.bias")
IN_FP32 = ("positional_embedding", *CONVOLUTION_BIASES)


def _weights(checkpoint: Path) -> dict[str, NDArray[np.float32]]:
    """Read the weights of a checkpoint by their names in OpenAI's files."""
    load_file = import_library("safetensors.numpy").load_file
    weights = {}
    for name, value in load_file(checkpoint / "model.safetensors").items():
        if name.startswith("model."):  # the output layer is the embedding
            for old, new in RENAMED:
                name = name.replace(old, new)
            weights[name] = value.astype(np.float32)
    return weights


def _dimensions(checkpoint: Path) -> dict[str, int]:
    """Return the shape of a checkpoint, in the order of whisper.cpp's header."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    sides = {
        f"n_{name}_{what}": value
        for name, side in (("audio", "encoder"), ("text", "decoder"))
        for what, value in (
            ("ctx", config["max_source_positions" if name == "audio" else "max_target_positions"]),
            ("state", config["d_model"]),
            ("head", config[f"{side}_attention_heads"]),
            ("layer", config[f"{side}_layers"]),
        )
    }
    return {"n_vocab": config["vocab_size"], **sides, "n_mels": config["num_mel_bins"]}


def prepare_openai(checkpoint: Path, directory: Path, *, mode: Literal["fp32"]) -> Path:
    """Write a file of openai-whisper from a checkpoint of Hugging Face."""
    import torch

    directory.mkdir()
    weights = {name: torch.from_numpy(value) for name, value in _weights(checkpoint).items()}
    content = {"dims": _dimensions(checkpoint), "model_state_dict": weights}
    torch.save(content, directory / OPENAI_FILE)
    return directory


def prepare_whisper_cpp(checkpoint: Path, directory: Path, *, mode: str) -> Path:
    """Write a file of whisper.cpp from a checkpoint of Hugging Face.

    Source: `models/convert-pt-to-ggml.py` of whisper.cpp, and `block_q8_0` of ggml.

    Args:
        mode: type of matrices, a key of `GGML_FILE_TYPES`
    """
    directory.mkdir()
    dimensions = _dimensions(checkpoint)
    with (directory / GGML_FILE).open("wb") as file:
        numbers = (0x67676D6C, *dimensions.values(), GGML_FILE_TYPES[mode])
        file.write(struct.pack(f"<{len(numbers)}i", *numbers))
        extractor = import_library("transformers").WhisperFeatureExtractor(dimensions["n_mels"])
        filters = np.ascontiguousarray(extractor.mel_filters.T, np.float32)
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        tokens = _token_bytes(checkpoint)
        file.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            file.write(struct.pack("<i", len(token)) + token)
        for name, value in _weights(checkpoint).items():
            _write_tensor(file, name, value, mode)
    return directory


def _token_bytes(checkpoint: Path) -> list[bytes]:
    """Return the bytes of the tokens before the end token; whisper.cpp knows the others."""
    bytes_to_unicode = import_library(
        "transformers.models.whisper.tokenization_whisper"
    ).bytes_to_unicode
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    end = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    model = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = {token: text for text, token in model["vocab"].items()}
    return [bytes(byte_of[character] for character in tokens[token]) for token in range(end)]


def _write_tensor(file: BinaryIO, name: str, value: NDArray[np.float32], mode: str) -> None:
    if name.endswith(CONVOLUTION_BIASES):
        value = value[:, None]
    kind = mode
    if value.ndim < 2 or name.endswith(IN_FP32):
        kind = "f32"
    elif value.ndim == 3 and mode == "q8_0":  # convolutions, which ggml does not quantize
        kind = "f16"
    encoded = name.encode()
    header = (value.ndim, len(encoded), GGML_TYPES[kind], *value.shape[::-1])
    file.write(struct.pack(f"<{len(header)}i", *header) + encoded)
    if kind == "q8_0":
        blocks = value.reshape(-1, GGML_BLOCK)
        scales = np.abs(blocks).max(1, keepdims=True) / 127
        integers = np.round(blocks / np.where(scales > 0, scales, 1)).astype(np.int8)
        packed = np.concatenate([scales.astype(np.float16).view(np.int8), integers], axis=1)
        file.write(packed.tobytes())
    else:
        file.write(value.astype(np.float16 if kind == "f16" else np.float32).tobytes())


class OpenAIWhisperPeer(Transcriber):
    """A loaded model of openai-whisper.

    Args:
        num_beams: number of beams, unless the way is greedy
    """

    def __init__(self, directory: Path, threads: int, *, way: Way, num_beams: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._model = import_library("whisper").load_model(str(directory / OPENAI_FILE), "cpu")
        beams = {"beam_size": num_beams} if num_beams > 1 else {}
        self._options: dict[str, Any] = {"temperature": TEMPERATURES, "best_of": 5, **beams}
        if way == "greedy":
            self._options = {
                "temperature": 0.0,
                "condition_on_previous_text": False,
                "without_timestamps": True,
            }

    def transcribe(self, clip: Path) -> str:
        """Transcribe with `Whisper.transcribe`."""
        from dragoman.runtime.audio import read_audio

        found = self._model.transcribe(
            read_audio(clip), language=LANGUAGE, fp16=False, verbose=None, **self._options
        )
        return str(found["text"]).strip()


class WhisperCppPeer(Transcriber):
    """A loaded model of whisper.cpp. See `OpenAIWhisperPeer`."""

    def __init__(self, directory: Path, threads: int, *, way: Way, num_beams: int) -> None:
        library = import_library("pywhispercpp.model")
        # By default, a call forgets the text of the one before.
        options: dict[str, Any] = {"suppress_nst": True}
        if way == "greedy":
            options |= {"no_timestamps": True, "temperature_inc": 0.0}
        elif num_beams > 1:
            options["beam_search"] = {"beam_size": num_beams, "patience": -1.0}
        self._model = library.Model(
            str(directory / GGML_FILE),
            params_sampling_strategy=int("beam_search" in options),
            redirect_whispercpp_logs_to=None,
            n_threads=threads,
            language=LANGUAGE,
            print_progress=False,
            **options,
        )

    def transcribe(self, clip: Path) -> str:
        """Transcribe with `whisper_full`."""
        from dragoman.runtime.audio import read_audio

        return " ".join(segment.text for segment in self._model.transcribe(read_audio(clip)))


class TransformersWhisperPeer(Transcriber):
    """A loaded model of transformers. See `OpenAIWhisperPeer`."""

    def __init__(self, directory: Path, threads: int, *, way: Way, num_beams: int) -> None:
        import torch

        torch.set_num_threads(threads)
        library = import_library("transformers")
        library.logging.set_verbosity_error()
        self._model = library.WhisperForConditionalGeneration.from_pretrained(directory).eval()
        self._features = library.AutoFeatureExtractor.from_pretrained(directory)
        self._tokenizer = library.AutoTokenizer.from_pretrained(directory)
        self._reading: dict[str, Any] = {}
        self._options: dict[str, Any] = {"num_beams": 1, "do_sample": False}
        if way != "greedy":
            self._reading = {"truncation": False, "padding": "longest"}
            self._options = {
                "num_beams": num_beams,
                "return_timestamps": True,
                "temperature": TEMPERATURES,
                "compression_ratio_threshold": COMPRESSION_OF_TOKENS,
                "logprob_threshold": -1.0,
                "no_speech_threshold": 0.6,
                "condition_on_prev_tokens": True,
            }
        if self._model.generation_config.is_multilingual:
            self._options |= {"language": LANGUAGE, "task": "transcribe"}

    def transcribe(self, clip: Path) -> str:
        """Transcribe with `WhisperForConditionalGeneration.generate`, long clips sequentially."""
        import torch

        from dragoman.runtime.audio import read_audio

        audio, rate = read_audio(clip), self._features.sampling_rate
        reading = self._reading if len(audio) > self._features.n_samples else {}
        inputs = self._features(
            audio,
            sampling_rate=rate,
            return_tensors="pt",
            return_attention_mask=True,
            **reading,
        )
        with torch.inference_mode():
            rows = self._model.generate(**inputs, **self._options)
        (text,) = self._tokenizer.batch_decode(rows, skip_special_tokens=True)
        return str(text).strip()
