"""Prompts of a decoder-only model that fill its positions, or do not fit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dragoman.runtime import Model, Result, load
from dragoman.runtime.decoding.results import RejectedError

from ...small_gpt2 import END, POSITIONS, VOCABULARY, small_gpt2, their_choices, their_logits

TOO_LONG = (
    f"prompt has {POSITIONS + 1} tokens, expected at most {POSITIONS}, the positions of this model"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt2")


@pytest.fixture(scope="module")
def theirs(directory: Path) -> Any:
    return small_gpt2(directory)


@pytest.fixture(scope="module")
def model(theirs: Any, directory: Path) -> Model:
    return load(directory / "bundle", threads=1)


def prompt_of(length: int) -> list[int]:
    generator = random.Random(length)
    return [generator.randrange(3, VOCABULARY) for _ in range(length)]


LENGTHS = (POSITIONS, 1, POSITIONS + 1, POSITIONS - 1, 4, POSITIONS + 30)
PROMPTS = [prompt_of(length) for length in LENGTHS]
FULL, TWO_LEFT = PROMPTS[0], PROMPTS[3]


def tokens_of(result: Result) -> list[int]:
    return [*result.tokens, *([] if result.end_token is None else [result.end_token])]


def test_prompts_in_one_batch(model: Model, theirs: Any) -> None:
    """The last new token is not read, and needs no position: a prompt that fills them gives one."""
    results = model.generate(PROMPTS, max_new_tokens=POSITIONS)
    for prompt, result in zip(PROMPTS, results, strict=True):
        if len(prompt) > POSITIONS:
            assert (result.finish_reason, result.tokens) == ("rejected", ())
            expected = TOO_LONG.replace(str(POSITIONS + 1), str(len(prompt)), 1)
            assert result.error == expected
            continue
        found = tokens_of(result)
        assert found == their_choices(theirs, prompt)
        assert result.error is None
        assert (result.finish_reason == "end") == (END in found)
        assert result.finish_reason == "end" or len(found) == POSITIONS + 1 - len(prompt)
    assert len(tokens_of(results[0])) == 1
    assert model.generate([FULL])[0].tokens == results[0].tokens


@pytest.mark.parametrize("limit", [1, 2, POSITIONS])
def test_beams_where_one_token_is_left(limit: int, model: Model, theirs: Any) -> None:
    (result,) = model.generate([FULL], num_beams=3, num_return_sequences=3, max_new_tokens=limit)
    best = their_logits(theirs, FULL)[-1].log_softmax(-1).topk(3)
    assert [len(hypothesis.tokens) for hypothesis in result.hypotheses] == [
        int(token != END) for token in best.indices.tolist()
    ]
    found = [hypothesis.tokens[0] if hypothesis.tokens else END for hypothesis in result.hypotheses]
    assert found == best.indices.tolist()
    scores = [hypothesis.score for hypothesis in result.hypotheses]
    assert scores == pytest.approx(best.values.tolist(), abs=1e-4)


def test_samples_where_one_token_is_left(model: Model) -> None:
    (result,) = model.generate(
        [FULL], do_sample=True, seed=3, num_return_sequences=20, max_new_tokens=9
    )
    assert all(len(hypothesis.tokens) <= 1 for hypothesis in result.hypotheses)
    assert len({hypothesis.tokens for hypothesis in result.hypotheses}) > 1


def test_streams(model: Model, theirs: Any) -> None:
    for prompt in (FULL, TWO_LEFT):
        found = [token.id for token in model.stream(prompt, max_new_tokens=POSITIONS)]
        assert found == list(their_choices(theirs, prompt))
        assert len(found) <= POSITIONS + 1 - len(prompt)
    with pytest.raises(RejectedError, match=f"^{TOO_LONG}$"):
        model.stream(prompt_of(POSITIONS + 1))


def test_a_prefix_needs_positions(model: Model) -> None:
    """It is read after the prompt, and must leave room for a new token."""
    found = model.generate([TWO_LEFT, FULL], prefix=[5], max_new_tokens=POSITIONS)
    assert found[0].tokens[:1] == (5,) and len(tokens_of(found[0])) == 2
    assert found[1].error == "prefix: expected fewer tokens than the limit of 1, found 1"


@pytest.mark.parametrize(("length", "room"), [(POSITIONS, 1), (POSITIONS - 2, 3)])
def test_scores_of_targets_that_just_fit(length: int, room: int, model: Model, theirs: Any) -> None:
    prompt, target = prompt_of(length), prompt_of(50)[:room]
    read = [*prompt, *target]
    logits = their_logits(theirs, read[:-1])[-room:]
    wanted = logits.log_softmax(-1)[range(room), target]
    fitting, long, ended = model.score(
        [(prompt, target), (prompt, [*target, 9]), (prompt, [*target[1:], END])]
    )
    assert fitting.tokens == tuple(target)
    assert fitting.token_log_probabilities == pytest.approx(wanted.tolist(), abs=1e-4)
    assert ended.error is None and ended.tokens[-1] == END
    expected = f"expected at most {room}, by the positions of this model"
    assert long.error == f"target has {room + 1} tokens, {expected}"
    (with_end,) = model.score([(prompt, target)], end_token=True)
    assert with_end.error == f"target has {room + 1} tokens, {expected}"


def test_scores_of_prompts_that_do_not_fit(model: Model) -> None:
    good = (FULL, [5])
    one, too_long, other = model.score([good, (prompt_of(POSITIONS + 1), [5]), good])
    assert too_long.error == TOO_LONG and too_long.tokens == ()
    assert one == other and one.error is None
