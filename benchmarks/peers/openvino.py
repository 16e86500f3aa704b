"""OpenVINO: text models with Optimum-Intel, plain encoder-only models, Whisper with OpenVINO GenAI.

Optimum-Intel exports all models. It needs another version of Optimum than Optimum-ONNX, and so a
separate environment: `pip install --group peers-openvino`. Encoder-only models and Whisper load
without PyTorch.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import interface
from .interface import LANGUAGE, Encode, Generate, Kind, Stages, Text, Transcriber, Way

Mode = Literal["f32", "bf16", "int8"]
MODES: tuple[Mode, ...] = ("f32", "bf16", "int8")

CONFIGURATIONS: dict[Mode, dict[str, Any]] = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32},
}
"""int8: weights in 8 bits, activations quantized in groups of 32; the rest in the precision that
OpenVINO prefers on the processor."""

imported = partial(interface.import_library, group="peers-openvino")
ENCODER_FILE, FEATURES_FILE = "openvino_model.xml", "preprocessor_config.json"


def prepare(source: Path, directory: Path, *, mode: Mode, kind: Kind = "Seq2SeqLM") -> Path:
    """Export a checkpoint with stateful caches.

    Warnings are silenced for the whole process, here and below, so use a separate one.
    """
    if mode == "int8":
        return _exported(source, directory, kind, load_in_8bit=True)
    return _exported(source, directory.with_name("openvino-fp32"), kind, load_in_8bit=False)


def _exported(source: Path, directory: Path, kind: Kind, **options: Any) -> Path:
    interface.silence()
    if not directory.exists():
        model = _model_class(kind).from_pretrained(source, export=True, compile=False, **options)
        model.save_pretrained(directory)
    return directory


def load(directory: Path, threads: int, *, mode: Mode, kind: Kind = "Seq2SeqLM") -> Generate:
    """Load what `prepare` wrote, for the lowest latency."""
    from .hugging_face import generator

    return generator(load_model(directory, threads, mode=mode, kind=kind))


def load_model(directory: Path, threads: int, *, mode: Mode, kind: Kind = "Seq2SeqLM") -> Any:
    """Load what `prepare` wrote, for the lowest latency, with Hugging Face's interface."""
    import torch

    interface.silence()
    torch.set_num_threads(threads)
    settings = configuration(threads, mode)
    return _model_class(kind).from_pretrained(directory, ov_config=settings)


def _model_class(kind: Kind) -> Any:
    return getattr(imported("optimum.intel"), f"OVModelFor{kind}")


def prepare_encoder(
    source: Path, directory: Path, *, mode: Mode, calibration: Sequence[Text]
) -> Path:
    """Export a checkpoint; for int8, quantize it with NNCF's preset for Transformers."""
    exported = directory.with_name("openvino-encoder")
    _exported(source, exported, interface.encoder_kind(source))
    shutil.copyfile(source / "tokenizer.json", exported / "tokenizer.json")
    if mode != "int8":
        return exported
    openvino, nncf = imported("openvino"), imported("nncf")
    tokenize = interface.load_tokenizer(source)
    model = openvino.Core().read_model(exported / ENCODER_FILE)
    names = {name for put in model.inputs for name in put.get_names()}
    inputs = [{n: v for n, v in tokenize([text]).items() if n in names} for text in calibration]
    preset = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(calibration)}
    quantized = nncf.quantize(model, nncf.Dataset(inputs), **preset)
    directory.mkdir()
    openvino.save_model(quantized, directory / ENCODER_FILE, compress_to_fp16=False)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(exported / name, directory / name)
    return directory


def configuration(threads: int, mode: Mode, *, calibrated: bool = False) -> dict[str, Any]:
    """Return the settings for the lowest latency; calibrated activations need none for int8."""
    common = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    return common | ({} if calibrated and mode == "int8" else CONFIGURATIONS[mode])


def load_encoder(directory: Path, threads: int, *, mode: Mode) -> Encode:
    """Load what `prepare_encoder` wrote."""
    openvino = imported("openvino")
    settings = configuration(threads, mode, calibrated=True)
    model = openvino.Core().compile_model(directory / ENCODER_FILE, "CPU", settings)
    names = [name for put in model.inputs for name in put.get_names()]
    request = model.create_infer_request()
    tokenize = interface.load_tokenizer(directory)

    def encode(texts: Sequence[Text]) -> NDArray[np.float32]:
        inputs = tokenize(texts)
        outputs = request.infer({n: inputs[n] for n in names if n in inputs}, share_outputs=True)
        return interface.vectors_or_scores(outputs[0], inputs["attention_mask"])

    return encode


def prepare_whisper(source: Path, directory: Path, *, mode: Mode) -> Path:
    """Export a checkpoint of Whisper with `prepare`, including the tokenizer."""
    exported = prepare(source, directory, mode=mode, kind="SpeechSeq2Seq")
    if not (exported / FEATURES_FILE).exists():
        save = imported("openvino").save_model
        convert = imported("openvino_tokenizers").convert_tokenizer
        transformers = imported("transformers")
        models = convert(transformers.AutoTokenizer.from_pretrained(source), with_detokenizer=True)
        for name, model in zip(("tokenizer", "detokenizer"), models, strict=True):
            save(model, exported / f"openvino_{name}.xml")
        shutil.copyfile(source / FEATURES_FILE, exported / FEATURES_FILE)
    return exported


def load_whisper(
    directory: Path, threads: int, *, mode: Mode, way: Way, num_beams: int
) -> Transcriber:
    """Load what `prepare_whisper` wrote, for the lowest latency."""
    from dragoman.runtime.audio import read_audio

    settings = configuration(threads, mode)
    library = imported("openvino_genai")
    pipeline = library.WhisperPipeline(str(directory), "CPU", **settings)
    options = pipeline.get_generation_config()
    options.num_beams = 1 if way == "greedy" else num_beams
    options.do_sample = False
    options.return_timestamps = way != "greedy"
    if options.is_multilingual:
        options.language = f"<|{LANGUAGE}|>"
        options.task = "transcribe"

    def generate(clip: Path) -> Any:
        return pipeline.generate(read_audio(clip).tolist(), options)

    def stages(clip: Path) -> Stages:
        """Return the stages timed by the pipeline.

        The decoder's time is that of `generate` without features and encoder. It includes the keys
        and values of cross-attention, which the first decoder call computes.
        """
        metrics = generate(clip).perf_metrics
        parts, total = metrics.whisper_raw_metrics, metrics.raw_metrics.generate_durations
        encoder = sum(parts.encode_inference_durations)
        decoder = sum(total) - sum(parts.features_extraction_durations) - encoder
        return Stages(encoder / 1e6, decoder / 1e6, metrics.get_num_generated_tokens())

    return Transcriber(lambda clip: str(generate(clip).texts[0]).strip(), stages)
