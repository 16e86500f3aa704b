"""Parity: does a bundle compute what the trained model computes?

Reading order: sources, references, inputs, tolerances, oracle, forced, tensors, rounded_oracle,
distributions, tokens, strategy, task, check, first_difference, verdict. The oracle is
`reference_model` in PyTorch, fp32, decoding without a cache.
"""

from .check import check_parity
from .first_difference import FirstDifference, first_difference
from .inputs import ParityInputs, inputs_for, random_inputs
from .running import running
from .tolerances import TASK_TOLERANCES, TOLERANCES
from .verdict import describe_failure

__all__ = [
    "TASK_TOLERANCES",
    "TOLERANCES",
    "FirstDifference",
    "ParityInputs",
    "check_parity",
    "describe_failure",
    "first_difference",
    "inputs_for",
    "random_inputs",
    "running",
]
