"""Whole models that are not ours, with random weights, as the exporters people use write them."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, FEED, VOCAB = 32, 4, 48, 61
BATCH, SOURCE, TARGET, PAST = 2, 7, 5, 3

Kind = Literal["eager", "sdpa"]
Made = tuple[nn.Module, dict[str, Tensor]]
"""A model and inputs to trace it with."""


@dataclass(frozen=True)
class Counts:
    """Operators of a model, whatever its graph spells them as."""

    attentions: int
    norms: int
    gelus: int


@dataclass(frozen=True)
class ExportedModel:
    """A model, an exporter and an opset.

    Attributes:
        counts: what the model holds, counted in its source
        family: what `onnxruntime.transformers.optimizer` is told it is
        dynamic: whether batch and lengths stay open
        dynamo: torch.export's exporter; otherwise TorchScript's
    """

    name: str
    make: Callable[[], Made]
    counts: Counts
    family: str
    opset: int
    dynamo: bool
    dynamic: bool = True

    def export(self) -> ir.Model:
        """A fresh graph."""
        return ir.from_proto(onnx.load_from_string(serialized(self)))

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The inputs it was traced with: the last row's mask ends early."""
        return {name: value.numpy() for name, value in _filled(self)[1].items()}

    def expected(self) -> list[NDArray[np.generic]]:
        """What PyTorch gives for them."""
        module, inputs = _filled(self)
        with torch.no_grad():
            found = module(*inputs.values())
        return [value.numpy() for value in torch.utils._pytree.tree_leaves(found)]


def _filled(model: ExportedModel) -> Made:
    torch.manual_seed(0)
    module, inputs = model.make()
    # Weights as initialized are so small that a wrong attention would not show in the output;
    # gains of one and biases of zero would hide one that went missing.
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=1.5 / math.sqrt(parameter.shape[-1]))
    return module.eval(), inputs


@cache
def serialized(model: ExportedModel) -> bytes:
    """The ONNX file; exported once."""
    module, inputs = _filled(model)
    file: Any = io.BytesIO()
    settings: dict[str, Any] = {"input_names": list(inputs), "opset_version": model.opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not model.dynamo:
            axes = {name: _axes(name, value) for name, value in inputs.items()}
            settings["dynamic_axes"] = axes if model.dynamic else {}
            torch.onnx.export(module, tuple(inputs.values()), file, dynamo=False, **settings)
        else:
            dims = {name: torch.export.Dim(name) for name in ("batch", "source", "target", "past")}
            shapes: Any = tuple(
                {axis: dims[at] for axis, at in _axes(name, value).items()}
                for name, value in inputs.items()
            )
            # A star argument's shapes are a tuple within the tuple.
            plain = sum(name.startswith("past_") for name in inputs)
            if plain:
                shapes = (*shapes[:-plain], shapes[-plain:])
            settings["dynamic_shapes"] = shapes if model.dynamic else None
            program = torch.onnx.export(
                module, tuple(inputs.values()), dynamo=True, verbose=False, **settings
            )
            assert program is not None
            program.save(file)
    written: bytes = file.getvalue()
    return written


def _axes(name: str, value: Tensor) -> dict[int, str]:
    length = {"ids": "source", "mask": "source", "hidden": "source", "target": "target"}
    if name.startswith("past_"):
        return {0: "batch", 2: "past" if "self" in name else "source"}
    found = {0: "batch"}
    if value.ndim > 1 and name in length and value.shape[1] > 1:
        found[1] = length[name]
    return found


class Logits(nn.Module):
    """A Hugging Face encoder-decoder, all at once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, target: Tensor) -> Any:
        return self.model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=target, use_cache=False
        ).logits


class Step(nn.Module):
    """Its decoder for one token, with past keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, mask: Tensor, hidden: Tensor, *past: Tensor) -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        own, cross = DynamicCache(), DynamicCache()
        own.update(past[0], past[1], 0)
        cross.update(past[2], past[3], 0)
        cache = EncoderDecoderCache(own, cross)
        cache.is_updated = {0: True}
        return self.model(
            encoder_outputs=(hidden,),
            attention_mask=mask,
            decoder_input_ids=target,
            past_key_values=cache,
            use_cache=True,
        ).logits


def _hugging_face(family: str, kind: Kind) -> Any:
    import transformers

    sizes: dict[str, Any] = {"vocab_size": VOCAB, "d_model": WIDTH, "decoder_start_token_id": 0}
    if family == "t5":
        config: Any = transformers.T5Config(
            **sizes,
            d_kv=WIDTH // HEADS,
            num_heads=HEADS,
            num_layers=1,
            d_ff=FEED,
            feed_forward_proj="gated-gelu",
        )
        make: Any = transformers.T5ForConditionalGeneration
    else:
        marian = family == "marian"
        make = transformers.MarianMTModel if marian else transformers.BartForConditionalGeneration
        config = (transformers.MarianConfig if marian else transformers.BartConfig)(
            **sizes,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=FEED,
            decoder_ffn_dim=FEED,
            max_position_embeddings=24,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=1,
            forced_eos_token_id=None,
            activation_function="gelu",
        )
    config._attn_implementation = kind
    return make(config)


def _tokens() -> dict[str, Tensor]:
    mask = torch.ones(BATCH, SOURCE, dtype=torch.long)
    mask[-1, -2:] = 0
    return {"ids": torch.randint(2, VOCAB, (BATCH, SOURCE)), "mask": mask}


def _whole(family: str, kind: Kind) -> Made:
    target = torch.randint(2, VOCAB, (BATCH, TARGET))
    return Logits(_hugging_face(family, kind)), {**_tokens(), "target": target}


def _step(family: str, kind: Kind) -> Made:
    lengths = {"self_key": PAST, "self_value": PAST, "cross_key": SOURCE, "cross_value": SOURCE}
    past = {
        f"past_{name}": torch.randn(BATCH, HEADS, length, WIDTH // HEADS)
        for name, length in lengths.items()
    }
    return Step(_hugging_face(family, kind)), {
        "target": torch.randint(2, VOCAB, (BATCH, 1)),
        "mask": _tokens()["mask"],
        "hidden": torch.randn(BATCH, SOURCE, WIDTH),
        **past,
    }


class TorchTransformer(nn.Module):
    """torch.nn.Transformer, with padding and causal masks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(
            WIDTH, HEADS, 1, 1, FEED, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, ids: Tensor, target: Tensor, padding: Tensor) -> Any:
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.model(
            ids,
            target,
            tgt_mask=causal,
            tgt_is_causal=False,  # whether it is would be looked up in the mask's values
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )


def _torch_transformer() -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TorchTransformer()
    return model, {
        "ids": torch.randn(BATCH, SOURCE, WIDTH),
        "target": torch.randn(BATCH, TARGET, WIDTH),
        "padding": _tokens()["mask"] == 0,
    }


class PlainLayer(nn.Module):
    """An encoder layer as tutorials write it: masked_fill, softmax, matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, FEED), nn.Linear(FEED, WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            projection(hidden).view(-1, hidden.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)
            for projection in list(self.projections)[:3]
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        mixed = scores.softmax(-1) @ v
        mixed = mixed.transpose(1, 2).reshape(hidden.shape)
        hidden = self.norms[0](hidden + self.projections[3](mixed))
        output: Tensor = self.norms[1](hidden + self.down(F.gelu(self.up(hidden))))
        return output


def _plain() -> Made:
    return PlainLayer(), {"hidden": torch.randn(BATCH, SOURCE, WIDTH), "mask": _tokens()["mask"]}


MARIAN, BART, T5 = Counts(3, 5, 2), Counts(3, 7, 2), Counts(3, 7, 2)
MARIAN_STEP, T5_STEP = Counts(2, 3, 1), Counts(2, 4, 1)
TORCH, PLAIN = Counts(3, 7, 2), Counts(1, 2, 1)


def _zoo() -> list[ExportedModel]:
    zoo = [
        ExportedModel(f"plain, opset {opset}", _plain, PLAIN, "bert", opset, False)
        for opset in (11, 13)
    ]
    for opset, dynamo in ((14, False), (17, False), (18, True), (23, True)):
        name = f"torch.nn.Transformer, opset {opset}"
        zoo.append(
            ExportedModel(name, _torch_transformer, TORCH, "bert", opset, dynamo, dynamic=False)
        )
    kinds: tuple[Kind, ...] = ("eager", "sdpa")
    for family, counts in (("marian", MARIAN), ("bart", BART), ("t5", T5)):
        told = "t5" if family == "t5" else "bart"
        for kind in kinds:
            make = partial(_whole, family, kind)
            name = f"{family} {kind}, opset 17"
            zoo.append(ExportedModel(name, make, counts, told, 17, False))
    for form, family, kind, opset, counts in (
        (_whole, "marian", kinds[0], 18, MARIAN),
        (_whole, "marian", kinds[1], 20, MARIAN),
        (_whole, "bart", kinds[1], 23, BART),
        (_whole, "bart", kinds[0], 24, BART),
        (_whole, "t5", kinds[0], 20, T5),
        (_step, "marian", kinds[1], 20, MARIAN_STEP),
        (_step, "t5", kinds[1], 20, T5_STEP),
    ):
        told = "t5" if family == "t5" else "bart"
        past = " step with past" if form is _step else ""
        name = f"{family} {kind}{past}, opset {opset}"
        zoo.append(ExportedModel(name, partial(form, family, kind), counts, told, opset, True))
    return zoo


ZOO = _zoo()
"""Opsets below 18 by TorchScript's exporter, the others by torch.export's."""

REFUSED = [
    ExportedModel("torch.nn.Transformer, opset 11", _torch_transformer, TORCH, "bert", 11, False),
    ExportedModel("t5 sdpa, opset 23", partial(_whole, "t5", "sdpa"), T5, "t5", 23, True),
]
"""What PyTorch's exporters themselves do not take."""
