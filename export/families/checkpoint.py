"""The contents of a checkpoint directory of any supported library."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.reference_model import ReferenceModel

from ..tokenizers import TokenizerFiles


@dataclass(frozen=True)
class Checkpoint:
    """A model and what turns texts into its tokens.

    Attributes:
        model: fp32, in evaluation mode
        tokenizers: None if the model can only be given token ids
        notes: where it was read otherwise than its files might lead one to expect, a sentence each
        summarizes: models of its family write summaries
    """

    model: ReferenceModel
    tokenizers: TokenizerFiles | None
    notes: tuple[str, ...] = ()
    summarizes: bool = False
