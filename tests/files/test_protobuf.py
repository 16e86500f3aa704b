"""The wire format: read as Google's library reads what it writes; everything else is an error."""

from __future__ import annotations

import random

import onnx
import pytest

from dragoman.files.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Message,
    Schema,
    WireError,
)

SCHEMA = Schema(
    "Example",
    once={
        "number": (VARINT, 1),
        "text": (BYTES, 2),
        "double": (FIXED64, 3),
        "far": (VARINT, 536_870_911),
    },
    many={"words": (BYTES, 4), "floats": (FIXED32, 5), "numbers": (VARINT, 6)},
    refused={"function": 7},
)


def read(data: bytes) -> Message:
    return Message(data, SCHEMA)


def test_every_kind_of_field() -> None:
    message = read(
        b"\x08\x96\x01\x12\x03abc\x19--double\x22\x00\x2d----\x22\x01x\x2d----\x30\x01\x30\x02"
        b"\xf8\xff\xff\xff\x0f\x05"
    )
    assert message.number("number") == 150
    assert message.part("text") == b"abc"
    assert message.parts("words") == [b"", b"x"]
    assert message.number("far") == 5
    empty = read(b"")
    assert (empty.number("number"), empty.part("text"), empty.parts("words")) == (0, b"", [])


def test_a_long_field() -> None:
    text = bytes(range(256)) * 3
    assert read(b"\x12\x80\x06" + text).part("text") == text


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_numbers_are_as_written_by_the_library(value: int) -> None:
    attribute = onnx.AttributeProto(i=value).SerializeToString()
    schema = Schema("AttributeProto", once={"i": (VARINT, 3)})
    assert Message(attribute, schema).number("i") == value % 2**64


DAMAGED = {
    "a tag without a value": (b"\x08", "Example is cut short"),
    "half a number": (b"\x08\x96", "Example is cut short"),
    "half a tag": (b"\xf8\xff", "Example is cut short"),
    "a text without a length": (b"\x12", "Example is cut short"),
    "half a text": (b"\x12\x03ab", "Example.text is cut short"),
    "half a double": (b"\x19" + bytes(7), "Example.double is cut short"),
    "half a float": (b"\x2d" + bytes(3), "Example.floats is cut short"),
    "a text as long as the world": (
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01ab",
        "Example.text is cut short",
    ),
    "a number of 65 bits": (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "a number has more"),
    "a number of 11 bytes": (b"\x08" + b"\xff" * 10 + b"\x01", "a number has more digits"),
    "a number with a leading zero": (b"\x08\x81\x00", "a number has more digits"),
    "a tag with a leading zero": (b"\x88\x00\x01", "a number has more digits"),
    "a number twice": (b"\x08\x01\x08\x01", "Example.number is there twice"),
    "a text twice": (b"\x12\x01a\x12\x01a", "Example.text is there twice"),
    "a double twice": ((b"\x19" + bytes(8)) * 2, "Example.double is there twice"),
    "another wire type": (b"\x0a\x01a", "unknown field, number 1 of wire type 2"),
    "numbers packed": (b"\x32\x01\x01", "unknown field, number 6 of wire type 2"),
    "field 0": (b"\x02\x01a", "unknown field, number 0 of wire type 2"),
    "the start of a group": (b"\x0b", "unknown field, number 1 of wire type 3"),
    "the end of a group": (b"\x0c", "unknown field, number 1 of wire type 4"),
    "wire type 7": (b"\x0f", "unknown field, number 1 of wire type 7"),
    "an unknown field": (b"\x72\x01a", "Example has an unknown field, number 14"),
    "a refused field": (b"\x3a\x01a", "Example.function: expected none"),
    "a refused field as a number": (b"\x38\x01", "Example.function: expected none"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_message(name: str) -> None:
    data, expected = DAMAGED[name]
    with pytest.raises(WireError, match=expected):
        read(data)
    with pytest.raises(WireError, match=expected):
        read(b"\x22\x01x" + data)


def test_random_bytes_are_read_or_refused() -> None:
    generator = random.Random(0)
    for _ in range(5000):
        data = bytes(generator.choices(b"\x08\x12\x19\x22\x2d\x30\x00\x01\x80\xff", k=12))
        try:
            read(data)
        except WireError as error:
            assert len(str(error)) < 200
