"""Random models of every family at Hugging Face, for beam search."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ... import speech_models
from ...random_weights import randomize_hugging_face

transformers: Any = importlib.import_module("transformers")

VOCABULARY, LANGUAGE = 31, 29


def text_model(name: str, **fields: Any) -> Any:
    """A small model of a descendant of BART."""
    tokens = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    config = getattr(transformers, f"{name}Config")(
        **{
            "vocab_size": VOCABULARY,
            "d_model": 24,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_attention_heads": 3,
            "decoder_attention_heads": 3,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "max_position_embeddings": 40,
            "forced_eos_token_id": None,
            **tokens,
            **fields,
        }
    )
    head = "MarianMTModel" if name == "Marian" else f"{name}ForConditionalGeneration"
    return randomize_hugging_face(getattr(transformers, head)(config))


def t5_model(name: str) -> Any:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=8,
        d_ff=40,
        num_heads=3,
        num_layers=2,
        num_decoder_layers=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return randomize_hugging_face(model, seed=4)


def gpt2_model() -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=24,
        n_layer=2,
        n_head=3,
        n_positions=40,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = randomize_hugging_face(transformers.GPT2LMHeadModel(config), seed=5)
    for name, parameter in model.named_parameters():
        if "ln_" in name and name.endswith("weight"):  # the gains of norms, by another name
            parameter.data *= 10
        elif name.endswith("c_attn.weight"):
            parameter.data *= 4
    return model


MODELS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "bart": (lambda: text_model("Bart"), {}),
    "marian": (
        lambda: text_model("Marian", pad_token_id=30, decoder_start_token_id=30),
        {"bad_words_ids": [[30]]},
    ),
    "mbart": (lambda: text_model("MBart"), {"forced_bos_token_id": LANGUAGE}),
    # Their implementation gives the padding token, which trained models never choose, no position.
    "m2m_100": (
        lambda: text_model("M2M100"),
        {"forced_bos_token_id": LANGUAGE, "suppress_tokens": [1]},
    ),
    "pegasus": (lambda: text_model("Pegasus", pad_token_id=0, decoder_start_token_id=0), {}),
    "t5": (lambda: t5_model("T5"), {}),
    "mt5": (lambda: t5_model("MT5"), {}),
    "gpt2": (gpt2_model, {}),
    "whisper": (speech_models.MODELS["multilingual"], {}),
}
"""By family: a model, and settings that its published models have."""
