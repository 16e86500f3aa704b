"""Throughput: how a queue is dealt, which arrangement counts, figures by hand; outputs that end."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dragoman.benchmarks.arrangement import arrangements
from dragoman.benchmarks.compare.contenders.queue import Share, load_bundle
from dragoman.benchmarks.compare.contenders.text import LONGEST_OUTPUT, draw_sources
from dragoman.benchmarks.compare.contenders.variants import prepared_with_shortlist
from dragoman.benchmarks.compare.rounds import Contender, unchanged
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.throughput import deal, measure_throughput, ratios_of
from dragoman.benchmarks.models.random_checkpoint import write_ending_text_model
from dragoman.benchmarks.peers.hugging_face import until_the_end
from dragoman.export import export_bundle
from dragoman.export.families.bart import LOGITS_BIAS
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import greedy_cached
from dragoman.runtime import load
from dragoman.runtime.serving.arrangement import Arrangement

from ..small_bundle import small_bundle
from .doubles import compared, load_counting, load_failing, load_losing_rows


def test_sources_are_the_same_at_every_call() -> None:
    sources = draw_sources(300, (3, 9))
    assert sources == draw_sources(300, (3, 9))
    lengths = [len(source) for source in sources]
    assert (min(lengths), max(lengths)) == (5, 60)
    assert {token for source in sources for token in source} == set(range(3, 9))


def test_every_worker_gets_sources_of_all_lengths() -> None:
    sources = [[n] * n for n in (4, 9, 1, 7, 2)]
    first, second = deal(sources, Arrangement(2, 1, 8))
    assert [len(source) for source in first.sources] == [9, 4, 1]
    assert [len(source) for source in second.sources] == [7, 2]
    assert first[1:] == second[1:] == (8, LONGEST_OUTPUT)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(1, 1)]),
        (2, [(1, 2), (2, 1)]),
        (6, [(1, 6), (2, 3), (4, 1), (6, 1)]),
        (8, [(1, 8), (2, 4), (4, 2), (8, 1)]),
    ],
)
def test_arrangements_use_the_cores(cores: int, expected: list[tuple[int, int]]) -> None:
    assert arrangements(cores, [16, 64]) == [Arrangement(*e, b) for e in expected for b in (16, 64)]


def test_tools_take_turns_after_each_has_tried_all_arrangements(tmp_path: Path) -> None:
    stages: list[str] = []
    figures = measure_throughput(
        Run(tmp_path, stages.append),
        [
            Contender("one", unchanged, load_counting),
            Contender("two", unchanged, load_counting, peer=True),
            Contender("failing", unchanged, load_failing),
            Contender("losing", unchanged, load_losing_rows),
        ],
        [[9, 9], [3], [4], [5]],
        arrangements(2, [8]),
        rounds=3,
    )
    found = figures["tools"]
    assert [each["tool"] for each in found] == ["one", "two"]
    assert [(f.contender, f.reason) for f in figures["failures"]] == [
        ("failing", "working: ValueError: no decoding today"),
        ("losing", "decoding: expected 2 rows, found 0"),
    ]
    for each in found:
        assert [trial["arrangement"] for trial in each["trials"]] == arrangements(2, [8])
        best = max(each["trials"], key=lambda trial: trial["tokens_per_second"])
        assert each["arrangement"] == best["arrangement"]
        lowest, median, highest = sorted(each["tokens_per_second"])
        assert each["tokens_per_second"] == (median, lowest, highest)
        assert each["tokens"] == LONGEST_OUTPUT + 3 * 5  # the longest has no end token
        assert each["memory_mb"] > 1
        assert each["best_peer"] == "two"
    in_turns = [stage for stage in stages if "round" in stage]
    assert in_turns == [f"queue, round {number} of 3" for number in range(4)]
    assert stages.index(in_turns[0]) > stages.index("two: 2 x 1, 8 rows")


def test_ratios_by_hand() -> None:
    ours = Contender("ours", unchanged, load_counting)
    slow = Contender("slow", unchanged, load_counting, peer=True)
    fast = Contender("fast", unchanged, load_counting, precision="int8", peer=True)
    absent = Contender("absent", unchanged, load_counting, peer=True)
    speeds = {
        "ours": [300.0, 200.0, 1000.0],
        "slow": [100.0, 90.0, 120.0],
        "fast": [150.0, 160.0, 140.0],
    }
    found = ratios_of(speeds, [ours, slow, fast, absent])
    assert [tuple(figures.values()) for figures in found.values()] == [
        ("fast", 2.0, "slow", 3.0),
        ("fast", 0.667, "slow", 1.0),
        ("fast", 1.0, None, None),
    ]
    alone = ratios_of({"ours": speeds["ours"]}, [ours, slow])
    assert set(alone["ours"].values()) == {None}


def test_outputs_end_after_the_mean_length_on_average(tmp_path: Path) -> None:
    write_ending_text_model("tiny", tmp_path, vocab_size=200, mean_length=8)
    model = load_hugging_face(tmp_path)
    generator = np.random.default_rng(4)
    sources = generator.integers(1, 199, (60, 12)).tolist()
    lengths = [len(row) for row in greedy_cached(model, sources, 60)]
    assert 4 < np.mean(lengths) < 16
    assert len(set(lengths)) > 8


def test_outputs_with_a_shortlist_do_not_end_at_once(tmp_path: Path) -> None:
    """Fewer tokens have a smaller largest logit, so the end token has, too."""
    checkpoint = tmp_path / "checkpoint"
    write_ending_text_model("tiny", checkpoint, vocab_size=2000, mean_length=8)
    seen: list[Path] = []

    def prepare(checkpoint: Path, directory: Path) -> Path:
        seen.append(checkpoint)
        directory.mkdir()
        export_bundle(load_hugging_face(checkpoint), directory, name="ending")
        return directory

    sources, medians = draw_sources(64, (1, 1999), seed=5), []
    for mean_length in (8, None):
        made = prepared_with_shortlist(
            checkpoint, tmp_path / str(mean_length), prepare=prepare, mean_length=mean_length
        )
        results = load(made, threads=1).generate(sources, max_new_tokens=LONGEST_OUTPUT)
        medians.append(np.median([len(result.tokens) + 1 for result in results]))
    assert seen == [tmp_path / "8" / "ending", checkpoint]
    assert 4 < medians[0] < 16 and medians[1] <= 3
    own, plain = (load_file(path / "model.safetensors")[LOGITS_BIAS].max() for path in seen)
    assert 0 < own < plain


def test_dragoman_works_off_a_share(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path, 9)
    share = Share([[3, 4, 5], [6], [7, 8]], 2, 9)
    expected = [list(r.tokens) for r in load(bundle).generate(share.sources, max_new_tokens=9)]
    assert load_bundle(bundle, 1)(share) == expected


def test_hugging_face_decodes_sources_of_several_lengths() -> None:
    """Rows in the order of the sources, without what follows the end token."""
    seen: Counter[tuple[int, ...]] = Counter()

    class Model:
        device = torch.device("cpu")

        class config:  # noqa: N801 # as Hugging Face's
            pad_token_id, eos_token_id, is_encoder_decoder = 0, 2, True

        def generate(
            self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: object
        ) -> torch.Tensor:
            seen[tuple(input_ids.shape)] += 1
            assert torch.equal(attention_mask.bool(), input_ids != 0)
            assert (options["max_new_tokens"], options["num_beams"]) == (5, 1)
            first = input_ids[:, :1]
            return torch.cat([torch.zeros_like(first), first, torch.full_like(first, 2), first], 1)

    decode = until_the_end(Model())
    assert decode([[5], [6, 6, 6], [7, 7]], 2, 5) == [[5], [6], [7]]
    assert seen == {(2, 3): 1, (1, 1): 1}


def test_the_command_writes_a_record(tmp_path: Path) -> None:
    options = "--shape tiny --vocab-size 60 --sentences 6 --rounds 1 --cores 1 --batch-size 4"
    compared("throughput", *options.split(), "--only", "Dragoman int8", "--output", tmp_path)
    record = json.loads((tmp_path / "throughput-tiny-1-cores.json").read_text("utf-8"))
    (found,) = record["tools"]
    assert found["arrangement"] == [1, 1, 4]
    assert (found["best_peer"], found["ratio"]) == (None, None)
    assert record["command"].startswith("python -m dragoman.benchmarks.compare")
