"""Manifests of schema 1, which had one kind of bundle and one kind of engine.

encoder, decoder           -> graphs
engines (or null)          -> executable, tagged; its reports by name of the graph
rules                      -> generation
(absent)                   -> kind
"""

from __future__ import annotations

from typing import Any

GRAPHS = ("encoder", "decoder")


def upgrade(data: dict[str, Any]) -> dict[str, Any]:
    """A manifest of schema 1 as one of schema 2. What is wrong with it stays wrong, and is found
    when schema 2 is checked.
    """
    renamed = {"rules": "generation"}
    upgraded = {
        renamed.get(name, name): value
        for name, value in data.items()
        if name not in (*GRAPHS, "engines")
    }
    upgraded["schema_version"] = 2
    upgraded["kind"] = "sequence-to-sequence"
    upgraded["graphs"] = {name: data[name] for name in GRAPHS if name in data}
    upgraded["executable"] = _executable(data.get("engines"))
    return upgraded


def _executable(engines: object) -> object:
    if engines is None:
        return {"format": "onnx"}
    if not isinstance(engines, dict):
        return engines
    rest = {name: value for name, value in engines.items() if name not in GRAPHS}
    reports = {name: engines[name] for name in GRAPHS if name in engines}
    return {"format": "tensorrt", **rest, "reports": reports}
