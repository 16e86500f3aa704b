"""T5, FLAN-T5 and mT5: tensors and greedy tokens are those of Hugging Face's implementation."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.errors import DragomanError
from dragoman.export.families import FAMILIES
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import Transformer, greedy_cached, greedy_uncached

from .comparing import assert_same_tensors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
transformers: Any = importlib.import_module("transformers")

KINDS: dict[str, dict[str, Any]] = {
    "t5": {"family": "T5", "feed_forward_proj": "relu"},
    "flan-t5": {"family": "T5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": {"family": "MT5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {
        "vocab_size": 61,
        "d_model": 24,
        "d_kv": 8,
        "num_heads": 4,
        "d_ff": 40,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    },
    "odd": {
        "vocab_size": 67,
        "d_model": 33,
        "d_kv": 5,
        "num_heads": 3,
        "d_ff": 19,
        "num_layers": 1,
        "num_decoder_layers": 2,
        "relative_attention_num_buckets": 16,
        "relative_attention_max_distance": 20,
        "layer_norm_epsilon": 1e-5,
    },
    "far": {
        "vocab_size": 64,
        "d_model": 24,
        "d_kv": 16,
        "num_heads": 3,
        "d_ff": 24,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
}


def sources_and_limit(theirs: Any) -> tuple[list[list[int]], int]:
    """Ragged sources and a number of steps that both exceed the largest distance."""
    far = int(theirs.config.relative_attention_max_distance)
    generator = torch.Generator().manual_seed(5)
    lengths = [4, 1, far + 9, 7, far // 2]
    rows = [torch.randint(2, theirs.config.vocab_size, (n,), generator=generator) for n in lengths]
    return [row.tolist() for row in rows], far + 5


def build(kind: str, shape: dict[str, Any], varied: Callable[..., Any]) -> Any:
    fields = {**KINDS[kind], **shape}
    family = fields.pop("family")
    config = getattr(transformers, f"{family}Config")(decoder_start_token_id=0, **fields)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    if fields.get("tie_word_embeddings") is False:  # their constructor ties all
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    model = varied(model, seed=3 if kind == "mt5" else 4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.mul_(2)
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=0,
        decoder_start_token_id=0,
        # Their cache only has as many layers as the encoder.
        use_cache=model.config.num_decoder_layers <= model.config.num_layers,
    )
    return model


def end_some_early(model: Any, greedy: Callable[..., list[list[int]]]) -> Any:
    """Choose the end token that gives outputs the most different lengths, one of them unended."""
    sources, limit = sources_and_limit(model)
    outputs = greedy(model, sources, max_new_tokens=limit)
    lengths = {
        token: {row.index(token) if token in row else None for row in outputs}
        for token in range(1, model.config.vocab_size)
    }
    model.generation_config.eos_token_id = max(
        lengths, key=lambda token: len(lengths[token]) if None in lengths[token] else 0
    )
    return model


Pair = tuple[Any, Transformer]


@pytest.fixture(
    scope="module",
    params=[(kind, shape) for kind in KINDS for shape in SHAPES],
    ids=lambda param: "-".join(param),
)
def pair(
    request: pytest.FixtureRequest,
    varied: Callable[..., Any],
    their_greedy: Callable[..., list[list[int]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    kind, shape = request.param
    theirs = end_some_early(build(kind, SHAPES[shape], varied), their_greedy)
    directory = tmp_path_factory.mktemp("checkpoint")
    theirs.save_pretrained(directory)
    return theirs, load_hugging_face(directory)


def assert_same(theirs: Any, ours: Transformer) -> None:
    sources, steps = sources_and_limit(theirs)
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, theirs.config.vocab_size, (len(sources), steps), generator=generator)
    assert_same_tensors(theirs, ours, sources, target)


def test_tensors_are_theirs(pair: Pair) -> None:
    theirs, ours = pair
    assert_same(theirs, ours)
    tied = theirs.lm_head.weight is theirs.shared.weight
    assert ours.config.tie_target_output == tied


def test_greedy_tokens_are_theirs(pair: Pair, their_greedy: Callable[..., list[list[int]]]) -> None:
    theirs, ours = pair
    sources, limit = sources_and_limit(theirs)
    expected = their_greedy(theirs, sources, max_new_tokens=limit)
    assert len({len(row) for row in expected}) > 1
    assert max(len(row) for row in expected) == limit
    assert len({tuple(row[:5]) for row in expected}) > 2
    assert greedy_uncached(ours, sources, limit) == expected
    assert greedy_cached(ours, sources, limit) == expected


# The cpu target fuses cached attention if the head size is a multiple of 8, so not for "odd".
EXPORTED = [("t5", "odd"), ("flan-t5", "narrow"), ("mt5", "far")]


@pytest.mark.parametrize("pair", EXPORTED, indirect=True, ids="-".join)
def test_greedy_tokens_are_theirs_through_export(
    pair: Pair,
    their_greedy: Callable[..., list[list[int]]],
    runtime_greedy: Callable[..., list[list[int]]],
    tmp_path: Path,
) -> None:
    theirs, ours = pair
    sources, limit = sources_and_limit(theirs)
    expected = their_greedy(theirs, sources, max_new_tokens=limit)
    assert runtime_greedy(ours, tmp_path, "neutral", sources, limit) == expected
    assert runtime_greedy(ours, tmp_path, "cpu", sources, limit) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"feed_forward_proj": "gelu"},
        {"feed_forward_proj": "gated-silu"},
        {"feed_forward_proj": "gated-relu", "relative_attention_num_buckets": 7},
        # The activation as stated takes precedence over the older field.
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "silu"},
        {"num_decoder_layers": None, "relative_attention_num_buckets": 13},
    ],
    ids=str,
)
def test_other_options_are_theirs(
    changes: dict[str, Any], varied: Callable[..., Any], tmp_path: Path
) -> None:
    theirs = build("t5", SHAPES["odd"] | changes, varied)
    theirs.generation_config.eos_token_id = 1
    theirs.save_pretrained(tmp_path)
    assert_same(theirs, load_hugging_face(tmp_path))


@pytest.mark.parametrize("kind", ["t5", "mt5"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("says", [True, False, None])
def test_tying_and_scaling_match_theirs(
    kind: str, tied: bool, says: bool | None, varied: Callable[..., Any], tmp_path: Path
) -> None:
    """As older versions wrote files, in which `tie_word_embeddings` may have any value."""
    theirs = build(kind, SHAPES["narrow"] | {"tie_word_embeddings": tied}, varied)
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    values.pop("scale_decoder_outputs", None)
    values["tie_word_embeddings"] = says
    if says is None:
        del values["tie_word_embeddings"]
    file.write_text(json.dumps(values))
    again = type(theirs).from_pretrained(tmp_path).eval()
    assert_same(again, load_hugging_face(tmp_path))


def test_all_names_of_the_table_may_be_stored(varied: Callable[..., Any], tmp_path: Path) -> None:
    build("t5", SHAPES["narrow"], varied).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    table = weights.pop("shared.weight")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    for kept in (names, names[1:], [*names, "lm_head.weight"], ["lm_head.weight"]):
        stored = {name: table.clone() for name in kept}
        save_file(weights | stored | {unused: torch.ones(8, 4)}, file)
        ours = load_hugging_face(tmp_path)
        assert torch.equal(ours.output.weight, table)
        assert ours.config.tie_target_output
    save_file(weights | {names[0]: table, names[1]: table + 1}, file)
    with pytest.raises(DragomanError, match=r"shared\.weight and encoder\..* must be equal"):
        load_hugging_face(tmp_path)


def test_weights_of_16_bits_are_read_exactly(varied: Callable[..., Any], tmp_path: Path) -> None:
    theirs = build("flan-t5", SHAPES["odd"], varied).bfloat16()
    theirs.save_pretrained(tmp_path)
    assert_same(theirs.float(), load_hugging_face(tmp_path))


def test_positions_are_bounded_by_memory_alone() -> None:
    config = FAMILIES["t5"].config({"n_positions": 512})
    assert config.max_source_positions == config.max_target_positions == 2048
    assert FAMILIES["t5"].config({"n_positions": 8192}).max_source_positions == 8192
    small, mt5_small = FAMILIES["t5"].config({}), FAMILIES["mt5"].config({})
    assert (small.d_ff, small.gated_feed_forward, small.activation) == (2048, False, "relu")
    assert (mt5_small.d_ff, mt5_small.gated_feed_forward) == (1024, True)
    assert (mt5_small.source_vocab_size, mt5_small.activation) == (250112, "gelu_tanh")


def test_all_unsupported_fields_are_one_error() -> None:
    with pytest.raises(DragomanError) as caught:
        FAMILIES["t5"].config(
            {
                "feed_forward_proj": "double-swoosh",
                "n_positions": "many",
                "relative_attention_num_buckets": 3,
                "num_heads": 0,
            }
        )
    for problem in (
        "feed_forward_proj: expected ACTIVATION or gated-ACTIVATION, found 'double-swoosh'",
        "found 'swoosh'",
        "n_positions: expected an integer, found 'many'",
        "relative_buckets of at least 4",
        "num_heads must be at least 1",
    ):
        assert problem in str(caught.value)
