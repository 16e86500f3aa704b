"""BART and its relatives: tensors and greedy tokens are those of Hugging Face's implementation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import Transformer, greedy_cached, greedy_uncached

from .comparing import assert_same_tensors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
transformers: Any = importlib.import_module("transformers")

VOCABULARY, LANGUAGE = 61, 57
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"d_model": 24, "heads": 3, "ffn": 40, "layers": (1, 2), "activation": "gelu"},
    "odd": {"d_model": 33, "heads": 1, "ffn": 19, "layers": (2, 1), "activation": "relu"},
    "wide": {
        "d_model": 64,
        "heads": 4,
        "ffn": 96,
        "layers": (1, 1),
        "activation": "swish",
        "scale_embedding": True,
    },
}


@dataclass(frozen=True)
class Case:
    """`tokens`: pad, start, end."""

    name: str
    tokens: tuple[int, int, int]
    settings: dict[str, Any]
    """The generation settings that models of the family are published with."""


CASES = {
    "marian": Case(
        "Marian", (60, 60, 0), {"bad_words_ids": [[60]], "forced_eos_token_id": 0, "max_length": 20}
    ),
    "bart": Case(
        "Bart",
        (1, 2, 2),
        {
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "min_length": 9,
            "max_length": 22,
            "no_repeat_ngram_size": 3,
        },
    ),
    "mbart-25": Case("MBart", (1, LANGUAGE, 2), {"forced_eos_token_id": 2, "max_length": 20}),
    "mbart-50": Case(
        "MBart",
        (1, 2, 2),
        {"forced_bos_token_id": LANGUAGE, "forced_eos_token_id": 2, "max_length": 20},
    ),
    # Their implementation gives the padding token, which trained models never choose, no position.
    "m2m100": Case(
        "M2M100",
        (1, 2, 2),
        {"forced_bos_token_id": LANGUAGE, "max_length": 25, "suppress_tokens": [1]},
    ),
    "nllb": Case(
        "M2M100",
        (1, 2, 2),
        {
            "forced_bos_token_id": LANGUAGE,
            "max_length": 25,
            "repetition_penalty": 1.3,
            "bad_words_ids": [[1]],
        },
    ),
    "pegasus": Case(
        "Pegasus",
        (0, 0, 1),
        {"forced_eos_token_id": 1, "max_length": 18, "begin_suppress_tokens": [5, 1]},
    ),
}
SOURCES = [[7, 3, 9, 2], [5], [41, 12, 12, 30, 8, 2, 19], [3], [11, 50, 23, 4, 17, 6, 9, 9, 2]]


def build(case: Case, shape: dict[str, Any], varied: Callable[..., Any]) -> Any:
    pad_token, start, end = case.tokens
    config = getattr(transformers, f"{case.name}Config")(
        vocab_size=VOCABULARY,
        d_model=shape["d_model"],
        encoder_layers=shape["layers"][0],
        decoder_layers=shape["layers"][1],
        encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=shape["ffn"],
        decoder_ffn_dim=shape["ffn"],
        activation_function=shape["activation"],
        scale_embedding=shape.get("scale_embedding", False),
        max_position_embeddings=40,
        pad_token_id=pad_token,
        decoder_start_token_id=start,
        eos_token_id=end,
        bos_token_id=0,
        forced_eos_token_id=None,
    )
    kind = {
        "Marian": "MarianMTModel",
        "Bart": "BartForConditionalGeneration",
        "MBart": "MBartForConditionalGeneration",
        "M2M100": "M2M100ForConditionalGeneration",
        "Pegasus": "PegasusForConditionalGeneration",
    }[case.name]
    model = varied(getattr(transformers, kind)(config))
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=pad_token,
        decoder_start_token_id=start,
        eos_token_id=end,
        bos_token_id=0,
        **case.settings,
    )
    return model


Pair = tuple[Any, Transformer]


@pytest.fixture(
    scope="module",
    params=[(case, shape) for case in CASES for shape in SHAPES],
    ids=lambda param: "-".join(param),
)
def pair(
    request: pytest.FixtureRequest,
    varied: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    case, shape = request.param
    theirs = build(CASES[case], SHAPES[shape], varied)
    directory = tmp_path_factory.mktemp("checkpoint")
    theirs.save_pretrained(directory)
    return theirs, load_hugging_face(directory)


def test_tensors_are_theirs(pair: Pair) -> None:
    theirs, ours = pair
    target = torch.randint(4, VOCABULARY - 1, (len(SOURCES), 9), generator=torch.manual_seed(1))
    assert_same_tensors(theirs, ours, SOURCES, target)


def test_greedy_tokens_are_theirs(pair: Pair, their_greedy: Callable[..., list[list[int]]]) -> None:
    theirs, ours = pair
    expected = their_greedy(theirs, SOURCES)
    assert len({tuple(row) for row in expected}) > 1
    limit = theirs.generation_config.max_length - 1
    assert ours.generation.max_new_tokens == limit
    assert greedy_uncached(ours, SOURCES, limit) == expected
    assert greedy_cached(ours, SOURCES, limit) == expected


EXPORTED = [
    ("marian", "odd"),
    ("bart", "small"),
    ("mbart-25", "wide"),
    ("m2m100", "odd"),
    ("nllb", "small"),
    ("pegasus", "wide"),
]
"""Each family and each shape, twice. The tests above have all pairs, and mBART-50 differs from
mBART-25 only in its settings."""


@pytest.mark.parametrize("pair", EXPORTED, indirect=True, ids="-".join)
def test_greedy_tokens_are_theirs_through_export(
    pair: Pair,
    their_greedy: Callable[..., list[list[int]]],
    runtime_greedy: Callable[..., list[list[int]]],
    tmp_path: Path,
) -> None:
    theirs, ours = pair
    expected = their_greedy(theirs, SOURCES)
    assert runtime_greedy(ours, tmp_path, "neutral", SOURCES) == expected
    assert runtime_greedy(ours, tmp_path, "cpu", SOURCES) == expected
