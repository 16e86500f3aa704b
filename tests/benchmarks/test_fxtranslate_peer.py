"""fxtranslate reads what is written for it, which has the weights of the checkpoint."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dragoman.benchmarks.compare.contenders.variants import (
    prepared_recurrent,
    prepared_with_shortlist,
    with_recurrent,
)
from dragoman.benchmarks.peers import fxtranslate
from dragoman.benchmarks.peers.interface import Batch
from dragoman.export.checkpoints import open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import Transformer, load_checkpoint

pytest.importorskip("fxtranslate", reason="has no wheel for this system")
WORDS = 199
"""Tokens of the file: all but the one that starts decoding."""


@pytest.fixture(scope="module")
def prepared(marian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recurrent") / "prepared"
    directory.mkdir()
    return prepared_recurrent(marian, directory, prepare=fxtranslate.prepare)


def test_the_file_has_the_rounded_weights_and_a_word_for_each_token(prepared: Path) -> None:
    checkpoint = open_checkpoint(locate_checkpoint(prepared))
    read, expected = checkpoint.model, load_checkpoint(prepared.parent / "checkpoint")
    assert isinstance(read, Transformer)
    assert read.config.decoder_kind == "ssru"
    found = dict(read.named_parameters())
    assert found.keys() == dict(expected.named_parameters()).keys()
    for name, parameter in expected.named_parameters():
        if "positions" in name:
            continue
        values = parameter.detach().numpy()
        values = values[:WORDS] if len(values) == WORDS + 1 else values
        theirs = found[name].detach().numpy()[: len(values)]
        step = np.abs(values).max() / 127 if values.ndim == 2 else 0
        if name == "output.bias":
            assert (theirs[:2] < -9000).all()
            values, theirs = values[2:], theirs[2:]
        np.testing.assert_allclose(theirs, values, rtol=1e-5, atol=0.5 * step + 1e-7, err_msg=name)
    assert checkpoint.tokenizers is not None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sources", [1, 7])
def test_each_source_has_its_output(prepared: Path, threads: int, sources: int) -> None:
    """Also on several processes, and in their order."""
    generator = random.Random(sources)
    batch = Batch([generator.choices(range(2, WORDS), k=5) for _ in range(sources)], 16)
    generate = fxtranslate.load(prepared, threads)
    rows = generate(batch)
    assert rows == [generate(Batch([source], 16))[0] for source in batch.sources]
    assert {len(row) for row in rows} == {16}
    assert all(1 < token < WORDS for row in rows for token in row)
    assert len({tuple(row) for row in rows}) == sources


def test_only_tokens_of_the_shortlist_are_generated(marian: Path, tmp_path: Path) -> None:
    listed = partial(prepared_with_shortlist, prepare=fxtranslate.prepare)
    prepared = prepared_recurrent(marian, tmp_path, prepare=listed)
    always, lists = 100, [[2, 150], [3], *[[190 + token % 3] for token in range(2, WORDS)]]
    fxtranslate.write_shortlist(lists, always, prepared)
    (row,) = fxtranslate.load(prepared, 1)(Batch([[7, 8]], 10))
    assert all(token < always or token in (191, 192) for token in row)
    assert json.loads((marian / "config.json").read_text())["vocab_size"] == WORDS + 1


def test_contenders_are_the_recurrent_ones_only() -> None:
    names = [contender.name for contender in with_recurrent([], shortlist=True)]
    assert names == ["fxtranslate int8, recurrent", "fxtranslate int8, shortlist, recurrent"]
