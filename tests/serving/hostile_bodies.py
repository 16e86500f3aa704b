"""Bodies that no client should send: any JSON, valid bodies with a few changes, broken ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

Body = dict[str, Any]
Place = tuple[str | int, ...]
"""Keys and indices that lead to a value inside another."""
Part = tuple[str, str | None, bytes]
"""Of a form: name, name of its file if it is one, content."""

GONE = object()
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
NUMBERS = (
    *(-1, 0, 1, 2, 3, 30, 0.0, 0.5, 2.0, -0.5, 1e-9, 1e-320, 1e308, -1e308),
    *(2**31, 2**32, 2**63, 2**64, 10**30, -(10**30), 10**400, -(10**400)),
)
TEXTS = (
    *("", " ", "a", "NaN", "Infinity", "-1", "0", "true", "9" * 5000, "x" * 50_000),
    *("\ud800", "\udfff\ud800", "\0", "\n\n", "\u202e", "é", "🙂" * 9, "../../etc/passwd", "+2AA-"),
    *("D R", "AE", "it", "[MASK]", "paris", "[MASK] [MASK]", "vectors", "speech", "verses"),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [[[[[]]]]], [{}], {"": {}}, {"name": []}, [None], [True]),
    *([10**30], [10**400], [-1], [1, 2], [1, "a"], [["a", "b"]], [["a", "b", "c"]], [[1], [2, 3]]),
    *([""], ["\ud800"], ["a", "it"], ["a"] * 1030, [1] * 40, [2**32, 2**32], [0, 2**70], [1] * 70),
)
WORST: tuple[Any, ...] = (
    *(10**400, -(10**400), 10**30, 0, 1e308, 1e-320, True, "9" * 5000, "", [], [[]], {}, [None]),
    *({"name": []}, [1] * 70),
)
"""What each value of a valid body is replaced with in turn."""
VALUES = st.sampled_from((*NUMBERS, *TEXTS, *OTHERS)) | st.sampled_from(NUMBERS) | JSON
BROKEN = (
    *(b"", b"{}", b"null", b"{", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}'),
    *(b"[" * 100_000, b'{"a":' * 150 + b"1" + b"}" * 150, b'{"a": ' + b"9" * 5000 + b"}"),
    *(b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0", b'{"\\ud800": 1}', b"\0"),
)
FORM = "multipart/form-data; boundary=b"
FORM_TYPES = (
    *(FORM, "multipart/form-data", "multipart/form-data; boundary=", f"{FORM}b"),
    *(f"{FORM}; charset={name}" for name in ("utf-7", "utf-16", "undefined", "idna", "zlib")),
    *("application/x-www-form-urlencoded", "application/json", "text/plain", ""),
)


def written(body: Any) -> bytes:
    return json.dumps(body).encode()


def contents(bodies: Sequence[Body], extras: Sequence[str] = ()) -> st.SearchStrategy[bytes]:
    """What may be sent to a route.

    Args:
        bodies: valid ones
        extras: names of further fields
    """
    near = [changed(bodies, extras).map(written) for _ in range(5)]  # as often as it stands there
    cut = [broken(st.sampled_from(bodies).map(written)) for _ in range(2)]
    return st.one_of(*near, *cut, JSON.map(written))


def each_changed(bodies: Sequence[Body], extras: Sequence[str] = ()) -> Iterator[Body]:
    """Valid bodies with one value replaced, at any depth, or one field added."""
    for body in bodies:
        for place in _places(body):
            for value in WORST:
                found = copy.deepcopy(body)
                _put(found, place, value)
                yield found
    for name in extras:
        for value in WORST:
            yield bodies[0] | {name: value}


@st.composite
def changed(draw: st.DrawFn, bodies: Sequence[Body], extras: Sequence[str] = ()) -> Body:
    """A valid body with one to three values replaced, removed or added, at any depth."""
    body: Any = copy.deepcopy(draw(st.sampled_from(bodies)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([*_places(body), *((n,) for n in (*extras, "more"))]))
        _put(body, place, draw(st.just(GONE) | VALUES))
    return dict(body)


@st.composite
def broken(draw: st.DrawFn, wholes: st.SearchStrategy[bytes]) -> bytes:
    """Bytes: any; or good ones that are cut, or among which are others."""
    whole = draw(wholes)
    place = draw(st.integers(0, len(whole)))
    cut, damaged = whole[:place], whole[:place] + draw(st.binary(max_size=4)) + whole[place + 1 :]
    return draw(st.sampled_from((cut, damaged, *BROKEN)) | st.binary(max_size=100))


def form(parts: Sequence[Part]) -> bytes:
    """A body of the type `FORM`."""
    found = b""
    for name, file, content in parts:
        named = "" if file is None else f'; filename="{file}"'
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        found += head.encode(errors="surrogatepass") + content + b"\r\n"
    return found + b"--b--\r\n"


def each_form(parts: Sequence[Part]) -> Iterator[tuple[str, bytes]]:
    """Types of forms, and forms of valid parts with one replaced, or a further one."""
    for kind in FORM_TYPES:
        for content in (b"", b"+2AA-", b"\xff", b"nan", b"9" * 5000):
            for index, (name, file, _) in enumerate(parts):
                yield kind, form([*parts[:index], (name, file, content), *parts[index + 1 :]])
                yield kind, form([*parts, (name, file, content)])
            yield kind, form([*parts, (content.decode(errors="ignore"), None, content)])


@st.composite
def forms(draw: st.DrawFn, parts: Sequence[Part], extras: Sequence[str]) -> tuple[str, bytes]:
    """A form of valid parts with some changed, added, removed or sent twice; and its type."""
    found = list(parts)
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.integers(0, len(parts) - 1))
        name, file, content = parts[index]
        text = draw(st.sampled_from(TEXTS) | st.sampled_from(NUMBERS).map(str)).encode(
            errors="surrogatepass"
        )
        bytes_ = draw(st.just(text) | st.binary(max_size=60) | broken(st.just(content)))
        new = draw(
            st.sampled_from(
                [
                    (name, file, bytes_),
                    (name, None if file else "a.wav", content),
                    (draw(st.sampled_from(extras)), draw(st.sampled_from([None, ""])), bytes_),
                    (draw(st.sampled_from(TEXTS)), None, bytes_),
                    None,
                ]
            )
        )
        if draw(st.booleans()):
            found = [one for one in found if one[0] != name]
        found += [] if new is None else [new]
    whole = form(found)
    kind = draw(st.sampled_from([FORM] * 9 + [*FORM_TYPES]))
    return kind, draw(st.sampled_from([whole] * 4 + [draw(broken(st.just(whole)))]))


def _put(value: Any, place: Place, new: Any) -> None:
    """Replace what stands at a place, or remove it if the new value is `GONE`."""
    *outer, last = place
    for key in outer:
        value = value[key]
    if new is not GONE:
        value[last] = copy.deepcopy(new)
    elif last in dict(_items(value)):
        del value[last]


def _places(value: Any) -> list[Place]:
    return [
        place
        for key, inner in _items(value)
        for place in ((key,), *((key, *rest) for rest in _places(inner)))
    ]


def _items(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
