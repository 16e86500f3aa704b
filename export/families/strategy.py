"""How `generate` of Hugging Face chooses tokens when it is called without options: greedily, by
beam search or by sampling. Its defaults take the place of what is not stated (`transformers` 5.23,
`GenerationConfig._get_default_generation_params`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dragoman.reference_model import GenerationConfig
from dragoman.runtime.format.generation_settings import LARGEST_LENGTH_PENALTY

from .settings_reader import SettingsReader

DEFAULT_TOP_K = 50

Unsupported = Mapping[str, tuple[Any, ...]]

GREEDY: Unsupported = {"penalty_alpha": (0,), "dola_layers": ()}
SAMPLING: Unsupported = {
    "dola_layers": (),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
}
BEAMS: Unsupported = {"num_beam_groups": (1,), "renormalize_logits": (False,)}
"""What changes the output of each strategy, and only of this one, and is not supported; with the
values that switch it off. `diversity_penalty` has an effect in groups of beams only."""


def with_strategy(
    rules: GenerationConfig, read: SettingsReader, notes: list[str]
) -> GenerationConfig:
    """The rules with the strategy that the settings state.

    Args:
        read: the settings; receives problems
        notes: receives a sentence where the outputs are not those of `generate`
    """
    beams = read.number("num_beams", 1, least=1)
    samples = read.one_of("do_sample", (True, False), default=False)
    if samples and beams > 1:
        notes.append(
            f"the generation settings ask for sampling within {beams} beams, which is not "
            "supported: outputs are those of beam search, and temperature, top_k, top_p and the "
            "like have no effect"
        )
        samples = False
    read.refuse(BEAMS if beams > 1 else SAMPLING if samples else GREEDY)
    returned = read.number("num_return_sequences", 1, least=1)
    if returned > 1:
        notes.append(
            f"the generation settings ask for {returned} outputs for each input "
            "(num_return_sequences): here it is one unless the caller asks for more"
        )
    # What has no effect at Hugging Face may have any value there.
    drawing = read if samples else read.unchecked()
    return dataclasses.replace(
        rules,
        num_beams=beams,
        length_penalty=read.real(
            "length_penalty", 1.0, -LARGEST_LENGTH_PENALTY, LARGEST_LENGTH_PENALTY
        ),
        early_stopping=read.one_of("early_stopping", (True, False, "never"), default=False),
        do_sample=samples,
        temperature=drawing.positive("temperature"),
        top_k=drawing.number("top_k", DEFAULT_TOP_K if samples else 0),
        top_p=drawing.real("top_p", 1.0, 0, 1),
        min_p=drawing.real("min_p", 0.0, 0, 1),
    )
