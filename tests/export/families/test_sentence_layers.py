"""Several poolings, and modules after them, compute what sentence-transformers defines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import CheckpointError, ConfigError, EmbeddingLayer, HeadConfig
from dragoman.runtime import RejectedError, load

from .sentence_directories import WIDTH, Write, read
from .test_sentence_modules import LEGACY, POOL, TEXTS, assert_close, hidden, vectors

__all__ = ["hidden"]  # the fixture

ORDER = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""The order of the library's vectors for flags, whatever the order of the file."""


def with_modules(directory: Path, *modules: tuple[str, dict[str, Any], dict[str, Tensor]]) -> Path:
    """Add modules to a directory, each a kind with its settings and weights."""
    path = directory / "modules.json"
    entries = json.loads(path.read_text())
    for number, (kind, settings, weights) in enumerate(modules, len(entries)):
        folder = directory / f"{number}_{kind}"
        folder.mkdir()
        entries.append({"type": f"library.{kind}", "path": folder.name})
        (folder / "config.json").write_text(json.dumps(settings))
        if weights:
            save_file(weights, folder / "model.safetensors")
    path.write_text(json.dumps(entries))
    return directory


def dense(linear: nn.Linear, activation: str = "activation.Tanh") -> Any:
    """An entry of `with_modules`."""
    settings = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    return "Dense", settings, {f"linear.{name}": w for name, w in linear.state_dict().items()}


def layer_norm(norm: nn.LayerNorm) -> Any:
    """An entry of `with_modules`."""
    weights = {f"norm.{name}": weight for name, weight in norm.state_dict().items()}
    return "LayerNorm", {"dimension": norm.normalized_shape[0]}, weights


def random_norm(size: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(size)
    nn.init.normal_(norm.weight, 1, 0.5)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize(
    "modes",
    [("cls", "mean"), ("lasttoken", "max", "weightedmean"), ("mean_sqrt_len_tokens", "cls"), ORDER],
    ids="-".join,
)
def test_vectors_of_several_poolings_are_concatenated(
    modes: tuple[str, ...], write: Write, hidden: list[Tensor]
) -> None:
    flags = {LEGACY[mode]: True for mode in reversed(modes)}
    directory = write(flags, Transformer="", Pooling="1_P")
    in_order = [mode for mode in ORDER if mode in modes]
    expected = [torch.cat([POOL[mode](each) for mode in in_order]) for each in hidden]
    assert_close(vectors(directory), expected)
    settings = directory / "1_P" / "config.json"
    for stated in (list(modes), [*modes, modes[0]]):
        settings.write_text(json.dumps({"pooling_mode": stated}))
        as_stated = [torch.cat([POOL[mode](each) for mode in stated]) for each in hidden]
        assert_close(vectors(directory), as_stated)


def bundles(directory: Path, root: Path) -> list[Path]:
    """A checkpoint's bundles: as exported, for ONNX Runtime and for OpenVINO."""
    read = read_checkpoint(directory)
    targets = ("neutral", "cpu", "openvino")
    for target in targets:
        (root / target).mkdir()
    bundle = export_bundle(read.model, root / "neutral", name="s", tokenizers=read.tokenizers)
    for target in targets[1:]:
        optimize_bundle(bundle, root / target, target=target)
    return [root / target for target in targets]


def test_modules_in_a_row_in_a_bundle(write: Write, hidden: list[Tensor], tmp_path: Path) -> None:
    """Odd sizes, every kind of module twice, and the first dimensions of what they make."""
    torch.manual_seed(3)
    first, second = nn.Linear(3 * WIDTH, 23), nn.Linear(23, 9, bias=False)
    norms = random_norm(3 * WIDTH), random_norm(9)
    directory = with_modules(
        write({"pooling_mode": ["max", "cls", "mean"]}, Transformer="", Pooling="1_P"),
        layer_norm(norms[0]),
        ("Normalize", {}, {}),
        ("Dropout", {"dropout": 0.2}, {}),
        dense(first, "activation.GELU"),
        dense(second, "linear.Identity"),
        layer_norm(norms[1]),
        ("Normalize", {"module_input_name": "sentence_embedding"}, {}),
    )
    unit = nn.functional.normalize
    with torch.inference_mode():
        pooled = torch.stack(
            [torch.cat([POOL[mode](each) for mode in ("max", "cls", "mean")]) for each in hidden]
        )
        inner = nn.functional.gelu(first(unit(norms[0](pooled), dim=-1)))
        expected = unit(norms[1](second(inner)), dim=-1).numpy()
    for path in bundles(directory, tmp_path):
        with load(path, threads=1) as model:
            assert model.manifest.head is not None and model.manifest.head.outputs == 9
            np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=1e-5, atol=1e-5)
            alone = np.concatenate([model.encode([text]) for text in TEXTS])
            np.testing.assert_allclose(alone, expected, rtol=1e-5, atol=1e-5)
            lengths = np.linalg.norm(expected[:, :4], axis=1, keepdims=True)
            found = model.encode(TEXTS, dimensions=4)
            np.testing.assert_allclose(found, expected[:, :4] / lengths, rtol=1e-5, atol=1e-5)
            with pytest.raises(RejectedError, match="dimensions: expected 1 to 9, found 10"):
                model.encode(TEXTS, dimensions=10)


def test_truncation_keeps_the_first_components_of_several_poolings(
    write: Write, hidden: list[Tensor]
) -> None:
    directory = write({"pooling_mode": ["cls", "mean"]}, Transformer="", Pooling="1_P")
    library = directory / "config_sentence_transformers.json"
    library.write_text(json.dumps({"truncate_dim": WIDTH + 3}))
    expected = [torch.cat([each[0], each.mean(0)[:3]]) for each in hidden]
    assert_close(vectors(directory), expected)
    library.write_text(json.dumps({"truncate_dim": 2 * WIDTH}))
    head = read(directory).config.head
    assert head is not None and head.truncate_dim == 0


def test_sizes_that_do_not_follow_from_each_other(write: Write) -> None:
    directory = write({"pooling_mode": ["cls", "mean"]}, Transformer="", Pooling="1_P")
    with_modules(directory, dense(nn.Linear(2 * WIDTH, 5)), dense(nn.Linear(6, 5)))
    with pytest.raises(
        CheckpointError, match=r"head\.after_pooling\.1\.linear\.weight must .*5, 6"
    ):
        read(directory)
    modules = directory / "modules.json"
    modules.write_text(json.dumps(json.loads(modules.read_text())[:3]))
    with_modules(directory, layer_norm(random_norm(7)))
    with pytest.raises(CheckpointError, match=r"after_pooling\.1\.gain must .*7"):
        read(directory)
    (directory / "3_LayerNorm" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="3_LayerNorm"):
        read(directory)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"pooling": []}, "head.pooling must be at least one, found none"),
        ({"pooling": ["mean", "middle"]}, "head.pooling must be a list of mean, cls"),
        ({"pooling": "mean"}, "head.pooling must be a list of"),
        ({"after_pooling": ["dense"]}, "head.after_pooling must be a list of layers, each with"),
        ({"after_pooling": [{"size": 3}]}, "head.after_pooling must be a list of layers"),
        ({"after_pooling": [{"kind": "dense"}]}, "after_pooling.size: expected at least 1 for d"),
        ({"after_pooling": [{"kind": "normalize", "size": 3}]}, "size: expected 0 for normalize"),
        ({"after_pooling": [{"kind": "other"}]}, "after_pooling.kind must be one of dense, layer"),
        ({"after_pooling": [{"kind": "dense", "size": 2, "x": 1}]}, "must be a list of layers"),
        (
            {"task": "question-answering", "after_pooling": [{"kind": "normalize"}]},
            "head.after_pooling is for embeddings, found question-answering",
        ),
    ],
    ids=str,
)
def test_heads_that_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        HeadConfig.from_dict({"task": "embedding"} | values)


def test_a_head_is_what_its_plain_data_says() -> None:
    layers = [{"kind": "dense", "size": 3, "activation": "tanh"}, {"kind": "normalize"}]
    head = HeadConfig.from_dict(
        {"task": "embedding", "pooling": ["cls", "mean"], "after_pooling": layers}
    )
    assert head.after_pooling == (
        EmbeddingLayer(kind="dense", size=3, activation="tanh", bias=True),
        EmbeddingLayer(kind="normalize"),
    )
    assert (head.pooled_size(5), head.embedding_size(5)) == (10, 3)
