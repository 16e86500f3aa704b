"""BART that classifies: bundles compared with Hugging Face's model and pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from dragoman.export.checkpoints import open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import pad
from dragoman.runtime import Model, load
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.inputs.choosing import inputs_for
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.parity import check_parity

from ...cli.conftest import status_of
from ...serving.conftest import serving
from .conftest import transformers
from .test_zero_shot import THREE, assert_same

POSITIONS = 40
LAYERS = (2, 3)
PIECES = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
CONFIG: dict[str, Any] = {
    "vocab_size": len(PIECES),
    "d_model": 24,
    "encoder_layers": LAYERS[0],
    "decoder_layers": LAYERS[1],
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": POSITIONS,
    "init_std": 0.3,
}
TEXTS = ["the man eats", "b", "", "éa☃", "a </s> b", " a  b ", "paris is in france."]
PAIRS = [("the man", "is in"), ("a", "b"), ("", "food food")]
LABELS = ["food", "paris", "a {b}", "Q"]


class Barts(NamedTuple):
    """Theirs, and bundles of it: neutral, for cpu in fp32 and in int8, and for OpenVINO."""

    directory: Path
    theirs: Any
    tokenizer: Any
    ours: dict[str, Model]

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Theirs of one row, unpadded."""
        found: np.ndarray[Any, Any] = self.theirs(input_ids=torch.tensor([tokens])).logits[0]
        return np.asarray(found)


@pytest.fixture(scope="module")
def barts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Barts]:
    torch.manual_seed(0)
    theirs = transformers.BartForSequenceClassification(transformers.BartConfig(**CONFIG | THREE))
    for parameter in theirs.eval().parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    directory = tmp_path_factory.mktemp("bart")
    tokenizer = transformers.BartTokenizer(
        vocab={piece: token for token, piece in enumerate(PIECES)},
        merges=[],
        model_max_length=POSITIONS,
    )
    for saved in (theirs, tokenizer):
        saved.save_pretrained(directory / "checkpoint")
    read = open_checkpoint(locate_checkpoint(directory / "checkpoint"))
    (directory / "neutral").mkdir()
    neutral = export_bundle(
        read.model,
        directory / "neutral",
        name="bart",
        tokenizers=read.tokenizers,
        attention=True,
    )
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    for precision in precisions:
        (directory / precision).mkdir()
        optimize_bundle(neutral, directory / precision, target="cpu", precision=precision)
    (directory / "openvino").mkdir()
    optimize_bundle(neutral, directory / "openvino", target="openvino")
    names = ("neutral", *precisions, "openvino")
    ours = {name: load(directory / name, threads=1) for name in names}
    yield Barts(directory, theirs, tokenizer, ours)
    for model in ours.values():
        model.close()


def tokens_of(barts: Barts) -> list[list[int]]:
    """Seven ragged rows: of one token, of pairs, of all positions, with ends within."""
    texts = [["a"], ["the man", "b"], ["a" * (POSITIONS - 2)], ["a </s> b"], ["", ""], ["☃ é"]]
    return [barts.tokenizer(*each)["input_ids"] for each in texts] + [[2]]


@pytest.mark.parametrize("bundle", ["neutral", "fp32", "openvino"])
def test_logits(bundle: str, barts: Barts) -> None:
    """In a batch of seven and alone, they are those of transformers for a single row."""
    rows, backend = tokens_of(barts), barts.ours[bundle].backend
    expected = np.stack([barts.logits(row) for row in rows])
    for batch in (rows, *([row] for row in rows)):
        source, mask = (tensor.numpy() for tensor in pad(batch, 1))
        found = backend.encode(source, mask)["class_logits"]
        own = expected if len(batch) > 1 else expected[rows.index(batch[0])][None]
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=1e-5)


def test_int8(barts: Barts) -> None:
    """Labels are those of fp32 but for rounding, and the same bits alone and in a batch."""
    texts: list[Any] = [*TEXTS, *PAIRS]
    exact, rounded = (barts.ours[name].classify(texts) for name in ("fp32", "int8"))
    for one, other in zip(exact, rounded, strict=True):
        scores = {each.label: each.score for each in one.labels}
        assert {each.label: each.score for each in other.labels} == pytest.approx(scores, abs=0.05)
    assert [barts.ours["int8"].classify([text])[0] for text in texts] == rounded


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_passes_apply_to_both_stacks(precision: str, barts: Barts) -> None:
    encoder, decoder = LAYERS
    manifest = barts.ours[precision].manifest
    assert manifest.kind == "encoder" and set(manifest.graphs) == {"encoder", "attention"}
    records = {record.name: record for record in manifest.passes}
    counts = {name: record.matches for name, record in records.items() if record.matches}
    assert counts["attention"] == encoder + 2 * decoder
    assert counts["layer-norm"] == 2 + 2 * encoder + 3 * decoder
    if precision == "fp32":
        assert counts["bias-gelu"] == encoder + decoder
    else:
        # Projections, and the table of tokens, which both stacks read.
        assert counts["weights-int8"] == 6 * encoder + 10 * decoder + 2


def test_classify(barts: Barts) -> None:
    pipeline = transformers.pipeline(
        "text-classification", model=barts.theirs, tokenizer=barts.tokenizer
    )
    sources: list[Any] = [*(text for text in TEXTS if text), *PAIRS]
    for source, result in zip(sources, barts.ours["fp32"].classify(sources), strict=True):
        given = source if isinstance(source, str) else {"text": source[0], "text_pair": source[1]}
        expected = {each["label"]: each["score"] for each in pipeline(given, top_k=None)}
        found = {each.label: each.score for each in result.labels}
        assert found == pytest.approx(expected, abs=1e-5)
        assert result.label == max(expected, key=lambda label: expected[label])


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot(multi_label: bool, barts: Barts) -> None:
    """Texts longer than the positions are cut, of the pair only the text."""
    theirs = transformers.pipeline(
        "zero-shot-classification", model=barts.theirs, tokenizer=barts.tokenizer, device="cpu"
    )
    texts = [*(text for text in TEXTS if text.strip()), "the man " * 20]
    for template in ("is {}.", "{}"):
        options: dict[str, Any] = {"hypothesis_template": template, "multi_label": multi_label}
        found = barts.ours["fp32"].classify_zero_shot(texts, LABELS, truncate=True, **options)
        assert_same(found, theirs(texts, LABELS, **options))
        assert [one.truncated for one in found] == [False] * (len(texts) - 1) + [True]


def test_a_text_longer_than_the_positions(barts: Barts) -> None:
    ours, long = barts.ours["fp32"], "a" * (POSITIONS - 1)
    (refused,) = ours.classify([long])
    expected = f"text has {POSITIONS + 1} tokens, expected at most {POSITIONS}; truncate=True "
    assert str(refused.error).startswith(expected)
    (cut,) = ours.classify([long], truncate=True)
    assert cut.truncated and cut.labels == ours.classify([long[:-1]])[0].labels


def test_attention_is_that_of_the_encoder(barts: Barts) -> None:
    tokens = barts.tokenizer("the man")["input_ids"]
    barts.theirs.set_attn_implementation("eager")
    with torch.inference_mode():
        maps = barts.theirs(torch.tensor([tokens]), output_attentions=True).encoder_attentions
    for bundle in ("neutral", "fp32"):
        found = barts.ours[bundle].attention("the man")
        assert found.cross is None and found.encoder is not None
        assert len(found.encoder) == len(maps) == LAYERS[0]
        for own, their in zip(found.encoder, maps, strict=True):
            np.testing.assert_allclose(own, their[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("bundle", ["fp32", "int8"])
def test_parity(bundle: str, barts: Barts, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(locate_checkpoint(barts.directory / "checkpoint"))
    (tmp_path / "lines.txt").write_text("the man\tis in\nparis\na\tb\n")
    inputs = inputs_for(checkpoint, Comparison(tmp_path / "lines.txt"))
    assert check_parity(barts.ours[bundle], checkpoint.model, inputs, backend="").passed


def test_a_server_classifies(barts: Barts) -> None:
    ours, texts = barts.ours["fp32"], [*TEXTS[:4], *TEXTS[5:]]  # without a special token
    with serving({"bart": barts.directory / "fp32"}) as client:
        body = {"model": "bart", "texts": texts}
        found = client.post("/v1/classify", json=body).json()["results"]
        assert [one["labels"][0]["label"] for one in found] == [
            one.label for one in ours.classify(texts)
        ]
        body |= {"labels": LABELS, "hypothesis_template": "is {}"}
        found = client.post("/v1/classify", json=body).json()["results"]
        expected = ours.classify_zero_shot(texts, LABELS, hypothesis_template="is {}")
        assert [[each["score"] for each in one["labels"]] for one in found] == [
            [pytest.approx(each.score, abs=1e-6) for each in one.labels] for one in expected
        ]
        found = client.post("/predict", json={"inputs": [[text] for text in texts[:2]]}).json()
        assert [one[0]["label"] for one in found] == [one.label for one in ours.classify(texts[:2])]


def test_commands_classify(barts: Barts, capfd: pytest.CaptureFixture[str]) -> None:
    ours, bundle = barts.ours["fp32"], str(barts.directory / "fp32")
    (label,) = ours.classify([("the man", "is in")])
    (chosen,) = ours.classify_zero_shot(["the man"], ["food", "paris"])
    for words, expected in (
        (["encode", bundle, "the man\tis in"], label),
        (["classify", bundle, "the man\tis in"], label),
        (["classify", bundle, "--labels", "food,paris", "the man"], chosen),
    ):
        capfd.readouterr()
        assert status_of(words) == 0
        assert capfd.readouterr().out == f"{expected.label}\t{expected.labels[0].score:.4f}\n"
