"""Scores are the log-softmax at Hugging Face's labels, family by family."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.runtime import load

from ...random_weights import randomize_hugging_face

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
transformers: Any = importlib.import_module("transformers")

VOCABULARY, LANGUAGE = 61, 57
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
    "forced_eos_token_id": None,
}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 8,
    "num_heads": 3,
    "d_ff": 40,
    "num_layers": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "gated-gelu",
}


@dataclass(frozen=True)
class Family:
    """
    Attributes:
        tokens: pad, start, end
        before, after: labels before and after the text and the end token, which are not scored
    """

    model: str
    config: str
    fields: dict[str, Any]
    tokens: tuple[int, int, int]
    settings: dict[str, Any]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


FAMILIES = {
    "marian": Family("MarianMTModel", "MarianConfig", SMALL, (60, 60, 0), {}),
    "bart": Family(
        "BartForConditionalGeneration",
        "BartConfig",
        SMALL,
        (1, 2, 2),
        {"forced_bos_token_id": 0},
        before=(0,),
    ),
    # Their decoder starts with the last label, which is the language's token.
    "mbart-25": Family(
        "MBartForConditionalGeneration",
        "MBartConfig",
        SMALL,
        (1, LANGUAGE, 2),
        {},
        after=(LANGUAGE,),
    ),
    "nllb": Family(
        "M2M100ForConditionalGeneration",
        "M2M100Config",
        SMALL,
        (1, 2, 2),
        {"forced_bos_token_id": LANGUAGE},
        before=(LANGUAGE,),
    ),
    "t5": Family("T5ForConditionalGeneration", "T5Config", T5, (0, 0, 1), {}),
}
PAIRS = [
    ([7, 3, 9, 2], [12]),
    ([5], [8, 8, 30, 41]),
    ([41, 12, 12, 30, 8, 2, 19], [33, 4, 5, 6, 7, 33, 4, 5, 6, 7, 21]),
    ([3], []),
    ([11, 50, 23, 4, 17, 6, 9, 9, 2], [11, 3, 50]),
    ([4, 4], [17, 9]),
    ([28, 5, 14], [29]),
]


def build(family: Family) -> Any:
    pad_token, start, end = family.tokens
    special = {
        "pad_token_id": pad_token,
        "decoder_start_token_id": start,
        "eos_token_id": end,
        "bos_token_id": 0,
    }
    config = getattr(transformers, family.config)(**family.fields, **special)
    model = randomize_hugging_face(getattr(transformers, family.model)(config))
    model.generation_config = transformers.GenerationConfig(**special, **family.settings)
    return model


@torch.inference_mode()
def their_log_probabilities(theirs: Any, source: list[int], labels: list[int]) -> list[float]:
    output = theirs(input_ids=torch.tensor([source]), labels=torch.tensor([labels]))
    values = output.logits[0].log_softmax(-1)[torch.arange(len(labels)), labels]
    assert float(output.loss) == pytest.approx(-float(values.mean()), abs=1e-5)
    return [float(value) for value in values]


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_at_their_labels(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    theirs = build(family)
    theirs.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "bundle").mkdir()
    export_bundle(load_hugging_face(tmp_path / "checkpoint"), tmp_path / "bundle", name="random")
    with load(tmp_path / "bundle", threads=1) as model:
        found = model.score(PAIRS)
        one_by_one = [model.score([pair])[0] for pair in PAIRS]
    end = family.tokens[2]
    for (source, target), scored, alone in zip(PAIRS, found, one_by_one, strict=True):
        labels = [*family.before, *target, end, *family.after]
        theirs_here = their_log_probabilities(theirs, source, labels)
        first = len(family.before)
        wanted = theirs_here[first : first + len(target) + 1]
        assert scored.tokens == (*target, end)
        assert scored.token_log_probabilities == pytest.approx(wanted, abs=1e-4)
        assert alone.token_log_probabilities == pytest.approx(wanted, abs=1e-4)
