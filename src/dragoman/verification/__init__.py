"""Parity: does a bundle compute what the trained model computes?

Reading order: `inputs`, what is compared on; tolerances, oracle, forced, rounded_oracle; `stored`,
what a bundle holds; `numerics`, what its graphs compute on probes; `checks`, what it computes on
inputs; check, which runs them in order; naming, first_difference, verdict.
The oracle is `reference_model` in PyTorch, fp32, decoding without a cache.
"""

from .check import check_parity
from .first_difference import FirstDifference, first_difference
from .inputs.choosing import inputs_for
from .inputs.parity_inputs import ParityInputs
from .inputs.random_inputs import random_inputs
from .running import running
from .tolerances import TASK_TOLERANCES, TOLERANCES
from .verdict import describe_failure, describe_proof

__all__ = [
    "TASK_TOLERANCES",
    "TOLERANCES",
    "FirstDifference",
    "ParityInputs",
    "check_parity",
    "describe_failure",
    "describe_proof",
    "first_difference",
    "inputs_for",
    "random_inputs",
    "running",
]
