"""The comparison with Hugging Face's implementation that the tests of all families make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.reference_model import Transformer, pad


def assert_same_tensors(
    theirs: Any, ours: Transformer, sources: Sequence[Sequence[int]], target: Tensor
) -> None:
    """Encoder output and teacher-forced logits are equal within 1e-4."""
    source, mask = pad(sources, theirs.config.pad_token_id)
    with torch.inference_mode():
        expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target)
        encoded, logits = ours.encoder(source, mask), ours(source, mask, target)
    wanted = expected.encoder_last_hidden_state
    torch.testing.assert_close(encoded[mask], wanted[mask], rtol=0, atol=1e-4)
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-4)
