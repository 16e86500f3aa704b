"""The settings of a bundle are held to its checkpoint and its graphs, never to the bundle itself.

Right bundles of every kind pass; a field that was changed is named, and so are a wrong precision,
a wrong target and a wrong list of what was kept in fp32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import OpenedCheckpoint, open_checkpoint
from dragoman.export.locating import LocatedCheckpoint, locate_checkpoint
from dragoman.optimize.precision.int8 import Int8
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.tensorrt.engine_bundle import pinned_bundle
from dragoman.reference_model import (
    GenerationConfig,
    HeadConfig,
    ModelConfig,
    Transformer,
    make_model,
)
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.manifest import Manifest, Precision, TensorRTEngines
from dragoman.runtime.format.texts import Languages
from dragoman.settings.speech import AudioFeatures
from dragoman.verification.stored.settings import compare_settings

from .. import speech_models
from ..random_weights import random_transformer

COMMON: dict[str, Any] = {
    "d_model": 32,
    "num_heads": 2,
    "d_ff": 48,
    "dropout": 0.0,
    "norm_order": "pre",
}
SIZES: dict[str, Any] = {
    "source_vocab_size": 41,
    "target_vocab_size": 43,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "max_source_positions": 20,
    "max_target_positions": 16,
}
ENCODER_ONLY: dict[str, Any] = {
    "target_vocab_size": 0,
    "decoder_layers": 0,
    "max_target_positions": 0,
    "positions": "learned",
    "token_types": 2,
    "pad_token_id": 0,
    "head": HeadConfig(task="sequence-classification", dense_size=32, labels=("a", "b", "c")),
}
DECODER_ONLY: dict[str, Any] = {
    "source_vocab_size": 0,
    "encoder_layers": 0,
    "max_source_positions": 0,
    "positions": "learned",
}
# In 4 bits, 32 inputs share a scale: tables of another width get 8.
T5: dict[str, Any] = {
    "d_model": 40,
    "source_vocab_size": 43,
    "tie_source_target": True,
    "scale_embedding": False,
    "positions": "relative",
    "relative_buckets": 8,
    "relative_max_distance": 9,
    "norm": "rms",
    "norm_bias": False,
    "gated_feed_forward": True,
}

Make = Callable[..., Bundle]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], OpenedCheckpoint]:
    """By the name of a kind of model, each made once."""

    @cache
    def make(name: str) -> OpenedCheckpoint:
        directory: Path = tmp_path_factory.mktemp(name)
        if name == "speech":
            speech_models.whisper(multilingual=True).save_pretrained(directory)
            return open_checkpoint(locate_checkpoint(directory))
        torch.manual_seed(2)
        if name == "encoder-only":
            model = make_model(ModelConfig(**COMMON | SIZES | ENCODER_ONLY)).eval()
        elif name == "decoder-only":
            model = make_model(ModelConfig(**COMMON | SIZES | DECODER_ONLY)).eval()
        else:
            config = ModelConfig(**COMMON | SIZES | (T5 if name == "t5" else {}))
            model = random_transformer(config, seed=3)
            model.generation = GenerationConfig(
                num_beams=4, suppressed_token_ids=(5, 7), bad_words=((3, 4),), max_new_tokens=12
            )
        return OpenedCheckpoint(model, None, located=LocatedCheckpoint(directory, {}))

    return make


@pytest.fixture(scope="module")
def bundle(
    checkpoints: Callable[[str], OpenedCheckpoint], tmp_path_factory: pytest.TempPathFactory
) -> Make:
    """Bundles by kind of model, target and precision; each is made once and read from disk."""

    @cache
    def make(name: str, target: str, precision: Precision, keep: tuple[str, ...]) -> Bundle:
        directory: Path = tmp_path_factory.mktemp("bundle")
        if (target, precision) == ("neutral", "fp32"):
            export_bundle(checkpoints(name).model, directory, name=name, attention=True)
        else:
            neutral = make(name, "neutral", "fp32", ())
            optimize_bundle(neutral, directory, target=target, precision=precision, keep_fp32=keep)
        return read_bundle(directory)

    def made(
        name: str, target: str = "cpu", precision: Precision = "fp32", keep: tuple[str, ...] = ()
    ) -> Bundle:
        return make(name, target, precision, keep)

    return made


def changed(bundle: Bundle, **fields: Any) -> Bundle:
    return dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, **fields))


RIGHT: list[tuple[str, str, Precision]] = [
    *(("plain", "cpu", precision) for precision in ("fp32", "int8", "int4")),
    *(("plain", "neutral", precision) for precision in ("fp32", "fp16", "bf16", "int8", "int4")),
    *(("plain", "tensorrt-rtx", precision) for precision in ("fp16", "int8", "int4")),
    *(("t5", "cpu", precision) for precision in ("fp32", "int8", "int4")),
    *(("encoder-only", "cpu", precision) for precision in ("fp32", "int8", "int4")),
    *(("decoder-only", "cpu", precision) for precision in ("fp32", "int8", "int4")),
    ("decoder-only", "neutral", "int4"),
    *(("speech", "cpu", precision) for precision in ("fp32", "int8")),
    ("speech", "neutral", "fp16"),
]


@pytest.mark.parametrize(("name", "target", "precision"), RIGHT)
def test_right_bundles_pass(
    name: str,
    target: str,
    precision: Precision,
    bundle: Make,
    checkpoints: Callable[[str], OpenedCheckpoint],
) -> None:
    check = compare_settings(bundle(name, target, precision), checkpoints(name))
    assert (check.passed, check.problem, check.differing) == (True, "", 0)
    assert (check.name, check.unit) == ("settings", "settings") and check.compared > 100


def test_what_is_for_information_may_differ(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    other = changed(bundle("plain"), name="another", notes=("a note",), tool_versions={})
    assert compare_settings(other, checkpoints("plain")).passed


@pytest.mark.parametrize(("name", "target", "precision"), RIGHT)
def test_another_precision_is_named(
    name: str,
    target: str,
    precision: Precision,
    bundle: Make,
    checkpoints: Callable[[str], OpenedCheckpoint],
) -> None:
    right = bundle(name, target, precision)
    for other in ("fp32", "fp16", "bf16", "int8", "int4"):
        if other == precision:
            continue
        check = compare_settings(changed(right, precision=other), checkpoints(name))
        assert not check.passed
        assert check.problem.startswith(
            f"precision: expected {precision} as the graphs' weights say, found {other}"
        )


@pytest.mark.parametrize(
    ("target", "precision", "other"),
    [
        *(("cpu", precision, "neutral") for precision in ("fp32", "int8", "int4")),
        *(("neutral", precision, "cpu") for precision in ("fp32", "int8", "int4")),
        ("neutral", "int8", "tensorrt"),
        ("tensorrt-rtx", "int8", "neutral"),
    ],
)
def test_another_target_is_named(
    target: str,
    precision: Precision,
    other: str,
    bundle: Make,
    checkpoints: Callable[[str], OpenedCheckpoint],
) -> None:
    wrong = changed(bundle("plain", target, precision), target=other)
    check = compare_settings(wrong, checkpoints("plain"))
    assert check.problem.startswith(
        f"target: expected {target} as the graphs' operators say, found {other}"
    )


def test_an_unknown_target_is_named(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    check = compare_settings(changed(bundle("plain"), target="gpu"), checkpoints("plain"))
    assert check.problem.startswith(
        "target: expected one of cpu, neutral, openvino, tensorrt-rtx, tensorrt, found 'gpu'"
    )


def _generation(**fields: Any) -> Callable[[Manifest], dict[str, Any]]:
    return lambda manifest: {"generation": dataclasses.replace(manifest.generation, **fields)}


def _model(**fields: Any) -> Callable[[Manifest], dict[str, Any]]:
    return lambda manifest: {"model": dataclasses.replace(manifest.model, **fields)}


def _graph(
    name: str, change: Callable[[TensorSpec], TensorSpec]
) -> Callable[[Manifest], dict[str, Any]]:
    def fields(manifest: Manifest) -> dict[str, Any]:
        return {"graphs": manifest.graphs | {name: manifest.graphs[name].map(change)}}

    return fields


def _with(role: str, **fields: Any) -> Callable[[TensorSpec], TensorSpec]:
    return lambda tensor: dataclasses.replace(tensor, **fields) if tensor.role == role else tensor


def _without_last_output(manifest: Manifest) -> dict[str, Any]:
    decoder = manifest.graphs["decoder"]
    return {
        "graphs": manifest.graphs
        | {"decoder": GraphSpec(decoder.file, decoder.inputs, decoder.outputs[:-1])}
    }


CHANGES: list[tuple[str, Callable[[Manifest], dict[str, Any]], str]] = [
    ("plain", _generation(num_beams=1), "generation.num_beams: expected 4 as the checkpoint says,"),
    ("plain", _generation(length_penalty=2.0), "generation.length_penalty: expected 1.0 as"),
    ("plain", _generation(early_stopping=True), "generation.early_stopping: expected False as"),
    (
        "plain",
        _generation(suppressed_token_ids=(5,)),
        "generation.suppressed_token_ids: expected [5, 7] as the checkpoint says, found [5]",
    ),
    ("plain", _generation(bad_words=()), "generation.bad_words: expected [(3, 4)] as"),
    ("plain", _generation(end_token_ids=(2, 9)), "generation.end_token_ids: expected none as"),
    (
        "plain",
        _generation(forced_first_token_id=6),
        "generation.forced_first_token_id: expected none as the checkpoint says, found 6",
    ),
    ("plain", _generation(min_new_tokens=3), "generation.min_new_tokens: expected 0 as"),
    ("plain", _generation(no_repeat_ngram_size=2), "generation.no_repeat_ngram_size: expected 0"),
    ("plain", _generation(repetition_penalty=1.2), "generation.repetition_penalty: expected 1.0"),
    ("plain", _generation(alignment_heads=((0, 1),)), "generation.alignment_heads: expected [] as"),
    (
        "plain",
        lambda _: {"default_max_new_tokens": 8},
        "default_max_new_tokens: expected 12 as the checkpoint says, found 8",
    ),
    ("plain", _model(end_token_id=7), "model.end_token_id: expected 2 as"),
    ("plain", _model(start_token_id=7), "model.start_token_id: expected 1 as"),
    ("plain", _model(pad_token_id=7), "model.pad_token_id: expected 0 as"),
    ("plain", _model(max_source_positions=15), "model.max_source_positions: expected 20 as"),
    ("plain", lambda _: {"kind": "language-model"}, "kind: expected 'sequence-to-sequence' as"),
    (
        "plain",
        lambda manifest: {"architecture": manifest.architecture | {"activation": "gelu"}},
        "architecture.activation: expected 'relu' as the checkpoint says, found 'gelu'",
    ),
    (
        "plain",
        lambda _: {"languages": Languages({"de": 5}, "first")},
        "languages: expected none as",
    ),
    ("plain", lambda _: {"audio": AudioFeatures()}, "audio: expected none as"),
    (
        "plain",
        _graph("decoder", _with("past_key", shape=("batch", 2, "capacity", 8))),
        "graphs.decoder.inputs.past_key_0.shape: expected ['batch', 2, 'capacity', 16] as",
    ),
    (
        "plain",
        _graph("decoder", _with("logits", dtype="float16")),
        "graphs.decoder.outputs.logits.dtype: expected 'float32' as",
    ),
    (
        "plain",
        _graph("encoder", _with("cross_key", name="cross_value_0")),
        "graphs.encoder.outputs.cross_key_0.name: expected 'cross_key_0' as",
    ),
    (
        "plain",
        _graph("candidates", _with("candidate_token", shape=("batch", 34))),
        "graphs.candidates.outputs.candidate_token.shape: expected ['batch', 32] as",
    ),
    (
        "plain",
        _graph("attention", _with("encoder_attention", layer=0)),
        "graphs.attention.outputs.encoder_attention: expected TensorSpec(",
    ),
    (
        "plain",
        _without_last_output,
        "graphs.decoder.outputs.present_value_0: expected TensorSpec(",
    ),
    (
        "encoder-only",
        lambda manifest: {
            "head": dataclasses.replace(manifest.head, labels=("a", "c", "b"))  # type: ignore[type-var]
        },
        "head.labels: expected ['a', 'b', 'c'] as the checkpoint says, found ['a', 'c', 'b']",
    ),
    (
        "speech",
        lambda manifest: {"audio": dataclasses.replace(manifest.audio, hop=80)},  # type: ignore[type-var]
        "audio.hop: expected 160 as the checkpoint says, found 80",
    ),
    (
        "speech",
        lambda manifest: {
            "speech": dataclasses.replace(
                manifest.speech,  # type: ignore[type-var]
                languages=manifest.speech.languages | {"de": 64},  # type: ignore[union-attr]
            )
        },
        "speech.languages.de: expected 63 as the checkpoint says, found 64",
    ),
    ("speech", _generation(prompt=(62,)), "generation.prompt: expected "),
    (
        "speech",
        _generation(first_suppressed_token_ids=()),
        "generation.first_suppressed_token_ids: expected [3, 60] as",
    ),
]


@pytest.mark.parametrize(("name", "change", "problem"), CHANGES, ids=[c[2] for c in CHANGES])
def test_a_changed_field_is_named(
    name: str,
    change: Callable[[Manifest], dict[str, Any]],
    problem: str,
    bundle: Make,
    checkpoints: Callable[[str], OpenedCheckpoint],
) -> None:
    right = bundle(name, "neutral")
    check = compare_settings(changed(right, **change(right.manifest)), checkpoints(name))
    assert not check.passed and check.differing >= 1
    assert check.problem.startswith(problem)


def test_the_first_of_several_is_named_and_the_others_are_counted(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    right = bundle("plain")
    generation = dataclasses.replace(right.manifest.generation, num_beams=1, min_length=4, top_k=3)
    check = compare_settings(changed(right, generation=generation), checkpoints("plain"))
    assert check.differing == 3
    assert check.problem == (
        "generation.min_length: expected 0 as the checkpoint says, found 4; 2 more settings differ"
    )


def test_caches_that_the_manifest_calls_fp32_are_named(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    right = bundle("plain", "cpu", "int8")
    past = right.manifest.graphs["decoder"].input("past_key")
    assert past.dtype == "int8"
    change = _graph("decoder", _with("past_key", dtype="float32"))
    check = compare_settings(changed(right, **change(right.manifest)), checkpoints("plain"))
    assert check.problem == (
        "graphs.decoder.inputs.past_key_0.dtype: expected int8 as decoder.onnx has it, found "
        "float32"
    )


KEPT = "decoder.layers.0.feed_forward.inner"


@pytest.mark.parametrize("keep", [KEPT, "decoder.layers.0.self_attention", "output"])
@pytest.mark.parametrize(("target", "precision"), [("cpu", "int8"), ("cpu", "int4")])
def test_modules_kept_in_fp32_pass(
    target: str,
    precision: Precision,
    keep: str,
    bundle: Make,
    checkpoints: Callable[[str], OpenedCheckpoint],
) -> None:
    right = bundle("plain", target, precision, (keep,))
    assert right.manifest.keep_fp32
    assert compare_settings(right, checkpoints("plain")).problem == ""


def test_a_quantized_module_that_is_said_to_be_kept_is_named(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    wrong = changed(bundle("plain", "cpu", "int8"), keep_fp32=(KEPT,))
    check = compare_settings(wrong, checkpoints("plain"))
    assert check.problem == (
        f"keep_fp32: expected fp32 weights of {KEPT}, found int8 in the decoder"
    )


def test_a_module_that_was_kept_and_is_not_listed_is_named(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    wrong = changed(bundle("plain", "cpu", "int8", (KEPT,)), keep_fp32=())
    check = compare_settings(wrong, checkpoints("plain"))
    assert check.problem == (f"keep_fp32: expected {KEPT}, which a pass kept in fp32, found none")


def test_a_kept_module_that_the_model_does_not_have_is_named(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    wrong = changed(bundle("plain", "cpu", "int8"), keep_fp32=("decoder.layers.9.x",))
    check = compare_settings(wrong, checkpoints("plain"))
    assert check.problem == ("keep_fp32: expected modules with weights, found 'decoder.layers.9.x'")


@pytest.fixture
def refused(bundle: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """An int8 bundle of a model none of whose weights could be quantized."""
    monkeypatch.setattr(Int8, "error", -1.0)
    optimize_bundle(bundle("plain", "neutral"), tmp_path, precision="int8")
    return read_bundle(tmp_path)


def test_fp32_weights_are_right_where_the_passes_refused_them(
    refused: Bundle, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    assert compare_settings(refused, checkpoints("plain")).problem == ""
    as_int4 = compare_settings(changed(refused, precision="int4"), checkpoints("plain"))
    assert as_int4.problem.startswith(
        "precision: expected int8 as the graphs' weights say, found int4"
    )


def test_fp32_weights_without_a_recorded_reason_are_named(
    refused: Bundle, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    passes = tuple(
        dataclasses.replace(
            done,
            refusals=tuple(
                refusal
                for number, refusal in enumerate(done.refusals)
                if not (done.name == "weights-int8" and done.graph == "decoder" and number == 1)
            ),
        )
        for done in refused.manifest.passes
    )
    check = compare_settings(changed(refused, passes=passes), checkpoints("plain"))
    assert check.differing == 1
    assert check.problem == (
        "precision: expected int8 in decoder.layers.0.self_attention.query+"
        "decoder.layers.0.self_attention.key+decoder.layers.0.self_attention.value of the decoder, "
        "or a recorded reason, found fp32"
    )


def test_engines_are_compared_by_their_settings(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint], tmp_path: Path
) -> None:
    graphs = pinned_bundle(bundle("plain", "tensorrt-rtx", "int8"), tmp_path, 9)
    engines = TensorRTEngines(
        version="1",
        cuda_version="13",
        compute_capabilities=(),
        capacity=9,
        profiles=(),
        refittable=False,
        reports={},
    )
    right = changed(graphs, executable=engines)
    assert right.manifest.default_max_new_tokens == 9
    assert compare_settings(right, checkpoints("plain")).problem == ""
    wrong = changed(right, default_max_new_tokens=8)
    check = compare_settings(wrong, checkpoints("plain"))
    assert check.problem.startswith("default_max_new_tokens: expected 9 as the checkpoint says")


def test_missing_fields_of_the_architecture_are_the_defaults(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    right = bundle("plain")
    architecture = dict(right.manifest.architecture)
    del architecture["gated_feed_forward"], architecture["head"]
    assert compare_settings(changed(right, architecture=architecture), checkpoints("plain")).passed


def test_rows_and_sources_have_an_axis_each(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    right = bundle("plain")

    def one_axis(tensor: TensorSpec) -> TensorSpec:
        shape = tuple("batch" if size == "source_batch" else size for size in tensor.shape)
        return dataclasses.replace(tensor, shape=shape)

    graphs = {name: graph.map(one_axis) for name, graph in right.manifest.graphs.items()}
    check = compare_settings(changed(right, graphs=graphs), checkpoints("plain"))
    assert check.problem.startswith(
        "graphs.encoder.inputs.source.shape: expected ['source_batch', 'source'] as the checkpoint "
        "says, found ['batch', 'source']"
    )


def test_a_checkpoint_with_other_settings_is_another(
    bundle: Make, checkpoints: Callable[[str], OpenedCheckpoint]
) -> None:
    """What is expected comes from the checkpoint, not from the bundle."""
    opened = checkpoints("plain")
    assert isinstance(opened.model, Transformer)
    other = Transformer(opened.model.config, GenerationConfig(num_beams=2))
    check = compare_settings(bundle("plain"), dataclasses.replace(opened, model=other))
    assert "generation.suppressed_token_ids: expected []" in check.problem
    assert check.differing == 4
