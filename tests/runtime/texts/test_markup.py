"""HTML is translated between its tags, which stay, once each, and go where their words go."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape

import lxml.etree
import lxml.html
import pytest
import turbohtml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.runtime import DragomanError
from dragoman.runtime.texts.markup import MOST_NESTED, MOST_TAGS, Markup, _checked, _events


@dataclass(frozen=True)
class Pairs:
    source: tuple[str, ...]
    target: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


def reversed_words(sentence: str) -> tuple[str, Pairs]:
    """A translation with the words the other way round, in capital letters."""
    source = sentence.split()
    target = [word.upper() for word in reversed(source)]
    last = len(source) - 1
    pairs = tuple((last - n, n) for n in range(len(source)))
    return " ".join(target), Pairs(tuple(source), tuple(target), pairs)


def translated(html: str, translate: Callable[[str], tuple[str, Pairs]] = reversed_words) -> str:
    markup = Markup(html, "en")
    each = [translate(sentence) for sentence in markup.sentences]
    return markup.translated([text for text, _ in each], {n: each[n][1] for n in markup.aligned})


CASES = {
    "inline": ("<p>one <b>two</b> three</p>", "<p>THREE <b>TWO</b> ONE</p>"),
    "nested": (
        "<p>one <b>two <i>three</i></b> four</p>",
        "<p>FOUR <b><i>THREE</i> TWO</b> ONE</p>",
    ),
    "two elements": ("<b>one</b> <i>two three</i>", "<i>THREE TWO</i> <b>ONE</b>"),
    "attributes": (
        "<a href='x?a=1&amp;b=2' data-x=\"'\" disabled>one</a> two",
        "TWO <a href='x?a=1&amp;b=2' data-x=\"'\" disabled>ONE</a>",
    ),
    "directions": (
        '<div dir="rtl">one <bdi dir=ltr>two</bdi> three\u200f</div>&rlm;',
        '<div dir="rtl">THREE <bdi dir=ltr>TWO</bdi> ONE\u200f</div>&rlm;',
    ),
    "capital tags": ("<P CLASS=x>one <B>two</B></P>", "<P CLASS=x><B>TWO</B> ONE</P>"),
    "blocks": (
        "<div>\n  <h1>one two</h1>\n  <p>three four.</p> five\n</div>",
        "<div>\n  <h1>TWO ONE</h1>\n  <p>FOUR. THREE</p> FIVE\n</div>",
    ),
    "sentences": (
        "<p>One two.  Three\n four.</p>",
        "<p>TWO. ONE  FOUR. THREE</p>",
    ),
    "element of two sentences": (
        "<p>a <b>One. Two</b> b.</p>",
        "<p><b>ONE.</b> A B. TWO</p>",
    ),
    "punctuation": ("<p><b>one</b>, (<i>two</i>)</p>", "<p>(<i>TWO</i>) <b>ONE</b>,</p>"),
    "image": ("one <img src=x> two three", "THREE <img src=x> TWO ONE"),
    "image first": ("<img src=x> one two", "<img src=x> TWO ONE"),
    "image in a link": ("one <a href=y><img src=x></a> two", "<a href=y><img src=x></a> TWO ONE"),
    "line break": ("one two<br>three four<br/>", "TWO ONE<br>FOUR THREE<br/>"),
    "footnote": ("one<sup>1</sup> two", "TWO ONE<sup>1</sup>"),
    "part of a word": ("un<b>believ</b>able", "<b>UNBELIEVABLE</b>"),
    "code": ("call <code>f(x) &lt; 1</code> now", "<code>f(x) &lt; 1</code> NOW CALL"),
    "pre": ("a b<pre>x <b>y</b>\n  z</pre>c d", "B A<pre>x <b>y</b>\n  z</pre>D C"),
    "not to translate": (
        "one <span translate=NO>Big <b>Co</b></span> two",
        "<span translate=NO>Big <b>Co</b></span> TWO ONE",
    ),
    "script and style": (
        "<style>p > a {}</style><script>if (a<b) '</p>'</script>one two<!-- c -->",
        "<style>p > a {}</style><script>if (a<b) '</p>'</script>TWO ONE<!-- c -->",
    ),
    "no script": (
        "one<noscript>a <img src=x> b</noscript> two<iframe>c <b>d</b></iframe>three four",
        "ONE<noscript>a <img src=x> b</noscript> TWO<iframe>c <b>d</b></iframe>FOUR THREE",
    ),
    "other raw text": (
        "<noframes>a <b>b</b></noframes>one <noembed>a <i>b</noembed> two<plaintext>a <b>b</b>",
        "<noframes>a <b>b</b></noframes><noembed>a <i>b</noembed> TWO ONE<plaintext>a <b>b</b>",
    ),
    "entities": ("AT&amp;T &lt;3 &copy;&nbsp;x", "X © &lt;3 AT&amp;T"),
    "plain text": ("one < two & three", "THREE &amp; TWO &lt; ONE"),
    "crlf": ("<p>one\r\n two</p>\r\n", "<p>TWO ONE</p>\r\n"),
    "no letters": ("<td>12.5</td><td> &nbsp; </td>", "<td>12.5</td><td> &nbsp; </td>"),
    "empty": ("", ""),
    "white space": (" \n", " \n"),
    "paragraphs without an end": ("<p>one two<p>three four", "<p>TWO ONE<p>FOUR THREE"),
    "element without an end": ("<p>one <b>two", "<p><b>TWO ONE"),
    "end without a start": ("one</b> two three", "</b>THREE TWO ONE"),
    "across": ("one <b><i>two</b></i>", "<b><i>TWO</b> ONE</i>"),
    "unfinished tag": ("one two<b", "TWO ONE<b"),
    "document": (
        "<!doctype html><html><head><title>a b</title></head><body>c d</body></html>",
        "<!doctype html><html><head><title>B A</title></head><body>D C</body></html>",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tags_go_where_their_words_go(case: str) -> None:
    source, expected = CASES[case]
    assert translated(source) == expected


def test_words_without_an_alignment_are_aligned_by_place() -> None:
    markup = Markup("one <b>two three</b> four", "en")
    assert markup.aligned == [0]
    assert markup.translated(["a b c d"]) == "a <b>b c</b> d"
    assert markup.translated(["a b c d e f g h"]) == "a b <b>c d e f</b> g h"
    assert markup.translated(["a"]) in ("<b>a</b>", "a<b></b>")
    assert markup.translated([""]) == "<b></b>"
    other = Pairs(("other",), ("a", "b", "c", "d"), ((0, 0),))
    assert markup.translated(["a b c d"], {0: other}) == "a <b>b c</b> d"


def test_characters_of_chinese_are_words() -> None:
    assert Markup("one <b>two</b> three", "en").translated(["一二三"]) == "一<b>二</b>三"
    assert Markup("<b>一</b>二三四。", "zh").translated(["one two three four."]) == (
        "<b>one</b> two three four."
    )


def test_words_apart_stay_apart() -> None:
    """Of words that are not in a row, the tag goes to most of them."""
    pairs = Pairs(("a", "b"), ("x", "y", "y", "x", "y"), ((1, 0), (0, 1), (0, 2), (1, 3), (0, 4)))
    markup = Markup("<i>a</i> <b>b</b>", "en")
    assert markup.translated(["x y y x y"], {0: pairs}) == "<b>x</b> <i>y y</i> x y"


INLINE, BLOCK = ["b", "i", "a", "em", "span", "x-y"], ["p", "div", "li", "td", "h1"]
WORDS = ["one", "two.", "Three", "&", "<", "12", "é", "你好。", '"q"', "a>b", "Dr."]
ATTRIBUTES = ["", ' class="x"', ' title="a&amp;\'b"', ' href="é?a=1&amp;b"']


def element(draw: st.DrawFn, depth: int, names: Sequence[str]) -> str:
    name, attributes = draw(st.sampled_from(names)), draw(st.sampled_from(ATTRIBUTES))
    return f"<{name}{attributes}>{content(draw, depth, names)}</{name}>"


def content(draw: st.DrawFn, depth: int, names: Sequence[str]) -> str:
    pieces = []
    for _ in range(draw(st.integers(0, 4 if depth else 2))):
        kind = draw(st.integers(0, 7 if depth else 3))
        if kind < 3:
            pieces.append(escape(draw(st.sampled_from(WORDS))))
        elif kind == 3:
            pieces.append(draw(st.sampled_from([" ", "\n  ", "", "&#160;"])))
        elif kind == 4:
            pieces.append(draw(st.sampled_from(['<img src="x"/>', "<br/>", "<!-- c -->"])))
        elif kind == 5:
            pieces.append(draw(st.sampled_from(['<code class="k">f &lt; <b>g</b></code>', "<i/>"])))
        else:
            inner = INLINE if names is INLINE or kind == 6 else BLOCK
            pieces.append(element(draw, depth - 1, inner))
    return draw(st.sampled_from([" ", ""])).join(pieces)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Well-formed, also as XML. The tag <i/> is no element without text for HTML."""
    return element(draw, 4, BLOCK).replace("<i/>", "<i></i>")


def shuffled(seed: int) -> Callable[[str], tuple[str, Pairs]]:
    """A translation of random words, aligned at random."""
    drawn = random.Random(seed)

    def translate(sentence: str) -> tuple[str, Pairs]:
        source = tuple(sentence.split())
        target = tuple(
            drawn.choice(["x", "y.", "&", "<z>", "(w)"]) for _ in range(drawn.randrange(9))
        )
        pairs = tuple((drawn.randrange(len(source)), n) for n in range(len(target)))
        return " ".join(target), Pairs(source, target, pairs)

    return translate


def tags_of(root: lxml.etree._Element) -> Counter[object]:
    return Counter((str(node.tag), *sorted(node.attrib.items())) for node in root.iter())


@settings(max_examples=400, deadline=None)
@given(documents(), st.integers(0, 1 << 30))
@example('<p><b>one<code class="k">f &lt; <b>g</b></code></b>&amp;</p>', 0)
def test_every_tag_occurs_once(html: str, seed: int) -> None:
    """Read as XML, the translation is well-formed, and has the elements of the document."""
    sentences: list[str] = []
    translate = shuffled(seed)

    def noted(sentence: str) -> tuple[str, Pairs]:
        sentences.append(translate(sentence)[0])
        return sentences[-1], Pairs((), (), ())

    for found in (translated(html), translated(html, shuffled(seed)), translated(html, noted)):
        before, after = (lxml.etree.fromstring(text.encode()) for text in (html, found))
        assert tags_of(after) == tags_of(before)
        codes = ["".join(node.itertext()) for node in before.iter("code")]
        assert Counter(codes) == Counter("".join(n.itertext()) for n in after.iter("code"))
        assert len(lxml.html.fromstring(found).xpath("//*")) == len(
            lxml.html.fromstring(html).xpath("//*")
        )
    blocks = [node.tag for node in before.iter(*BLOCK, "br")]
    assert blocks == [node.tag for node in after.iter(*BLOCK, "br")]
    for node in after.iter("code"):  # which may stand before the last mark of a word
        node.clear(keep_tail=True)
    written = "".join("".join(after.itertext()).split())
    place = 0
    for sentence in sentences:  # the outputs in order, with nothing lost
        for word in sentence.split():
            place = written.index(word, place) + len(word)


PIECES = st.sampled_from(
    (  # noqa: SIM905, RUF005
        "<b> </b> <p> </p> <br> <a <a/ > < </ & &amp; &#65; ; one two. <!-- --> <script> </script> "
        "<code> </code> ' \" = / <![CDATA[ ]]> <? <!doctype x> <pre> <td> 😀 \x00 \r\n <svg/> </> "
        "<span translate=no> </span> <textarea> <title>"
    ).split(" ")
    + [" ", "\n", "\r"]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join), st.integers(0, 1 << 30))
def test_bad_html_keeps_its_tags(html: str, seed: int) -> None:
    """Whatever a tokenizer takes for a tag or a comment is there as it was."""

    def markup_of(text: str) -> Counter[object]:
        tokens = turbohtml.tokenize(
            text.replace("\r\n", "\n").replace("\r", "\n"), capture_source=True
        )
        return Counter(token.source for token in tokens if token.source is not None)

    found = translated(html, shuffled(seed))
    assert markup_of(found) == markup_of(html)
    unchanged = Markup(html, "en")
    assert "".join(unchanged.translated(unchanged.sentences).split()) or not html.strip()


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES | st.text(max_size=2), max_size=12).map("".join), st.booleans())
def test_parts_of_html_are_the_text(html: str, entities: bool) -> None:
    text = html.replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(event.raw for event in _events(text, entities=entities)) == text


@pytest.mark.parametrize("tag", ["title", "textarea", "script", "p", "a\0b", "b c='\0'"])
def test_nul_is_kept(tag: str) -> None:
    html = f"<{tag}>1\0 2</{tag.split()[0]}>3<!-- \0 --><i>\0</i>4&\0;</\0>"
    assert translated(html) == html


def test_html_that_is_not_found_is_refused() -> None:
    events = list(_events("<b>one</b>", entities=True))
    for wrong in (events[1:], events[:-1], [*events, events[-1]]):
        with pytest.raises(DragomanError, match="tags: expected HTML that a tokenizer finds all"):
            list(_checked(wrong, "<b>one</b>"))


@pytest.mark.parametrize(
    "html",
    [
        "<b>" * 1_000_000,
        "<div><b>" * 1000 + "x",
        "x<b></b>" * 60_000,
        "<p>x" * 200_000,
        "<!---->" * 200_000,
    ],
)
def test_too_many_tags_are_refused(html: str) -> None:
    with pytest.raises(DragomanError) as caught:
        Markup(html, "en")
    assert str(caught.value) == (
        "tags: expected at most 200 elements within each other and 100,000 tags, found more"
    )


def test_as_many_tags_as_are_allowed() -> None:
    nested = "<b>" * MOST_NESTED + "one two" + "</b>" * MOST_NESTED
    assert translated(nested) == nested.replace("one two", "TWO ONE")
    many = "one <b>two</b> " * (MOST_TAGS // 2)
    begun = time.perf_counter()
    assert Counter(translated(many).split("<b>"))["TWO</b> ONE "] == MOST_TAGS // 2
    assert time.perf_counter() - begun < 30


def test_hostile_tags_are_read_in_linear_time() -> None:
    for piece in ("<a ", "<!--", "<a/", "</", "<a b='", "&", "<script>x", "<i>x</b>"):
        begun = time.perf_counter()
        with suppress(DragomanError):
            translated(piece * (90_000 // len(piece)))
        assert time.perf_counter() - begun < 20, piece


@pytest.mark.parametrize(
    "html",
    [
        "x " + "<i></i> " * 30_000,
        "x " + "<!-- -->" * 90_000 + " " * 300_000,
        "x <i></i>" + " \n" * 500_000,
        " </>" * 90_000,
        "x " + "<i><b></i>" * 30_000,
    ],
)
def test_white_space_beside_tags_is_read_in_linear_time(html: str) -> None:
    begun = time.perf_counter()
    Markup(html, "en")
    assert time.perf_counter() - begun < 10
