"""What a request of Triton's Python backend asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..apis.bodies import BodyError, json_object
from ..apis.open_inference import OF_TRITON
from ..apis.tensors import Tensor, TensorError
from .config import OPTIONS

OF_THE_SERVER = "triton_"
"""How the names of parameters begin that Triton adds."""


@dataclass(frozen=True)
class Asked:
    """
    Attributes:
        options: of decoding or reading, by name
        stream: whether there is to be an answer for each token
        seconds: that it may take; None: no limit of its own
    """

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    stream: bool
    seconds: float | None


def asked_of(request: Any) -> Asked:
    """
    Args:
        request: a `pb_utils.InferenceRequest`

    Raises:
        BodyError, TensorError: its options are none.
    """
    tensors = {tensor.name(): _tensor(tensor) for tensor in request.inputs()}
    parameters = json_object((request.parameters() or "{}").encode())
    options = {
        name: value
        for name, value in parameters.items()
        if name not in OF_TRITON and not name.startswith(OF_THE_SERVER)
    }
    given = tensors.pop(OPTIONS, None)
    if given is not None:
        options |= _object(given)
    stream = options.pop("stream", False)
    if not isinstance(stream, bool):
        raise BodyError(f"stream: expected true or false, found {stream!r:.80}")
    microseconds = request.timeout()
    return Asked(tensors, options, stream, microseconds / 1e6 if microseconds else None)


def _tensor(tensor: Any) -> Tensor:
    values = tensor.as_numpy()
    return Tensor(tensor.name(), "BYTES" if values.dtype == np.object_ else "other", values)


def _object(tensor: Tensor) -> dict[str, Any]:
    if tensor.datatype != "BYTES" or tensor.values.size != 1:
        raise TensorError(f"{OPTIONS}: expected one JSON object in BYTES")
    return json_object(bytes(tensor.values.item()))
