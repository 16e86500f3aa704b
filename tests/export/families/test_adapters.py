"""LoRA adapters, compared with PEFT: its model, its merge and its refusals."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import OpenedCheckpoint, open_checkpoint, read_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import LanguageModel, Transformer, greedy_uncached, pad

from ...random_weights import randomize_hugging_face

transformers: Any = importlib.import_module("transformers")
peft: Any = importlib.import_module("peft")

# PEFT warns of tied tables and of the layout of GPT-2's weights, and calls what is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

ENCODER_DECODER = {
    "vocab_size": 37,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
}
BERT = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
T5 = {
    "vocab_size": 37,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
WHISPER = ENCODER_DECODER | {
    "num_mel_bins": 80,
    "max_source_positions": 8,
    "max_target_positions": 16,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
    "decoder_start_token_id": 2,
    "begin_suppress_tokens": [],
}
GPT2 = {"vocab_size": 37, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", ENCODER_DECODER),
    "marian": (
        "MarianMTModel",
        ENCODER_DECODER | {"pad_token_id": 36, "decoder_start_token_id": 36, "eos_token_id": 0},
    ),
    "m2m_100": ("M2M100ForConditionalGeneration", ENCODER_DECODER),
    "t5": ("T5ForConditionalGeneration", T5),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "gpt2": ("GPT2LMHeadModel", GPT2 | {"bos_token_id": 0, "eos_token_id": 0}),
    "labels": ("BertForSequenceClassification", BERT | {"num_labels": 3}),
    "bert": ("BertModel", BERT),
}


@pytest.fixture
def base(tmp_path: Path) -> Callable[[str], Any]:
    """A random model, saved in `base`."""

    def make(name: str) -> Any:
        kind, settings = BASES[name]
        model_class = getattr(transformers, kind)
        model = randomize_hugging_face(model_class(model_class.config_class(**settings)), seed=3)
        model.eval().save_pretrained(tmp_path / "base")
        return model

    return make


def adapted(model: Any, directory: Path, seed: int = 0, **settings: Any) -> Any:
    """PEFT's model with a random adapter, which is saved in a directory."""
    settings = {"r": 4, "lora_alpha": 6, **settings}
    theirs = peft.get_peft_model(model, peft.LoraConfig(**settings)).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    theirs.save_pretrained(directory)
    return theirs


def opened(tmp_path: Path, *adapters: str) -> OpenedCheckpoint:
    directories = [tmp_path / name for name in adapters]
    return open_checkpoint(locate_checkpoint(tmp_path / "base", adapters=directories))


def assert_equal_weights(merged: Any, tmp_path: Path, *adapters: str) -> None:
    """The weights are those of PEFT's merge, which is saved and read as any checkpoint."""
    merged.save_pretrained(tmp_path / "merged")
    expected = read_checkpoint(tmp_path / "merged").model.state_dict()
    found = opened(tmp_path, *adapters).model.state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "names": ("bart", {"target_modules": ["q_proj", "v_proj"]}),
    "all linear, rank-stabilized": ("bart", {"target_modules": "all-linear", "use_rslora": True}),
    "patterns": (
        "bart",
        {
            "target_modules": ["fc1", "q_proj"],
            "rank_pattern": {r"decoder.layers.\d.fc1": 2, "encoder.*q_proj": 3},
            "alpha_pattern": {"fc1": 1.5},
        },
    ),
    "expression": ("bart", {"target_modules": r".*decoder.*\.(q_proj|fc2)"}),
    "excluded": ("bart", {"target_modules": ["fc1", "fc2"], "exclude_modules": ["0.fc2"]}),
    "one layer": ("bart", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "one layer and whole names": (
        "labels",
        {"target_modules": ["query", "classifier", "bert.pooler.dense"], "layers_to_transform": 0},
    ),
    "all biases": ("bart", {"target_modules": ["out_proj"], "bias": "all"}),
    "biases of targets": ("bart", {"target_modules": ["fc2"], "bias": "lora_only"}),
    "bias of the adapter": ("bart", {"target_modules": ["fc1"], "lora_bias": True}),
    "whole tables": (
        "m2m_100",
        {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "marian": ("marian", {"target_modules": ["k_proj", "fc1"], "bias": "all"}),
    "t5": ("t5", {"target_modules": ["q", "wi", "o"]}),
    "convolutions": ("whisper", {"target_modules": ["conv1", "conv2", "q_proj"]}),
    "transposed": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "bias": "all"}),
    "positions": ("gpt2", {"target_modules": ["wpe", "c_fc"]}),
    "head": ("labels", {"target_modules": ["query"], "modules_to_save": ["classifier"]}),
    "embeddings": ("bert", {"target_modules": ["word_embeddings", "dense"]}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_merge_is_that_of_peft(name: str, base: Callable[[str], Any], tmp_path: Path) -> None:
    kind, settings = SETTINGS[name]
    theirs = adapted(base(kind), tmp_path / "adapter", **settings)
    assert_equal_weights(theirs.merge_and_unload(), tmp_path, "adapter")


def test_adapters_in_order(base: Callable[[str], Any], tmp_path: Path) -> None:
    """The second replaces the biases of the first; its delta is added."""
    first = adapted(base("bart"), tmp_path / "a", target_modules=["fc1"], bias="all")
    second = adapted(
        first.merge_and_unload(), tmp_path / "b", 1, target_modules=["fc1", "fc2"], bias="all"
    )
    assert_equal_weights(second.merge_and_unload(), tmp_path, "a", "b")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_in_the_older_file(
    dtype: torch.dtype, base: Callable[[str], Any], tmp_path: Path
) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    rounded = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    file.unlink()
    torch.save(rounded, tmp_path / "adapter" / "adapter_model.bin")
    again = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(again, tmp_path / "adapter")
    assert_equal_weights(theirs.merge_and_unload(), tmp_path, "adapter")


SOURCES = [[5, 6, 7, 2], [9, 2], [12, 30, 8, 4, 2]]


@pytest.mark.parametrize(
    ("kind", "settings", "separate"),
    [
        ("bart", {"target_modules": ["q_proj", "fc1"]}, False),
        ("bart", {"target_modules": ["embed_tokens", "q_proj"]}, True),
        ("bart", {"target_modules": ["lm_head"]}, True),
        ("gpt2", {"target_modules": ["wte", "c_attn"]}, True),
    ],
)
def test_tokens_are_those_of_peft(
    kind: str, settings: dict[str, Any], separate: bool, base: Callable[[str], Any], tmp_path: Path
) -> None:
    """A table that the base ties to others is adapted alone, as in PEFT's model; its own merge
    would change the others, too."""
    theirs = adapted(base(kind), tmp_path / "adapter", **settings)
    found = opened(tmp_path, "adapter")
    assert any("which the base ties" in note for note in found.notes) is separate
    model = found.model
    with torch.inference_mode():
        if isinstance(model, LanguageModel):
            prompt = torch.tensor([SOURCES[0]])
            expected = theirs(input_ids=prompt).logits
            torch.testing.assert_close(model(prompt), expected, rtol=1e-5, atol=1e-5)
            return
        assert isinstance(model, Transformer)
        source, mask = pad(SOURCES, 1)
        rules = {"num_beams": 1, "do_sample": False, "max_new_tokens": 12}
        expected = theirs.generate(input_ids=source, attention_mask=mask.long(), **rules)
        tokens = greedy_uncached(model, SOURCES, 12)
    for ours, row in zip(tokens, expected.tolist(), strict=True):
        assert ours == row[1 : 1 + len(ours)]


def test_an_adapter_beside_its_base_is_merged_as_transformers_does(
    base: Callable[[str], Any], tmp_path: Path
) -> None:
    theirs = adapted(base("bart"), tmp_path / "base", target_modules=["q_proj", "fc2"])
    source = torch.tensor(SOURCES[:1])
    target = torch.tensor([[2, 5, 6]])
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base").eval()
    model = read_checkpoint(tmp_path / "base").model
    with torch.inference_mode():
        own = model(source, torch.ones_like(source).bool(), target)
        for each in (loaded, theirs):
            logits = each(input_ids=source, decoder_input_ids=target).logits
            torch.testing.assert_close(own, logits, rtol=1e-5, atol=1e-5)


def test_an_adapter_alone_names_its_base(base: Callable[[str], Any], tmp_path: Path) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    change(tmp_path / "adapter", base_model_name_or_path="facebook/bart-base")
    hint = f"dragoman build facebook/bart-base --adapter {tmp_path / 'adapter'}"
    with pytest.raises(DragomanError, match=re.escape(hint)):
        locate_checkpoint(tmp_path / "adapter")
    (tmp_path / "adapter" / "config.json").write_bytes(
        (tmp_path / "base" / "config.json").read_bytes()
    )
    with pytest.raises(DragomanError, match=re.escape(hint)):
        locate_checkpoint(tmp_path / "adapter")


def test_another_base_is_a_note(base: Callable[[str], Any], tmp_path: Path) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    for stated, noted in (("owner/base", False), (None, False), ("owner/bart-large", True)):
        change(tmp_path / "adapter", base_model_name_or_path=stated)
        notes = opened(tmp_path, "adapter").notes
        assert any("was trained on owner/bart-large" in note for note in notes) is noted


def test_another_tokenizer_is_a_note(base: Callable[[str], Any], tmp_path: Path) -> None:
    """Tokens may have been added in training; their rows would be missing, too."""
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    for name, content, noted in (("base", "{}", False), ("adapter", "{}", False), ("base", "", 1)):
        (tmp_path / name / "added_tokens.json").write_text(content or '{"x": 36}')
        notes = opened(tmp_path, "adapter").notes
        assert any("added_tokens.json of the adapter" in note for note in notes) is bool(noted)


def change(directory: Path, **settings: Any) -> None:
    file = directory / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"peft_type": "LOHA"}, "expected LORA .* found 'LOHA'; merge it in PEFT"),
        ({"peft_type": "PROMPT_TUNING"}, "found 'PROMPT_TUNING'$"),
        ({"use_dora": True}, "use_dora: this setting is not supported, found True"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices: .* not supported"),
        ({"target_parameters": ["q_proj.weight"]}, "target_parameters: .* not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication: .* not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' also changes the base"),
        ({"r": 3}, "expected matrices of rank 3, found"),
        ({"r": 0}, "r: expected an integer of at least 1, found 0"),
        ({"lora_alpha": "6"}, "lora_alpha: expected a number, found '6'"),
        ({"target_modules": ["fc1"]}, r"target_modules does not name model\.decoder.*q_proj"),
        ({"target_modules": ["q_proj", "fc1"]}, r"target_modules names model\.\w+.*fc1, .* no we"),
        ({"target_modules": "(q_proj"}, "target_modules: expected names of modules or a regular"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_are_refused(
    settings: dict[str, Any], expected: str, base: Callable[[str], Any], tmp_path: Path
) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    change(tmp_path / "adapter", **settings)
    with pytest.raises(DragomanError, match=expected):
        opened(tmp_path, "adapter")


def test_a_setting_of_a_newer_peft_is_a_note(base: Callable[[str], Any], tmp_path: Path) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    assert not any("adapter_config" in note for note in opened(tmp_path, "adapter").notes)
    change(tmp_path / "adapter", use_something=True)
    (note,) = [n for n in opened(tmp_path, "adapter").notes if "adapter_config" in n]
    assert note.endswith("not known here and not read: use_something")


def a_key(tensors: dict[str, Tensor], ending: str) -> str:
    return next(name for name in tensors if name.endswith(ending))


def without_a_module(tensors: dict[str, Tensor]) -> None:
    for ending in ("lora_A.weight", "lora_B.weight"):
        del tensors[a_key(tensors, f"decoder.layers.1.encoder_attn.q_proj.{ending}")]


def with_other_names(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        tensors[name.replace("q_proj", "of_another_model")] = tensors.pop(name)


def with_other_sizes(tensors: dict[str, Tensor]) -> None:
    name = a_key(tensors, "lora_B.weight")
    tensors[name] = tensors[name][:7].clone()


def with_half(tensors: dict[str, Tensor]) -> None:
    del tensors[a_key(tensors, "lora_B.weight")]


def with_magnitudes(tensors: dict[str, Tensor]) -> None:
    name = a_key(tensors, "lora_A.weight")
    tensors[name.replace("lora_A.weight", "lora_magnitude_vector")] = torch.ones(16)


def with_a_larger_vocabulary(tensors: dict[str, Tensor]) -> None:
    tensors["base_model.model.model.encoder.embed_tokens.weight"] = torch.ones(40, 16)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (without_a_module, r"target_modules names model\.decoder\.layers\.1\.encoder_attn\.q_proj"),
        (with_other_names, "of_another_model: the base has no such module"),
        (with_other_sizes, r"expected a delta of \[16, 16\] as in the base, found \[7, 16\]"),
        (with_half, "expected both matrices, lora_A and lora_B, found one"),
        (with_magnitudes, "lora_magnitude_vector: this part of an adapter is not known"),
        (with_a_larger_vocabulary, r"expected \[37, 16\] .*, found \[40, 16\]; resize the base"),
    ],
)
def test_weights_that_are_refused(
    damage: Callable[[dict[str, Tensor]], None],
    expected: str,
    base: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    damage(tensors)
    save_file(tensors, file)
    with pytest.raises(DragomanError, match=expected):
        opened(tmp_path, "adapter")


def test_the_shared_table_alone_is_refused(base: Callable[[str], Any], tmp_path: Path) -> None:
    """Neither transformers nor PEFT's model uses that module itself."""
    adapted(base("bart"), tmp_path / "adapter", target_modules=["shared", "q_proj"])
    with pytest.raises(DragomanError, match=r"model\.shared\.weight: neither this model nor PEFT"):
        opened(tmp_path, "adapter")


def test_a_head_that_the_base_lacks(base: Callable[[str], Any], tmp_path: Path) -> None:
    """As after training on `from_pretrained("bert-base-uncased", num_labels=3)`."""
    adapted(
        base("labels"),
        tmp_path / "adapter",
        target_modules=["query"],
        modules_to_save=["classifier"],
    )
    base("bert")
    with pytest.raises(DragomanError, match=r"classifier\.weight: .* save the base with its head"):
        opened(tmp_path, "adapter")


def test_other_formats_take_none(base: Callable[[str], Any], tmp_path: Path) -> None:
    adapted(base("bart"), tmp_path / "adapter", target_modules=["q_proj"])
    located = locate_checkpoint("g2p-en", adapters=[tmp_path / "adapter"])
    with pytest.raises(DragomanError, match=r"expected a base of Hugging Face .* found one of D"):
        open_checkpoint(located)
    with pytest.raises(DragomanError, match=r"expected the directory of an adapter.* no such dir"):
        locate_checkpoint("g2p-en", adapters=[tmp_path / "none"])
