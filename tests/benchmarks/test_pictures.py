"""Pictures of the documentation: what they show, and that they are those that pages have."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from docs.tools.pictures.attention_and_costs import WORD, draw_heads
from docs.tools.pictures.diagram import Block, stacks_of
from dragoman.benchmarks.compare.picture_style import write
from dragoman.reference_model import ModelConfig
from dragoman.runtime import Attention

pictures: Any = importlib.import_module("docs.tools.pictures.__main__")

DOCS = Path(__file__).parents[2] / "docs"
LARGEST = 60_000
OF_THE_SHIPPED_MODEL = {"attention-heads.png", pictures.AS_THE_COMMAND}


@pytest.mark.parametrize("name", sorted({*pictures.PICTURES} - OF_THE_SHIPPED_MODEL))
def test_a_picture_is_small_and_the_same_every_time(name: str, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        asked = ["--output", str(tmp_path / folder), "--only", name]
        outcome = CliRunner().invoke(pictures.main, asked)
        assert outcome.exit_code == 0, outcome.output
    first, second = ((tmp_path / folder / name).read_bytes() for folder in ("first", "second"))
    assert first == second
    assert len(first) < LARGEST


def test_heads_side_by_side(tmp_path: Path) -> None:
    weights = np.full((2, 3, 4, 5), 0.2, np.float32)
    attention = Attention((*"abcde",), (*"<abc",), (*"abcd",), None, None, weights)
    picture = draw_heads(attention)
    assert [axes.get_title() for axes in picture.axes[:6]] == [
        f"layer {layer}, head {head}" for layer in range(2) for head in range(3)
    ]
    write(picture, tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_the_folder_has_what_the_command_makes() -> None:
    names = {path.name for path in (DOCS / "pictures").iterdir()}
    assert names == {*pictures.PICTURES, pictures.AS_THE_COMMAND}
    assert all((DOCS / "pictures" / name).stat().st_size < LARGEST for name in names)


def test_every_picture_is_on_a_page() -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    shown = {
        name
        for page in pages
        for name in re.findall(r"!\[[^]]+\]\([^)]*/?pictures/([^)]+)\)", page)
    }
    assert shown >= {path.name for path in (DOCS / "pictures").iterdir()}
    assert f"dragoman attention bundles/g2p-en {WORD}" in "".join(pages)


CONFIG = ModelConfig(
    source_vocab_size=8,
    target_vocab_size=8,
    encoder_layers=3,
    decoder_layers=2,
    d_model=8,
    num_heads=2,
)


def names(blocks: Any) -> list[tuple[str, int]]:
    return [(block.name, block.residual) for block in blocks]


def test_the_diagram_has_the_blocks_of_the_model() -> None:
    encoder, decoder, _ = stacks_of(CONFIG)
    assert encoder is not None and decoder is not None
    assert (encoder.count, decoder.count) == (3, 2)
    assert names(decoder.layer) == [
        *(("causal self-attention", 1), ("norm", 0)),
        *(("cross-attention", 1), ("norm", 0)),
        *(("feed-forward", 1), ("norm", 0)),
    ]
    assert (encoder.above, decoder.above) == ([], [])


def test_the_diagram_of_a_decoder_only_model() -> None:
    removed = {"source_vocab_size": 0, "encoder_layers": 0, "max_source_positions": 0}
    encoder, decoder, _ = stacks_of(CONFIG.replace(**removed, norm_order="pre"))
    assert encoder is None and decoder is not None
    assert names(decoder.layer) == [
        *(("norm", 0), ("causal self-attention", 2)),
        *(("norm", 0), ("feed-forward", 2)),
    ]
    assert decoder.above == [Block("norm", "norm")]
