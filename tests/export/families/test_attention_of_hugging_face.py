"""The weights that the graph of attention gives away, compared with Hugging Face's own, for every
family: rows sum to one, and nothing attends to padding or to what comes later."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import as_batch
from dragoman.runtime import Bundle, Model, load
from dragoman.runtime.backends.interface import BackendError

from ...random_weights import randomize_hugging_face
from .beam_cases import Subject, make_subject
from .beam_models import MODELS

transformers: Any = importlib.import_module("transformers")

ATTENTIONS = {
    "encoder_attention": ("encoder_attentions", "attentions"),
    "self_attention": ("decoder_attentions", "attentions"),
    "cross_attention": ("cross_attentions",),
}
"""Their names; for an encoder-only or decoder-only model, the second."""
SOURCES = [[5, 9, 17, 7, 6, 3, 11], [8, 4, 3], [2], [4, 11, 12, 13, 14, 15]]
ENCODER: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 13,
}
ALONE: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**ENCODER)),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(**ENCODER | {"pad_token_id": 1, "type_vocab_size": 1})
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=29, dim=24, n_layers=3, n_heads=3, hidden_dim=40, max_position_embeddings=13
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=29,
            n_embd=24,
            n_layer=3,
            n_head=3,
            n_positions=13,
            bos_token_id=0,
            eos_token_id=0,
        )
    ),
}


def bundles(model: Any, directory: Path) -> list[tuple[str, Bundle]]:
    """Neutral, and for the processor."""
    (directory / "neutral").mkdir()
    (directory / "cpu").mkdir()
    neutral = export_bundle(model, directory / "neutral", name="random", attention=True)
    return [("neutral", neutral), ("cpu", optimize_bundle(neutral, directory / "cpu"))]


def assert_same(
    found: dict[Any, NDArray[np.float32]], theirs: Any, mask: Tensor, length: int | None
) -> None:
    """
    Args:
        mask: [B, S], True at tokens
        length: of what the decoder reads; None: there is none
    """
    assert found
    tokens = mask.numpy()
    for role, weights in found.items():
        layers = next(getattr(theirs, name) for name in ATTENTIONS[role] if hasattr(theirs, name))
        expected = torch.stack([layer.float() for layer in layers], dim=1).numpy()
        assert weights.shape == expected.shape
        rows = weights
        if role == "encoder_attention":  # rows of padding mean nothing
            rows, expected = (w.transpose(0, 3, 1, 2, 4)[tokens] for w in (weights, expected))
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)
        if role == "self_attention":
            later = np.triu(np.ones((length or 0, length or 0), bool), 1)
            assert not weights[..., later].any()
        else:
            of_padding = weights.transpose(0, 4, 1, 2, 3)[~tokens]
            assert not of_padding.any()


@pytest.fixture
def calm_subject(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Subject]:
    """With attention less sharp than elsewhere, which would turn rounding into differences."""

    def make(family: str) -> Subject:
        build, settings = MODELS[family]
        monkeypatch.setitem(MODELS, family, (lambda: calmed(build()), settings))
        return make_subject(family, tmp_path / "checkpoint")

    return make


@torch.no_grad()
def calmed(theirs: Any) -> Any:
    for name, parameter in theirs.named_parameters():
        if name.endswith(("q_proj.weight", ".q.weight")):
            parameter *= 0.3
    return theirs


@pytest.mark.parametrize("family", [name for name in MODELS if name != "gpt2"])
def test_encoder_decoders(
    family: str, calm_subject: Callable[[str], Subject], tmp_path: Path
) -> None:
    subject = calm_subject(family)
    config = subject.ours.config
    source, mask = as_batch(subject.sources[:4], config)
    target = torch.randint(3, 28, (4, 6), generator=torch.Generator().manual_seed(3))
    subject.theirs.set_attn_implementation("eager")
    named = {"input_features": source} if config.takes_audio else {"input_ids": source}
    if not config.takes_audio:
        named["attention_mask"] = mask.long()
    with torch.inference_mode():
        theirs = subject.theirs(**named, decoder_input_ids=target, output_attentions=True)
    for _, bundle in bundles(subject.ours, tmp_path):
        with load(bundle.directory, threads=1) as model:
            found = model.backend.attention(
                {"source": source.numpy(), "source_mask": mask.numpy(), "token": target.numpy()}
            )
        assert_same(found, theirs, mask, target.shape[1])


PROMPTS = [[5, 9, 4, 7, 3, 8], [3, 3, 10, 6, 5, 4], [7, 11, 4, 4, 9, 3]]
SHOWN = [5, 9, 3, 8, 4]


@pytest.mark.parametrize("family", ALONE)
def test_encoders_and_decoders_alone(family: str, tmp_path: Path) -> None:
    theirs = randomize_hugging_face(ALONE[family]()).eval()
    theirs.set_attn_implementation("eager")
    theirs.save_pretrained(tmp_path / "checkpoint")
    ours = read_checkpoint(tmp_path / "checkpoint").model
    decodes = family == "gpt2"
    source, mask = as_batch(SOURCES if not decodes else PROMPTS, ours.config)
    with torch.inference_mode():
        expected = theirs(input_ids=source, attention_mask=mask.long(), output_attentions=True)
    for _, bundle in bundles(ours, tmp_path):
        with load(bundle.directory, threads=1) as model:
            found = model.backend.attention(
                {"source": source.numpy(), "source_mask": mask.numpy(), "token": source.numpy()}
            )
            shown = model.attention(SHOWN)
        assert_same(found, expected, mask, source.shape[1] if decodes else None)
        assert (shown.read if decodes else shown.source) == tuple(map(str, SHOWN))
        with torch.inference_mode():
            alone = theirs(input_ids=torch.tensor([SHOWN]), output_attentions=True).attentions
        weights = shown.decoder if decodes else shown.encoder
        assert weights is not None
        np.testing.assert_allclose(weights, torch.cat(alone), rtol=0, atol=1e-5)


def test_no_weight_is_stored_twice(beam_subject: Callable[[str], Subject], tmp_path: Path) -> None:
    ours = beam_subject("bart").ours
    (tmp_path / "without").mkdir()
    export_bundle(ours, tmp_path / "without", name="random")
    for name, bundle in bundles(ours, tmp_path):
        without = tmp_path / "without"
        if name == "cpu":
            (tmp_path / "cpu-without").mkdir()
            neutral = load(tmp_path / "without").bundle
            without = optimize_bundle(neutral, tmp_path / "cpu-without").directory
        sizes = [(d / "weights.bin").stat().st_size for d in (without, bundle.directory)]
        assert sizes[0] == sizes[1]


def test_a_bundle_without_the_graph(make_plain: Callable[[], Model]) -> None:
    with pytest.raises(BackendError, match="none: build one for target cpu or neutral with"):
        make_plain().attention([5, 3])


@pytest.fixture
def make_plain(beam_subject: Callable[[str], Subject], tmp_path: Path) -> Callable[[], Model]:
    def make() -> Model:
        (tmp_path / "plain").mkdir()
        bundle = export_bundle(beam_subject("bart").ours, tmp_path / "plain", name="plain")
        return load(bundle.directory, threads=1)

    return make
