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
    sizes = {"n_vocab": config["vocab_size"]}
    for name, side, end in (("audio", "encoder", "source"), ("text", "decoder", "target")):
        sizes[f"n_{name}_ctx"] = config[f"max_{end}_positions"]
        sizes[f"n_{name}_state"] = config["d_model"]
        sizes[f"n_{name}_head"] = config[f"{side}_attention_heads"]
        sizes[f"n_{name}_layer"] = config[f"{side}_layers"]
    return sizes | {"n_mels": config["num_mel_bins"]}


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

    Source: `models/convert-pt-to-ggml.py` of whisper.cpp, and `block_q8_0` of ggml. The mode is the
    type of matrices.
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
    library = import_library("transformers.models.whisper.tokenization_whisper")
    byte_of = {character: byte for byte, character in library.bytes_to_unicode().items()}
    end = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    model = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = {token: text for text, token in model["vocab"].items()}
    return [bytes(byte_of[character] for character in tokens[token]) for token in range(end)]


def _write_tensor(file: BinaryIO, name: str, value: NDArray[np.float32], mode: str) -> None:
    if name.endswith(CONVOLUTION_BIASES):
        value = value[:, None]
    kind = "f32" if value.ndim < 2 or name.endswith(IN_FP32) else mode
    if value.ndim == 3 and kind == "q8_0":  # convolutions, which ggml does not quantize
        kind = "f16"
    encoded = name.encode()
    header = (value.ndim, len(encoded), GGML_TYPES[kind], *value.shape[::-1])
    file.write(struct.pack(f"<{len(header)}i", *header) + encoded)
    if kind == "q8_0":
        blocks = value.reshape(-1, 32)
        scales = np.abs(blocks).max(1, keepdims=True) / 127
        integers = np.round(blocks / np.where(scales > 0, scales, 1)).astype(np.int8)
        packed = np.concatenate([scales.astype(np.float16).view(np.int8), integers], axis=1)
        file.write(packed.tobytes())
    else:
        file.write(value.astype(np.float16 if kind == "f16" else np.float32).tobytes())


def load_openai(directory: Path, threads: int, *, way: Way, num_beams: int) -> Transcriber:
    """Load a model into openai-whisper; beams are of other ways than the greedy one."""
    import torch

    from dragoman.runtime.audio import read_audio

    torch.set_num_threads(threads)
    model = import_library("whisper").load_model(str(directory / OPENAI_FILE), "cpu")
    options: dict[str, Any] = {"temperature": TEMPERATURES, "best_of": 5}
    if way == "greedy":
        options = {"temperature": 0.0, "condition_on_previous_text": False}
        options["without_timestamps"] = True
    elif num_beams > 1:
        options["beam_size"] = num_beams
    options |= {"language": LANGUAGE, "fp16": False, "verbose": None}
    return Transcriber(lambda clip: model.transcribe(read_audio(clip), **options)["text"].strip())


def load_whisper_cpp(directory: Path, threads: int, *, way: Way, num_beams: int) -> Transcriber:
    """Load a model into whisper.cpp, like `load_openai`."""
    from dragoman.runtime.audio import read_audio

    # By default, a call forgets the text of the one before.
    options: dict[str, Any] = {"suppress_nst": True}
    if way == "greedy":
        options |= {"no_timestamps": True, "temperature_inc": 0.0}
    elif num_beams > 1:
        options["beam_search"] = {"beam_size": num_beams, "patience": -1.0}
    model = import_library("pywhispercpp.model").Model(
        str(directory / GGML_FILE),
        params_sampling_strategy=int("beam_search" in options),
        redirect_whispercpp_logs_to=None,
        n_threads=threads,
        language=LANGUAGE,
        print_progress=False,
        **options,
    )
    return Transcriber(lambda clip: " ".join(s.text for s in model.transcribe(read_audio(clip))))


def load_transformers(directory: Path, threads: int, *, way: Way, num_beams: int) -> Transcriber:
    """Load a model into transformers, like `load_openai`; long clips are decoded sequentially."""
    import torch

    from dragoman.runtime.audio import read_audio

    torch.set_num_threads(threads)
    library = import_library("transformers")
    library.logging.set_verbosity_error()
    model = library.WhisperForConditionalGeneration.from_pretrained(directory).eval()
    extract = library.AutoFeatureExtractor.from_pretrained(directory)
    tokenizer = library.AutoTokenizer.from_pretrained(directory)
    options: dict[str, Any] = {"num_beams": 1, "do_sample": False}
    if way != "greedy":
        options = {
            "num_beams": num_beams,
            "return_timestamps": True,
            "temperature": TEMPERATURES,
            "compression_ratio_threshold": COMPRESSION_OF_TOKENS,
            "logprob_threshold": -1.0,
            "no_speech_threshold": 0.6,
            "condition_on_prev_tokens": True,
        }
    if model.generation_config.is_multilingual:
        options |= {"language": LANGUAGE, "task": "transcribe"}
    reading = {"sampling_rate": extract.sampling_rate, "return_tensors": "pt"}
    reading["return_attention_mask"] = True
    uncut = {"truncation": False, "padding": "longest"} if way != "greedy" else {}

    def transcribe(clip: Path) -> str:
        audio = read_audio(clip)
        inputs = extract(audio, **reading, **(uncut if len(audio) > extract.n_samples else {}))
        with torch.inference_mode():
            rows = model.generate(**inputs, **options)
        (text,) = tokenizer.batch_decode(rows, skip_special_tokens=True)
        return str(text).strip()

    return Transcriber(transcribe)
