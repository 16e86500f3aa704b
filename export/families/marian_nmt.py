"""Models of Marian NMT itself, and the students that Firefox translates with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import DragomanError, shown
from dragoman.files.text_lines import printable
from dragoman.reference_model import GenerationConfig, Transformer
from dragoman.reference_model.config import Activation
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ..formats.contents import MARIAN
from ..formats.marian import MarianFile, read_marian_file
from ..formats.tensor_files import Weights
from ..tokenizers import PieceModel, TokenizerFiles
from .checkpoint import Checkpoint, build, measure
from .ctranslate2.text import ABSENT_LOGIT
from .family import ComputedWeights, make_config

# Models are read from `model.npz` or from `.bin` with weights of 8 bits, beside SentencePiece
# vocabularies. Encoder and decoder are post-norm; the decoder has self-attention, or a recurrent
# unit (SSRU). What Marian computes is in marian-nmt/marian-dev, src/models/transformer.h:
#
# - the first input of the decoder is an embedding of zeros, at position 0. Here it is that of a
#   token which is added to the vocabulary, and never generated;
# - tokens are embedded times sqrt(d), plus sines of the position in the first half of the columns
#   and cosines in the second, with the frequencies 10000^(-i / (d/2 - 1));
# - <unk> is never generated.
#
# `hugging_face`'s family `marian` reads what `transformers` makes of such models.

POSITIONS = 512
"""Positions of both sides; Marian computes as many as a text has."""
MOST_ROWS_WITHOUT_PIECES = 64
"""Sizes are rounded up by less. Where more rows of embeddings have no piece, the tokens are those
of another vocabulary."""
EPSILON = 1e-6
BIAS, OUTPUT, LEGACY_OUTPUT = (
    "decoder_ff_logit_out_b",
    "decoder_ff_logit_out_Wt",
    "decoder_ff_logit_out_W",
)
END, UNKNOWN = 0, 1
"""Tokens of models without SentencePiece files."""

ACTIVATIONS: Mapping[str, Activation] = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}
"""Activations by Marian's names; its gelu is x * sigmoid(1.702 x)."""

SUBLAYERS = {
    "self_attention_residual.norm": "self_Wo_ln",
    "cross_attention_residual.norm": "context_Wo_ln",
    "recurrence_residual.norm": "rnn_ffn_ln",
    "feed_forward_residual.norm": "ffn_ffn_ln",
    "self_attention": "self",
    "cross_attention": "context",
    "recurrence": "rnn",
    "feed_forward": "ffn",
}
"""Marian's names of the parts of a layer; those of norms come first."""
PARTS = {
    **{f"{n}.weight": f"W{n[0]}" for n in ("query", "key", "value", "output")},
    **{f"{n}.bias": f"b{n[0]}" for n in ("query", "key", "value", "output")},
    "inner.weight": "W1",
    "inner.bias": "b1",
    "outer.weight": "W2",
    "outer.bias": "b2",
    "update.weight": "W",
    "forget.weight": "Wf",
    "forget.bias": "bf",
    "gain": "scale",
    "bias": "bias",
}
LAYER = re.compile(rf"(encoder|decoder)\.layers\.(\d+)\.({'|'.join(SUBLAYERS)})\.(.+)")


def read_marian(directory: Path) -> Checkpoint:
    """Read a model and its tokenizers."""
    file = read_marian_file(directory)
    notes = MARIAN.notes("special:model.yml", file.options)
    problems = MARIAN.unsupported(file.options)
    fields, shared, layer = _fields(file, problems)
    tables = ("Wemb", "Wemb") if shared else ("encoder_Wemb", "decoder_Wemb")
    measured = measure(file.weights, dict.fromkeys(tables, 2), file.path, problems)
    sizes = [shape[0] for shape in (measured[0], measured[-1])]
    tokenizers, special = _tokenizers(directory, sizes, notes)
    if tokenizers is None:
        notes.append("no vocabularies (.spm): the bundle takes and gives token ids")
    end, suppressed = special
    weights, start = _with_start(file, tables), sizes[1]
    fields |= {
        "source_vocab_size": sizes[0] + shared,
        "target_vocab_size": sizes[1] + 1,
        "start_token_id": start,
        "end_token_id": end,
        "pad_token_id": start if shared else END,
    }
    config = make_config(problems, **fields)
    heads = ((min(layer, config.decoder_layers) - 1, 0),)
    rules = GenerationConfig(suppressed_token_ids=(*suppressed, start), alignment_heads=heads)
    model = build(
        config,
        partial(Transformer, config, rules),
        weights,
        partial(weight_name, tables=tables),
        file.path,
        computed=_positions(config.d_model),
    )
    return Checkpoint(model, tokenizers, tuple(notes))


def weight_name(name: str, tables: tuple[str, str]) -> str:
    """Return Marian's name of a weight; `tables` are those of the embeddings of both sides."""
    if found := LAYER.fullmatch(name):
        stack, layer, part, weight = found.groups()
        return f"{stack}_l{int(layer) + 1}_{SUBLAYERS[part]}_{PARTS[weight]}"
    stack, _, rest = name.partition(".")
    match rest:
        case "embedding.tokens.weight":
            return tables[stack == "decoder"]
        case "embedding.norm.gain" | "embedding.norm.bias":
            return f"{stack}_emb_ln_{PARTS[rest.rpartition('.')[2]]}_pre"
        case "norm.gain" | "norm.bias":
            return f"{stack}_top_ln_{PARTS[rest.rpartition('.')[2]]}"
    return {"output.weight": OUTPUT, "output.bias": BIAS}.get(name, name)


def _position_table(positions: int, d_model: int) -> Tensor:
    """Compute Marian's sinusoids, [positions, d_model], in float64; returned in float32."""
    half = d_model // 2
    frequency = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / max(1, half - 1))
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1).float()


def _positions(d_model: int) -> ComputedWeights:
    names = [f"{stack}.embedding.positions.table" for stack in ("encoder", "decoder")]
    return dict.fromkeys(names, lambda: _position_table(POSITIONS, d_model))


def _fields(file: MarianFile, problems: list[str]) -> tuple[dict[str, Any], bool, int]:
    """Return fields of a `ModelConfig`, whether both sides share embeddings, and a layer.

    Its first head aligns words; it counts from 1, and is by default beyond the last.
    """
    options = file.options

    def text(name: str, default: str, expected: Mapping[str, object]) -> str:
        value = options.get(name, default)
        if not isinstance(value, str) or value not in expected:
            known = ", ".join(name or "nothing" for name in expected)
            problems.append(f"{name}: expected one of {known}, found {shown(value)}")
            return default
        return value

    def number(name: str, default: int) -> int:
        value = options.get(name, str(default))
        if not isinstance(value, str) or not value.isdecimal() or len(value) > 9:
            problems.append(f"{name}: expected a number, found {shown(value)}")
            return default
        return int(value)

    def flag(name: str) -> bool:
        return text(name, "false", {"true": True, "false": False}) == "true"

    text("type", "amun", {"transformer": True})
    decoder = {"self-attention": "self_attention", "rnn": "ssru"}
    kind = decoder[text("transformer-decoder-autoreg", "self-attention", decoder)]
    if kind == "ssru":
        text("dec-cell", "gru", {"ssru": True})
        text("layer-normalization", "false", {"false": True})
    for name in ("transformer-ffn-depth", "transformer-decoder-ffn-depth"):
        if number(name, 2) not in (0, 2):
            problems.append(f"{name}: expected 2, found {options[name]}")
    # Dropout (d) is for training. In versions of Marian, norms before attention (n) differ.
    text("transformer-preprocess", "", {"": True, "d": True})
    text("transformer-postprocess", "dan", {"dan": True, "an": True})
    normalized = text("transformer-postprocess-emb", "d", {"d": False, "": False, "nd": True})
    top = text("transformer-postprocess-top", "", {"": False, "n": True, "nd": True, "d": False})
    shared = flag("tied-embeddings-all") or flag("tied-embeddings-src")
    tied = flag("tied-embeddings-all") or flag("tied-embeddings")
    activation = text("transformer-ffn-activation", "swish", ACTIVATIONS)
    layer = 10**9
    if options.get("transformer-guided-alignment-layer", "last") != "last":
        layer = max(1, number("transformer-guided-alignment-layer", 1))
    inner = {f"{stack}_l1_ffn_W1": 2 for stack in ("encoder", "decoder")}
    (d_model, d_ff), _ = measure(file.weights, inner, file.path, problems)
    return (
        {
            "encoder_layers": number("enc-depth", 1),
            "decoder_layers": number("dec-depth", 1),
            "d_model": d_model,
            "d_ff": d_ff,
            "num_heads": number("transformer-heads", 8),
            "decoder_kind": kind,
            "activation": ACTIVATIONS.get(activation, "relu"),
            "norm_epsilon": EPSILON,
            "embedding_norm": "n" in normalized,
            "final_norm": "n" in top,
            "logits_bias": True,
            "tie_source_target": shared,
            "tie_target_output": tied,
            "positions": "learned",
            "max_source_positions": POSITIONS,
            "max_target_positions": POSITIONS,
            "dropout": 0.0,
        },
        shared,
        layer,
    )


def _with_start(file: MarianFile, tables: tuple[str, str]) -> Weights:
    """Return weights in the shapes of the model, with a token whose embedding is zeros."""
    weights: Weights = {}
    for name, values in file.weights.items():
        is_table = name in (*tables, OUTPUT)
        if values.dim() == 2 and values.shape[0] == 1 and not is_table:
            weights[name] = values[0]
        else:
            weights[name] = values.t() if values.dim() == 2 and not is_table else values
    if LEGACY_OUTPUT in weights:
        weights[OUTPUT] = weights.pop(LEGACY_OUTPUT)
    rows = len(weights[tables[1]])
    for name in dict.fromkeys((tables[1], OUTPUT)):
        if name in weights and weights[name].dim() == 2:
            table = weights[name]
            weights[name] = torch.cat([table, table.new_zeros(1, *table.shape[1:])])
    bias = weights.get(BIAS, torch.zeros(rows))
    if bias.dim() == 1:  # `build` names weights of other shapes
        bias = torch.cat([bias, (bias.mean() + ABSENT_LOGIT)[None]])
    weights[BIAS] = bias
    return weights


def _tokenizers(
    directory: Path, sizes: list[int], notes: list[str]
) -> tuple[TokenizerFiles | None, tuple[int, list[int]]]:
    """Find the SentencePiece models of both sides, with so many tokens at most.

    Returns the tokenizers, the end token, and the tokens that are never generated: <unk>, and those
    without a piece.
    """
    found = _vocabularies(directory)
    if not found:
        return None, (END, [UNKNOWN])
    sides, ends, unknown = [], [], []
    for path, size in zip((found[0], found[-1]), sizes, strict=True):
        model = load_sentencepiece(path)
        count = model.get_piece_size()
        if count > size:
            raise DragomanError(
                f"{path}: expected at most {size} pieces, the tokens of the model, found {count}"
            )
        if size - count > MOST_ROWS_WITHOUT_PIECES:
            raise DragomanError(
                f"{path}: expected {size} pieces, the tokens of the model, found {count}: the "
                "model has another vocabulary"
            )
        if size > count:
            notes.append(f"{path.name} has {count} pieces for {size} tokens: the last have none")
        if not 0 <= model.eos_id() < count:
            raise DragomanError(f"{path}: expected a piece that ends a text, found none")
        ids = [i for i in range(count) if not model.is_control(i) and not model.is_unknown(i)]
        unk = model.unk_id() if model.unk_id() >= 0 else None
        sides.append(PieceModel(path, {model.id_to_piece(i): i for i in ids}, unk))
        ends.append(model.eos_id())
        unknown = [*([] if unk is None else [unk]), *range(count, size)]
    source, target = sides
    files = TokenizerFiles(
        source, source if found[0] == found[-1] else target, SourceTemplate((), (ends[0],))
    )
    return files, (ends[1], unknown)


def _vocabularies(directory: Path) -> list[Path]:
    """Find the SentencePiece models whose pieces are the tokens of both sides."""
    others = sorted(path.name for path in directory.glob("*vocab*.y*ml"))
    if others:  # in the form of OPUS-MT, *.spm only split texts
        raise DragomanError(
            f"{directory}: expected vocabularies that are SentencePiece models (.spm), found "
            f"{', '.join(map(printable, others[:2]))}, which gives the tokens other ids: convert "
            "the model for Hugging Face's transformers, by its convert_marian_to_pytorch.py"
        )
    names = sorted(path.name for path in directory.glob("*.spm"))
    if len(names) == 1:
        return [directory / names[0]]
    for source, target in (("src", "trg"), ("source", "target")):
        pair = [[name for name in names if name.startswith(side)] for side in (source, target)]
        if [len(side) for side in pair] == [1, 1] and len(names) == 2:
            return [directory / side[0] for side in pair]
    if names:
        raise DragomanError(
            f"{directory}: expected one vocabulary (.spm), or two whose names begin with src and "
            f"trg, found {', '.join(names)}"
        )
    return []
