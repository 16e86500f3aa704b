"""Remembers what encoders computed, as calibration and checks of speech read windows many times.

A window is encoded by itself, in whatever batches it is read, and its outputs are used again while
there is room for them. Only the check of batches lets the encoder compute whole batches.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dragoman.runtime.backends.interface import Backend, Encoded
from dragoman.runtime.model import Model

MOST_BYTES = 2**29
"""Bytes of all outputs that are remembered, beside those of the last window or batch."""

Source = NDArray[Any] | Encoded


class EncodedWindows:
    """The outputs of an encoder by what it read, of the windows used last."""

    def __init__(self) -> None:
        self._outputs = OrderedDict[tuple[Any, ...], Any]()

    def of(
        self,
        source: NDArray[Any],
        mask: NDArray[np.bool_],
        compute: Callable[[NDArray[Any], NDArray[np.bool_]], Any],
    ) -> list[Any]:
        """Return the outputs of each window, which are computed unless they are remembered.

        Args:
            source: features [N, mel bins, frames]
            compute: encodes a batch of one window
        """
        ones = range(len(source))
        return [self.together(source[n : n + 1], mask[n : n + 1], compute) for n in ones]

    def together(
        self, source: NDArray[Any], mask: NDArray[np.bool_], compute: Callable[..., Any]
    ) -> Any:
        """Return the outputs of a batch, which is encoded as a whole; large ones are not kept."""
        key = (hashlib.blake2b(source.tobytes()).digest(), source.dtype.str, mask.tobytes())
        if key not in self._outputs:
            found = compute(source, mask)
            if len(source) > 1 and _bytes(found) > MOST_BYTES:
                return found
            self._outputs[key] = found
        self._outputs.move_to_end(key)
        while len(self._outputs) > 1 and sum(map(_bytes, self._outputs.values())) > MOST_BYTES:
            self._outputs.popitem(last=False)
        return self._outputs[key]


def _bytes(outputs: Any) -> int:
    if isinstance(outputs, Mapping):
        return sum(map(_bytes, outputs.values()))
    return int(outputs.nbytes)


class EncodingOnce:
    """A backend that encodes a window once for all that is computed from it."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self._encoded = backend, EncodedWindows()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def encode(self, source: NDArray[Any], mask: NDArray[np.bool_], *_: Any) -> Encoded:
        """Return the encoder's outputs by tensor name."""
        found: list[Encoded] = self._encoded.of(source, mask, self.backend.encode)
        if len(found) == 1:
            return found[0]
        return {name: np.concatenate([each[name] for each in found]) for name in found[0]}

    def encode_together(self, source: NDArray[Any], mask: NDArray[np.bool_]) -> Encoded:
        """Return the encoder's outputs of a batch that it computes as a whole."""
        found: Encoded = self._encoded.together(source, mask, self.backend.encode)
        return found

    def start(self, source: Source, mask: NDArray[np.bool_], *a: Any, **k: Any) -> Any:
        """Start decoding; see `Backend.start`."""
        return self.backend.start(self._encoded_of(source, mask), mask, *a, **k)

    def score(self, source: Source, mask: NDArray[np.bool_], *a: Any, **k: Any) -> Any:
        """Return logits along targets; see `Backend.score`."""
        return self.backend.score(self._encoded_of(source, mask), mask, *a, **k)

    def _encoded_of(self, source: Source, mask: NDArray[np.bool_]) -> Encoded:
        return source if isinstance(source, Mapping) else self.encode(source, mask)


def encoding_once(model: Model) -> Model:
    """Let a model of speech encode a window once; other models are returned as they are."""
    if not model.manifest.model.takes_audio or isinstance(model.backend, EncodingOnce):
        return model
    return Model(model.bundle, cast(Backend, EncodingOnce(model.backend)))


def encode_together(
    model: Model, source: NDArray[Any], mask: NDArray[np.bool_]
) -> NDArray[Any] | Encoded:
    """Encode a batch of speech as a whole; texts are returned as they are."""
    if not model.manifest.model.takes_audio:
        return source
    backend = model.backend
    encode = backend.encode_together if isinstance(backend, EncodingOnce) else backend.encode
    return encode(source, mask)
