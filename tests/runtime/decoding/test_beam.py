"""Beam search in the loop, on a backend whose distributions follow from the tokens so far."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.decoding.beam_search import Beam
from dragoman.runtime.decoding.running_batch import Job
from dragoman.runtime.decoding.search import TokenSequence
from dragoman.settings.generation_settings import EarlyStopping, GenerationSettings

from .scripted import END, START, ScriptedBackend, decoded, random_logits, request
from .slow_beams import Found, slow_beams

VOCABULARY = 11


def same(sequences: list[TokenSequence], expected: list[Found]) -> None:
    assert [sequence.row.tokens[sequence.begin :] for sequence in sequences] == [
        f.tokens for f in expected
    ]
    np.testing.assert_allclose(
        [sequence.score for sequence in sequences], [f.score for f in expected], atol=1e-4
    )


@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.6, 1, 2, 0, -1.5])
def test_hypotheses_and_scores_are_those_of_the_slow_search(
    beams: int, early_stopping: EarlyStopping, length_penalty: float
) -> None:
    """Outputs of many sources and limits, also in batches that others join."""
    generator = random.Random(beams)
    jobs, expected = [], []
    for index in range(25):
        logits = random_logits(VOCABULARY, end=1.5)
        source = [3 + index % 8] * (1 + index % 5)
        limit = generator.choice([1, 2, 3, 7, 12])
        ends = [END] if index % 3 else [END, 7]
        strategy = Beam(beams, length_penalty, early_stopping, returned=beams)
        jobs.append(Job(index, request(source, limit, ends=ends), strategy))
        expected.append(
            slow_beams(
                *(logits, tuple(source), (START,)),
                beams=beams,
                limit=limit,
                ends=ends,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
                returned=beams,
            )
        )
    assert sum(found[0].tokens[-1] == END for found in expected) > 4
    backend = ScriptedBackend(random_logits(VOCABULARY, end=1.5))
    for sequences, found in zip(decoded(backend, jobs), expected, strict=True):
        same(sequences, found)
    for sequences, found in zip(decoded(backend, jobs, rows=3 * beams), expected, strict=True):
        same(sequences, found)
    assert "join" in backend.calls


def test_a_hand_worked_case() -> None:
    """Two beams, tokens 3, 4 and the end.

    First 3 (0.6) and 4 (0.4). After 3: end 0.5, 4 0.3, 3 0.2; after 4: end 0.9, 3 0.1.
    Second step: 3 end 0.30, 4 end 0.36, 3 4 0.18, 3 3 0.12: the first two end.
    With length penalty 0 they rank 0.36 and 0.30; 3 4 (0.18) cannot rank above them any more.
    """

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        after = {(): {3: 0.6, 4: 0.4}, (3,): {END: 0.5, 4: 0.3, 3: 0.2}, (4,): {END: 0.9, 3: 0.1}}
        probabilities = np.full(VOCABULARY, 1e-9)
        for token, probability in after.get(history[1:], {END: 1.0}).items():
            probabilities[token] = probability
        logits: NDArray[np.float32] = np.log(probabilities).astype(np.float32)
        return logits

    job = Job(0, request([5], 9), Beam(2, length_penalty=0.0, returned=2))
    backend = ScriptedBackend(logits)
    ((first, second),) = decoded(backend, [job])
    assert (first.tokens, second.tokens) == ([4], [3])
    np.testing.assert_allclose([first.score, second.score], np.log([0.36, 0.30]), atol=1e-5)
    np.testing.assert_allclose(first.log_probabilities, np.log([0.4, 0.9]), atol=1e-5)
    assert [call for call in backend.calls if call == "advance"] == ["advance"] * 2


def test_as_many_beams_as_sequences_find_the_most_probable_one() -> None:
    logits = random_logits(4, seed=3)
    sequences = [
        sequence
        for length in range(1, 4)
        for sequence in itertools.product(range(4), repeat=length)
        if END not in sequence[:-1] and (sequence[-1] == END or length == 3)
    ]

    def log_probability(sequence: tuple[int, ...]) -> float:
        total = 0.0
        for step, token in enumerate(sequence):
            scores = logits((3,), (START, *sequence[:step])).astype(np.float64)
            total += scores[token] - np.log(np.exp(scores).sum())
        return total

    best = max(sequences, key=log_probability)
    strategy = Beam(27, length_penalty=0.0, early_stopping="never")
    ((sequence,),) = decoded(ScriptedBackend(logits), [Job(0, request([3], 3), strategy)])
    assert tuple(sequence.row.tokens[1:]) == best
    assert sequence.log_probability == pytest.approx(log_probability(best), abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(forced_first_token_id=5),
        GenerationSettings(forced_last_token_id=END),
        GenerationSettings(min_new_tokens=4),
        GenerationSettings(no_repeat_ngram_size=2),
        GenerationSettings(repetition_penalty=1.7),
        GenerationSettings(suppressed_token_ids=(3, 9)),
        GenerationSettings(bad_words=((4, 5), (6, 6))),
    ],
    ids=lambda settings: ",".join(
        name for name, value in vars(settings).items() if value != getattr(GenerationSettings, name)
    ),
)
def test_rules_hold_in_every_hypothesis(settings: GenerationSettings) -> None:
    """They are compared with Hugging Face elsewhere."""
    backend = ScriptedBackend(random_logits(VOCABULARY), settings.suppressed_token_ids)
    jobs = [
        Job(index, request([3 + index], 6, settings=settings), Beam(4, returned=4))
        for index in range(7)
    ]
    for sequences in decoded(backend, jobs):
        assert [sequence.score for sequence in sequences] == sorted(
            (d.score for d in sequences), reverse=True
        )
        for sequence in sequences:
            tokens = sequence.row.tokens[1:]
            if settings.forced_first_token_id is not None:
                assert tokens[0] == 5
                assert sequence.log_probabilities[0] == 0
            if settings.forced_last_token_id is not None and len(tokens) == 6:
                assert tokens[-1] == END
            assert not set(tokens) & set(settings.suppressed_token_ids)
            assert END not in tokens[: settings.min_new_tokens]
            pairs = list(itertools.pairwise([START, *tokens]))
            assert not set(pairs) & set(settings.bad_words)
            if settings.no_repeat_ngram_size:
                assert len(set(pairs)) == len(pairs)


def test_alternatives_of_a_hypothesis_are_those_of_its_own_history() -> None:
    logits = random_logits(VOCABULARY)
    each = request([4], 6, alternatives=3)
    ((first, second),) = decoded(ScriptedBackend(logits), [Job(0, each, Beam(3, returned=2))])
    for sequence in (first, second):
        for step, alternatives in enumerate(sequence.alternatives):
            scores = logits((4,), tuple(sequence.row.tokens[: 1 + step]))
            best = np.argsort(-scores)[:3]
            assert [token for token, _ in alternatives] == best.tolist()
            expected = scores[best] - np.log(np.exp(scores).sum())
            np.testing.assert_allclose([p for _, p in alternatives], expected, atol=1e-5)


def test_a_child_keeps_the_row_of_its_parent() -> None:
    """Rows move only where a hypothesis has no child: the backend checks that no parent moves."""
    backend = ScriptedBackend(random_logits(VOCABULARY, end=-9))
    decoded(backend, [Job(0, request([3], 30), Beam(5))])
    assert backend.calls.count("advance") == 30
    assert 0 < backend.calls.count("reorder") < 30
