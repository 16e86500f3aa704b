"""A reference model -> the files of a bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir

from dragoman import __version__
from dragoman.reference_model import GenerationConfig, ModelConfig, Transformer
from dragoman.reference_model import Speech as ReferenceSpeech
from dragoman.runtime.audio import LogMel
from dragoman.runtime.format.bundle import record_files, write_manifest
from dragoman.runtime.format.manifest import (
    SCHEMA_VERSION,
    GraphSpec,
    Manifest,
    ModelSpec,
)
from dragoman.runtime.format.generation_settings import Rules
from dragoman.runtime.speech.prompts import Speech
from dragoman.stored_weights import store_weights

from .graph_check import check_file, check_graph
from .exporter import export_decoder, export_encoder
from .tokenizers import TokenizerFiles

ENCODER_FILE = "encoder.onnx"
DECODER_FILE = "decoder.onnx"
DEFAULT_MAX_NEW_TOKENS = 256


def export_bundle(
    model: Transformer,
    directory: Path,
    *,
    name: str,
    tokenizers: TokenizerFiles | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Export a model into an existing directory. The bundle is neutral, in fp32 and not verified.

    Args:
        model: fp32, left unchanged
        directory: where the files go; use `runtime.bundle.new_directory` to make it appear whole
        progress: called with each stage as it begins

    Raises:
        ContractError: a graph breaks the contract.
    """
    progress("exporting the encoder")
    encoder = export_encoder(model)
    progress("exporting the decoder step")
    decoder = export_decoder(model)
    check_graph(encoder, "encoder")
    check_graph(decoder, "decoder")
    progress("writing weights")
    store_weights([encoder.model, decoder.model], directory)
    ir.save(encoder.model, directory / ENCODER_FILE)
    ir.save(decoder.model, directory / DECODER_FILE)
    progress("checking the graphs")
    check_file(directory / ENCODER_FILE, "encoder")
    check_file(directory / DECODER_FILE, "decoder")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        target="neutral",
        precision="fp32",
        model=_facts(model.config),
        architecture={"family": "transformer"} | model.config.to_dict(),
        default_max_new_tokens=_max_new_tokens(model),
        encoder=GraphSpec(ENCODER_FILE, encoder.inputs, encoder.outputs),
        decoder=GraphSpec(DECODER_FILE, decoder.inputs, decoder.outputs),
        tokenizers=tokenizers.write(directory) if tokenizers else None,
        languages=tokenizers.languages if tokenizers else None,
        files=record_files(directory),
        rules=_rules(model.generation),
        audio=log_mel_of(model.config),
        speech=_speech(model),
        tool_versions={"dragoman": __version__}
        | {package: version(package) for package in ("torch", "onnx", "onnx-ir", "onnxscript")},
    )
    write_manifest(manifest, directory)
    return manifest


def _facts(config: ModelConfig) -> ModelSpec:
    return ModelSpec(
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        decoder_layers=config.decoder_layers,
        num_heads=config.num_heads,
        head_size=config.head_size,
        max_source_positions=config.max_source_positions,
        max_target_positions=config.max_target_positions,
        pad_token_id=config.pad_token_id,
        start_token_id=config.start_token_id,
        end_token_id=config.end_token_id,
    )


def _max_new_tokens(model: Transformer) -> int:
    """What the model's publisher says, as far as its positions go."""
    room = model.config.max_target_positions - len(model.generation.prompt)
    return min(model.generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS, room)


def _rules(generation: GenerationConfig) -> Rules:
    values = dataclasses.asdict(generation)
    for name in ("max_new_tokens", "speech"):  # which the manifest says elsewhere
        del values[name]
    return Rules(**values)


def log_mel_of(config: ModelConfig) -> LogMel | None:
    """How a speech model's features are made; None for a model of texts."""
    if config.feature_size is None:
        return None
    own = LogMel(config.feature_size)
    seconds = config.feature_frames * own.hop / own.sampling_rate
    return dataclasses.replace(own, chunk_seconds=seconds)


def _speech(model: Transformer) -> Speech | None:
    if model.config.feature_size is None:
        return None
    return Speech(**dataclasses.asdict(model.generation.speech or ReferenceSpeech()))
