"""One model is used by several threads at once, each with a strategy of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dragoman.reference_model import Transformer
from dragoman.runtime import Model

RandomSources = Callable[..., list[list[int]]]

CALLS: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "seed": 5, "num_return_sequences": 2},
    {"num_beams": 2, "must_contain": [[4, 5]]},
    {"must_not_contain": [[3]], "alternatives": 2},
    {"num_beams": 4, "prefix": [6, 3]},
]


def test_each_call_gives_what_it_gives_alone(
    pair: tuple[Transformer, Model], random_sources: RandomSources
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 7)

    def generate(options: dict[str, Any]) -> Any:
        found = model.generate(sources, max_new_tokens=9, **options)
        return [[hypothesis.tokens for hypothesis in result.hypotheses] for result in found]

    single = [generate(options) for options in CALLS]
    with ThreadPoolExecutor(len(CALLS)) as pool:
        together = list(pool.map(generate, 4 * CALLS))
    assert together == 4 * single
    assert all(tokens for results in single for tokens in results)
