"""The records of parts, in one file that grows with every part that ends.

A later run replaces the records of the parts that it runs, and leaves the others: parts that were
run at different times, also on machines that kept nothing in between, are joined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError

FILE = "gpu.json"


@dataclass(frozen=True)
class Record:
    """What came of a part.

    Attributes:
        date: ISO 8601, UTC
        command: what to run to repeat it
        seconds: that it took
        device: the GPU and its driver, as the part "device" writes them
        versions: of the installed packages that take part
        failure: why the results are not complete; "" if they are
        results: what the part wrote, by the name of the file
    """

    date: str
    command: str
    seconds: float
    device: dict[str, Any]
    versions: dict[str, str]
    failure: str
    results: dict[str, Any]


Records = dict[str, Record]
"""By the name of the part."""


def read_records(file: Path) -> Records:
    """The records in a file; none if it does not exist.

    Raises:
        DragomanError: it has no records of parts.
    """
    if not file.exists():
        return {}
    try:
        parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
        return {name: Record(**record) for name, record in parts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DragomanError(
            f"{file}: expected records of `make gpu`, found: {type(error).__name__} {error}"
        ) from error


def write_records(file: Path, records: Mapping[str, Record]) -> None:
    """Write the file as a whole: whoever reads it meanwhile finds the one before."""
    parts = {name: asdict(record) for name, record in records.items()}
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"parts": parts}, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


def joined(files: Iterable[Path]) -> Records:
    """The records of several files; of a part that is in several of them, that of the last."""
    records: Records = {}
    for file in files:
        if not file.exists():
            raise DragomanError(f"{file}: expected records of `make gpu`, found no such file")
        records |= read_records(file)
    return records
