"""The dashboard in docs/grafana shows what a server measures: all of it, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.options import ServerOptions

from ..small_bundle import small_bundle

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "grafana" / "dragoman.json"
GUIDE = ROOT / "docs" / "guides" / "serving.md"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}
WORDS = frozenset({"and", "or", "unless", "on", "ignoring", "by", "without", "bool"})
"""Of PromQL, beside the names of functions, which stand before a bracket."""


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The type of each family of metrics that a server gives, by name."""
    directory = small_bundle(tmp_path_factory.mktemp("small"), 9)
    app = create_app({"small": directory}, ServerOptions(), preload=False)

    async def read() -> str:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.get("/metrics")).text

    found = text_string_to_metric_families(asyncio.run(read()))
    return {family.name: family.type for family in found}


@pytest.fixture(scope="module")
def series(families: dict[str, str]) -> set[str]:
    """What can be asked for in PromQL."""
    return {name + suffix for name, kind in families.items() for suffix in SUFFIXES[kind]}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def metrics_of(expression: str) -> set[str]:
    """The names in a PromQL expression that are neither labels nor functions."""
    rest = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", expression)
    rest = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", " ", rest)
    return {name for name in re.findall(r"\b[a-zA-Z_]\w*\b(?!\s*\()", rest) if name not in WORDS}


def all_of(value: Any, key: str) -> Iterator[Any]:
    """What stands under a key, at any depth."""
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from all_of(inner, key)
    if isinstance(value, dict) and key in value:
        yield value[key]


def test_names_are_found_in_expressions() -> None:
    assert metrics_of('sum by (le, a) (rate(b_total{c=~"$d"}[5m])) / e and on (f) max(g)') == {
        "b_total",
        "e",
        "g",
    }


def test_every_metric_that_it_shows_exists(expressions: list[str], series: set[str]) -> None:
    assert set().union(*map(metrics_of, expressions)) - series == set()


def test_every_metric_of_the_server_is_shown(
    expressions: list[str], families: dict[str, str]
) -> None:
    shown = set().union(*map(metrics_of, expressions))
    for name, kind in families.items():
        if name.startswith("dragoman_"):
            assert shown & {name + suffix for suffix in SUFFIXES[kind]}, name


def test_every_metric_of_the_server_is_in_the_guide(families: dict[str, str]) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name, kind in families.items():
        if name.startswith("dragoman_"):
            suffix = "_total" if kind == "counter" else ""
            assert f"| `{name}{suffix}`" in text


def test_it_takes_its_data_from_the_source_that_is_chosen(dashboard: dict[str, Any]) -> None:
    assert {source["uid"] for source in all_of(dashboard["panels"], "datasource")} == {
        "${datasource}"
    }


def test_its_variables_are_there_and_used(
    dashboard: dict[str, Any], expressions: list[str], series: set[str]
) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert variables.keys() == {"datasource", "model"}
    assert variables["datasource"]["query"] == "prometheus"
    query = re.fullmatch(r"label_values\((\w+), model\)", variables["model"]["query"]["query"])
    assert query is not None
    assert query[1] in series
    used = set(re.findall(r"\$(?!__)\{?(\w+)", " ".join(expressions)))
    assert used == {"model"}


def test_panels_have_numbers_and_places_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
