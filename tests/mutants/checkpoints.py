"""Small random checkpoints, written as their libraries write them, for the trial of the proof."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dragoman.export.shortlists import HEADER, MAGIC, checksum
from dragoman.reference_model import ModelConfig
from dragoman.reference_model.checkpoint import save_checkpoint

from ..random_weights import random_transformer, randomize_hugging_face
from ..speech_models import MODELS as SPEECH_MODELS
from ..speech_models import save as save_speech_model

transformers: Any = importlib.import_module("transformers")

TEXTS = (
    "A bundle that passes parity gives what the trained model gives.",
    "Faults are injected into graphs, weights, tokenizers and settings, one at a time.",
    "The quick brown fox jumps over the lazy dog; it doesn't look back, and neither do we.",
    "Attention, position, vocabulary, normalization, projection, embedding, translation.",
    "Ça va bien, n'est-ce pas ? Ein Häuschen am See. ¿Dónde está la estación?",
)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""The special tokens of BART, in its order."""
WORD_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop", "##a", "##ing")
"""A vocabulary of BERT."""
BYTE_LEVEL = 288
"""Token ids of the byte-level pair encodings: the special tokens, 256 bytes and 27 merges."""
POSITIONS = 40
SSRU_SOURCES, SSRU_TARGETS = 61, 211
END_OF_T5 = 24
"""A token that random models of T5 choose now and then."""


def write_t5(directory: Path) -> None:
    """T5 with ReLU, eight relative buckets and heads of 8."""
    _save_t5(directory, seed=4, d_model=32, d_kv=8, num_heads=4, d_ff=64)


def write_t5_odd(directory: Path) -> None:
    """T5 1.1, gated and untied, with heads of 6, for which no fused self-attention exists."""
    _save_t5(
        directory,
        seed=3,
        d_model=33,
        d_kv=6,
        num_heads=3,
        d_ff=19,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )


def write_bart(directory: Path) -> None:
    """BART with the generation settings of a published summarizer."""
    config = transformers.BartConfig(
        vocab_size=BYTE_LEVEL,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    model = randomize_hugging_face(transformers.BartForConditionalGeneration(config), seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj.weight" in name or "k_proj.weight" in name:
                parameter.mul_(0.4)
            elif "norm.weight" in name:
                parameter.copy_(1 + 0.3 * parameter)
        model.final_logits_bias[0, 2] += 4  # so that outputs end at various lengths
    model.generation_config = transformers.GenerationConfig(
        num_beams=4,
        length_penalty=2.0,
        early_stopping=True,
        no_repeat_ngram_size=3,
        min_length=6,
        max_length=24,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_bos_token_id=0,
        forced_eos_token_id=2,
    )
    model.save_pretrained(directory)
    _byte_level(SPECIAL).model.save(str(directory))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BartTokenizer"}\n')


def write_gpt2(directory: Path) -> None:
    """GPT-2, whose tokenizer is a byte-level pair encoding."""
    end = BYTE_LEVEL - 1
    config = transformers.GPT2Config(
        vocab_size=BYTE_LEVEL,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=POSITIONS,
        bos_token_id=end,
        eos_token_id=end,
    )
    model = randomize_hugging_face(transformers.GPT2LMHeadModel(config), seed=5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" in name and name.endswith("weight"):  # the gains of norms, by another name
                parameter.mul_(10)
            elif name.endswith("c_attn.weight"):
                parameter.mul_(2)
        table = model.transformer.wte.weight
        table[end] = 1.02 * table[173]  # a token that outputs often have
    model.save_pretrained(directory)
    tokenizer = _byte_level((), size=end)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}\n')


def write_bert_embedding(directory: Path) -> None:
    """A sentence-transformers model: BERT, the mean of its tokens, of length 1."""
    model = randomize_hugging_face(transformers.BertModel(_bert_config()), seed=6)
    model.save_pretrained(directory)
    _write_word_pieces(directory)
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in folders.items()
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def write_bert_classifier(directory: Path) -> None:
    """BERT that chooses one of three labels."""
    labels = ("negative", "neutral", "positive")
    config = _bert_config(
        id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)}
    )
    model = randomize_hugging_face(transformers.BertForSequenceClassification(config), seed=7)
    with torch.no_grad():
        model.classifier.weight.mul_(4)
    model.save_pretrained(directory)
    _write_word_pieces(directory)


def write_whisper(directory: Path) -> None:
    """A Whisper of several languages, whose window is a second."""
    save_speech_model(SPEECH_MODELS["multilingual"](), directory)


def write_ssru(directory: Path) -> None:
    """A recurrent decoder with tied embeddings and a bias of the logits, as Marian trains it."""
    _save_ssru(directory, seed=4)


def write_ssru_untied(directory: Path) -> None:
    """A recurrent decoder whose logits have a matrix of their own."""
    _save_ssru(directory, seed=5, tie_target_output=False)


def write_shortlist(file: Path) -> None:
    """A shortlist of Marian for a recurrent model: lists of various lengths, the first tokens."""
    generator = np.random.default_rng(0)
    lists = [
        generator.choice(SSRU_TARGETS, 1 + source % 9, replace=False)
        for source in range(SSRU_SOURCES)
    ]
    starts = np.cumsum([0, *map(len, lists)])
    head = HEADER.pack(MAGIC, 0, 4, 100, len(starts), int(starts[-1]))
    words = np.concatenate(lists).astype("<u4")
    data = head + struct.pack(f"<{len(starts)}Q", *starts.tolist()) + words.tobytes()
    file.write_bytes(data[:8] + struct.pack("<Q", checksum(data)) + data[16:])


WRITERS: dict[str, Callable[[Path], None]] = {
    "t5": write_t5,
    "t5-odd": write_t5_odd,
    "bart": write_bart,
    "gpt2": write_gpt2,
    "bert-embedding": write_bert_embedding,
    "bert-classifier": write_bert_classifier,
    "whisper": write_whisper,
    "ssru": write_ssru,
    "ssru-untied": write_ssru_untied,
}
"""What writes a checkpoint into an empty directory, by the model's name."""
WITH_SHORTLIST = ("ssru", "ssru-untied")
"""The models whose bundles have a shortlist."""


def _save_t5(directory: Path, *, seed: int, **fields: Any) -> None:
    config = transformers.T5Config(
        vocab_size=64,
        num_layers=2,
        num_decoder_layers=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=END_OF_T5,
        **fields,
    )
    model = transformers.T5ForConditionalGeneration(config)
    if not config.tie_word_embeddings:  # their constructor ties all
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    model = randomize_hugging_face(model, seed=seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.mul_(2)
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=0, eos_token_id=END_OF_T5, decoder_start_token_id=0, max_length=32
    )
    model.save_pretrained(directory)


def _save_ssru(directory: Path, *, seed: int, **fields: Any) -> None:
    config = ModelConfig(
        source_vocab_size=SSRU_SOURCES,
        target_vocab_size=SSRU_TARGETS,
        encoder_layers=2,
        decoder_layers=2,
        d_model=32,
        num_heads=4,
        d_ff=64,
        max_source_positions=POSITIONS,
        max_target_positions=POSITIONS,
        dropout=0.0,
        decoder_kind="ssru",
        norm_order="post",
        final_norm=False,
        logits_bias=True,
        **fields,
    )
    save_checkpoint(random_transformer(config, seed=seed, feed_forward_scale=2.0), directory)


def _bert_config(**fields: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=len(WORD_PIECES),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        **fields,
    )


def _write_word_pieces(directory: Path) -> None:
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in WORD_PIECES))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _byte_level(special: tuple[str, ...], size: int = BYTE_LEVEL) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer
