"""Remembers what encoders computed, since the checks of speech read the same windows many times.

A window is encoded by itself, in whatever batches it is read, and its outputs are used again while
there is room for them. Only the check of batches lets the encoder compute whole batches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dragoman.runtime import Model
from dragoman.runtime.backends.interface import Backend, Encoded

MOST_BYTES = 2**29
"""Bytes of all outputs that are remembered, beside those of the last window or batch."""

T = TypeVar("T")
Source = NDArray[Any] | Encoded


class EncodedWindows(Generic[T]):
    """The outputs of an encoder by what it read, of the windows used last."""

    def __init__(self) -> None:
        self._outputs = OrderedDict[tuple[Any, ...], T]()

    def of(
        self,
        source: NDArray[Any],
        mask: NDArray[np.bool_],
        compute: Callable[[NDArray[Any], NDArray[np.bool_]], T],
        *,
        together: bool = False,
    ) -> list[T]:
        """Return the outputs of a batch, which are computed unless they are remembered.

        Args:
            source: features [N, mel bins, frames]
            compute: encodes a batch
            together: whether all windows are encoded as one batch, and not each by itself

        Returns:
            the outputs of each window; those of the batch if they are encoded together
        """
        if together:
            return [self._of(source, mask, compute)]
        rows = (slice(row, row + 1) for row in range(len(source)))
        return [self._of(source[row], mask[row], compute) for row in rows]

    def _of(
        self,
        source: NDArray[Any],
        mask: NDArray[np.bool_],
        compute: Callable[[NDArray[Any], NDArray[np.bool_]], T],
    ) -> T:
        hashed = hashlib.blake2b(source.tobytes()).digest()
        key = (hashed, source.dtype.str, source.shape, mask.tobytes())
        if key not in self._outputs:
            self._outputs[key] = compute(source, mask)
        self._outputs.move_to_end(key)
        while len(self._outputs) > 1 and sum(map(_bytes, self._outputs.values())) > MOST_BYTES:
            self._outputs.popitem(last=False)
        return self._outputs[key]


def _bytes(outputs: Any) -> int:
    if isinstance(outputs, Mapping):
        return sum(map(_bytes, outputs.values()))
    return int(outputs.nbytes)


class EncodingOnce:
    """A backend that encodes a window once for all that is computed from it.

    Args:
        together: whether a batch is encoded as a whole, once
    """

    def __init__(
        self,
        backend: Backend,
        encoded: EncodedWindows[dict[str, NDArray[Any]]],
        *,
        together: bool = False,
    ) -> None:
        self._backend, self._encoded, self._together = backend, encoded, together

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def with_batches(self) -> EncodingOnce:
        """Return the same for batches that are encoded as a whole, with a memory of its own."""
        return EncodingOnce(self._backend, EncodedWindows(), together=True)

    def encode(self, source: NDArray[Any], mask: NDArray[np.bool_], *_: Any) -> Encoded:
        """Return the encoder's outputs by tensor name."""
        found = self._encoded.of(source, mask, self._backend.encode, together=self._together)
        if len(found) == 1:
            return found[0]
        return {name: np.concatenate([each[name] for each in found]) for name in found[0]}

    def start(self, source: Source, mask: NDArray[np.bool_], *a: Any, **k: Any) -> Any:
        """Start decoding; see `Backend.start`."""
        return self._backend.start(self._encoded_of(source, mask), mask, *a, **k)

    def score(self, source: Source, mask: NDArray[np.bool_], *a: Any, **k: Any) -> Any:
        """Return logits along targets; see `Backend.score`."""
        return self._backend.score(self._encoded_of(source, mask), mask, *a, **k)

    def _encoded_of(self, source: Source, mask: NDArray[np.bool_]) -> Encoded:
        return source if isinstance(source, Mapping) else self.encode(source, mask)


def encoding_once(model: Model) -> Model:
    """Let a model of speech encode a window once; other models are returned as they are."""
    if not model.manifest.model.takes_audio:
        return model
    return Model(model.bundle, cast(Backend, EncodingOnce(model.backend, EncodedWindows())))


def encoding_batches(model: Model) -> Model:
    """Let a model of `encoding_once` encode whole batches; others are returned as they are."""
    backend: Any = model.backend
    if not isinstance(backend, EncodingOnce):
        return model
    return Model(model.bundle, cast(Backend, backend.with_batches()))
