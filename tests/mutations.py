"""Random damage, the same for the same seed: to bytes, values of JSON and entries of archives."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Iterator
from typing import Any

VALUES: list[Any] = [
    *(0, -1, 1, 3, 10**6, 2**31, 2**63, 10**30, 10**400, 1.5, 1e308, float("nan"), -float("inf")),
    *(None, True, "", "x", "../x", "a\0b", "\ud800"),
    *([], [1], [[1]], {}, {"a": 1}, [[[[]]]]),
]


def mutated_bytes(data: bytes, generator: random.Random) -> bytes:
    """Cut short, or with up to eight bytes changed, most of them near the beginning."""
    if generator.random() < 0.1:
        return data[: generator.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8))):
        reach = min(len(data), generator.choice((64, 500, 4000, len(data))))
        changed[generator.randrange(reach)] = generator.choice(
            (0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256))
        )
    return bytes(changed)


def mutated_json(text: str, generator: random.Random) -> bytes:
    """With a value anywhere replaced or removed, or with bytes changed."""
    if generator.random() < 0.2:
        return mutated_bytes(text.encode(), generator)
    value = json.loads(text)
    *outer, last = generator.choice([path for path in _paths(value) if path])
    holder = value
    for key in outer:
        holder = holder[key]
    if generator.random() < 0.15:
        del holder[last]
    else:
        holder[last] = generator.choice(VALUES)
    return json.dumps(value).encode()


def mutated_archive(data: bytes, generator: random.Random) -> bytes:
    """With bytes of the pickle in a PyTorch file changed and the archive whole, or as any bytes."""
    if generator.random() < 0.3:
        return mutated_bytes(data, generator)
    written = io.BytesIO()
    compression = generator.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,))
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(written, "w", compression) as copy,
    ):
        for name in archive.namelist():
            content = bytearray(archive.read(name))
            if name.endswith("data.pkl"):
                for _ in range(generator.choice((1, 2, 4))):
                    byte = generator.choice((generator.randrange(256), *b"KJ}]N)"))
                    content[generator.randrange(len(content))] = byte
            copy.writestr(name, bytes(content))
    return written.getvalue()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            yield from _paths(item, (*path, key))
