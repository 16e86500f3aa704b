# ruff: noqa: RUF001
"""tg2fa, Tajik letters to Persian ones: trained weights of torch.nn.Transformer, as a training left
them. Its own greedy loop gives the tokens that the bundle gives."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.benchmarks.models.real_models import package
from dragoman.export import export_bundle
from dragoman.export.families.state_dictionaries import load_torch_transformer
from dragoman.export.formats.json_files import read_json
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import load, read_bundle


def load_model(directory: Path) -> Transformer:
    """The model of a directory with a state dictionary."""
    return load_torch_transformer(directory, read_json(directory / "config.json"))


pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]

CONFIG = {
    "model_type": "torch.nn.Transformer",
    "num_heads": 8,
    "scale_embedding": True,
    "positions": "sinusoidal",
    "names": {
        "source_embedding": "src_tok_emb.embedding",
        "target_embedding": "tgt_tok_emb.embedding",
        "source_positions": "positional_encoding.pos_embedding",
        "output": "generator",
    },
    "pad_token_id": 1,
    "start_token_id": 2,
    "end_token_id": 3,
}
TEXTS = (
    "салом",
    "китоб",
    "дӯстон",
    "ман ба хона меравам",
    "забони тоҷикӣ",
    "а",
    "донишгоҳи миллии тоҷикистон",
    "имрӯз ҳаво хуб аст",
    "баҳор омад",
    "шаҳри душанбе",
)


def test_the_bundle_gives_their_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = package("tg2fa-translit")
    monkeypatch.syspath_prepend(root)
    decode: Any = importlib.import_module("tg2fa_translit.decode")
    theirs: Any = importlib.import_module("tg2fa_translit.transformer").transformer
    shutil.copyfile(root / "tg2fa_translit" / "model_2.9.zip", tmp_path / "model_2.9.zip")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = load_model(tmp_path)
    for name in ("neutral", "cpu"):
        (tmp_path / name).mkdir()
    export_bundle(model, tmp_path / "neutral", name="tg2fa")
    optimize_bundle(read_bundle(tmp_path / "neutral"), tmp_path / "cpu", target="cpu")
    sources = [[2, *(decode.tg_voc[letter] for letter in text), 3] for text in TEXTS]
    expected = []
    for source in sources:
        column = np.array(source).reshape(-1, 1)
        mask = np.zeros((len(source), len(source)), bool)
        row = decode.greedy(theirs, column, mask, max_len=50).flatten().tolist()[1:]
        expected.append(row[: row.index(3)] if 3 in row else row)
    with load(tmp_path / "cpu", threads=1) as bundle:
        found = bundle.generate(sources, max_new_tokens=49)
    assert [list(result.tokens) for result in found] == expected
    assert "".join(decode.fa_voc[token] for token in expected[1]) == "کتاب"
