"""Marian's own files: what is read from them is what was written, and computes what Marian does.

Oracles are Marian's equations, written out here with NumPy, and fxtranslate, the implementation of
Firefox's translations for servers.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.export import export_bundle
from dragoman.export.checkpoints import open_checkpoint, read_checkpoint
from dragoman.export.families.marian_nmt import POSITIONS
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import CheckpointError, ConfigError, ModelConfig, Transformer
from dragoman.reference_model.models import as_batch
from dragoman.runtime import load

from ...random_weights import random_transformer
from ..formats.marian_files import (
    Arrays,
    arrays_of,
    is_rounded,
    options_of,
    rounded,
    write_bin,
    write_npz,
)

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
WORDS = ["".join(random.Random(i).choices(SYLLABLES, k=1 + i % 4)) for i in range(300)]
PIECES = 60

SSRU: dict[str, Any] = {"decoder_kind": "ssru", "activation": "relu", "tie_source_target": True}
KINDS: dict[str, dict[str, Any]] = {
    "student": SSRU,
    "self-attention, swish, nothing tied": {
        "activation": "silu",
        "tie_target_output": False,
        "target_vocab_size": 72,
    },
    "gelu, norms after embeddings and stacks, target tied": {
        "activation": "quick_gelu",
        "embedding_norm": True,
        "final_norm": True,
        "target_vocab_size": 72,
    },
    "recurrent, embeddings shared, output not": SSRU | {"tie_target_output": False},
}


def model_of(**changes: Any) -> Transformer:
    """A model as it is read: the last token of the target starts decoding, and has no embedding."""
    values: dict[str, Any] = {
        "source_vocab_size": PIECES + 1,
        "target_vocab_size": PIECES + 1,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_model": 24,
        "d_ff": 40,
        "num_heads": 3,
        "norm_epsilon": 1e-6,
        "logits_bias": True,
        "positions": "learned",
        "max_source_positions": POSITIONS,
        "max_target_positions": POSITIONS,
        "end_token_id": 0,
        "final_norm": False,
        "dropout": 0.0,
    } | changes
    if not values.get("tie_source_target"):
        values["source_vocab_size"] = PIECES
    start = values["target_vocab_size"] - 1
    shared = values.get("tie_source_target", False)
    tokens = {"start_token_id": start, "pad_token_id": start if shared else 0}
    return random_transformer(ModelConfig(**values | tokens), seed=2)


def directory_of(path: Path, model: Transformer, name: str = "model.npz", **more: Any) -> Path:
    path.mkdir(exist_ok=True)
    options = options_of(model, **more.pop("options", {}))
    write = write_npz if name.endswith(".npz") else write_bin
    write(path / name, more.pop("arrays", None) or arrays_of(model), options, **more)
    return path


def read(directory: Path) -> Transformer:
    model = read_checkpoint(directory).model
    assert isinstance(model, Transformer)
    return model


def weights_of(model: Transformer) -> dict[str, NDArray[Any]]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


FORMS: dict[str, dict[str, Any]] = {
    "npz": {},
    "bin": {"name": "model.bin"},
    "int8 of Firefox": {"name": "model.ende.intgemm.alphas.bin", "int8": "browsermt"},
    "int8 of marian-nmt": {"name": "model.bin", "int8": "marian-nmt"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_that_were_written(kind: str, form: str, tmp_path: Path) -> None:
    model = model_of(**KINDS[kind])
    found = read(directory_of(tmp_path / "model", model, **FORMS[form]))
    assert found.config == model.config
    assert found.generation.suppressed_token_ids == (1, model.config.target_vocab_size - 1)
    expected = weights_of(model)
    if "int8" in form:
        for name, values in arrays_of(model).items():
            if is_rounded(name):
                integers, multiplier = rounded(values)
                values[:] = integers / multiplier  # a view of the model's own weights
    start = model.config.start_token_id
    for name, values in weights_of(found).items():
        if "positions" in name:
            continue
        rows = slice(start) if len(values) == start + 1 else slice(None)
        np.testing.assert_allclose(values[rows], expected[name][rows], rtol=1e-6, err_msg=name)
    assert not found.decoder.embedding.tokens.weight[start].any()


def layer_norm(x: NDArray[Any], arrays: Arrays, name: str, suffix: str = "") -> NDArray[Any]:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    scale, bias = (arrays[f"{name}_ln_{what}{suffix}"] for what in ("scale", "bias"))
    return np.asarray(scaled * scale + bias)


def by_hand(
    arrays: Arrays, options: Mapping[str, str], source: list[int], target: list[int]
) -> NDArray[Any]:
    """Logits [T + 1, V] before and after each token of a target, as Marian computes them."""
    arrays = {name: values.astype(np.float64) for name, values in arrays.items()}
    width, heads = int(options["dim-emb"]), int(options["transformer-heads"])

    def affine(x: NDArray[Any], name: str, letter: str) -> NDArray[Any]:
        return np.asarray(x @ arrays[f"{name}_W{letter}"] + arrays[f"{name}_b{letter}"])

    def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(1 / (1 + np.exp(-x)))

    def activation(x: NDArray[Any]) -> NDArray[Any]:
        if options["transformer-ffn-activation"] == "relu":
            return np.asarray(np.maximum(x, 0))
        steepness = {"swish": 1, "gelu": 1.702}[options["transformer-ffn-activation"]]
        return np.asarray(x * sigmoid(steepness * x))

    def positions(count: int) -> NDArray[Any]:
        scales = width // 2
        increment = math.log(10000) / (scales - 1)
        rows = [[p * math.exp(i * -increment) for i in range(scales)] for p in range(count)]
        return np.concatenate([np.sin(rows), np.cos(rows)], axis=1)

    def embedded(x: NDArray[Any], stack: str) -> NDArray[Any]:
        x = math.sqrt(width) * x + positions(len(x))
        if "n" in options["transformer-postprocess-emb"]:
            x = layer_norm(x, arrays, f"{stack}_emb", "_pre")
        return x

    def attended(name: str, x: NDArray[Any], y: NDArray[Any], *, causal: bool) -> NDArray[Any]:
        size = width // heads
        query, key, value = (
            affine(z, name, letter).reshape(len(z), heads, size).transpose(1, 0, 2)
            for letter, z in (("q", x), ("k", y), ("v", y))
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(size)
        if causal:
            scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ value
        out = affine(mixed.transpose(1, 0, 2).reshape(len(x), width), name, "o")
        return layer_norm(out + x, arrays, f"{name}_Wo")

    def fed_forward(name: str, x: NDArray[Any]) -> NDArray[Any]:
        inner = activation(affine(x, name, "1"))
        return layer_norm(affine(inner, name, "2") + x, arrays, f"{name}_ffn")

    def on_top(x: NDArray[Any], stack: str) -> NDArray[Any]:
        ends = "n" in options["transformer-postprocess-top"]
        return layer_norm(x, arrays, f"{stack}_top") if ends else x

    x = embedded(arrays.get("Wemb", arrays.get("encoder_Wemb"))[source], "encoder")  # type: ignore[index]
    for layer in range(1, int(options["enc-depth"]) + 1):
        x = attended(f"encoder_l{layer}_self", x, x, causal=False)
        x = fed_forward(f"encoder_l{layer}_ffn", x)
    encoded = on_top(x, "encoder")
    table = arrays["Wemb"] if "Wemb" in arrays else arrays["decoder_Wemb"]
    y = embedded(np.concatenate([np.zeros((1, width)), table[target]]), "decoder")
    for layer in range(1, int(options["dec-depth"]) + 1):
        name = f"decoder_l{layer}"
        if options["transformer-decoder-autoreg"] == "rnn":
            cell, states = np.zeros(width), []
            gates = sigmoid(y @ arrays[f"{name}_rnn_Wf"] + arrays[f"{name}_rnn_bf"])
            for gate, update in zip(gates, y @ arrays[f"{name}_rnn_W"], strict=True):
                cell = gate * cell + (1 - gate) * update
                states.append(np.maximum(cell, 0))
            y = layer_norm(np.array(states) + y, arrays, f"{name}_rnn_ffn")
        else:
            y = attended(f"{name}_self", y, y, causal=True)
        y = attended(f"{name}_context", y, encoded, causal=False)
        y = fed_forward(f"{name}_ffn", y)
    output = arrays.get("decoder_ff_logit_out_Wt", table)
    logits = on_top(y, "decoder") @ output.T
    return np.asarray(logits + arrays["decoder_ff_logit_out_b"])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_marians_equations(kind: str, tmp_path: Path) -> None:
    written = model_of(**KINDS[kind])
    model = read(directory_of(tmp_path / "model", written))
    generator = random.Random(3)
    for length in (1, 2, 9):
        source = [*(generator.randrange(2, PIECES) for _ in range(length - 1)), 0]
        target = [generator.randrange(2, PIECES) for _ in range(7)]
        expected = by_hand(arrays_of(written), options_of(written), source, target)
        tokens, mask = as_batch([source], model.config)
        read_tokens = torch.tensor([[model.config.start_token_id, *target]])
        with torch.inference_mode():
            found = model(tokens, mask, read_tokens)[0].numpy()
        assert expected.std() > 0.5
        np.testing.assert_allclose(found[:, :-1], expected, atol=2e-4)
        # The added token is as good as absent.
        probabilities = torch.from_numpy(found).softmax(-1)
        assert (probabilities[:, -1] < 1e-9).all()


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model with the special tokens of Marian's."""
    directory = tmp_path_factory.mktemp("vocabulary")
    generator = random.Random(0)
    lines = (" ".join(generator.choices(WORDS, k=8)) for _ in range(400))
    (directory / "texts.txt").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "texts.txt"),
        model_prefix=str(directory / "vocab.ende"),
        vocab_size=PIECES,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        minloglevel=2,
    )
    return (directory / "vocab.ende.model").rename(directory / "vocab.ende.spm")


def with_vocabulary(directory: Path, vocabulary: Path, name: str = "vocab.ende.spm") -> Path:
    (directory / name).write_bytes(vocabulary.read_bytes())
    return directory


def test_translations_are_those_of_firefox(vocabulary: Path, tmp_path: Path) -> None:
    """200 texts, token for token: the recurrent decoder, positions, the first input, the end."""
    fxtranslate = pytest.importorskip("fxtranslate", reason="has no wheel for this system")
    arrays = arrays_of(model_of(**SSRU | {"decoder_layers": 3}))
    arrays["decoder_ff_logit_out_b"] = arrays["decoder_ff_logit_out_b"] - 2
    arrays["decoder_ff_logit_out_b"][0, 0] += 2  # outputs end, some early and some late
    written = model_of(**SSRU | {"decoder_layers": 3})
    directory = directory_of(tmp_path / "model", written, "model.bin", arrays=arrays)
    with_vocabulary(directory, vocabulary)
    checkpoint = open_checkpoint(locate_checkpoint(directory))
    assert checkpoint.notes == ()
    # fxtranslate generates <unk>, which Marian does not.
    model = checkpoint.model
    assert isinstance(model, Transformer)
    model.generation = dataclasses.replace(
        model.generation, suppressed_token_ids=(model.config.start_token_id,)
    )
    (tmp_path / "bundle").mkdir()
    export_bundle(model, tmp_path / "bundle", name="m", tokenizers=checkpoint.tokenizers)
    spm = vocabulary.read_bytes()
    oracle = fxtranslate.Translator((directory / "model.bin").read_bytes(), spm, spm)
    generator = random.Random(1)
    texts = [" ".join(generator.choices(WORDS, k=1 + i % 12)) for i in range(200)]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    expected, found = [], []
    with load(tmp_path / "bundle", threads=1) as loaded:
        for text in texts:
            limit = min(2 * (len(pieces.encode(text)) + 1) + 4, 256)  # as it does
            (result,) = loaded.generate([text], max_new_tokens=limit)
            found.append(result.text)
            expected.append(oracle.translate(text))
    assert found == expected
    assert len(set(found)) > 100
    assert len({len(text or "") for text in found}) > 20


def test_texts_are_read_and_written_by_the_vocabularies(vocabulary: Path, tmp_path: Path) -> None:
    """Ids are those of the pieces, a text ends with </s>, and <unk> is not generated."""
    directory = with_vocabulary(directory_of(tmp_path / "model", model_of(**SSRU)), vocabulary)
    checkpoint = read_checkpoint(directory)
    (tmp_path / "bundle").mkdir()
    export_bundle(checkpoint.model, tmp_path / "bundle", name="m", tokenizers=checkpoint.tokenizers)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    with load(tmp_path / "bundle", threads=1) as model:
        text = "badomi kepa su torine"
        ids = pieces.encode(text)
        assert model.tokenize(text) == [*ids, 0]
        from_ids = model.generate([[*ids, 0]], max_new_tokens=9)[0]
        assert model.generate([text], max_new_tokens=9)[0].tokens == from_ids.tokens
        assert from_ids.text == pieces.decode(list(from_ids.tokens))
        assert 1 not in from_ids.tokens


def test_two_vocabularies_and_rows_without_pieces(vocabulary: Path, tmp_path: Path) -> None:
    model = model_of(activation="relu", target_vocab_size=PIECES + 4)
    directory = directory_of(tmp_path / "model", model)
    with_vocabulary(directory, vocabulary, "srcvocab.ende.spm")
    with_vocabulary(directory, vocabulary, "trgvocab.ende.spm")
    read_model = read(directory)
    assert read_model.generation.suppressed_token_ids == (
        1,
        PIECES,
        PIECES + 1,
        PIECES + 2,
        PIECES + 3,
    )
    assert read_model.generation.alignment_heads == ((1, 0),)


def test_the_vocabulary_must_be_that_of_the_model(vocabulary: Path, tmp_path: Path) -> None:
    """In the form of OPUS-MT, pieces have ids of their own, which a .yml file has others for."""
    many = model_of(activation="relu", target_vocab_size=PIECES + 66, source_vocab_size=PIECES)
    directory = directory_of(tmp_path / "many", many)
    with_vocabulary(directory, vocabulary, "srcvocab.ende.spm")
    with_vocabulary(directory, vocabulary, "trgvocab.ende.spm")
    with pytest.raises(
        DragomanError, match="expected 125 pieces, the tokens of the model, found 60"
    ):
        read(directory)
    directory = with_vocabulary(directory_of(tmp_path / "opus", model_of(**SSRU)), vocabulary)
    (directory / "opus.spm32k.vocab.yml").write_text("'</s>': 0\n<unk>: 1\n")
    with pytest.raises(
        DragomanError, match=r"found opus.spm32k.vocab.yml, which .* other ids: conv"
    ):
        read(directory)


def test_what_a_training_leaves_in_its_directory(vocabulary: Path, tmp_path: Path) -> None:
    """`model.npz` is read where there are models of each metric, and null is no value."""
    options = {"special-vocab": "~", "transformer-tied-layers": "null"}
    options |= {"ulr-trainable-transformation": "false"}
    directory = directory_of(tmp_path / "model", model_of(**SSRU), options=options)
    (directory / "model.npz.best-bleu.npz").write_bytes((directory / "model.npz").read_bytes())
    (directory / "lex.50.50.ende.s2t.bin").write_bytes(b"")
    checkpoint = read_checkpoint(with_vocabulary(directory, vocabulary))
    assert checkpoint.notes == (
        "model.npz.best-bleu.npz: weights in other formats or variants, which are not read",
        "lex.50.50.ende.s2t.bin is read by --shortlist only: otherwise every token is possible",
    )
    (directory / "model.npz").rename(directory / "another.npz")
    with pytest.raises(
        DragomanError, match=r"expected one model file of Marian, found another\.npz,"
    ):
        read(directory)


def test_compressed_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.ende.intgemm.alphas.bin.gz").write_bytes(b"")
    with pytest.raises(DragomanError, match=r"found model.*\.bin\.gz: decompress the files first$"):
        read_checkpoint(tmp_path)


def test_without_vocabularies_a_model_takes_ids(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(directory_of(tmp_path / "model", model_of(**SSRU)))
    assert checkpoint.tokenizers is None
    assert "takes and gives token ids" in checkpoint.notes[0]


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "another type": ({"type": "s2s"}, "type: expected one of transformer, found 's2s'"),
    "another cell": ({"dec-cell": "gru"}, "dec-cell: expected one of ssru, found 'gru'"),
    "a cell that is not stated": ({"dec-cell": '""'}, "dec-cell: expected one of ssru, found ''"),
    "average attention": (
        {"transformer-decoder-autoreg": "average-attention"},
        "transformer-decoder-autoreg: expected one of self-attention, rnn, found 'average-att",
    ),
    "norms before": (
        {"transformer-preprocess": "n", "transformer-postprocess": "da"},
        "transformer-preprocess: expected one of nothing, d, found 'n'; transformer-postprocess: "
        "expected one of dan, an, found 'da'",
    ),
    "another activation": (
        {"transformer-ffn-activation": "sigmoid"},
        "transformer-ffn-activation: expected one of relu, swish, gelu, found 'sigmoid'",
    ),
    "three layers in a feed-forward": (
        {"transformer-ffn-depth": "3"},
        "transformer-ffn-depth: expected 2, found 3",
    ),
    "from right to left": ({"right-left": "true"}, "right-left: this setting is not supported"),
    "factors": ({"lemma-dim-emb": "64"}, "lemma-dim-emb: this setting is not supported, found '64"),
    "no projection": ({"transformer-no-projection": "true"}, "transformer-no-projection: this"),
    "tied layers": ({"transformer-tied-layers": "[1, 1]"}, "transformer-tied-layers: this setting"),
    "two sources": ({"input-types": "[sequence, class]"}, "input-types: this setting is not supp"),
    "norms in the unit": (
        {"layer-normalization": "true"},
        "layer-normalization: expected one of false, found 'true'",
    ),
    "no number": ({"enc-depth": "-1"}, "enc-depth: expected a number, found '-1'"),
    "too many layers": ({"dec-depth": "3"}, "missing weight decoder_l3_context_Wk"),
    "embeddings that are not shared": (
        {"tied-embeddings-all": "false"},
        "missing weight encoder_Wemb; missing weight decoder_Wemb",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_are_not_supported(case: str, tmp_path: Path) -> None:
    options, problem = REFUSED[case]
    directory = directory_of(tmp_path / "model", model_of(**SSRU), options=options)
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        read(directory)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_unknown_options_are_noted(tmp_path: Path) -> None:
    options = {"transformer-new": "1", "dim-rnn": "1024"}
    directory = directory_of(tmp_path / "model", model_of(**SSRU), options=options)
    note = read_checkpoint(directory).notes[0]
    assert note == (
        "special:model.yml has a setting that is not known here and not read: transformer-new"
    )


Damage = Callable[[Path], object]


def cut(part: float) -> Damage:
    def change(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])

    return change


def with_type(number: int) -> Damage:
    """The type of the first item is another one."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[24:32] = number.to_bytes(8, "little")
        path.write_bytes(data)

    return change


def many_items(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8:16] = (2**40).to_bytes(8, "little")
    path.write_bytes(data)


DAMAGED: dict[str, tuple[Damage, str]] = {
    "the header": (cut(0.0005), "not a complete file of Marian"),
    "the middle": (cut(0.5), "not a complete file of Marian: "),
    "the end": (cut(0.9999), "not a complete file of Marian: special:model.yml needs "),
    "for AVX2 only": (with_type(0x11001), "found type 0x11001, which only some processors read"),
    "packed": (with_type(0x1801), "found type 0x1801"),
    "eight times as many bytes": (with_type(0x408), "needs "),
    "many items": (many_items, "expected a file of Marian, version 1 with at most 100000 items"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(case: str, tmp_path: Path) -> None:
    damage, problem = DAMAGED[case]
    directory = directory_of(tmp_path / "model", model_of(**SSRU), "model.bin")
    damage(directory / "model.bin")
    with pytest.raises(CheckpointError) as caught:
        read(directory)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_npz_that_is_not_whole_or_not_marians(tmp_path: Path) -> None:
    directory = directory_of(tmp_path / "model", model_of(**SSRU))
    path = directory / "model.npz"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"expected a model\.npz of Marian"):
        read(directory)
    np.savez(path, Wemb=np.zeros((3, 4), np.float32))
    with pytest.raises(CheckpointError, match=r"expected an item special:model\.yml, found none"):
        read(directory)
    np.savez(path, Wemb=np.array([{}], dtype=object))
    with pytest.raises(CheckpointError, match="expected numbers, found object"):
        read(directory)
    configuration = np.frombuffer(b"type: [transformer\0", np.int8)
    wrong: dict[str, Any] = {"special:model.yml": configuration}
    np.savez(path, **wrong)
    with pytest.raises(CheckpointError, match=r"special:model\.yml: not YAML"):
        read(directory)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4, 5), (), (0,)])
def test_a_misshapen_bias(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = model_of(**SSRU)
    arrays = arrays_of(model) | {"decoder_ff_logit_out_b": np.ones(shape, np.float32)}
    write_npz(tmp_path / "model.npz", arrays, options_of(model))
    with pytest.raises(CheckpointError, match=r"decoder_ff_logit_out_b must have shape \[61\]"):
        read(tmp_path)


def test_files_that_do_not_belong_together(vocabulary: Path, tmp_path: Path) -> None:
    directory = directory_of(
        tmp_path / "model", model_of(**SSRU | {"target_vocab_size": 31} | {"source_vocab_size": 31})
    )
    with_vocabulary(directory, vocabulary)
    with pytest.raises(DragomanError, match="expected at most 30 pieces, the tokens of the model"):
        read(directory)
    with_vocabulary(directory, vocabulary, "another.spm")
    with pytest.raises(DragomanError, match=r"one vocabulary \(\.spm\), or two whose names begin"):
        read(directory)
    write_npz(directory / "model.best.npz", {}, {})
    (directory / "model.npz").rename(directory / "model.last.npz")
    with pytest.raises(
        DragomanError, match=r"expected one model file of Marian, found model\.best"
    ):
        read(directory)
