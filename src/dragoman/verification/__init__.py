"""Parity: does a bundle compute what the trained model computes?

Reading order: items, reference_file, given, sources, references, task, parity_inputs,
recipe_metric, metric_choice, texts, recordings, random_inputs, inputs; tolerances, oracle, forced,
tensors, rounded_oracle, distributions, tokens, naming, strategy, check, first_difference, verdict.
The oracle is `reference_model` in PyTorch, fp32, decoding without a cache.
"""

from .check import check_parity
from .first_difference import FirstDifference, first_difference
from .inputs.choosing import inputs_for
from .inputs.parity_inputs import ParityInputs
from .inputs.random_inputs import random_inputs
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
