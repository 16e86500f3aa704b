"""Graphs that `transformers.exporters` writes: what is fused, and whether tokens stay the same."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from docs.tools.fusion_table.exported_model import Counts, randomize
from docs.tools.fusion_table.models import (
    FEED_FORWARD,
    HEADS,
    VOCABULARY,
    WIDTH,
    hugging_face,
    one_stack_model,
    source_tokens,
)
from dragoman.optimize.onnx_file import optimize_file
from dragoman.runtime.format.manifest import PassRecord

COMPONENTS: Mapping[str, Mapping[str, Counts]] = {
    "bart": {"encoder": Counts(1, 3, 1), "prefill": Counts(2, 4, 1), "decode": Counts(2, 4, 1)},
    "marian": {"encoder": Counts(1, 2, 1), "prefill": Counts(2, 3, 1), "decode": Counts(2, 3, 1)},
    "t5": {"encoder": Counts(1, 3, 1), "prefill": Counts(2, 4, 1), "decode": Counts(2, 4, 1)},
    "whisper": {"encoder": Counts(1, 3, 3), "prefill": Counts(2, 4, 1), "decode": Counts(2, 4, 1)},
    "bert": {"model": Counts(1, 3, 1)},
    "gpt2": {"prefill": Counts(1, 3, 1), "decode": Counts(1, 3, 1)},
}
"""The graphs of each model, and the operators of each, counted in the model's source."""

PROMPT, STEPS = 3, 5
FRAMES, MELS = 40, 8

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Exported:
    """A model with random weights, and the graphs that transformers' exporter wrote of it.

    Attributes:
        inputs: the inputs that it was traced with
        graphs: an ONNX file for each of `COMPONENTS`
    """

    name: str
    model: Any
    inputs: dict[str, torch.Tensor]
    graphs: Mapping[str, Path]

    def optimized(
        self, directory: Path, target: str
    ) -> tuple[dict[str, Path], dict[str, list[PassRecord]]]:
        """Return optimized files, and the records of their passes."""
        files = {name: directory / f"{self.name}-{name}-{target}.onnx" for name in self.graphs}
        records = {
            name: optimize_file(self.graphs[name], file, target=target, overwrite=True)
            for name, file in files.items()
        }
        return files, records

    def expected(self) -> NDArray[Any]:
        """Return the tokens that PyTorch chooses greedily without a cache.

        For a model without tokens, return its output.
        """
        inputs = dict(self.inputs)
        written = "input_ids" if self.name == "gpt2" else "decoder_input_ids"
        with torch.no_grad():
            if self.name == "bert":
                output: NDArray[Any] = self.model(**inputs).last_hidden_state.numpy()
                return output
            for _ in range(STEPS):
                logits = self.model(**inputs, use_cache=False).logits
                chosen = logits[:, -1:].argmax(-1)
                inputs[written] = torch.cat([inputs[written], chosen], dim=1)
                if self.name == "gpt2":
                    inputs["attention_mask"] = torch.ones_like(inputs[written])
        tokens: NDArray[Any] = inputs[written][:, -STEPS:].numpy()
        return tokens

    def found(self, files: Mapping[str, Path]) -> NDArray[Any]:
        """Return what graphs compute instead: prefill, then one token at a time from the cache."""
        feed = {name: value.numpy() for name, value in self.inputs.items()}
        if self.name == "bert":
            return _run(files["model"], feed)["last_hidden_state"]
        if "encoder" in files:
            feed["encoder_outputs.last_hidden_state"] = _run(files["encoder"], feed)[
                "last_hidden_state"
            ]
        written = "input_ids" if self.name == "gpt2" else "decoder_input_ids"
        feed["position_ids"] = np.broadcast_to(np.arange(PROMPT), feed[written].shape)
        outputs = _run(files["prefill"], feed)
        tokens = [outputs["logits"][:, -1:].argmax(-1)]
        for step in range(PROMPT, PROMPT + STEPS - 1):
            past = {
                f"input.{name.removeprefix('output.')}": value
                for name, value in outputs.items()
                if "past_key_values" in name
            }
            feed |= past | {written: tokens[-1], "position_ids": np.full_like(tokens[-1], step)}
            if self.name == "gpt2":
                feed["attention_mask"] = np.ones((len(tokens[-1]), step + 1), np.int64)
            outputs = _run(files["decode"], feed)
            tokens.append(outputs["logits"][:, -1:].argmax(-1))
        return np.concatenate(tokens, axis=1)


def _run(file: Path, feed: Arrays) -> Arrays:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    known = {value.name: feed[value.name] for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, known), strict=True))


def make(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Make a model of `COMPONENTS` with random weights, and inputs."""
    torch.manual_seed(0)
    model = _make(name)
    randomize(model)
    return model.eval(), _inputs(name)


def export(name: str, directory: Path) -> Exported:
    """Export a model of `COMPONENTS`, with dynamic axes."""
    exporters: Any = importlib.import_module("transformers.exporters")
    model, inputs = make(name)
    exporter, config = exporters.OnnxExporter(), exporters.OnnxConfig(dynamic=True)
    graphs: dict[str, Path] = {}
    with _quiet():
        if name == "bert":
            exporter.export(model, inputs, config).save_pretrained(directory / name)
        else:
            exporter.export_for_generation(model, inputs, config).save_pretrained(directory / name)
        if "encoder" in COMPONENTS[name]:
            source = {k: v for k, v in inputs.items() if k != "decoder_input_ids"}
            encoder = exporter.export(model.get_encoder(), source, config)
            encoder.save_pretrained(directory / f"{name}-encoder")
            graphs["encoder"] = directory / f"{name}-encoder" / "model.onnx"
    files = (directory / name).glob("*.onnx")
    return Exported(name, model, inputs, graphs | {file.stem: file for file in files})


def _make(name: str) -> Any:
    if name in ("bert", "gpt2"):
        return one_stack_model(name, "sdpa")  # type: ignore[arg-type]
    if name != "whisper":
        return hugging_face(name, "sdpa")  # type: ignore[arg-type]
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=MELS,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=FEED_FORWARD,
        decoder_ffn_dim=FEED_FORWARD,
        max_source_positions=FRAMES // 2,
        max_target_positions=24,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _inputs(name: str) -> dict[str, torch.Tensor]:
    source = source_tokens()
    inputs = {"input_ids": source["ids"], "attention_mask": source["mask"]}
    if name == "gpt2":
        prompt = source["ids"][:, :PROMPT]
        return {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    if name == "whisper":
        inputs = {"input_features": torch.randn(len(source["ids"]), MELS, FRAMES)}
    if name != "bert":
        inputs["decoder_input_ids"] = torch.randint(2, VOCABULARY, (len(source["ids"]), PROMPT))
    return inputs


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
