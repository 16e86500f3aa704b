"""What is asked of engines, put to models of every kind."""

from __future__ import annotations

import pytest

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt.profiles import DEFAULT_BATCH, NAMED_BATCHES
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.runtime import Bundle
from dragoman.runtime.format.executables import Profile, Range


def test_an_encoder_alone_has_sources_and_no_capacity(encoder_alone: Bundle) -> None:
    model = encoder_alone.manifest.model
    assert encoder_alone.manifest.default_max_new_tokens == 0
    options = EngineRequest(tuple(NAMED_BATCHES.values())).for_model(model, 0)
    assert options.capacity == 0
    lengths = Range(1, 21, 21)
    assert options.profiles == (
        Profile(Range(1, 1, 1), lengths),
        Profile(Range(1, 32, 32), lengths),
    )
    request = EngineRequest(source_length=Range(2, 3, 9))
    assert request.for_model(model, 0).profiles == (Profile(DEFAULT_BATCH, Range(2, 3, 9)),)
    with pytest.raises(DragomanError, match=r"source length: expected at most 21, .* found 22$"):
        EngineRequest(source_length=Range(1, 1, 22)).for_model(model, 0)
    with pytest.raises(DragomanError, match=r"^capacity: expected none for an encoder alone"):
        EngineRequest(capacity=4).for_model(model, 0)


@pytest.mark.parametrize("default", [5, 17])
def test_a_decoder_alone_has_room_for_prompts(default: int, decoder_alone: Bundle) -> None:
    """All positions, however few new tokens are the default; and one length for no source."""
    model = decoder_alone.manifest.model
    options = EngineRequest().for_model(model, default)
    assert options.capacity == 17
    assert options.profiles == (Profile(DEFAULT_BATCH, Range(1, 1, 1)),)
    assert EngineRequest(capacity=3).for_model(model, default).capacity == 3
    with pytest.raises(DragomanError, match=r"capacity: expected 1 to 17, .* found 18$"):
        EngineRequest(capacity=18).for_model(model, default)
    with pytest.raises(DragomanError, match=r"^source length: expected none for a decoder alone"):
        EngineRequest(source_length=Range(1, 1, 1)).for_model(model, default)


def test_both_together_take_the_default_of_the_bundle(neutral: Bundle) -> None:
    options = EngineRequest().for_model(neutral.manifest.model, 5)
    assert options.capacity == 5
    assert options.profiles == (Profile(DEFAULT_BATCH, Range(1, 20, 20)),)
