"""Writes model files of Marian from reference models: `model.npz`, and `.bin` of both kinds.

The layout is that of marian-nmt/marian-dev, src/common/binary.cpp, and of browsermt/marian-dev,
src/tensors/cpu/expression_graph_packable.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.reference_model import Transformer

Arrays = dict[str, NDArray[Any]]

INT8 = {"browsermt": 0x4101, "marian-nmt": 0x10001}
ACTIVATIONS = {"relu": "relu", "silu": "swish", "quick_gelu": "gelu"}


def options_of(model: Transformer, **changes: str) -> dict[str, str]:
    """What Marian writes into `special:model.yml` of such a model, as far as it matters."""
    config, activation = model.config, model.config.activation
    shared, tied = config.tie_source_target, config.tie_target_output
    return {
        "version": "v1.12.0 65bf82f 2023-02-21 09:56:29 -0800",
        "type": "transformer",
        "dim-vocabs": "[0, 0]",
        "dim-emb": str(config.d_model),
        "enc-depth": str(config.encoder_layers),
        "dec-depth": str(config.decoder_layers),
        "dec-cell": "ssru",
        "tied-embeddings": str(tied and not shared).lower(),
        "tied-embeddings-src": str(shared and not tied).lower(),
        "tied-embeddings-all": str(shared and tied).lower(),
        "transformer-heads": str(config.num_heads),
        "transformer-dim-ffn": str(config.d_ff),
        "transformer-ffn-activation": ACTIVATIONS[activation],
        "transformer-preprocess": '""',
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "nd" if config.embedding_norm else "d",
        "transformer-postprocess-top": "n" if config.has_final_norm else '""',
        "transformer-decoder-autoreg": (
            "self-attention" if config.decoder_kind == "self_attention" else "rnn"
        ),
        "right-left": "false",
        "skip": "false",
    } | changes


def arrays_of(model: Transformer) -> Arrays:
    """The weights by Marian's names: matrices [inputs, outputs], vectors [1, n].

    The last token, which starts decoding, is not among them.
    """
    shared = model.config.tie_source_target
    arrays: Arrays = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        stack, _, rest = name.partition(".")
        if "positions" in name:
            continue
        if rest == "embedding.tokens.weight":
            table = "Wemb" if shared else f"{stack}_Wemb"
            own = shared or stack == "decoder"
            arrays[table] = values[:-1] if own else values
        elif name == "output.weight":
            arrays["decoder_ff_logit_out_Wt"] = values[:-1]
        elif name == "output.bias":
            arrays["decoder_ff_logit_out_b"] = values[None, :-1]
        elif rest.startswith("layers."):
            _, layer, part, *inner = rest.split(".")
            theirs = f"{stack}_l{int(layer) + 1}_" + _of_layer(part, ".".join(inner))
            arrays[theirs] = values.T if values.ndim == 2 else values[None]
        else:
            place = "emb_ln_{}_pre" if "embedding" in rest else "top_ln_{}"
            what = "scale" if rest.endswith("gain") else "bias"
            arrays[f"{stack}_" + place.format(what)] = values[None]
    return arrays


def _of_layer(part: str, rest: str) -> str:
    if part.endswith("_residual"):
        norm = {
            "self_attention_residual": "self_Wo",
            "cross_attention_residual": "context_Wo",
            "recurrence_residual": "rnn_ffn",
            "feed_forward_residual": "ffn_ffn",
        }[part]
        return f"{norm}_ln_{'scale' if rest.endswith('gain') else 'bias'}"
    weight, _, kind = rest.partition(".")
    letter = "W" if kind == "weight" else "b"
    match part:
        case "self_attention" | "cross_attention":
            return f"{'self' if part[0] == 's' else 'context'}_{letter}{weight[0]}"
        case "recurrence":
            return {"update": "rnn_W", "forget": f"rnn_{letter}f"}[weight]
    return f"ffn_{letter}{1 if weight == 'inner' else 2}"


def yaml_of(options: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\n" for name, value in options.items()).encode() + b"\0"


def write_npz(path: Path, arrays: Arrays, options: Mapping[str, str]) -> None:
    configuration = np.frombuffer(yaml_of(options), np.int8)
    named: dict[str, Any] = arrays | {"special:model.yml": configuration}
    np.savez(path, **named)


def is_rounded(name: str) -> bool:
    """Whether Marian rounds a weight: matrices of products, and tables of embeddings."""
    return "Wemb" in name or ("_W" in name[-4:] and "_ln_" not in name)


def rounded(values: NDArray[Any]) -> tuple[NDArray[np.int8], np.float32]:
    """Integers, and what they are divided by."""
    multiplier = np.float32(127) / np.abs(values).max()
    return np.clip(np.rint(values * multiplier), -127, 127).astype(np.int8), multiplier


def write_bin(
    path: Path, arrays: Arrays, options: Mapping[str, str], int8: str | None = None
) -> None:
    """Write a file.

    Args:
        int8: whose type of 8 bits products have; None: all is float32
    """
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    if int8 == "browsermt":  # of the product with embeddings
        arrays = arrays | {"none_QuantMultA": np.array([[17.0]])}
    for name, values in arrays.items():
        if int8 is not None and is_rounded(name):
            integers, multiplier = rounded(values)
            stored = integers if "Wemb" in name else integers.T
            data = np.ascontiguousarray(stored).tobytes() + struct.pack("<f", multiplier)
            items.append((name, INT8[int8], values.shape, _padded(data)))
            if int8 == "browsermt":
                scale = np.array([[17.0]], np.float32).tobytes()
                items.append((f"{name}_QuantMultA", 0x404, (1, 1), _padded(scale)))
        else:
            data = np.ascontiguousarray(values, np.float32).tobytes()
            items.append((name, 0x404, values.shape, _padded(data)))
    configuration = yaml_of(options)
    items.append(("special:model.yml", 0x101, (len(configuration),), configuration))
    head = struct.pack("<2Q", 1, len(items))
    names = [name.encode() + b"\0" for name, *_ in items]
    for encoded, (_, kind, shape, data) in zip(names, items, strict=True):
        head += struct.pack("<4Q", len(encoded), kind, len(shape), len(data))
    head += b"".join(names)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    skipped = 256 - (len(head) + 8) % 256
    path.write_bytes(
        head + struct.pack("<Q", skipped) + bytes(skipped) + b"".join(item[3] for item in items)
    )


def _padded(data: bytes) -> bytes:
    """What follows has no meaning, and is not zero."""
    return data + b"\xa5" * (math.ceil(len(data) / 256) * 256 - len(data))
