"""Every file and every setting of a checkpoint is read, known, or named."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families import ENCODER_FAMILIES, FAMILIES
from dragoman.export.formats.contents import CONFIG, GENERATION, TOKENIZER, check_config
from dragoman.reference_model.pretrained import find_checkpoint

transformers: Any = importlib.import_module("transformers")

SETTINGS = {name: family.settings for name, family in (FAMILIES | ENCODER_FAMILIES).items()}
TRAINING = re.compile(r".*(dropout|pdrop|layerdrop|init_std|initializer|mask_(time|feature)).*")
OTHER_HEADS = re.compile("summary_.*|classifier_proj_size|num_labels|problem_type|use_weighted_.*")
SAME_RESULT = {
    *("_attn_implementation", "chunk_size_feed_forward", "gradient_checkpointing", "use_cache"),
    *("return_dict", "is_encoder_decoder", "is_decoder", "id2label", "sinusoidal_pos_embds"),
    *("apply_spec_augment", "reorder_and_upcast_attn", "num_hidden_layers", "hidden_size"),
    *("num_attention_heads", "output_attentions", "output_hidden_states"),
}
"""What is computed does not depend on them, or weights or other names show it."""


@pytest.mark.parametrize("model_type", SETTINGS)
def test_settings_of_transformers_are_known(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    values = config.to_dict() | {"torch_dtype": "float32", "_name_or_path": "x"}
    assert CONFIG.notes("config.json", values, SETTINGS[model_type]) == []
    assert check_config(values, SETTINGS[model_type]) == []
    generation = transformers.GenerationConfig().to_dict()
    assert GENERATION.notes("generation_config.json", dict.fromkeys(generation, 1)) == []


@pytest.mark.parametrize("model_type", SETTINGS)
def test_no_setting_that_the_model_reads_is_called_harmless(model_type: str) -> None:
    """`transformers` states what its models read: their source."""
    folder = model_type.replace("-", "_")
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r"\bconfig\.([a-z_][a-z_0-9]*)", source))
    for name in names & CONFIG.harmless - SETTINGS[model_type] - SAME_RESULT:
        assert TRAINING.fullmatch(name) or OTHER_HEADS.fullmatch(name), name


SIZES = {
    "vocab_size": 31,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 16,
}


@pytest.fixture
def bart(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES))
    model.generation_config.max_new_tokens = 8
    model.save_pretrained(tmp_path / "bart")
    return tmp_path / "bart"


def change(file: Path, **settings: Any) -> None:
    stated = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(stated | settings))


def test_a_checkpoint_of_transformers_has_no_notes(bart: Path) -> None:
    for name in ("README.md", ".gitattributes", "training_args.bin", "special_tokens_map.json"):
        (bart / name).touch()
    (bart / "checkpoint-500").mkdir()
    assert read_checkpoint(bart).notes == ()


@pytest.mark.parametrize(
    ("file", "settings", "note"),
    [
        ("config.json", {"rope_theta": 1e4}, "config.json has a setting that is not known"),
        ("generation_config.json", {"magic": 1, "more": [2]}, "not read: magic, more"),
        ("tokenizer_config.json", {"magic": True}, "tokenizer_config.json has a setting"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side: 'left' is not"),
        ("tf_model.h5", {}, "tf_model.h5: weights in other formats or variants"),
        ("model.fp16.safetensors", {}, "model.fp16.safetensors: weights in other formats"),
        ("modeling_mine.py", {}, "modeling_mine.py: code, which is not executed"),
        ("steering.json", {}, "steering.json: not known here and not read"),
    ],
)
def test_what_is_not_read_is_a_note(
    file: str, settings: dict[str, Any], note: str, bart: Path
) -> None:
    change(bart / file, **settings)
    (found,) = read_checkpoint(bart).notes
    assert note in found


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: .* not supported"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads: .* not supported"),
        (
            {"auto_map": {"AutoModelForSeq2SeqLM": "modeling_mine.Mine"}},
            r"auto_map: AutoModelForSeq2SeqLM is code of the checkpoint \('modeling_mine\.Mine'\)",
        ),
        ({"num_attention_heads": 4}, "num_attention_heads: expected encoder_attention_heads, 2, f"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_changes_the_model_is_refused(
    settings: dict[str, Any], problem: str, bart: Path
) -> None:
    change(bart / "config.json", **settings)
    with pytest.raises(DragomanError, match=f"config.json: {problem}"):
        read_checkpoint(bart)


def test_the_other_name_of_heads_is_what_transformers_takes(bart: Path) -> None:
    change(bart / "config.json", num_attention_heads=4)
    assert transformers.BartConfig.from_pretrained(bart).encoder_attention_heads == 4
    change(bart / "config.json", num_attention_heads=2)
    assert read_checkpoint(bart).notes == ()


def test_code_of_a_tokenizer_is_no_code_of_the_model(bart: Path) -> None:
    change(bart / "config.json", auto_map={"AutoTokenizer": ["tokenization_mine.Mine", None]})
    assert read_checkpoint(bart).notes == ()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda weights: weights, None),
        (lambda weights: {name: weight.half() for name, weight in weights.items()}, None),
        (
            lambda weights: weights | {"final_logits_bias": torch.ones(1, 31)},
            "found others: final_logits_bias",
        ),
        (
            lambda weights: {f"x.{name}": weight for name, weight in weights.items()},
            "found others: other names",
        ),
    ],
    ids=["same", "rounded", "other numbers", "other names"],
)
def test_a_second_file_of_weights(
    make: Callable[[dict[str, Any]], dict[str, Any]], problem: str | None, bart: Path
) -> None:
    """`transformers` reads the first; which one was meant is not known."""
    torch.save(make(load_file(bart / "model.safetensors")), bart / "pytorch_model.bin")
    if problem is None:
        assert read_checkpoint(bart).notes == ()
        return
    with pytest.raises(DragomanError, match=rf"pytorch_model\.bin: expected the .*{problem}"):
        read_checkpoint(bart)


def test_settings_of_tokenizers_of_transformers_are_known(tmp_path: Path) -> None:
    tokenizer = transformers.BertTokenizer(vocab={"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3})
    tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert TOKENIZER.notes("tokenizer_config.json", settings) == []


def test_files_of_another_format_are_not_read(bart: Path, tmp_path: Path) -> None:
    """A file that one format reads is unknown beside the weights of another."""
    (bart / "vmap.txt").touch()
    assert read_checkpoint(bart).notes == ("vmap.txt: not known here and not read",)
    own = tmp_path / "own"
    shutil.copytree(find_checkpoint("g2p-en"), own)
    assert read_checkpoint(own).notes == ()
    (own / "generation_config.json").write_text("{}")
    assert read_checkpoint(own).notes == ("generation_config.json: not known here and not read",)
    (own / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": ["q"]}')
    (own / "adapter_model.bin").touch()
    with pytest.raises(DragomanError, match=r"expected a base of Hugging Face .*one of Dragoman"):
        read_checkpoint(own)
