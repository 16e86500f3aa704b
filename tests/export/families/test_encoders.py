"""Encoder-only models, compared with Hugging Face's own implementations on random models."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import CheckpointError, ConfigError, EncoderModel, ModelConfig, pad
from dragoman.runtime import load

transformers: Any = importlib.import_module("transformers")

SOURCES = [[2, 9, 17, 5, 6, 3], [2, 8, 3], [2, 3], [2, 11, 12, 13, 14, 15, 16, 3]]
TYPES = [[0, 0, 0, 1, 1, 1], [0, 0, 0], [0, 0], [0, 0, 0, 0, 0, 1, 1, 1]]
PAD = 0

BERT: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 13,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
}
DISTILBERT: dict[str, Any] = {
    "vocab_size": 29,
    "dim": 24,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 40,
    "max_position_embeddings": 13,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
}
GROUPS = {"num_hidden_groups": 2, "inner_group_num": 3}
"""Of five places, three apply the first group and two the second, each three layers in a row."""
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", BERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "roberta": (
        "Roberta",
        BERT | {"max_position_embeddings": 15, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "xlm-roberta": (
        "XLMRoberta",
        BERT | {"max_position_embeddings": 15, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "camembert": (
        "Camembert",
        BERT | {"max_position_embeddings": 15, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    "electra": ("Electra", BERT | {"embedding_size": 13}),
    "mpnet": ("MPNet", BERT | {"max_position_embeddings": 15, "pad_token_id": 1}),
    "distilbert": ("DistilBert", DISTILBERT),
    "albert": ("Albert", BERT | {"embedding_size": 10, "num_hidden_layers": 5} | GROUPS),
}
PADDED = {name: fields["pad_token_id"] == 1 for name, (_, fields) in FAMILIES.items()}
"""Whether positions begin after the padding token's id."""
SHAPES: dict[str, dict[str, Any]] = {
    "one layer, narrow": {
        "hidden_size": 20,
        "num_hidden_layers": 1,
        "num_attention_heads": 5,
        "intermediate_size": 7,
        "hidden_act": "relu",
    },
    "heads of 64": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 50,
        "hidden_act": "silu",
    },
}
DISTILBERT_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)

Make = Callable[..., tuple[Any, Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(family: str, head: str, **changes: Any) -> tuple[Any, Path]:
        prefix, fields = FAMILIES[family]
        torch.manual_seed(0)
        config = getattr(transformers, f"{prefix}Config")(**fields | changes)
        theirs = getattr(transformers, prefix + head)(config).eval()
        for parameter in theirs.parameters():  # biases and gains differ from what they begin as
            parameter.data += 0.1 * torch.randn_like(parameter)
        directory = tmp_path / f"{family}-{head}"
        theirs.save_pretrained(directory)
        if PADDED[family]:
            words = {
                piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
            }
            tokenizer = Tokenizer(WordLevel(words, "<unk>"))
            tokenizer.add_special_tokens(list(words))
            tokenizer.save(str(directory / "tokenizer.json"))
        elif family == "albert":
            pieces = [(piece, 0.0) for piece in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
            transformers.AlbertTokenizer(vocab=pieces).save_pretrained(directory)
        else:
            (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
        return theirs, directory

    return make


def outputs_of(theirs: Any, source: Tensor, mask: Tensor, types: Tensor | None) -> list[Tensor]:
    """Theirs, in the order of ours."""
    more = {} if types is None else {"token_type_ids": types}
    with torch.inference_mode():
        found = theirs(input_ids=source, attention_mask=mask.long(), **more)
    if hasattr(found, "start_logits"):
        return [torch.stack([found.start_logits, found.end_logits], dim=-1)]
    if hasattr(found, "logits"):
        return [found.logits]
    hidden = found.last_hidden_state
    weight = mask[..., None].float()
    return [hidden, (hidden * weight).sum(1) / weight.sum(1)]


def assert_same(
    theirs: Any,
    ours: EncoderModel,
    *,
    types: bool = False,
    sources: Sequence[Sequence[int]] = SOURCES,
) -> None:
    source, mask = pad(sources, ours.config.pad_token_id)
    segments = pad(TYPES, 0)[0] if types else None
    with torch.inference_mode():
        found = ours(source, mask, segments)
    expected = outputs_of(theirs, source, mask, segments)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        if one.shape[:2] == mask.shape:
            one, other = one[mask], other[mask]
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def read(directory: Path) -> EncoderModel:
    model = read_checkpoint(directory).model
    assert isinstance(model, EncoderModel)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_those_of_hugging_face(family: str, head: str, make: Make) -> None:
    theirs, directory = make(family, head)
    assert_same(theirs, read(directory))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_padding_token_within_a_text(family: str, head: str, make: Make) -> None:
    """RoBERTa embeds it by a row of its own, and later tokens take their positions without it."""
    theirs, directory = make(family, head)
    padding = theirs.config.pad_token_id
    if head == "ForMaskedLM" and PADDED[family]:
        theirs.base_model.embeddings.position_embeddings.weight.data[padding] = 0
        theirs.save_pretrained(directory)
    sources = [[2, padding, 9, 17, padding, padding, 3], [2, padding], [padding, 2, 11, 12, 3]]
    assert_same(theirs, read(directory), sources=sources)


def test_a_masked_language_model_says_that_it_lacks_the_row_of_padding(make: Make) -> None:
    _, directory = make("roberta", "ForMaskedLM")
    notes = read_checkpoint(directory).notes
    assert any("row 1, of the padding token, is not zero and is left out" in n for n in notes)


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_other_shapes(family: str, shape: str, head: str, make: Make) -> None:
    names = DISTILBERT_NAMES if family == "distilbert" else {}
    changes = {names.get(name, name): value for name, value in SHAPES[shape].items()}
    if family in ("electra", "albert"):  # as wide as the model: ALBERT maps them all the same
        changes |= {"embedding_size": changes["hidden_size"]}
    if family == "albert":
        changes |= {"num_hidden_groups": changes["num_hidden_layers"], "inner_group_num": 1}
    theirs, directory = make(family, head, **changes)
    # Scores of 128 numbers are large: what they are compared by is not float32's rounding.
    assert_same(theirs.double(), read(directory).double())


def test_places_of_albert_share_their_layers(make: Make) -> None:
    _, directory = make("albert", "Model")
    config = read(directory).config
    assert (config.encoder_layers, config.d_embedding) == (6, 10)
    assert config.encoder_order == (0, 1, 2) * 3 + (3, 4, 5) * 2
    assert ModelConfig.from_json(json.dumps(config.to_dict())) == config


def optimized(model: EncoderModel, root: Path, target: str, *, attention: bool = False) -> Path:
    """A bundle: neutral, for cpu, for OpenVINO, or in a precision for cpu."""
    neutral, folder = root / "neutral", root / target
    neutral.mkdir()
    bundle = export_bundle(model, neutral, name="encoder", attention=attention)
    if target != "neutral":
        folder.mkdir()
        on_openvino = target.startswith("openvino")
        precision: Any = "int8" if target == "openvino int8" else target
        options: dict[str, Any] = {"target": "openvino" if on_openvino else "cpu"}
        if target in ("cpu", "openvino"):
            precision = "fp32"
        elif on_openvino:
            options["calibration"] = [[2, *range(4 + n, 9 + n), 3] for n in range(8)]
        optimize_bundle(bundle, folder, precision=precision, **options)
    return folder


def assert_near(found: NDArray[Any], expected: NDArray[Any], target: str) -> None:
    """Embeddings of a bundle are those of fp32, or of nearly their direction."""
    if target in ("neutral", "cpu", "openvino"):
        np.testing.assert_allclose(found, expected, atol=1e-5)
        return
    cosines = (found * expected).sum(1)
    cosines /= np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.98


@pytest.mark.parametrize("target", ["neutral", "cpu", "int8", "int4"])
def test_shared_weights_are_stored_once(target: str, make: Make, tmp_path: Path) -> None:
    """In the bundle, too, whose graph names one initializer at all places of a layer."""
    theirs, directory = make("albert", "Model")
    folder = optimized(read(directory), tmp_path, target, attention=True)
    graph = onnx.load(folder / "encoder.onnx", load_external_data=False).graph
    read_by: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            read_by[name] = read_by.get(name, 0) + 1
    places = {
        f"encoder.layers.{layer}.feed_forward.outer.weight": 3 - layer // 3 for layer in range(6)
    }
    for weight, count in places.items():
        own = [each.name for each in graph.initializer if each.name.startswith(weight)]
        assert own and all(read_by[name] == count for name in own), own
    numbers = sum(math.prod(each.dims) for each in graph.initializer if len(each.dims) == 2)
    assert numbers <= sum(p.numel() for p in theirs.base_model.parameters())
    with load(folder, threads=1) as model:
        sources = [[2, *range(4, 15), 3], [2], [2, 9, 3]]
        expected = outputs_of(theirs, *pad(sources, PAD), None)[1].numpy()
        found = model.encode(sources)
        assert_near(found, expected, target)
        weights = model.attention(sources[0]).encoder
        theirs.set_attn_implementation("eager")
        with torch.inference_mode():
            maps = theirs(torch.tensor(sources[:1]), output_attentions=True).attentions
        assert weights is not None and len(weights) == len(maps) == 15
        if target in ("neutral", "cpu"):
            for own_map, their_map in zip(weights, maps, strict=True):
                np.testing.assert_allclose(own_map, their_map[0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"embedding_size": 0}, "embedding_size: expected at least 1, found 0"),
        ({"embedding_size": "8"}, "embedding_size: expected at least 1, found '8'"),
        ({"num_hidden_groups": 6}, "num_hidden_groups: expected at most 5, found 6"),
        ({"num_hidden_layers": 400}, "num_hidden_layers: expected at most 1000, found 400"),
        ({"inner_group_num": 0}, "inner_group_num: expected at least 1, found 0"),
        ({"inner_group_num": 2.5}, "inner_group_num: expected an integer, found 2.5"),
        ({"num_hidden_layers": 10**18}, "num_hidden_layers: expected at most 1000"),
    ],
    ids=str,
)
def test_sizes_of_albert_that_are_refused(
    changes: dict[str, Any], problem: str, make: Make
) -> None:
    _, directory = make("albert", "Model")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError, match=problem):
        read(directory)


@pytest.mark.parametrize("field", ["pad_token_id", "relative_attention_num_buckets"])
def test_what_mpnet_does_not_heed_is_refused(field: str, make: Make) -> None:
    """Its positions begin after 1, and its distances have 32 buckets, whatever is stated."""
    _, directory = make("mpnet", "Model", **{field: 0})
    with pytest.raises(ConfigError, match=rf"{field}: expected (1|32), found 0"):
        read(directory)


@pytest.mark.parametrize(
    ("family", "target"),
    [
        *(("mpnet", target) for target in ("neutral", "cpu", "int8", "int4")),
        *((family, target) for family in ("electra", "camembert") for target in ("neutral", "cpu")),
        *((family, "openvino") for family in FAMILIES),
        *((family, "openvino int8") for family in ("mpnet", "albert", "electra")),
    ],
)
def test_bundles(family: str, target: str, make: Make, tmp_path: Path) -> None:
    """In ONNX Runtime or OpenVINO, on texts of the most tokens and of one, alone and in one batch.

    MPNet adds biases by distance to attention; ELECTRA's embeddings are narrower than the model.
    """
    theirs, directory = make(family, "Model")
    bundle = optimized(read(directory), tmp_path, target)
    sources = [[2, *range(4, 15), 3], [2], [2, 9, 3]]
    with load(bundle, threads=1) as model:
        found = model.encode(sources)
        alone = np.concatenate([model.encode([source]) for source in sources])
    expected = outputs_of(theirs, *pad(sources, theirs.config.pad_token_id), None)[1].numpy()
    if target in ("int8", "int4"):
        np.testing.assert_array_equal(alone, found)
    assert_near(alone, expected, target)
    assert_near(found, expected, target)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForQuestionAnswering"])
def test_pairs_have_token_types(head: str, make: Make) -> None:
    theirs, directory = make("bert", head)
    ours = read(directory)
    assert ours.config.token_types == 2
    assert_same(theirs, ours, types=True)


@pytest.mark.parametrize("head", ["Model", "ForTokenClassification", "ForMaskedLM"])
def test_where_texts_are_alone_the_first_type_is_part_of_the_positions(
    head: str, make: Make
) -> None:
    assert read(make("bert", head)[1]).config.token_types == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_that_is_not_tied(family: str, make: Make) -> None:
    """It is read if it is the token embedding all the same; then its own bias is what is added."""
    theirs, directory = make(family, "ForMaskedLM", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings is false, and .* is other"):
        read(directory)
    theirs.get_output_embeddings().weight.data.copy_(theirs.get_input_embeddings().weight)
    theirs.save_pretrained(directory)
    assert_same(theirs, read(directory))
