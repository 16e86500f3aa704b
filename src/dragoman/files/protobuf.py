"""A strict reader of Protocol Buffers messages.

Readers of ONNX skip unknown fields and use the last of several values, so that two readers may see
different graphs in the same bytes. Here, everything that a schema does not allow is an error. Every
byte is read once for each level of nesting.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Mapping

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types. Text and nested messages are BYTES."""

_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10


class WireError(ValueError):
    """Bytes that are not a message of the schema."""


class Schema:
    """The fields that a message may have.

    Args:
        once: fields that occur at most once; wire type and number by name
        many: repeated fields; wire type and number by name
        refused: known fields that are not allowed; numbers by name
    """

    def __init__(
        self,
        name: str,
        once: Mapping[str, tuple[int, int]],
        many: Mapping[str, tuple[int, int]] | None = None,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.refused = {number: field for field, number in (refused or {}).items()}
        self.by_tag = {
            number << 3 | wire: (field, wire, repeated)
            for repeated, fields in ((False, once), (True, many or {}))
            for field, (wire, number) in fields.items()
        }


class Message:
    """The fields of a message.

    Raises:
        WireError: the message is truncated, or has a field that the schema does not allow.
    """

    def __init__(self, data: bytes, schema: Schema) -> None:
        self._numbers: dict[str, int] = {}
        self._parts: dict[str, list[bytes]] = {}
        try:
            self._read(data, schema)
        except IndexError:
            raise WireError(f"{schema.name} is cut short") from None

    def number(self, field: str) -> int:
        """Return the value of a varint field; 0 if missing."""
        return self._numbers.get(field, 0)

    def part(self, field: str) -> bytes:
        """Return the value of a bytes field; empty if missing."""
        return self._parts[field][0] if field in self._parts else b""

    def parts(self, field: str) -> list[bytes]:
        """Return the values of a repeated bytes field."""
        return self._parts.get(field, [])

    def _read(self, data: bytes, schema: Schema) -> None:
        position, end = 0, len(data)
        while position < end:
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = _varint(data, position - 1)
            known = schema.by_tag.get(tag)
            if known is None:
                raise WireError(_unknown(tag, schema))
            field, wire, repeated = known
            if wire in (BYTES, VARINT):
                number = data[position]
                position += 1
                if number > 127:
                    number, position = _varint(data, position - 1)
            else:
                number = _SIZES[wire]
            if wire != VARINT:
                start, position = position, position + number
                if position > end:
                    raise WireError(f"{schema.name}.{field} is cut short")
            if wire == BYTES:
                values = self._parts.setdefault(field, [])
                values.append(data[start:position])
                again = len(values) > 1
            else:
                again = field in self._numbers
                self._numbers[field] = number
            if again and not repeated:
                raise WireError(f"{schema.name}.{field} is there twice")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    number = 0
    for index in range(_LONGEST_VARINT):
        byte = data[position + index]
        number |= (byte & 127) << 7 * index
        if byte < 128:
            if number >= 1 << 64 or (index and not byte):
                break
            return number, position + index + 1
    raise WireError("a number has more digits than it needs, or than 64 bits have")


def _unknown(tag: int, schema: Schema) -> str:
    number, wire = tag >> 3, tag & 7
    if number in schema.refused:
        return f"{schema.name}.{schema.refused[number]}: expected none"
    return f"{schema.name} has an unknown field, number {number} of wire type {wire}"
