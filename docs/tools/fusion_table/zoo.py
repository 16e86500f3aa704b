"""The models, exporters and opsets of the table."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from docs.tools.fusion_table.exported_model import Counts, ExportedModel
from docs.tools.fusion_table.models import (
    AttentionKind,
    Family,
    OneStackFamily,
    decoder_step,
    encoder_decoder,
    language_model_step,
    one_stack,
    plain_layer,
    torch_transformer,
)

PLAIN = Counts(attentions=1, norms=2, gelus=1)
TORCH = Counts(attentions=3, norms=7, gelus=2)
ENCODER_DECODERS: dict[Family, Counts] = {
    "marian": Counts(attentions=3, norms=5, gelus=2),
    "bart": Counts(attentions=3, norms=7, gelus=2),
    "t5": Counts(attentions=3, norms=7, gelus=2),
}
DECODER_STEPS: dict[Family, Counts] = {
    "marian": Counts(attentions=2, norms=3, gelus=1),
    "t5": Counts(attentions=2, norms=4, gelus=1),
}
ALONE: dict[OneStackFamily, Counts] = {
    "bert": Counts(attentions=1, norms=3, gelus=1),
    "gpt2": Counts(attentions=1, norms=3, gelus=1),
}
MODEL_TYPES: dict[Family, Literal["bart", "t5"]] = {"marian": "bart", "bart": "bart", "t5": "t5"}
"""For ONNX Runtime's optimizer, which has no separate type for Marian."""


def _encoder_decoder(
    family: Family, kind: AttentionKind, opset: int, *, dynamo: bool
) -> ExportedModel:
    return ExportedModel(
        f"{family} {kind}, opset {opset}",
        partial(encoder_decoder, family, kind),
        ENCODER_DECODERS[family],
        MODEL_TYPES[family],
        opset,
        dynamo,
    )


def _decoder_step(family: Family, kind: AttentionKind, opset: int) -> ExportedModel:
    return ExportedModel(
        f"{family} {kind} step with past, opset {opset}",
        partial(decoder_step, family, kind),
        DECODER_STEPS[family],
        MODEL_TYPES[family],
        opset,
        dynamo=True,
    )


def _one_stack(
    family: OneStackFamily, kind: AttentionKind, opset: int, *, dynamo: bool
) -> ExportedModel:
    return ExportedModel(
        f"{family} {kind}, opset {opset}",
        partial(one_stack, family, kind),
        ALONE[family],
        family,
        opset,
        dynamo,
    )


def _torch_transformer(opset: int, *, dynamo: bool, dynamic: bool = False) -> ExportedModel:
    name = f"torch.nn.Transformer, opset {opset}"
    return ExportedModel(name, torch_transformer, TORCH, "bert", opset, dynamo, dynamic)


ZOO = [
    *(
        ExportedModel(f"plain, opset {opset}", plain_layer, PLAIN, "bert", opset, dynamo=False)
        for opset in (11, 13)
    ),
    _torch_transformer(14, dynamo=False),
    _torch_transformer(17, dynamo=False),
    _torch_transformer(18, dynamo=True),
    _torch_transformer(23, dynamo=True),
    *(
        _encoder_decoder(family, kind, 17, dynamo=False)
        for family in ENCODER_DECODERS
        for kind in get_args(AttentionKind)
    ),
    _encoder_decoder("marian", "eager", 18, dynamo=True),
    _encoder_decoder("marian", "sdpa", 20, dynamo=True),
    _encoder_decoder("bart", "sdpa", 23, dynamo=True),
    _encoder_decoder("bart", "eager", 24, dynamo=True),
    _encoder_decoder("t5", "eager", 20, dynamo=True),
    _decoder_step("marian", "sdpa", 20),
    _decoder_step("t5", "sdpa", 20),
    *(_one_stack(family, "eager", 17, dynamo=False) for family in ALONE),
    _one_stack("bert", "sdpa", 20, dynamo=True),
    _one_stack("gpt2", "eager", 18, dynamo=True),
    _one_stack("gpt2", "sdpa", 20, dynamo=True),
    ExportedModel(
        "gpt2 sdpa step with past, opset 20",
        partial(language_model_step, "sdpa"),
        ALONE["gpt2"],
        "gpt2",
        20,
        dynamo=True,
    ),
]
"""Opsets below 18 by PyTorch's TorchScript exporter, the others by its torch.export exporter."""

REFUSED = [
    _torch_transformer(11, dynamo=False, dynamic=True),
    _encoder_decoder("t5", "sdpa", 23, dynamo=True),
]
"""What PyTorch's exporters cannot export."""
