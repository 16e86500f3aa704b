"""Which tensors a bundle takes and gives under the Open Inference Protocol v2, here and in Triton.

A model that decodes takes `text` [N] (BYTES), or `audio` (BYTES: files), and gives `text`, `score`,
`log_probability` and `finish_reason`, each [N]. An encoder alone takes `text` and gives `embedding`
[N, D] (FP32) or, of another head, `result` [N] (BYTES: JSON).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...abilities import ENCODER_METHODS
from ...decoding.rejection import RejectedError
from ...decoding.results import Result
from ...format.head import Head
from ...format.manifest import Manifest
from ..engine.texts import ABILITIES
from .bodies import BodyError
from .options import MOST_SOURCES
from .tensors import Tensor, TensorError

OF_TRITON = frozenset({"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"})
"""Parameters that clients send and that mean nothing here, but for `timeout`, in microseconds."""


@dataclass(frozen=True)
class TensorSpec:
    """
    Attributes:
        shape: -1 where any size may be
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


def input_of(manifest: Manifest) -> TensorSpec:
    """The tensor that holds what is to be read."""
    return TensorSpec("text" if manifest.audio is None else "audio", "BYTES", (-1,))


def outputs_of(manifest: Manifest) -> list[TensorSpec]:
    if manifest.head is None:
        datatypes = {
            "text": "BYTES",
            "score": "FP32",
            "log_probability": "FP32",
            "finish_reason": "BYTES",
        }
        return [TensorSpec(name, datatype, (-1,)) for name, datatype in datatypes.items()]
    if manifest.head.task == "embedding":
        return [TensorSpec("embedding", "FP32", (-1, manifest.head.outputs))]
    return [TensorSpec("result", "BYTES", (-1,))]


def texts_of(tensors: Mapping[str, Tensor]) -> list[Any]:
    """Texts [N] or [N, 1]; of models that read pairs, [N, 2].

    Raises:
        TensorError: there is something else, or more than `MOST_SOURCES`.
    """
    tensor = _input(tensors, "text")
    shape = tensor.values.shape
    if not 1 <= len(shape) <= 2 or shape[1:] not in ((), (1,), (2,)):
        raise TensorError(f"text: expected shape [N], [N, 1] or [N, 2], found {list(shape)}")
    _check_number("text", shape[0])
    rows = tensor.values.reshape(shape[0], *(shape[1:] or (1,)))
    try:
        texts = [[value.decode() for value in row] for row in rows.tolist()]
    except UnicodeDecodeError as error:
        raise TensorError(f"text: expected UTF-8: {error}") from error
    return [row[0] if len(row) == 1 else tuple(row) for row in texts]


def files_of(tensors: Mapping[str, Tensor]) -> list[bytes]:
    """Audio files.

    Raises:
        TensorError: there is something else, or more than `MOST_SOURCES`.
    """
    values = _input(tensors, "audio").values
    _check_number("audio", values.size)
    return values.ravel().tolist()


def decoded_tensors(results: Sequence[Result]) -> list[Tensor]:
    """
    Raises:
        RejectedError: an input could not be decoded; names the first.
    """
    _refuse_errors(results)
    texts = [" ".join(map(str, r.tokens)) if r.text is None else r.text for r in results]
    return [
        bytes_tensor("text", texts),
        _numbers("score", [r.score for r in results]),
        _numbers("log_probability", [r.log_probability for r in results]),
        bytes_tensor("finish_reason", [r.finish_reason for r in results]),
    ]


def reading_of(head: Head, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """How an encoder alone reads texts: a method of `EncoderFrontEnd`, and its keywords.

    Raises:
        BodyError: a parameter is unknown.
    """
    unknown = sorted(parameters.keys() - {"truncate"})
    if unknown:
        raise BodyError(f"unknown parameters: {', '.join(unknown):.200}")
    _, ability = ENCODER_METHODS[head.task]
    (method,) = [name for name, known in ABILITIES.items() if known == ability]
    options: dict[str, Any] = {"truncate": bool(parameters.get("truncate", False))}
    options |= {"top": 5} if method == "fill" else {}
    options |= {"longest": 15} if method == "answer" else {}
    return method, options


def read_tensors(head: Head, found: Sequence[Any]) -> list[Tensor]:
    """What an encoder alone made of texts.

    Raises:
        RejectedError: a text could not be read; names the first.
    """
    _refuse_errors(found)
    if head.task == "embedding":
        vectors = np.array([one.vector for one in found], np.float32)
        return [Tensor("embedding", "FP32", vectors.reshape(len(found), head.outputs))]
    texts = [json.dumps(dataclasses.asdict(one), ensure_ascii=False) for one in found]
    return [bytes_tensor("result", texts)]


def bytes_tensor(name: str, texts: Sequence[str]) -> Tensor:
    values: NDArray[Any] = np.empty(len(texts), object)
    values[:] = [text.encode() for text in texts]
    return Tensor(name, "BYTES", values)


def _numbers(name: str, numbers: Sequence[float]) -> Tensor:
    """Scores may be larger than FP32 holds: they are the largest that it does."""
    most = np.finfo(np.float32).max
    return Tensor(name, "FP32", np.clip(np.array(numbers), -most, most).astype(np.float32))


def _refuse_errors(results: Sequence[Any]) -> None:
    for index, result in enumerate(results):
        if result.error is not None:
            raise RejectedError(f"{index}: {result.error}")


def _check_number(name: str, number: int) -> None:
    if number > MOST_SOURCES:
        raise TensorError(f"{name}: expected at most {MOST_SOURCES} of them, found {number}")


def _input(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if set(tensors) != {name}:
        found = ", ".join(sorted(tensors)) or "none"
        raise TensorError(f"inputs: expected {name}, found {found:.200}")
    if tensors[name].datatype != "BYTES":
        raise TensorError(f"{name}: expected BYTES, found {tensors[name].datatype}")
    return tensors[name]
