"""What must and must not occur, in texts: with every form of tokenizer, on a backend that writes
what it is told to."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman import DragomanError
from dragoman.runtime import GenerationOptions, Manifest, Model, Result
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.runtime.texts.front_end import TextFrontEnd
from dragoman.runtime.texts.tokenizer import TextCodec

from ..decoding.scripted import END, Logits, ScriptedBackend

VOCABULARY, LIMIT = 400, 12
STRATEGIES: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"do_sample": True, "seed": 1}]


@pytest.fixture
def manifest(plain_manifest: dict[str, Any]) -> Manifest:
    """Of a model that knows more tokens than the tokenizers."""
    plain_manifest["model"]["target_vocab_size"] = VOCABULARY
    plain_manifest["graphs"]["decoder"]["outputs"][0]["shape"][2] = VOCABULARY
    return manifest_from_json(json.dumps(plain_manifest), "by hand")


class Writer:
    """A model that wants to write a text, over and over, in whatever tokens it can; which of them,
    the first token of the source decides."""

    def __init__(self, codec: TextCodec, text: str) -> None:
        self._surfaces = [codec.surfaces(VOCABULARY)[token] for token in range(VOCABULARY)]
        self._wanted = f"{text} ".encode() * LIMIT

    def __call__(self, source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        generator = np.random.default_rng([source[0], *history])
        scores = generator.standard_normal(VOCABULARY).astype(np.float32)
        written = b"".join(self._surfaces[token] for token in history[1:]).lstrip()
        for token, surface in enumerate(self._surfaces):
            text = written + surface if written else surface.lstrip()
            if len(text) > len(written) and self._wanted.startswith(text):
                scores[token] += 12 + 4 * len(surface)
        return scores


def front_end(manifest: Manifest, codec: TextCodec | None, logits: Logits) -> TextFrontEnd:
    return TextFrontEnd(manifest, ScriptedBackend(logits), codec)


def texts_of(results: list[Result]) -> list[str]:
    texts = []
    for result in results:
        assert result.error is None
        texts += [hypothesis.text or "" for hypothesis in result.hypotheses]
    return texts


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["greedy", "beams", "sampling"])
@pytest.mark.parametrize(
    ("wanted", "forbidden"),
    [
        ("cat", ["cat"]),
        ("the cat sat", ["at s"]),
        ("the cat", ["cat", "the"]),
        ("a dog and", ["dog ", "g an", "and"]),
        ("naïve café: où", ["é"]),
        ("x y", [" "]),
    ],
)
def test_a_text_does_not_occur_whatever_its_tokens(
    manifest: Manifest,
    target: TextCodec,
    wanted: str,
    forbidden: list[str],
    strategy: dict[str, Any],
) -> None:
    model = front_end(manifest, target, Writer(target, wanted))
    sources = [[3 + index] for index in range(8)]
    options = GenerationOptions(max_new_tokens=LIMIT, **strategy)
    free = texts_of(model.generate(sources, options))
    assert sum(any(text in free_text for text in forbidden) for free_text in free) > len(free) / 2
    found = texts_of(model.generate(sources, options.replace(must_not_contain=forbidden)))
    assert len(found) == len(free)
    for text in found:
        assert not any(phrase in text for phrase in forbidden)


def test_of_several_hypotheses_none_has_it(manifest: Manifest, target: TextCodec) -> None:
    model = front_end(manifest, target, Writer(target, "the cat"))
    results = model.generate(
        [[3], [4]],
        GenerationOptions(
            num_beams=4, num_return_sequences=4, max_new_tokens=9, must_not_contain=["cat"]
        ),
    )
    texts = texts_of(results)
    assert len(texts) == 8
    assert "cat" not in " / ".join(texts)


def test_half_a_text_in_the_prefix_is_not_completed(manifest: Manifest, target: TextCodec) -> None:
    """What it ends with is where the text begins."""
    model = front_end(manifest, target, Writer(target, "the cat sat"))
    asked = GenerationOptions(prefix="the cat", max_new_tokens=LIMIT)
    assert "the cat sat" in texts_of(model.generate([[3]], asked))[0]
    (text,) = texts_of(model.generate([[3]], asked.replace(must_not_contain=["cat s"])))
    assert text.startswith("the cat")
    assert "cat s" not in text


def test_a_prefix_without_its_spaces(manifest: Manifest, target: TextCodec) -> None:
    """Those around it are not part of it: what follows may complete its last word."""
    model = front_end(manifest, target, Writer(target, "the cat sat"))
    asked = GenerationOptions(max_new_tokens=LIMIT)
    results = [
        model.generate([[3]], asked.replace(prefix=prefix))
        for prefix in ("the cat", "the cat ", "  the cat", "\tthe cat\n")
    ]
    assert results == results[:1] * 4


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["greedy", "beams", "sampling"])
def test_the_tokens_of_a_prefix_count(
    manifest: Manifest, target: TextCodec, strategy: dict[str, Any]
) -> None:
    """In the fewest and in the most new tokens, not in scores."""

    def ending(source: Any, history: Any) -> NDArray[np.float32]:
        scores = np.linspace(0, 1, VOCABULARY, dtype=np.float32)
        scores[END] = 30
        return scores

    model = front_end(manifest, target, ending)
    asked = GenerationOptions(prefix=[5, 6, 7], **strategy)
    for fewest, length in ((None, 3), (2, 3), (3, 3), (5, 5)):
        (result,) = model.generate([[3]], asked.replace(min_new_tokens=fewest))
        assert result.tokens[:3] == (5, 6, 7)
        assert len(result.tokens) == length
        assert result.end_token == END
        log_probabilities = result.hypotheses[0].token_log_probabilities
        assert len(log_probabilities) == length + 1
        assert log_probabilities[:3] == (0, 0, 0)
        assert result.log_probability == pytest.approx(sum(log_probabilities))
    (result,) = model.generate([[3]], asked.replace(min_new_tokens=4, max_new_tokens=4))
    assert len(result.tokens) == 4
    assert result.finish_reason == "length"


@pytest.mark.parametrize("phrases", [["bird"], ["naïve café:", "x y z"], ["a dog", "dog"]], ids=str)
def test_a_text_occurs(manifest: Manifest, target: TextCodec, phrases: list[str]) -> None:
    """At the beginning, in the middle or at the end, of all hypotheses."""
    model = front_end(manifest, target, Writer(target, "the cat"))
    options = GenerationOptions(num_beams=4, num_return_sequences=2, max_new_tokens=20)
    for text in texts_of(model.generate([[3], [4]], options)):
        assert not all(phrase in text for phrase in phrases)
    for text in texts_of(model.generate([[3], [4]], options.replace(must_contain=phrases))):
        assert all(phrase in text for phrase in phrases)


def test_both_hold_together(manifest: Manifest, target: TextCodec) -> None:
    model = front_end(manifest, target, Writer(target, "the cat sat"))
    forbidden = ["cat", "he m", "e mat"]
    asked = GenerationOptions(
        num_beams=4,
        max_new_tokens=15,
        prefix="the",
        must_contain=["mat", "the bird"],
        must_not_contain=forbidden,
    )
    for text in texts_of(model.generate([[3], [4], [5]], asked)):
        assert text.startswith("the")
        assert "mat" in text
        assert "the bird" in text
        assert not any(phrase in text for phrase in forbidden)


def test_token_ids_of_a_phrase(manifest: Manifest, target: TextCodec) -> None:
    """Those tokens, and not the text."""
    model = front_end(manifest, target, Writer(target, "the cat"))
    free = model.generate([[3]], GenerationOptions(max_new_tokens=6))[0].tokens
    for phrase in (free[1:2], free[:2], np.array(free[1:3])):
        asked = GenerationOptions(max_new_tokens=6, must_not_contain=[phrase])
        tokens = model.generate([[3]], asked)[0].tokens
        assert not any(tokens[i : i + len(phrase)] == tuple(phrase) for i in range(len(tokens)))
    asked = GenerationOptions(num_beams=2, max_new_tokens=6, must_contain=[np.array([9, 9, 8])])
    tokens = model.generate([[3]], asked)[0].tokens
    assert (9, 9, 8) in [tokens[i : i + 3] for i in range(4)]


# What is refused.


def message_of(manifest: Manifest, codec: TextCodec | None, **options: Any) -> str:
    """The error of a call."""
    writer: Logits = Writer(codec, "the cat") if codec else _never
    model = front_end(manifest, codec, writer)
    with pytest.raises(DragomanError) as caught:
        model.generate([[3]], GenerationOptions(max_new_tokens=LIMIT, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _never(source: Any, history: Any) -> NDArray[np.float32]:
    raise AssertionError("nothing is decoded")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": ""}, "prefix: expected at least one token, found ''"),
        ({"prefix": "  "}, "prefix: expected at least one token, found '  '"),
        ({"prefix": [5, 400]}, "prefix: expected token ids in [0, 400), found 400"),
        ({"prefix": [5, -1]}, "prefix: expected token ids in [0, 400), found -1"),
        ({"prefix": [5, END, 6]}, "prefix: expected no end token, found 2"),
        ({"must_contain": [" "]}, "must_contain: expected at least one token, found ' '"),
        ({"must_contain": [[5], []]}, "must_contain: expected at least one token, found ()"),
        ({"must_contain": [[END]]}, "must_contain: expected no end token, found 2"),
        ({"must_not_contain": [""]}, "must_not_contain: expected phrases, found ''"),
        ({"must_not_contain": [[]]}, "must_not_contain: expected phrases, found ()"),
        ({"must_not_contain": ["\ufffd"]}, "must_not_contain: expected phrases, found '\ufffd'"),
        ({"must_not_contain": [[400]]}, "must_not_contain: expected token ids in [0, 400)"),
        (
            {"must_contain": ["the cat"], "must_not_contain": ["cat"]},
            "must_contain: 'the cat' has a phrase of must_not_contain",
        ),
        (
            {"prefix": "the cat", "must_not_contain": ["he c"]},
            "prefix: 'the cat' has a phrase of must_not_contain",
        ),
        (
            {"must_contain": [[5, 6, 7]], "must_not_contain": [[6, 7]]},
            "must_contain: (5, 6, 7) has a phrase of must_not_contain",
        ),
    ],
)
def test_a_wrong_phrase_is_one_line(
    manifest: Manifest, target: TextCodec, options: dict[str, Any], message: str
) -> None:
    if "must_contain" in options:
        options = {"num_beams": 2, **options}
    assert message_of(manifest, target, **options).startswith(message)


def test_arrays_of_token_ids_are_compared_as_lists() -> None:
    """Whether a phrase is both required and forbidden."""
    GenerationOptions(must_contain=[np.array([5, 6])], must_not_contain=[np.array([7, 8]), "cat"])
    with pytest.raises(DragomanError, match=r"must_contain: \(5, 6\) is in must_not_contain"):
        GenerationOptions(must_contain=[np.array([5, 6])], must_not_contain=[[5, 6]])


@pytest.mark.parametrize("option", ["prefix", "must_contain", "must_not_contain"])
def test_texts_need_a_tokenizer(manifest: Manifest, option: str) -> None:
    phrase = "cat" if option == "prefix" else ["cat"]
    message = message_of(manifest, None, **{option: phrase, "num_beams": 2})
    assert message == f"{option}: this bundle has no tokenizers: expected token ids"


@pytest.mark.parametrize("text", ["the \N{GREEK CAPITAL LETTER OMEGA}", "half \ud800", "the  cat"])
def test_what_a_model_cannot_write_is_refused(
    manifest: Manifest, target: TextCodec, text: str
) -> None:
    """Symbols without a token; spaces, where they are lost. It may well be forbidden."""
    try:
        writes = target.decode(target.encode_target(text).tokens)
    except ValueError:
        writes = ""
    if writes == text:
        return
    for options in ({"prefix": text}, {"must_contain": [text], "num_beams": 2}):
        message = message_of(manifest, target, **options)
        assert "as this model writes it, found" in message or "unknown to this model" in message
    model = front_end(manifest, target, Writer(target, "the cat"))
    asked = GenerationOptions(max_new_tokens=LIMIT)
    assert model.generate([[3]], asked.replace(must_not_contain=[text])) == model.generate(
        [[3]], asked
    )


def test_a_message_shows_spaces(manifest: Manifest, target: TextCodec) -> None:
    if target.decode(target.encode_target("the  cat").tokens) == "the cat":
        assert message_of(manifest, target, prefix="the  cat") == (
            "prefix: expected a text as this model writes it, found 'the  cat', which it writes "
            "'the cat'"
        )


def test_of_several_requests_only_the_wrong_ones_are_rejected(
    manifest: Manifest, target: TextCodec
) -> None:
    model = front_end(manifest, target, Writer(target, "the cat"))
    good = GenerationOptions(max_new_tokens=4, num_beams=2)
    options = [
        good,
        good.replace(prefix=[5, 6, 7, 8]),
        good.replace(prefix=[5, 6, 7]),
        good.replace(must_contain=[[5, 6, 7, 8, 9]]),
        good.replace(must_contain=[[5, 6, 7, 8]]),
        good.replace(prefix=[5], must_contain=[[5, 6, 7, 8]]),
        good.replace(prefix=[9], must_contain=[[5, 6, 7, 8]]),
        good.replace(must_contain=[[5], [6, 9]], must_not_contain=[[9]]),
        good.replace(must_contain=[[5, 7], [6, 8]], must_not_contain=[[7, 6], [8, 5]]),
    ]
    results = model.generate([[3]] * len(options), options)
    assert [result.error for result in results] == [
        None,
        "prefix: expected fewer tokens than the limit of 4, found 4",
        None,
        "must_contain: expected at most 4 tokens, what the limit leaves, found 5",
        None,
        None,
        "must_contain: expected at most 3 tokens, what the limit leaves, found 4",
        "must_contain: (6, 9) has a phrase of must_not_contain",
        "found no output that all rules and phrases allow",
    ]
    assert results[2].tokens[:3] == (5, 6, 7)
    assert results[4].tokens == (5, 6, 7, 8)
    assert results[5].tokens == (5, 6, 7, 8)


@pytest.mark.parametrize("beams", [2, 5])
def test_with_a_model_every_output_has_what_it_must(text_model: Model, beams: int) -> None:
    """Of many sources; rejected are a prefix with what is forbidden, and the end token, which is a
    word here."""
    generator = random.Random(beams)
    end = text_model.manifest.model.end_token_id
    words = [f"w{token}" for token in range(3, 23) if token != end]
    options = [
        GenerationOptions(
            num_beams=beams,
            num_return_sequences=generator.randint(1, beams),
            max_new_tokens=generator.randint(8, 20),
            prefix=generator.choice([None, " ".join(generator.choices(words, k=2))]),
            must_contain=[
                " ".join(generator.choices(words[:10], k=generator.randint(1, 3)))
                for _ in range(generator.randint(0, 3))
            ],
            must_not_contain=generator.sample(words[10:], k=generator.randint(0, 4)),
        )
        for _ in range(60)
    ]
    sources = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 12))) for _ in options]
    decoded = 0
    for result, asked in zip(text_model.generate(sources, options), options, strict=True):
        if result.error is not None:
            assert result.error.endswith("has a phrase of must_not_contain")
            continue
        decoded += 1
        assert result.hypotheses
        for hypothesis in result.hypotheses:
            found = f" {hypothesis.text} "
            assert found.startswith(f" {asked.prefix} " if asked.prefix else " ")
            assert all(f" {phrase} " in found for phrase in asked.must_contain)
            assert not any(str(phrase) in found for phrase in asked.must_not_contain)
    assert decoded > 40
    (result,) = text_model.generate(
        ["ab"], [GenerationOptions(num_beams=beams, must_contain=[f"w{end}"])]
    )
    assert result.error == f"must_contain: expected no end token, found {end}"


def test_must_contain_needs_beams(manifest: Manifest, target: TextCodec) -> None:
    assert message_of(manifest, target, must_contain=["cat"]) == (
        "must_contain: expected num_beams of more than 1: it needs beam search"
    )
