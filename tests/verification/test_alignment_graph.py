"""The graph that aligns words is made of the decoder, and faults of it are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.optimize.exact import exact_model
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import ReferenceModel
from dragoman.runtime import read_bundle
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.parity import Check
from dragoman.verification.numerics.optional_graphs import compare_alignment
from dragoman.verification.numerics.probes import Probe
from dragoman.verification.stored.checkpoint_weights import CheckpointWeights

from ..speech_models import save, whisper

LAYERS, HEADS = 3, 2
NAMED = [[2, 1], [0, 0]]


@pytest.fixture(scope="module")
def reference_and_bundles(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ReferenceModel, dict[str, Bundle]]:
    directory = tmp_path_factory.mktemp("speech")
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": LAYERS, "d_model": 32}
    heads: dict[str, Any] = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    model = whisper(
        multilingual=False, seed=2, settings={"alignment_heads": NAMED}, **shape, **heads
    )
    read = read_checkpoint(save(model, directory / "checkpoint"))
    (directory / "neutral").mkdir()
    export_bundle(read.model, directory / "neutral", name="speech", tokenizers=read.tokenizers)
    bundles = {"neutral": read_bundle(directory / "neutral")}
    for precision in ("fp32", "int8", "int4"):
        (directory / precision).mkdir()
        neutral = bundles["neutral"]
        optimize_bundle(neutral, directory / precision, target="cpu", precision=precision)
        bundles[precision] = read_bundle(directory / precision)
    return read.model, bundles


def checked(reference: ReferenceModel, bundle: Bundle) -> Check:
    source = np.random.default_rng(0).standard_normal((80, 100)).astype(np.float32)
    probe = Probe(source, [61, 64, 3, 9, 9, 41, 0], "on noise")
    with exact_model(bundle, CheckpointWeights.of(reference).expected, 1) as exact:
        found = compare_alignment(exact, reference, probe)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["neutral", "fp32", "int8", "int4"])
def test_the_graph_computes_what_the_oracle_does(
    name: str, reference_and_bundles: tuple[ReferenceModel, dict[str, Bundle]]
) -> None:
    reference, bundles = reference_and_bundles
    graph = bundles[name].manifest.graphs["alignment"]
    assert graph.output("cross_attention").shape == ("batch", 2, HEADS, "query", 50)
    check = checked(reference, bundles[name])
    assert check.passed and check.name == "alignment"
    assert check.compared == 2 * HEADS * 7 * 50


def swapped(model: ir.Model) -> None:
    """The layers in another order."""
    (stack,) = (n for n in model.graph if n.outputs[0].name == "cross_attention")
    first, second = stack.inputs
    stack.replace_input_with(0, second)
    stack.replace_input_with(1, first)


def doubled(model: ir.Model) -> None:
    """Logits of twice the size."""
    (logits,) = (v for v in model.graph.outputs if v.name == "logits")
    node = logits.producer()
    assert node is not None
    logits.name = "half"
    twice = ir.node("Add", [logits, logits])
    twice.outputs[0].name, twice.outputs[0].type, twice.outputs[0].shape = (
        "logits",
        logits.type,
        logits.shape,
    )
    model.graph.insert_after(node, twice)
    model.graph.outputs[0] = twice.outputs[0]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [(swapped, "cross_attention of layer 0, head"), (doubled, "logits of the graph that aligns")],
)
def test_faults_are_found(
    damage: Callable[[ir.Model], None],
    problem: str,
    reference_and_bundles: tuple[ReferenceModel, dict[str, Bundle]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference, bundles = reference_and_bundles

    def damaged(path: Path) -> ir.Model:
        model = load_graph(path)
        if path.name == "alignment.onnx":
            damage(model)
        return model

    monkeypatch.setattr("dragoman.optimize.exact.load_graph", damaged)
    check = checked(reference, bundles["fp32"])
    assert not check.passed and problem in check.problem
