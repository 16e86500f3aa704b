"""Manifests of schema 2, whose graphs decoded one row from each source.

The tensors of a source have the axis `batch` there, as those of a row do. The graphs are what they
are: the axis keeps its name, and the contract allows it (`contract.GraphSpec.shares_sources`).
"""

from __future__ import annotations

from typing import Any


def upgrade(data: dict[str, Any]) -> dict[str, Any]:
    """A manifest of schema 2 as one of schema 3. What is wrong with it stays wrong, and is found
    when schema 3 is checked.
    """
    return data | {"schema_version": 3}
