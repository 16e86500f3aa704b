"""Remembers what encoders computed, since the checks of speech read the same windows many times."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils._pytree import tree_flatten

from dragoman.runtime import Model
from dragoman.runtime.backends.interface import Backend, Encoded

MOST_BYTES = 2**29
"""Bytes of all outputs that are remembered; those of the last batch are whatever they take."""

T = TypeVar("T")
Source = NDArray[Any] | Encoded


class EncodedBatches(Generic[T]):
    """The outputs of an encoder by what it read, of the batches used last."""

    def __init__(self) -> None:
        self._outputs = OrderedDict[tuple[Any, ...], T]()

    def of(self, source: NDArray[Any], mask: NDArray[np.bool_], compute: Callable[[], T]) -> T:
        """Return the outputs for a batch, which are computed unless they are remembered.

        Args:
            source: tokens [N, S], or features [N, mel bins, frames]
        """
        hashed = hashlib.blake2b(source.tobytes()).digest()
        key = (hashed, source.dtype.str, source.shape, mask.tobytes())
        if key not in self._outputs:
            self._outputs[key] = compute()
        self._outputs.move_to_end(key)
        while len(self._outputs) > 1 and self._bytes() > MOST_BYTES:
            self._outputs.popitem(last=False)
        return self._outputs[key]

    def _bytes(self) -> int:
        return sum(values.nbytes for values in tree_flatten(list(self._outputs.values()))[0])


class EncodingOnce:
    """A backend that encodes a batch once for all that is computed from it."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._encoded = backend, EncodedBatches[dict[str, NDArray[Any]]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, source: NDArray[Any], mask: NDArray[np.bool_], *_: Any) -> Encoded:
        """Return the encoder's outputs by tensor name."""
        return self._encoded.of(source, mask, lambda: self._backend.encode(source, mask))

    def start(self, source: Source, mask: NDArray[np.bool_], *a: Any, **k: Any) -> Any:
        """Start decoding; see `Backend.start`."""
        return self._backend.start(self._encoded_of(source, mask), mask, *a, **k)

    def score(self, source: Source, mask: NDArray[np.bool_], *a: Any, **k: Any) -> Any:
        """Return logits along targets; see `Backend.score`."""
        return self._backend.score(self._encoded_of(source, mask), mask, *a, **k)

    def _encoded_of(self, source: Source, mask: NDArray[np.bool_]) -> Encoded:
        return source if isinstance(source, Mapping) else self.encode(source, mask)


def encoding_once(model: Model) -> Model:
    """Let a model of speech encode a batch once; other models are returned as they are."""
    if not model.manifest.model.takes_audio:
        return model
    return Model(model.bundle, cast(Backend, EncodingOnce(model.backend)))
