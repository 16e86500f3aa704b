"""`Model.score`: the probabilities that the reference model gives, whatever shares the batch."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import DragomanError, Model, ScoredPair, load, perplexity, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.scoring.interface import ScoringOptions
from dragoman.runtime.scoring.texts import TextScorer
from dragoman.runtime.texts.front_end import TextFrontEnd
from dragoman.runtime.texts.tokenizer import TextCodec
from dragoman.verification.tolerances import TOLERANCES

from ..conftest import letter_tokenizer, word_tokenizer

Case = tuple[Transformer, Model]
Pairs = list[tuple[list[int], list[int]]]
Sources = Callable[..., list[list[int]]]


@torch.inference_mode()
def forced_logits(reference: Transformer, source: list[int], target: list[int]) -> torch.Tensor:
    """By PyTorch, the source alone in its batch: [T, V]."""
    read = torch.tensor([[reference.config.start_token_id, *target[:-1]]])
    row = torch.tensor([source])
    logits: torch.Tensor = reference(row, torch.ones_like(row, dtype=torch.bool), read)
    return logits[0].double()


def expected(reference: Transformer, source: list[int], target: list[int]) -> torch.Tensor:
    """Log-probabilities of a target."""
    logits = forced_logits(reference, source, target)
    return logits.log_softmax(-1)[torch.arange(len(target)), target]


def random_pairs(reference: Transformer, count: int, sources: Sources) -> Pairs:
    """Ragged on both sides, from one token to all positions."""
    config, generator = reference.config, random.Random(count)
    longest = config.max_target_positions - 1
    lengths = [1, longest, *(generator.randint(1, longest) for _ in range(count))][:count]
    free = [t for t in range(config.target_vocab_size) if t != config.end_token_id]
    targets = [[generator.choice(free) for _ in range(n)] for n in lengths]
    return list(zip(sources(config, count), targets, strict=True))


@pytest.mark.parametrize("count", [1, 7])
def test_probabilities_are_those_of_pytorch(
    pair: Case, random_sources: Sources, count: int
) -> None:
    reference, model = pair
    end = reference.config.end_token_id
    pairs = random_pairs(reference, count, random_sources)
    for (source, target), scored in zip(pairs, model.score(pairs), strict=True):
        assert scored.error is None and scored.language is None
        assert scored.tokens == (*target, end)
        wanted = expected(reference, source, [*target, end])
        assert scored.token_log_probabilities == pytest.approx(wanted.tolist(), abs=1e-4)
        assert scored.log_probability == pytest.approx(float(wanted.sum()), abs=1e-3)


def test_order_and_company_do_not_matter(pair: Case, random_sources: Sources) -> None:
    reference, model = pair
    pairs = random_pairs(reference, 23, random_sources)
    together = model.score(pairs)
    for size in (1, 2, 64):
        alone = model.score(pairs, max_batch_size=size)
        for one, other in zip(alone, together, strict=True):
            assert one.tokens == other.tokens
            assert one.token_log_probabilities == pytest.approx(
                other.token_log_probabilities, abs=1e-4
            )


def test_what_was_generated_has_the_probability_it_was_generated_with(
    pair: Case, random_sources: Sources
) -> None:
    reference, model = pair
    sources = random_sources(reference.config, 9)
    results = model.generate(sources)
    assert {r.finish_reason for r in results} == {"end", "length"}
    for reason, end_token in (("end", True), ("length", False)):
        chosen = [
            (source, result)
            for source, result in zip(sources, results, strict=True)
            if result.finish_reason == reason
        ]
        scored = model.score([(s, r.tokens) for s, r in chosen], end_token=end_token)
        for (_, result), pair_scored in zip(chosen, scored, strict=True):
            assert pair_scored.log_probability == pytest.approx(result.log_probability, abs=1e-3)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_fewer_bits_stay_within_their_tolerance(
    ids_case: tuple[Transformer, Path],
    random_sources: Sources,
    tmp_path: Path,
    precision: Precision,
) -> None:
    reference, neutral = ids_case
    optimize_bundle(read_bundle(neutral), tmp_path, precision=precision)
    pairs = random_pairs(reference, 7, random_sources)
    with load(tmp_path, threads=1) as model:
        scored = model.score(pairs)
    for (source, target), found in zip(pairs, scored, strict=True):
        ended = [*target, reference.config.end_token_id]
        wanted = expected(reference, source, ended)
        # Both the token's logit and the normalizer may be off by the tolerance of logits.
        largest = float(forced_logits(reference, source, ended).abs().max())
        allowed = 2 * TOLERANCES[precision] * max(1.0, largest)
        assert found.token_log_probabilities == pytest.approx(wanted.tolist(), abs=allowed)
        assert found.token_log_probabilities != pytest.approx(wanted.tolist(), abs=1e-4)


def test_the_end_token(pair: Case) -> None:
    reference, model = pair
    end = reference.config.end_token_id
    free = next(t for t in range(3, 9) if t != end)
    [appended] = model.score([([4, 5], [free])])
    assert appended.tokens == (free, end)
    [there] = model.score([([4, 5], np.array([free, end]))])
    assert there == appended  # not twice
    [beginning] = model.score([([4, 5], [free])], end_token=False)
    assert beginning.tokens == (free,)
    assert beginning.token_log_probabilities == pytest.approx(
        appended.token_log_probabilities[:1], abs=1e-5
    )
    [empty] = model.score([([4, 5], [])])
    assert empty.tokens == (end,)
    assert empty.log_probability == pytest.approx(float(expected(reference, [4, 5], [end])[0]))
    [nothing] = model.score([([4, 5], [])], end_token=False)
    assert nothing.error == "target: expected at least one token to score, found none"


def test_several_end_tokens_and_none(ids_model: Model) -> None:
    """What ends an output is not appended again, and a model that nothing ends gets no end."""

    def with_ends(*ends: int) -> Model:
        bundle = ids_model.bundle
        settings = dataclasses.replace(bundle.manifest.generation, end_token_ids=ends)
        manifest = dataclasses.replace(bundle.manifest, generation=settings)
        return Model(dataclasses.replace(bundle, manifest=manifest), ids_model.backend)

    own = ids_model.manifest.model.end_token_id
    other, third = [t for t in (3, 4, 5) if t != own][:2]
    model = with_ends(other, own)
    targets: list[list[int]] = [[third], [third, other], [third, own]]
    scored = model.score([([4], target) for target in targets])
    assert [s.tokens for s in scored] == [(third, own), (third, other), (third, own)]
    assert with_ends(other).score([([4], [third])])[0].tokens == (third, other)
    assert with_ends().score([([4], [third])])[0].tokens == (third,)


def test_forced_tokens_and_the_prompt_are_read_and_not_scored(
    ids_case: tuple[Transformer, Path], ids_model: Model
) -> None:
    reference, bundle = ids_case[0], ids_model.bundle
    settings = dataclasses.replace(
        bundle.manifest.generation, prompt=(5, 7), forced_first_token_id=3
    )
    manifest = dataclasses.replace(bundle.manifest, generation=settings)
    model = Model(dataclasses.replace(bundle, manifest=manifest), ids_model.backend)
    end = manifest.model.end_token_id
    [scored] = model.score([([4, 6, 1], [8, 9])])
    assert scored.tokens == (8, 9, end)
    wanted = expected(reference, [4, 6, 1], [5, 7, 3, 8, 9, end])
    assert scored.token_log_probabilities == pytest.approx(wanted[3:].tolist(), abs=1e-4)
    [generated] = model.generate([[4, 6, 1]], max_new_tokens=6)
    assert generated.tokens[0] == 3
    ended = generated.end_token is not None
    [again] = model.score([([4, 6, 1], generated.tokens)], end_token=ended)
    assert again.tokens == (*generated.tokens[1:], *([end] if ended else []))
    assert again.log_probability == pytest.approx(generated.log_probability, abs=1e-4)
    longest = manifest.model.max_target_positions + 1 - 4
    fits, exceeds = model.score([([4], [8] * n) for n in (longest - 1, longest)])
    assert fits.error is None and len(fits.tokens) == longest
    assert exceeds.error == (
        f"target has {longest + 1} tokens, expected at most {longest}, by the positions of this "
        "model"
    )


def test_suppressed_tokens_play_no_role(ids_model: Model) -> None:
    bundle = ids_model.bundle
    settings = dataclasses.replace(
        bundle.manifest.generation, suppressed_token_ids=(8, 9), repetition_penalty=2.0
    )
    manifest = dataclasses.replace(bundle.manifest, generation=settings)
    model = Model(dataclasses.replace(bundle, manifest=manifest), ids_model.backend)
    assert model.score([([4], [8, 8])]) == ids_model.score([([4], [8, 8])])


def test_texts_are_tokenized_on_both_sides(text_model: Model) -> None:
    text, ids = text_model.score([("cab", "w5 w9 w9"), ([5, 3, 4, 2], [5, 9, 9])])
    assert text == ids and text.error is None
    spaces, empty = text_model.score([("cab", "  w5  w9 w9 "), ("cab", "")])
    assert spaces == text
    assert empty.tokens == (text_model.manifest.model.end_token_id,)


@pytest.mark.parametrize("forced", [None, 1])
def test_a_token_that_begins_every_text_is_scored_unless_it_is_forced(
    text_model: Model, tmp_path: Path, forced: int | None
) -> None:
    """As BART's `<s>`, which Hugging Face's labels begin with."""
    tokenizer = word_tokenizer(23)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save(str(tmp_path / "target.json"))
    letter_tokenizer().save(str(tmp_path / "source.json"))
    codec = TextCodec(tmp_path / "source.json", tmp_path / "target.json")
    settings = dataclasses.replace(
        text_model.manifest.generation, forced_first_token_id=forced, prompt=(7,)
    )
    manifest = dataclasses.replace(text_model.manifest, generation=settings)
    front_end = TextFrontEnd(manifest, text_model.backend, codec)
    scorer = TextScorer(manifest, text_model.backend, front_end, codec)
    [scored] = scorer.score([("cab", "w5 w9")], ScoringOptions())
    end = manifest.model.end_token_id
    assert scored.tokens == (*([1] if forced is None else []), 5, 9, end)
    [with_start] = text_model.score([("cab", [7, 1, 5, 9])])
    assert scored.token_log_probabilities == pytest.approx(
        with_start.token_log_probabilities[-len(scored.tokens) :], abs=1e-5
    )


BAD: dict[str, tuple[Any, str]] = {
    "no pair": ("cab", "expected a pair of source and target, found 'cab'"),
    "three": (
        ("cab", "w5", "w6"),
        "expected a pair of source and target, found ('cab', 'w5', 'w6')",
    ),
    "an empty source": ((" ", "w5"), "expected a source, found an empty one"),
    "an unknown symbol of the source": (("c4b", "w5"), "unknown to this model: '4'"),
    "an unknown word of the target": (("cab", "w5 w99"), "target: unknown to this model: 'w99'"),
    "half a character": (("cab", "w5 \ud800"), "target: unknown to this model: '\\ud800'"),
    "an id too high": (([5, 3], [5, 23]), "target: expected token ids in [0, 23), found 23"),
    "an id too low": (([5, 3], [-1]), "target: expected token ids in [0, 23), found -1"),
    "no ids": (
        ([5, 3], [0.5]),
        "expected a text or a one-dimensional array of integer token ids, found [0.5]",
    ),
    "a long target": (
        ("cab", " ".join(["w5"] * 24)),
        "target has 25 tokens, expected at most 24, by the positions of this model",
    ),
    "a target of a million words": (
        ("cab", "w5 " * 1_000_000),
        "target has at least",
    ),
}


def test_a_bad_pair_is_rejected_alone(text_model: Model) -> None:
    good = ("cab", "w5 w9")
    pairs: list[Any] = [good]
    for bad, _ in BAD.values():
        pairs += [bad, good]
    [first, *rest] = text_model.score(pairs)
    assert first.error is None
    for scored, (_, message) in zip(rest[0::2], BAD.values(), strict=True):
        assert scored.error is not None and scored.error.startswith(message)
        assert len(scored.error) < 200
        assert dataclasses.replace(scored, error=None) == ScoredPair((), (), 0.0)
    for scored in rest[1::2]:
        assert scored.token_log_probabilities == pytest.approx(
            first.token_log_probabilities, abs=1e-5
        )


def test_a_bundle_without_tokenizers_takes_ids(ids_model: Model) -> None:
    source, target = ids_model.score([("cab", [5]), ([4], "w5")])
    assert source.error == "this bundle has no tokenizers: expected token ids"
    assert target.error == "this bundle has no tokenizers: expected token ids as target"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end_token": 1}, "end_token: expected True or False, found 1"),
        ({"max_batch_size": 0}, "max_batch_size: expected an integer of at least 1, found 0"),
        ({"max_batch_size": None}, "max_batch_size: expected an integer of at least 1, found None"),
        ({"target_language": 7}, "target_language: expected a text, found 7"),
        ({"beams": 4}, "unknown option beams: expected some of source_language, "),
        ({"task": "translate"}, "language, task, timestamps and strict_audio are for speech"),
        ({"target_language": "de"}, "target_language: expected none, this model has no languages"),
    ],
)
def test_bad_options_fail_the_call(
    text_model: Model, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DragomanError, match="^" + message):
        text_model.score([("cab", "w5")], **options)


def test_options_are_an_object(text_model: Model) -> None:
    with pytest.raises(
        DragomanError, match=r"options: expected ScoringOptions, found \{'end_token'"
    ):
        text_model.score([("cab", "w5")], {"end_token": False})  # type: ignore[arg-type]


def test_pairs_must_be_in_a_list(text_model: Model) -> None:
    assert text_model.score([]) == []
    with pytest.raises(DragomanError, match="expected a list of inputs, found one"):
        text_model.score("cab")


def test_perplexity_by_hand() -> None:
    """Of three tokens with probabilities 1/2, 1/4 and 1/4 it is the cubic root of 32."""
    half, quarter = math.log(1 / 2), math.log(1 / 4)
    scored = [
        ScoredPair((7, 2), (half, quarter), half + quarter),
        ScoredPair((), (), 0.0, "target: unknown"),
        ScoredPair((2,), (quarter,), quarter),
    ]
    assert perplexity(scored) == pytest.approx(2 ** (5 / 3))
    assert perplexity([ScoredPair((2,), (-1e9,), -1e9)]) == math.inf
    with pytest.raises(DragomanError, match="expected at least one scored token, found none"):
        perplexity(scored[1:2])
