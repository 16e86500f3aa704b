"""Sequences and scores of a random Marian model, as CTranslate2 4.8.5 gave them for its directory.

Scores are rounded to six digits. `model.bin` has no row for the start token, so that it takes no
probability there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.export import export_bundle
from dragoman.export.families.ctranslate2 import load_ctranslate2
from dragoman.runtime import Model, load

from .ctranslate2_writer import write_text_model
from .test_ctranslate2 import FROM_ZEROS, MARIAN, SHARED, random_model

SOURCES = [[3, 1, 4, 1, 5, 9, 2], [6, 2], [6, 5, 3, 2]]
BEAMS: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 2, "early_stopping": True}
GREEDY: dict[str, Any] = {"min_new_tokens": 1}
Found = list[tuple[list[int], float]]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("ctranslate2")
    model = random_model(MARIAN | SHARED | {"end_token_id": 2}, seed=4)
    write_text_model(model, directory / "model", options=FROM_ZEROS)
    (directory / "bundle").mkdir()
    export_bundle(load_ctranslate2(directory / "model"), directory / "bundle", name="marian")
    return load(directory / "bundle", threads=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BEAMS | {"min_new_tokens": 4}, [
            [([3, 14, 7, 14, 14, 14, 14, 14, 14, 14, 14, 14], -1.984725),
             ([3, 14, 7, 14, 14, 14, 14, 14, 14, 14, 7, 14], -2.020664)],
            [([19] * 12, -2.030816), ([*[19] * 11, 24], -2.046708)],
            [([19, 19, 22, 22, 22, 22, 9, 24, 22, 22, 22, 9], -2.123259),
             ([19, 19, 22, 22, 22, 22, 9, 24, 22, 22, 9, 27], -2.134487)],
        ]),
        (BEAMS | {"min_new_tokens": 1, "no_repeat_ngram_size": 2}, [
            [([3, 14, 7, 14, 14, 3, 7, 7, 3, 3, 20, 3], -2.102032),
             ([3, 14, 7, 14, 14, 3, 7, 7, 3, 3, 20, 14], -2.129668)],
            [([19, 19, 22, 19, 26, 26, 13, 13, 26, 6, 13, 19], -2.224551),
             ([19, 24, 19, 19, 26, 13, 13, 26, 26, 6, 13, 6], -2.233937)],
            [([19, 19, 22, 22, 9, 24, 27, 27, 9, 27, 22, 27], -2.109673),
             ([19, 19, 22, 22, 9, 24, 27, 27, 22, 27, 9, 27], -2.119128)],
        ]),
        (BEAMS | {"min_new_tokens": 4, "length_penalty": 0.6,
                  "must_not_contain": [[19], [14, 14]]}, [
            [([3, 3, 14, 7, 14, 7, 14, 7, 14, 7, 14, 7], -5.254202),
             ([3, 14, 7, 14, 3, 7, 14, 3, 7, 14, 7, 14], -5.299614)],
            [([24, *[13] * 11], -5.421107), ([24, *[13] * 9, 27, 27], -5.485616)],
            [([22, 9, 22, 22, 22, 9, 22, 22, 22, 9, 22, 9], -5.713011),
             ([22, 9, 22, 22, 22, 9, 22, 22, 9, 22, 22, 9], -5.713461)],
        ]),
        # The end token of these outputs is shown, the last token of those at the limit is no end.
        (BEAMS | {"min_new_tokens": 1, "end_token_id": [9, 20, 7]}, [
            [([3, 14, 14, 14, 14, 7], -2.125988), ([3, 14, 14, 14, 7], -2.147591)],
            [([19] * 12, -2.027713), ([*[19] * 11, 24], -2.043605)],
            [([19, 19, 9], -2.068907), ([19, 19, 22, 22, 9], -2.094340)],
        ]),
        (GREEDY | {"end_token_id": [9, 20, 7]}, [
            [([3, *[14] * 11], -24.666206)], [([19] * 12, -24.332552)],
            [([19, 19, 22, 22, 22, 22, 9], -14.768528)],
        ]),
        (GREEDY | {"repetition_penalty": 1.5}, [
            [([3, 14, 7, *[14] * 9], -27.529123)], [([19, 24, 26, *[13] * 9], -27.575283)],
            [([19, 24, 22, 9, 27, 13, 13, 26, 27, 27, 27, 27], -28.014385)],
        ]),
    ],
)  # fmt: skip
def test_renormalized_scores_are_theirs(
    marian: Model, options: dict[str, Any], expected: list[Found]
) -> None:
    """Of greedy search without their length penalty."""
    results = marian.generate(SOURCES, max_new_tokens=12, renormalize_logits=True, **options)
    for result, theirs in zip(results, expected, strict=True):
        found = [
            ([*h.tokens, *([] if h.end_token is None else [h.end_token])], h.score)
            for h in result.hypotheses
        ]
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in theirs]
        np.testing.assert_allclose([s for _, s in found], [s for _, s in theirs], atol=5e-6)


def test_scores_of_targets_are_theirs(marian: Model) -> None:
    """The end token is scored, too."""
    expected = [
        [-2.366957, -2.096892, -2.25064, -3.6926],
        [-1.938278, -4.100168],
        [-2.610223, -2.173829, -3.657433],
    ]
    scored = marian.score(list(zip(SOURCES, [[3, 14, 7], [19], [22, 9]], strict=True)))
    for pair, theirs in zip(scored, expected, strict=True):
        np.testing.assert_allclose(pair.token_log_probabilities, theirs, atol=2e-6)
