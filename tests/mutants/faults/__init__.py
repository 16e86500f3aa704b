"""All faults of the trial. A new pass or family adds its own to the module that they belong to."""

from . import (
    edges,
    exporter,
    operators,
    passes,
    positions,
    rows,
    scales,
    settings,
    shortlists,
    states,
    tokenizers,
    weights,
)
from .fault import Case, cases_of

CASES: tuple[Case, ...] = cases_of(
    [
        *operators.FAULTS,
        *weights.FAULTS,
        *positions.FAULTS,
        *edges.FAULTS,
        *rows.FAULTS,
        *scales.FAULTS,
        *tokenizers.FAULTS,
        *settings.FAULTS,
        *passes.FAULTS,
        *exporter.FAULTS,
        *states.FAULTS,
        *shortlists.FAULTS,
    ]
)
