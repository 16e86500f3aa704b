"""Level 3: the model's own metric, if the inputs have references."""

from __future__ import annotations

from dragoman.runtime import Model
from dragoman.runtime.format.records import TaskParity

from .inputs import ParityInputs
from .tolerances import TASK_TOLERANCES


def compare_task(
    model: Model, inputs: ParityInputs, expected: list[list[int]], found: list[list[int]]
) -> TaskParity | None:
    """
    Args:
        expected, found: outputs of the oracle and of the bundle

    Returns:
        None if there are no references, or the model is judged by their probability
    """
    if inputs.recipe is None or inputs.recipe.score is None or inputs.examples is None:
        return None
    recipe, score, examples = inputs.recipe, inputs.recipe.score, inputs.examples

    def figure(texts: list[str]) -> float:
        return score(texts, examples)[recipe.metric]

    oracle = figure([model.detokenize(tokens) or "" for tokens in expected])
    bundle = figure([model.detokenize(tokens) or "" for tokens in found])
    tolerance = TASK_TOLERANCES[model.manifest.precision]
    return TaskParity(recipe.metric, oracle, bundle, bundle - oracle <= tolerance)
