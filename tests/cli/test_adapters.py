"""The option `--adapter` of the commands that read a checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.manifest import Adapter

from ..random_weights import randomize_hugging_face

transformers: Any = importlib.import_module("transformers")
peft: Any = importlib.import_module("peft")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

Dragoman = Callable[..., CompletedProcess[str]]
SIZES = {
    "vocab_size": 37,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "forced_eos_token_id": None,
}


@pytest.fixture
def adapted(tmp_path: Path) -> Any:
    """PEFT's model, whose base and adapters are in `base`, `a` and `b`."""
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES))
    randomize_hugging_face(model)
    model.generation_config.max_new_tokens = 12
    model.save_pretrained(tmp_path / "base")
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "fc1"], init_lora_weights=False)
        theirs = peft.get_peft_model(model, config).eval()
        theirs.save_pretrained(tmp_path / name)
        model = theirs.merge_and_unload()
    return model


def test_adapters_are_merged_recorded_and_verified(
    adapted: Any, dragoman: Dragoman, tmp_path: Path
) -> None:
    base, a, b, bundle = (tmp_path / name for name in ("base", "a", "b", "bundle"))
    built = dragoman("build", base, "--adapter", a, "--adapter", b, "-o", bundle)
    assert built.returncode == 0, built.stderr
    recorded = read_bundle(bundle).manifest.adapters
    assert [adapter.name for adapter in recorded] == ["a", "b"]
    sources = [[5, 6, 7, 2], [9, 2], [12, 30, 8, 4, 2]]
    with load(bundle, threads=1) as model:
        found = [[*result.tokens] for result in model.generate(sources)]
    for source, ours in zip(sources, found, strict=True):
        expected = adapted.generate(input_ids=torch.tensor([source]))[0, 1:].tolist()
        assert ours == [token for token in expected if token != 2]
    shown = "".join(dragoman("inspect", bundle).stdout.split())
    for adapter in recorded:
        assert isinstance(adapter, Adapter) and adapter.sha256 in shown

    command = ("verify", bundle, base, "--limit", "2")
    assert dragoman(*command, "--adapter", a, "--adapter", b).returncode == 0
    for given in ((), ("--adapter", a), ("--adapter", b, "--adapter", a)):
        refused = dragoman(*command, *given)
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 2
        assert line.startswith(f"Error: --adapter: expected those that {bundle} was made with, a (")


def test_an_adapter_needs_a_checkpoint(dragoman: Dragoman, tmp_path: Path) -> None:
    refused = dragoman("verify", tmp_path, "--key", "x", "--adapter", tmp_path)
    assert refused.returncode == 2 and "expected a CHECKPOINT to compare with" in refused.stderr
