"""Costs: the formulas give what PyTorch counts, and what is measured belongs to the right parts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from docs.tools.costs.counting import encoder, step, total
from docs.tools.costs.report import CostRecord, counted_table
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import (
    EncoderModel,
    HeadConfig,
    LanguageModel,
    ModelConfig,
    Transformer,
)
from dragoman.reference_model.decoding import KeyValueCache
from dragoman.runtime import Bundle, read_bundle

from ..small_bundle import small_bundle

costs: Any = importlib.import_module("docs.tools.costs.__main__")

PLAIN = ModelConfig(
    source_vocab_size=17,
    target_vocab_size=23,
    encoder_layers=3,
    decoder_layers=2,
    d_model=12,
    num_heads=3,
    d_ff=20,
    max_source_positions=40,
    max_target_positions=40,
)
CONFIGS = {
    "plain": PLAIN,
    "gated": PLAIN.replace(gated_feed_forward=True),
    "sizes of heads": PLAIN.replace(d_head=5, d_value=7),
    "bilinear": PLAIN.replace(bilinear_scores=True),
}
ROWS, SOURCE, POSITION = 3, 7, 4


def products(run: Callable[[], object]) -> int:
    """Multiply-accumulates, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        run()
    return int(counter.get_total_flops()) // 2


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_those_that_pytorch_counts(name: str) -> None:
    config = CONFIGS[name]
    model = Transformer(config).eval()
    source, mask = torch.ones(ROWS, SOURCE, dtype=torch.long), torch.ones(ROWS, SOURCE).bool()
    cross = model.encode(source, mask)
    cache = KeyValueCache(config, ROWS, POSITION + 1)
    cache.position += POSITION
    token = torch.ones(ROWS, 1, dtype=torch.long)
    assert total(encoder(config, SOURCE, rows=ROWS)).operations == products(
        lambda: model.encode(source, mask)
    )
    assert total(step(config, SOURCE, POSITION, rows=ROWS)).operations == products(
        lambda: model.decode(token, cache.position, mask, cross, cache)
    )


def test_encoder_only_and_decoder_only_models() -> None:
    decoder = PLAIN.replace(source_vocab_size=0, encoder_layers=0, max_source_positions=0)
    language_model = LanguageModel(decoder).eval()
    one = torch.ones(1, 1, dtype=torch.long)
    assert total(step(decoder, 0, 0)).operations == products(lambda: language_model(one))
    single = PLAIN.replace(
        target_vocab_size=0,
        decoder_layers=0,
        max_target_positions=0,
        head=HeadConfig(task="embedding", pooling=("cls",)),  # a mean is a product, too
    )
    model = EncoderModel(single).eval()
    source = torch.ones(ROWS, SOURCE, dtype=torch.long)
    assert total(encoder(single, SOURCE, rows=ROWS)).operations == products(
        lambda: model(source, torch.ones(ROWS, SOURCE).bool())
    )


def test_weights_are_the_matrices_of_the_model() -> None:
    model = Transformer(PLAIN)
    names = {name: weight.numel() for name, weight in model.named_parameters() if weight.dim() > 1}
    embeddings = sum(count for name, count in names.items() if "embedding" in name)
    output = total([cost for cost in step(PLAIN, 1, 0) if cost.part == "output"]).weights
    counted = total([*encoder(PLAIN, 1), *step(PLAIN, 1, 0)]).weights
    assert counted - output == sum(names.values()) - embeddings
    assert output == model.output.weight.numel()


def test_a_step_reads_what_was_cached() -> None:
    costs = {cost.part: cost for cost in step(PLAIN, SOURCE, POSITION, rows=ROWS)}
    cache = KeyValueCache(PLAIN, ROWS, POSITION)
    assert costs["self-attention"].cached == sum(
        tensor.numel() for keys_values in cache.layers for tensor in keys_values
    )
    assert costs["cross-attention"].cached == 2 * 2 * ROWS * SOURCE * PLAIN.d_model


def test_a_table_of_counts() -> None:
    table = counted_table(PLAIN, (8, 16)).splitlines()
    assert table[0] == "| length | 8 | 16 |"
    assert all(line.count("|") == 4 for line in table)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return read_bundle(small_bundle(tmp_path_factory.mktemp("neutral"), positions=20))


@pytest.mark.parametrize("target", ["neutral", "cpu"])
def test_the_command_measures_every_part(
    target: str, exported: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = exported
    if target == "cpu":
        (tmp_path / "cpu").mkdir()
        bundle = optimize_bundle(bundle, tmp_path / "cpu")
    monkeypatch.setattr(costs, "_bundle", lambda *_: bundle)
    asked = ["--shape", "tiny", "--length", "5", "--length", "9", "--rows", "1", "--rows", "2"]
    outcome = CliRunner().invoke(costs.main, [*asked, "--runs", "1", "--output", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    record = CostRecord.read(tmp_path / "costs-tiny-1-threads.json")
    assert record.to_json() == (tmp_path / "costs-tiny-1-threads.json").read_text(encoding="utf-8")
    where = [(m.graph, m.rows, m.source, m.position) for m in record.measured]
    assert where == [
        *(("encoder", 1, 5, 0), ("encoder", 1, 9, 0)),
        *(("step", 1, 5, 8), ("step", 1, 9, 8), ("step", 1, 32, 5), ("step", 1, 32, 9)),
        ("step", 2, 32, 8),
    ]
    for measured in record.measured:
        counted = {cost.part for cost in measured.counted(record.config)}
        assert set(measured.ms) == counted | {"the rest"}
        assert all(ms > 0 for ms in measured.ms.values())
