"""The record of parity as JSON data: what is left out of it, and how older ones are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .plain_data import to_plain
from .records import Parity

TOKEN_FIELDS = ("one_pass", "expected_identical", "least_identical", "allowed_margin")
TASK_FIELDS = ("excess_chance", "undecided", "more_inputs")
"""Fields that a record has only where they say something."""


def to_data(parity: Parity) -> dict[str, Any]:
    """Without what the record does not have, as in bundles of versions that do not know it."""
    data: dict[str, Any] = to_plain(parity)
    for name in ("tasks", "references", "beams", "distributions", "vectors", "checks", "coverage"):
        if not data[name]:
            del data[name]
    distributions = data.get("distributions")
    if distributions is not None and not distributions["ties"]:
        del distributions["ties"]
    _leave_out(data["tokens"], TOKEN_FIELDS)
    beams = data.get("beams")
    if beams is not None and beams["own_allowed"] is None:
        del beams["own_difference"], beams["own_allowed"]
    for task in data.get("tasks", ()):
        _leave_out(task, TASK_FIELDS)
    for divergence in data["tokens"]["divergences"]:
        if not divergence["origin"]:
            del divergence["origin"]
        for name in ("source", "expected", "found"):
            if divergence[name] is None:  # an empty text is one
                del divergence[name]
    return data


def _leave_out(record: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if record[name] is None or record[name] is False:
            del record[name]


def upgrade(data: Any) -> Any:
    """A manifest with the record of an older version as one of this version. There was one metric
    of a task, `task`, or null; lower was better. What is wrong with it stays wrong, and is found
    when the record is read.
    """
    parity = data.get("parity") if isinstance(data, dict) else None
    if not isinstance(parity, dict) or "task" not in parity or "tasks" in parity:
        return data
    others = {name: value for name, value in parity.items() if name != "task"}
    tasks = [] if parity["task"] is None else [parity["task"]]
    return data | {"parity": others | {"tasks": tasks}}
