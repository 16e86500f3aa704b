"""all-MiniLM-L6-v2: embeddings of real sentences, compared with PyTorch's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman import api
from dragoman.benchmarks.models.real_models import minilm
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import read_examples
from dragoman.runtime import Model, load
from dragoman.runtime.format.manifest import Precision

pytestmark = pytest.mark.real
transformers: Any = importlib.import_module("transformers")

SENTENCES = 200


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Verses that no one will edit: the first 200 of these are compared, the others calibrate."""
    examples = read_examples(find_checkpoint("verses-en") / "held_out.tsv")
    found = list(dict.fromkeys(example.source + example.references[0] for example in examples))
    return found[::7][:SENTENCES] + found[3::7][:SENTENCES]


@pytest.fixture(scope="module")
def expected(sentences: list[str]) -> NDArray[np.float32]:
    """By the transformers library and the definition of mean pooling; alone, so without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    model = transformers.AutoModel.from_pretrained(minilm()).eval()
    vectors = []
    for sentence in sentences[:SENTENCES]:
        encoded = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            vectors.append(model(**encoded).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(vectors), dim=-1).numpy()


@pytest.fixture(scope="module")
def built(
    sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Precision], Model]:
    directory = tmp_path_factory.mktemp("minilm")
    calibration = directory / "sentences.txt"
    calibration.write_text("\n".join(sentences[SENTENCES:]) + "\n")

    def build(precision: Precision) -> Model:
        built = api.build(
            minilm(),
            directory / precision,
            precision=precision,
            inputs=calibration,
            calibration=None if precision == "fp32" else calibration,
        )
        return load(built.bundle.directory, threads=1)

    return build


def test_fp32(
    sentences: list[str], expected: NDArray[np.float32], built: Callable[[Precision], Model]
) -> None:
    found = built("fp32").encode(sentences[:SENTENCES], truncate=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    library: Any = importlib.import_module("sentence_transformers")
    theirs = library.SentenceTransformer(str(minilm()), device="cpu")
    np.testing.assert_allclose(found, theirs.encode(sentences[:SENTENCES]), atol=1e-5)


@pytest.mark.parametrize(
    ("precision", "mean", "smallest"), [("int8", 0.99, 0.985), ("int4", 0.99, 0.98)]
)
def test_fewer_bits(
    precision: Precision,
    mean: float,
    smallest: float,
    sentences: list[str],
    expected: NDArray[np.float32],
    built: Callable[[Precision], Model],
) -> None:
    found = built(precision).encode(sentences[:SENTENCES], truncate=True)
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1)
    assert cosines.mean() >= mean
    assert cosines.min() >= smallest
