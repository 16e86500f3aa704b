"""Every output contains the phrases: on a backend whose distributions follow from the tokens so
far, against a search through all sequences."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.decoding.beam_search import Beam, assign_rows
from dragoman.runtime.decoding.constrained_beam_search import (
    ConstrainedBeam,
    RequiredPhrases,
    Tokenizations,
    allocate,
)
from dragoman.runtime.decoding.logits_processors import NoBadWords
from dragoman.runtime.decoding.request import Request
from dragoman.runtime.decoding.results import RejectedError
from dragoman.runtime.decoding.running_batch import Job
from dragoman.runtime.decoding.search import TokenSequence
from dragoman.settings.generation_settings import EarlyStopping, GenerationSettings

from .scripted import END, START, Logits, ScriptedBackend, decoded, random_logits, request
from .test_required_phrases import occurs, random_phrases, satisfied

VOCABULARY = 6
WORDS = (0, 3, 4, 5)


def constrained(phrases: Sequence[Tokenizations], beams: int = 4, **more: Any) -> ConstrainedBeam:
    return ConstrainedBeam(beams, required=RequiredPhrases(phrases), **more)


def sequences_of(logits: Logits, each: Request, strategy: Beam) -> list[TokenSequence]:
    backend = ScriptedBackend(logits, each.rules.suppressed)
    return decoded(backend, [Job(0, each, strategy)])[0]


def all_sequences(limit: int) -> Iterator[tuple[int, ...]]:
    """All outputs, with their end tokens."""
    for length in range(1, limit + 1):
        for sequence in itertools.product(range(VOCABULARY), repeat=length):
            if END not in sequence[:-1] and (sequence[-1] == END or length == limit):
                yield sequence


def log_probability(logits: Logits, sequence: Sequence[int], prompt: Sequence[int] = ()) -> float:
    """Of new tokens that follow the start token and a prompt."""
    total = 0.0
    for step, token in enumerate(sequence):
        scores = logits((3,), (START, *prompt, *sequence[:step])).astype(np.float64)
        total += scores[token] - np.log(np.exp(scores).sum())
    return float(total)


# Sharing out a beam.


@pytest.mark.parametrize(
    ("places", "candidates", "sizes"),
    [
        (4, [9], [4]),
        (4, [9, 9], [2, 2]),
        (5, [9, 9], [2, 3]),
        (4, [9, 9, 9], [1, 1, 2]),
        (2, [9, 9, 9, 9], [0, 0, 0, 2]),
        # At the first step only the lower banks have candidates; the nearest gets what is left.
        (4, [9, 1, 0], [3, 1, 0]),
        (5, [9, 9, 0, 0], [1, 4, 0, 0]),
        (2, [9, 9, 0, 0, 0], [0, 2, 0, 0, 0]),
        # Of two equally near ones the later.
        (3, [9, 0, 9], [1, 0, 2]),
        (6, [9, 1, 9], [2, 1, 3]),
        # No more places than candidates.
        (8, [1, 2, 1], [1, 2, 1]),
        (3, [0, 0, 0], [0, 0, 0]),
        (3, [0, 1, 0], [0, 1, 0]),
    ],
)
def test_a_beam_is_shared_out_to_banks(
    places: int, candidates: list[int], sizes: list[int]
) -> None:
    assert allocate(places, candidates) == sizes


def test_a_beam_is_filled_as_far_as_there_are_candidates() -> None:
    generator = random.Random(0)
    for _ in range(500):
        candidates = [generator.randint(0, 6) for _ in range(generator.randint(1, 7))]
        places = generator.randint(1, 12)
        sizes = allocate(places, candidates)
        assert sum(sizes) == min(places, sum(candidates))
        assert all(0 <= size <= most for size, most in zip(sizes, candidates, strict=True))


def test_a_hypothesis_without_children_leaves_its_row() -> None:
    assert assign_rows([2, 0, 2, 2], 4) == ([2, 0, 1, 3], [0, 2, 2, 2])
    assert assign_rows([1], 3) == ([1], [0, 1, 2])
    assert assign_rows([], 2) == ([], [0, 1])


# Against all sequences.


@pytest.mark.parametrize("seed", range(8))
def test_every_output_has_everything_that_it_must(seed: int) -> None:
    """Of many models and phrases, with and without what must not occur; a request is rejected only
    if the phrases, one after the other, do not fit in its limit, or if no sequence has them all."""
    generator = random.Random(seed)
    rejected = several = 0
    for _ in range(60):
        forbidden = [
            [generator.choice(WORDS) for _ in range(generator.randint(2, 3))]
            for _ in range(generator.choice([0, 0, 1, 3]))
        ]
        phrases: list[Tokenizations] = [
            [way for way in ways if not any(occurs(way, part) for part in forbidden)]
            for ways in random_phrases(generator, WORDS)
        ]
        if not all(phrases):
            continue
        limit = generator.randint(1, 5)
        strategy = constrained(
            phrases,
            generator.randint(2, 4),
            length_penalty=generator.choice([0, 1.0]),
            early_stopping=generator.choice([False, True, "never"]),
            returned=2,
        )
        prohibitions = [NoBadWords(forbidden)] if forbidden else []
        each = request([3], limit, prohibitions=prohibitions)
        if strategy.required.tokens > limit:
            with pytest.raises(RejectedError, match="must_contain: expected at most"):
                strategy.check(each)
            rejected += 1
            continue
        strategy.check(each)
        sequences = sequences_of(
            random_logits(VOCABULARY, seed=seed, end=generator.choice([-2, 0, 4])), each, strategy
        )
        several += len(sequences) > 1
        for sequence in sequences:
            assert satisfied(sequence.tokens, phrases)
            assert not any(occurs(sequence.tokens, part) for part in forbidden)
            assert len(sequence.row.tokens) <= 1 + limit
            assert sequence.end_token is not None or len(sequence.tokens) == limit
        if not sequences:
            assert not any(
                satisfied(sequence, phrases)
                and not any(occurs(sequence, part) for part in forbidden)
                for sequence in all_sequences(limit)
            )
    assert rejected > 5
    assert several > 15


@pytest.mark.parametrize(
    "phrases", [[[(4,)]], [[(3, 0)]], [[(4,)], [(5,)]], [[(4, 4)], [(4, 5), (3,)]]], ids=str
)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_with_room_for_everything_finds_the_best_sequence(
    phrases: list[Tokenizations], length_penalty: float
) -> None:
    """Every sequence that can still have the phrases is a hypothesis."""
    for seed, limit in ((0, 3), (1, 3), (2, 3), (3, 4)):
        logits = random_logits(VOCABULARY, seed=seed, end=1)
        allowed = [
            sequence
            for sequence in all_sequences(limit)
            if satisfied([token for token in sequence if token != END], phrases)
        ]
        scores = {
            sequence: log_probability(logits, sequence) / len(sequence) ** length_penalty
            for sequence in allowed
        }
        best = sorted(scores, key=lambda sequence: -scores[sequence])[:2]
        sequences = sequences_of(
            logits,
            request([3], limit),
            constrained(
                phrases,
                VOCABULARY**limit,
                length_penalty=length_penalty,
                early_stopping="never",
                returned=2,
            ),
        )
        assert [tuple(sequence.row.tokens[1:]) for sequence in sequences] == best
        np.testing.assert_allclose(
            [sequence.score for sequence in sequences],
            [scores[sequence] for sequence in best],
            atol=1e-5,
        )


# Hand-worked.


def chain(following: dict[int, dict[int, float]]) -> Logits:
    """Probabilities of the next token after each token; the rest is next to impossible."""

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        probabilities = np.full(VOCABULARY, 1e-6)
        for token, probability in following[history[-1]].items():
            probabilities[token] = probability
        scores: NDArray[np.float32] = np.log(probabilities).astype(np.float32)
        return scores

    return logits


def test_a_hand_worked_beam() -> None:
    """Two beams; the output must contain 5, which the model puts after 4 and hardly elsewhere.

    After START: 3 (0.7), 4 (0.2), 5 (0.1). Banks have one place each: the lower one takes 3, the
    upper one 5, although 4 is better.
    After 3: 4 (0.6), the end (0.3, which has to wait), 5 (0.1). After 5: the end (0.6), 3 (0.4).
    Lower bank: 3 4, 0.42. Upper bank: 3 5, 0.07; 5 end, 0.06, gets no place, and is lost.
    After 4: 5 (0.9), the end (0.1). Upper bank: 3 4 5, 0.378; 3 5 end, 0.042, gets no place. The
    lower bank goes on with what is left, 3 4 0.
    Then 3 4 5 end, 0.2268, ends, and 3 4 5 3, 0.1512, goes on; then 3 4 5 3 4, 0.0907, rather than
    the end; and 5, 0.0816, at the limit.
    """
    logits = chain(
        {
            START: {3: 0.7, 4: 0.2, 5: 0.1},
            3: {4: 0.6, END: 0.3, 5: 0.1},
            4: {5: 0.9, END: 0.1},
            5: {END: 0.6, 3: 0.4},
            0: {0: 1.0},
        }
    )
    first, second = sequences_of(
        logits,
        request([3], 6),
        constrained([[(5,)]], 2, length_penalty=0.0, early_stopping=True, returned=2),
    )
    assert first.row.tokens == [START, 3, 4, 5, END]
    assert second.row.tokens == [START, 3, 4, 5, 3, 4, 5]
    np.testing.assert_allclose([first.score, second.score], np.log([0.2268, 0.0816]), atol=1e-3)


def test_what_would_have_ended_does_not_keep_the_search_going() -> None:
    """This model ends after 3 and once there is a 5, or else writes 4 for ever, at hardly any
    cost: more probable than all that has a 5."""
    going_on = chain({START: {3: 1.0}, 3: {END: 0.9, 4: 0.1}, 4: {4: 0.97, 0: 0.02}, 0: {4: 1.0}})
    ending = chain({token: {END: 0.9, 4: 0.1} for token in range(VOCABULARY)})

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        return (ending if 5 in history else going_on)(source, history)

    backend = ScriptedBackend(logits)
    strategy = constrained([[(5,)]], 3, length_penalty=0.0)
    (found,) = decoded(backend, [Job(0, request([3], 60), strategy)])
    assert found[0].tokens[-1] == 5
    assert backend.calls.count("advance") < 15


def test_when_only_the_phrases_fit_nothing_else_follows() -> None:
    """The end token is all that this model wants."""
    logits = random_logits(VOCABULARY, end=20)
    sequences = sequences_of(
        logits, request([3], 5), constrained([[(5, 5, 4)], [(3, 0)]], returned=4)
    )
    assert sorted(sequence.tokens for sequence in sequences) == [[3, 0, 5, 5, 4], [5, 5, 4, 3, 0]]
    assert all(sequence.end_token is None for sequence in sequences)


@pytest.mark.parametrize(
    ("limit", "settings", "room"),
    [
        (3, GenerationSettings(), 3),
        (4, GenerationSettings(forced_last_token_id=END), 3),
        (4, GenerationSettings(forced_first_token_id=0), 3),
        (5, GenerationSettings(forced_first_token_id=0, forced_last_token_id=END), 3),
        (1, GenerationSettings(forced_first_token_id=0, forced_last_token_id=END), 0),
    ],
)
def test_forced_tokens_leave_less_room(limit: int, settings: GenerationSettings, room: int) -> None:
    logits = random_logits(VOCABULARY, end=9)
    each = request([3], limit, settings=settings)
    phrase = (4,) * room
    if room:
        strategy = constrained([[phrase]])
        strategy.check(each)
        (sequence,) = sequences_of(logits, each, strategy)
        assert tuple(sequence.tokens[-room:]) == phrase
        assert (sequence.end_token is None) == (settings.forced_last_token_id is None)
    with pytest.raises(
        RejectedError,
        match=f"^must_contain: expected at most {room} tokens, what the limit leaves, "
        f"found {room + 1}$",
    ):
        constrained([[(4, *phrase)]]).check(each)


@pytest.mark.parametrize("phrase", [(3, 4, 5), (5, 3, 4), (4, 4), (3, 3, 4)], ids=str)
@pytest.mark.parametrize("prefix", [(3,), (5, 3), (3, 4, 5), (3, 3)], ids=str)
def test_a_prefix_may_have_a_phrase_or_its_beginning(
    phrase: tuple[int, ...], prefix: tuple[int, ...]
) -> None:
    logits = random_logits(VOCABULARY, end=6)
    lacking = next(
        count
        for count in range(len(phrase) + 1)
        if occurs((*prefix, *phrase[len(phrase) - count :]), phrase)
    )
    strategy = constrained([[phrase]])
    each = request([3], max(lacking, 1), prefix=prefix)
    strategy.check(each)
    (sequence,) = sequences_of(logits, each, strategy)
    assert occurs([*prefix, *sequence.tokens], phrase)
    assert sequence.tokens[:lacking] == list(phrase[len(phrase) - lacking :])
    if lacking:
        with pytest.raises(RejectedError):
            strategy.check(request([3], lacking - 1, prefix=prefix))


# Rules.


@pytest.mark.parametrize(
    "settings",
    [
        GenerationSettings(no_repeat_ngram_size=1),
        GenerationSettings(bad_words=((4, 5),)),
        GenerationSettings(suppressed_token_ids=(5,)),
        GenerationSettings(first_suppressed_token_ids=(3, 4, 5)),
    ],
    ids=["no-repeat", "bad-words", "suppressed", "first-suppressed"],
)
def test_phrases_win_over_the_model_s_rules(settings: GenerationSettings) -> None:
    """Their tokens have the model's own probabilities all the same."""
    logits = random_logits(VOCABULARY)
    each = request([3], 5, settings=settings)
    sequences = sequences_of(
        logits, each, constrained([[(4, 5, 5)]], returned=2, length_penalty=0.0)
    )
    assert sequences
    allowed = [token for token in range(VOCABULARY) if token not in settings.suppressed_token_ids]
    for sequence in sequences:
        assert occurs(sequence.tokens, (4, 5, 5))
        tokens = sequence.row.tokens[1:]
        assert sequence.score == pytest.approx(log_probability(logits, tokens), abs=1e-4)
        for step, token in enumerate(tokens):
            scores = logits((3,), (START, *tokens[:step])).astype(np.float64)
            among = allowed if token in allowed else list(range(VOCABULARY))
            expected = scores[token] - np.log(np.exp(scores[among]).sum())
            assert sequence.log_probabilities[step] == pytest.approx(expected, abs=1e-4)


def test_a_rule_that_changes_scores_changes_those_of_phrases() -> None:
    """The repetition penalty, which does not exclude anything."""
    logits = random_logits(VOCABULARY)
    each = request([3], 2, settings=GenerationSettings(repetition_penalty=1.5))
    (sequence,) = sequences_of(logits, each, constrained([[(4, 4)]], length_penalty=0.0))
    first, second = (log_probability(logits, (4,)), log_probability(logits, (4,), (4,)))
    assert sequence.score == pytest.approx(first + 1.5 * second, abs=1e-4)
    assert sequence.log_probability == pytest.approx(first + second, abs=1e-4)


def test_a_phrase_is_put_where_nothing_forbidden_comes_of_it() -> None:
    """After 3, the model wants 4, which must not follow it."""
    logits = chain({START: {3: 1.0}, 3: {4: 1.0}, 4: {END: 1.0}, 5: {END: 1.0}, 0: {END: 1.0}})
    each = request([3], 3, prohibitions=[NoBadWords([(3, 4)])])
    for sequence in sequences_of(logits, each, constrained([[(4,)]], returned=4)):
        assert 4 in sequence.tokens
        assert not occurs(sequence.tokens, (3, 4))


def test_what_cannot_be_has_no_outputs() -> None:
    each = request([3], 2, prohibitions=[NoBadWords([(3, 4), (4, 3)])])
    strategy = constrained([[(3,)], [(4,)]])
    strategy.check(each)
    assert sequences_of(random_logits(VOCABULARY), each, strategy) == []
    each = request([3], 3, prohibitions=[NoBadWords([(3, 4), (4, 3)])])
    (sequence,) = sequences_of(random_logits(VOCABULARY), each, strategy)
    assert {3, 4} <= set(sequence.tokens)


def test_the_order_of_many_phrases_is_not_searched_for_ever() -> None:
    """Phrases of one token, of which the last may follow none of the others: in no order do all
    fit, and there are 11 factorial of them to try."""
    logits = random_logits(16)
    last, others = 15, range(3, 14)
    each = request([3], 13, prohibitions=[NoBadWords([(other, last) for other in others])])
    sequences = sequences_of(logits, each, constrained([[(token,)] for token in (*others, last)]))
    for sequence in sequences:
        assert {*others, last} <= set(sequence.tokens)
        assert not any(occurs(sequence.tokens, (other, last)) for other in others)


# In the loop.


@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("settings", [GenerationSettings(), GenerationSettings(min_new_tokens=3)])
def test_without_phrases_it_is_beam_search(
    beams: int, early_stopping: EarlyStopping, settings: GenerationSettings
) -> None:
    logits = random_logits(31, end=2)
    jobs = [request([3 + i], 1 + i % 9, settings=settings, alternatives=2) for i in range(12)]
    plain = Beam(beams, 0.8, early_stopping, returned=beams)
    strategy = ConstrainedBeam(**vars(plain))
    expected = decoded(ScriptedBackend(logits), [Job(i, job, plain) for i, job in enumerate(jobs)])
    backend = ScriptedBackend(logits)
    found = decoded(backend, [Job(i, job, strategy) for i, job in enumerate(jobs)])
    assert found == expected
    assert {len(sequences) for sequences in found} == {beams}


def test_requests_with_and_without_phrases_share_a_batch() -> None:
    """Each has the same outputs as in a batch of one."""
    logits = random_logits(VOCABULARY, end=1)
    phrases: list[list[Tokenizations]] = [[], [[(4,)]], [[(5, 3)], [(0,)]], [[(3, 3), (4, 4)]]]
    jobs: list[Job[int]] = []
    for index in range(15):
        prefix = (4,) * (index % 3)
        each = request([3 + index % 2] * (1 + index % 4), 4 + index % 5, prefix=prefix)
        wanted = phrases[index % 4]
        strategy = constrained(wanted, returned=3) if wanted else Beam(4, returned=3)
        jobs.append(Job(index, each, strategy))
    single = [decoded(ScriptedBackend(logits), [job])[0] for job in jobs]
    backend = ScriptedBackend(logits)
    together = decoded(backend, jobs, rows=16)
    assert "join" in backend.calls
    assert [[d.row.tokens for d in sequences] for sequences in together] == [
        [d.row.tokens for d in sequences] for sequences in single
    ]


@pytest.mark.parametrize(
    ("beams", "tokens", "width"),
    [
        (4, 1, 4),
        (4, 3, 4),
        (4, 4, 8),
        (2, 5, 6),
        (5, 5, 10),
        (3, 63, 66),
        (3, 400, 66),
        (80, 70, 80),
    ],
)
def test_each_bank_has_a_place(beams: int, tokens: int, width: int) -> None:
    """Up to a limit; in multiples of the beams."""
    assert constrained([[[3] * tokens]], beams).width == width


def test_more_tokens_of_phrases_than_banks() -> None:
    """The beam is filled in the banks that have candidates."""
    phrases: list[Tokenizations] = [[[3, 4, 5] * 13], [[0, 0] * 15]]
    logits = random_logits(VOCABULARY)
    for sequence in sequences_of(logits, request([3], 75), constrained(phrases, 2, returned=2)):
        assert satisfied(sequence.tokens, phrases)


def test_a_phrase_of_many_tokens_is_put_where_it_belongs() -> None:
    """This model writes 3, 4 and 4, then 5 and the phrase 3, 3, 3, 3, 3 if there is nothing else to
    write. With two places, the phrase would begin at once."""
    text = (3, 4, 4, 5, 3, 3, 3, 3, 3, END)

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        scores = np.zeros(VOCABULARY, np.float32)
        begun = history[1:]
        if begun == text[: len(begun)] and len(begun) < len(text):
            scores[text[len(begun)]] = 4
        scores[END] += 3 * (len(begun) == 3)
        return scores

    strategy = constrained([[(3, 3, 3, 3, 3)]], 2)
    (sequence,) = sequences_of(logits, request([3], 20), strategy)
    assert tuple(sequence.row.tokens[1:]) == text
