"""Texts are split into sentences, translated at once, and joined with what was between them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.runtime import (
    CancelError,
    DeadlineError,
    DragomanError,
    GenerationOptions,
    Model,
    load,
)
from dragoman.runtime.texts import sentences
from dragoman.runtime.texts.sentences import (
    base_language,
    fitting_spans,
    joined,
    language_of,
    sentence_spans,
)

from ...zoo import prose_bundle

Parts = list[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(prose_bundle(tmp_path_factory.mktemp("bundles") / "prose"), threads=1)


def parts_of(text: str, language: str = "en", **options: Any) -> Parts:
    return [text[slice(*span)] for span in sentence_spans(text, language, **options)]


CASES: dict[str, tuple[str, str, Parts]] = {
    "abbreviations": (
        "en",
        "Dr. Smith met Mrs. Jones, e.g. at 5 p.m. on Monday. They left.",
        ["Dr. Smith met Mrs. Jones, e.g. at 5 p.m. on Monday.", "They left."],
    ),
    "german": (
        "de",
        "Prof. Müller kam am 3. Oktober bzw. mit Dr. Meier. Er ging.",
        ["Prof. Müller kam am 3. Oktober bzw. mit Dr. Meier.", "Er ging."],
    ),
    "quotes": (
        "en",
        'He said: "I came. I saw." She left. "Why?" he asked.',
        ['He said: "I came. I saw."', "She left.", '"Why?" he asked.'],
    ),
    "numbers": ("en", "It costs 3.50 today. Tomorrow 4.", ["It costs 3.50 today.", "Tomorrow 4."]),
    "bullets": (
        "en",
        "Buy:\n  - milk\n  * two eggs. Or three.\n• bread\n> quoted\n## Heading\n1) first",
        ["Buy:", "milk", "two eggs.", "Or three.", "bread", "quoted", "Heading", "first"],
    ),
    "numbered list": ("en", "1. First.\n2. Second. More.", ["First.", "Second.", "More."]),
    "blank lines": ("en", "\n\nOne.\n \n\tTwo.\n\n", ["One.", "Two."]),
    "crlf": (
        "en",
        "One line\r\nand another.\r\n\r\nThird.",
        ["One line", "and another.", "Third."],
    ),
    "line separators": ("en", "One\u2028two\x85three", ["One", "two", "three"]),
    "chinese": ("zh", "你好。我们走吧\uff01好吗\uff1f", ["你好。", "我们走吧\uff01", "好吗\uff1f"]),
    "japanese": ("ja", "今日は雨です。はい\uff01", ["今日は雨です。", "はい\uff01"]),
    "arabic": ("ar", "مرحبا. كيف حالك؟ نعم.", ["مرحبا.", "كيف حالك؟", "نعم."]),
    "hindi": ("hi", "राम घर गया। सीता कहाँ है? वह आई।", ["राम घर गया।", "सीता कहाँ है?", "वह आई।"]),
    "burmese": ("my", "ကျွန်တော်သွားသည်။ သူလာသည်။", ["ကျွန်တော်သွားသည်။", "သူလာသည်။"]),
    "thai": ("th", "ผมไปตลาด คุณไปไหน? ผมซื้อข้าว", ["ผมไปตลาด คุณไปไหน?", "ผมซื้อข้าว"]),
    "marks of direction": (
        "ar",
        "|مرحبا.| كيف حالك؟|\n|- نعم|\n|".replace("|", "\u200f"),
        ["مرحبا.", "كيف حالك؟", "نعم"],
    ),
    "marks around sentences": (
        "en",
        "\u202bOne. Two.\u202c \u2066Three.\u2069 Four.\u061c",
        ["One.", "Two.", "Three.", "Four."],
    ),
    "a pair of marks in a sentence": (
        "en",
        "\u200e\u2067One\u2069 two. It is \u2067three\u2069\u200e",
        ["\u2067One\u2069 two.", "It is \u2067three\u2069"],
    ),
    "only marks": ("en", " \u200f\u200e ", ["\u200f\u200e"]),
    "emoji": ("en", "Hi 😀 there. 👩‍👩‍👧 came. 😀", ["Hi 😀 there.", "👩‍👩‍👧 came."]),
    "only emoji": ("en", " 😀 ", ["😀"]),
    "only a marker": ("en", "-", ["-"]),
    "no letters": ("en", "***\nChapter 1\n***\n", ["Chapter 1"]),
    "empty": ("en", "", []),
    "white space": ("en", " \t\r\n\u3000\n", []),
    "one word": ("en", "word", ["word"]),
    "no stop": ("en", "word " * 20_000, [("word " * 20_000).strip()]),
    "lone surrogate": ("en", "One. \ud800 two.", ["One. \ud800 two."]),
}


@pytest.mark.parametrize("case", CASES)
def test_sentences(case: str) -> None:
    language, text, expected = CASES[case]
    assert parts_of(text, language) == expected


def test_lines_of_a_paragraph_may_be_one_sentence() -> None:
    assert parts_of("One line\nand another. Third.", lines=False) == [
        "One line\nand another.",
        "Third.",
    ]


TEXTS = st.text(
    st.sampled_from(
        "aA .,;!?\"'()-*1\n\r\t\u2028\u3000。\uff01你é\u0301😀\u200d؟\ud800#>\x00"
        "\u200e\u200f\u061c\u202b\u202c\u2066\u2069"
    )
    | st.characters()
)


@given(TEXTS, st.sampled_from(["en", "de", "zh", "ja", "ar", "xx", ""]), st.booleans())
def test_pieces_and_gaps_are_the_text(text: str, language: str, lines: bool) -> None:
    spans = sentence_spans(text, language, lines=lines)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    outputs = [text[slice(*span)] for span in spans]
    assert all(output and output == output.strip() for output in outputs)
    assert joined(text, spans, outputs).replace(" ", "") == text.replace(" ", "")
    gaps = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert not text.strip() or outputs
    for gap in gaps:
        assert not any(map(str.isalpha, gap)) or not outputs


def test_marks_of_direction_stay_between_the_outputs() -> None:
    text = "\u200eOne.\u200e Two.\u200e"
    assert joined(text, sentence_spans(text, "en"), ["x", "y"]) == "\u200ex\u200e y\u200e"


@pytest.mark.parametrize("language", ["tlh", "xx"])
def test_languages_that_the_splitter_does_not_know_are_split_as_english(language: str) -> None:
    text = CASES["abbreviations"][1] + " " + CASES["german"][1]
    assert base_language(language) == language
    assert parts_of(text, language) == parts_of(text, "en") != parts_of(text, "de")


@given(TEXTS, st.integers(1, 9))
def test_parts_that_fit_are_the_text(text: str, most: int) -> None:
    spans = fitting_spans(text, lambda part: len(part) <= most)
    pieces = [text[slice(*span)] for span in spans]
    assert all(len(piece) <= most for piece in pieces)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    gaps = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert not "".join(gaps).strip()


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("one two, three four", 12, ["one two,", "three four"]),
        ("one two three four", 12, ["one two", "three four"]),
        ("一二三\uff0c四五六七八", 6, ["一二三\uff0c", "四五六七八"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("abce\u0301fg", 4, ["abc", "e\u0301fg"]),
        ("1,234,567,890 is it", 8, ["1,234,56", "7,890 is", "it"]),
        ("abc", 0, []),
    ],
)
def test_too_long_sentences_are_cut(text: str, most: int, expected: Parts) -> None:
    """At punctuation, at white space, and else anywhere but before an accent."""
    spans = fitting_spans(text, lambda part: len(part) <= most)
    assert [text[slice(*span)] for span in spans] == expected


@pytest.mark.parametrize("quote", ['"', "\u201c", "(", "\u00ab"])
def test_quotes_that_are_not_closed_take_linear_time(quote: str) -> None:
    text = f"{quote}One two. " * 30_000
    begun = time.perf_counter()
    assert "".join(parts_of(text)).replace(" ", "") == text.replace(" ", "")
    assert time.perf_counter() - begun < 30


@pytest.mark.parametrize("lines", [True, False])
def test_sentences_of_long_texts_are_whole(lines: bool) -> None:
    numbers = [f"Number {n} is {'very ' * (n % 50)}large." for n in range(2000)]
    assert parts_of(" ".join(numbers), lines=lines) == numbers
    assert parts_of("\u4f60\u597d\u3002" * 9000, "zh", lines=lines) == ["\u4f60\u597d\u3002"] * 9000


def test_the_search_for_sentences_is_stopped() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise CancelError("stop")

    with pytest.raises(CancelError):
        sentence_spans("One. " * 10_000, "en", check=check)
    assert len(calls) == 3


def test_outputs_in_a_script_with_spaces_are_separated() -> None:
    text = "你好。走吧\uff01 好"
    spans = sentence_spans(text, "zh")
    assert joined(text, spans, ["Hi.", "Go!", "Yes"]) == "Hi. Go! Yes"
    assert joined(text, spans, ["嗨。", "去\uff01", "是"]) == "嗨。去\uff01 是"
    assert joined(text, spans, ["Hi.", "", "Yes"]) == "Hi. Yes"
    assert joined("ab", [(0, 1), (1, 2)], ["x", "y"]) == "xy"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *(("de", "de"), ("deu", "de"), ("de_DE", "de"), ("eng_Latn", "en"), ("zho_Hans", "zh")),
        *(("arb_Arab", "ar"), ("pt-BR", "pt"), ("gsw", "gsw"), ("?!", None), ("", None)),
    ],
)
def test_language_codes(code: str, expected: str | None) -> None:
    assert base_language(code) == expected
    assert sentences._base_language.cache_info().maxsize == 1024


def test_the_language_is_the_bundle_s(model: Model) -> None:
    options = GenerationOptions(split=True)
    assert language_of(options, model.manifest) == "en"  # prose-en-es
    assert language_of(options.replace(split_language="deu"), model.manifest) == "de"


TEXT = "The man came.  He left!\r\n\r\n  - a house. \n1. Where? "
SENTENCES = ["The man came.", "He left!", "a house.", "Where?"]


def expected_of(outputs: Parts) -> str:
    first, second, third, fourth = outputs
    return f"{first}  {second}\r\n\r\n  - {third} \n1. {fourth} "


def test_a_text_is_what_its_sentences_are(model: Model) -> None:
    each = model.generate(SENTENCES)
    (found,) = model.generate([TEXT], split=True)
    assert found.text == expected_of([result.text or "" for result in each])
    assert found.score == pytest.approx(sum(result.score for result in each), abs=1e-5)
    assert found.log_probability == pytest.approx(
        sum(result.log_probability for result in each), abs=1e-5
    )
    ends = [(*r.tokens, *([] if r.end_token is None else [r.end_token])) for r in each]
    ends[-1] = each[-1].tokens
    assert found.tokens == sum(ends, ())
    (hypothesis,) = found.hypotheses
    assert len(hypothesis.token_log_probabilities) == len(found.tokens) + (
        found.end_token is not None
    )
    reasons = {result.finish_reason for result in each}
    assert found.finish_reason == ("end" if reasons == {"end"} else "length")
    assert found.warnings == ()


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize("text", ["The man came.", "word", "x 1", "😀", "é"])
def test_one_sentence_is_translated_alike(model: Model, text: str, options: dict[str, Any]) -> None:
    assert model.generate([text], split=True, **options) == model.generate([text], **options)
    (found,) = model.generate([f"\n {text}\t"], split=True, **options)
    assert found.text == f"\n {model.generate([text], **options)[0].text}\t"


def test_further_outputs_have_those_of_the_sentences(model: Model) -> None:
    options: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 3}
    each = model.generate(SENTENCES, **options)
    (found,) = model.generate([TEXT], split=True, **options)
    assert [h.text for h in found.hypotheses] == [
        expected_of([result.hypotheses[rank].text or "" for result in each]) for rank in range(3)
    ]
    scores = [h.score for h in found.hypotheses]
    assert scores == sorted(scores, reverse=True)


def test_samples_are_those_of_the_sentences(model: Model) -> None:
    options: dict[str, Any] = {"do_sample": True, "seed": 7, "num_return_sequences": 2}
    each = model.generate(SENTENCES, **options)
    (found,) = model.generate([TEXT], split=True, **options)
    assert [h.text for h in found.hypotheses] == [
        expected_of([result.hypotheses[rank].text or "" for result in each]) for rank in range(2)
    ]


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_nothing_to_translate(model: Model, text: str) -> None:
    (found,) = model.generate([text], split=True)
    assert (found.text, found.tokens, found.finish_reason) == (text, (), "empty")


def test_a_sentence_that_is_too_long_is_cut(model: Model) -> None:
    """63 bytes and the end token fit."""
    long = "one two three, four five six, " * 4
    (found,) = model.generate([f"Hi. {long}"], split=True)
    pieces = ["Hi.", *["one two three, four five six, one two three, four five six,"] * 2]
    assert found.text == "".join(f"{result.text} " for result in model.generate(pieces))
    assert found.warnings == (
        "1 sentence is too long for the model and translated in parts: at character 4",
    )
    (two,) = model.generate([f"{long}\n{long}"], split=True)
    assert two.warnings == (
        "2 sentences are too long for the model and translated in parts: the first at character 0",
    )


def test_100_000_characters_without_a_stop(model: Model) -> None:
    (found,) = model.generate(["x" * 100_000], split=True, max_new_tokens=1)
    first, last = model.generate(["x" * 63, "x" * (100_000 % 63)], max_new_tokens=1)
    assert found.text == f"{first.text}" * (100_000 // 63) + f"{last.text}"


def test_requests_of_one_call_differ(model: Model) -> None:
    short = "One. Two."
    options = [GenerationOptions(split=True), GenerationOptions()]
    split, whole = model.generate([short, short], options)
    assert [split] == model.generate([short], split=True)
    assert [whole] == model.generate([short])


def test_what_cannot_be_read_is_rejected(text_model: Model, model: Model) -> None:
    found, ids = text_model.generate(["abc\nab1", [4, 5]], split=True)
    assert found.error == "sentence 2 of 2: unknown to this model: '1'"
    assert ids.error == "split: expected a text, found token ids"
    (alone,) = text_model.generate([" ab1"], split=True)
    assert alone.error == "unknown to this model: '1'"
    (lone,) = model.generate(["One. \ud800"], split=True)
    assert lone.finish_reason == "rejected"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefix": "ba"}, "prefix: expected none with split"),
        ({"must_contain": ["ba"], "num_beams": 2}, "must_contain: expected none with split"),
        ({"split_language": "?!"}, "split_language: expected a code such as de, found '[?]!'"),
        ({"split": False, "split_language": "de"}, "split_language: expected with split"),
        (
            {"truncate": True},
            "truncate: expected none with split, which cuts long sentences into parts; leave "
            "truncate out",
        ),
        ({"split_language": "de-" + "x" * 70}, "split_language: expected a code such as de"),
        ({"split": 1}, "split: expected True or False"),
    ],
)
def test_options_that_exclude_each_other(model: Model, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DragomanError, match=words):
        model.generate([TEXT], **{"split": True} | options)


def test_streams_are_refused(model: Model) -> None:
    with pytest.raises(DragomanError, match="split: expected no stream"):
        list(model.stream(TEXT, split=True))


def test_other_models_are_refused(ids_model: Model) -> None:
    with pytest.raises(DragomanError, match="split: expected a bundle with tokenizers"):
        ids_model.generate([[4]], split=True)


def test_without_the_packages(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "find_spec", lambda name: None)
    with pytest.raises(DragomanError) as caught:
        model.generate([TEXT], split=True)
    assert str(caught.value) == (
        "split: expected the package sentencex, found none: pip install 'dragoman[sentences]'"
    )
    assert model.generate(SENTENCES[:1])[0].error is None


def test_a_call_is_stopped_between_sentences(model: Model) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CancelError):
        model.generate([TEXT], split=True, cancel=cancelled)


def test_cutting_is_stopped(model: Model) -> None:
    """A million characters without a stop would take seconds."""
    with pytest.raises(DeadlineError):
        model.generate(["x" * 1_000_000], split=True, timeout=0.05)
