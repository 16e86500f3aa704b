"""Renders a report as one page of HTML that needs no other file, no network and no scripts."""

from __future__ import annotations

import base64
import datetime
import itertools
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from dragoman.metrics import shown_figure
from dragoman.pictures.attention import script_safe
from dragoman.runtime.format.parity import Divergence

from .charts import (
    Chart,
    draw_attention,
    draw_keeping,
    draw_layers,
    draw_margins,
    draw_products,
    draw_training,
)
from .contents import BundleReport, Report, counted, figure
from .speed_charts import draw_speed

MOST_DIVERGENCES = 50
"""The most divergences that the page shows; the JSON has all that the manifest has."""


class Pictures(NamedTuple):
    """The charts of a bundle."""

    training: list[Chart]
    margins: list[Chart]
    sensitivity: list[Chart]
    attention: list[Chart]


class Parted(NamedTuple):
    """The common beginning of two texts, and the rest of each."""

    same: str
    expected: str
    found: str


def render(report: Report) -> str:
    """Render the page."""
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(lambda name: files(__package__).joinpath(name).read_text("utf-8")),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "count": lambda number: f"{number:,}",
        "mb": lambda size: f"{size / 1e6:,.2f}",
        "short": lambda number: "" if number is None else figure(number, 3),
        "duration": lambda seconds: str(datetime.timedelta(seconds=round(seconds))),
        "day": lambda moment: moment.replace("T", " ")[:16] + " UTC",
        "share": lambda number: "" if number is None else f"{number:.2%}",
        "seconds": lambda number: f"{number:.2f}",
        "task": lambda task: shown_figure(task.metric, task.bundle),
        "milliseconds": lambda number: "" if number is None else f"{number:.4g}",
    }
    environment.globals |= {
        "counted": counted,
        "parted": parted,
        "widest": widest,
        "task_name": task_name,
    }
    data = report.to_json()
    return environment.get_template("page.html").render(
        report=report,
        speed=draw_speed(report.bundles),
        pictures=[_pictures(bundle, n) for n, bundle in enumerate(report.bundles, start=1)],
        data=Markup(script_safe(data)),  # noqa: S704
        link="data:application/json;base64," + base64.b64encode(data.encode()).decode(),
    )


def parted(expected: str, found: str) -> Parted:
    """Split two outputs at the word where they begin to differ."""
    pairs = zip(expected.split(" "), found.split(" "), strict=False)
    same = [word for word, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    start = len(" ".join([*same, ""]))
    return Parted(expected[:start], expected[start:], found[start:])


def widest(divergences: Sequence[Divergence]) -> list[Divergence]:
    """Select the divergences to show, the largest margin first; parity keeps their texts."""
    return sorted(divergences, key=lambda divergence: -divergence.margin)[:MOST_DIVERGENCES]


def task_name(bundles: Sequence[BundleReport]) -> str:
    """Name the most important metric of all bundles: "task" if they differ, "" if there is none."""
    names = {bundle.tasks[0].metric for bundle in bundles if bundle.tasks}
    return names.pop() if len(names) == 1 else "task" if names else ""


def _pictures(bundle: BundleReport, number: int) -> Pictures:
    name, sensitivity = f"b{number}", bundle.sensitivity
    divergences = () if bundle.parity is None else bundle.parity.tokens.divergences
    margins = [draw_margins(divergences, bundle.explained_margin, f"{name}-margins")]
    hurts = []
    if sensitivity is not None and sensitivity.worst:
        hurts = [
            draw_products(sensitivity, f"{name}-products"),
            draw_layers(sensitivity, f"{name}-layers"),
            draw_keeping(sensitivity, f"{name}-keeping"),
        ]
    epochs = () if bundle.training is None else bundle.training.epochs
    metric = "" if bundle.training is None else bundle.training.metric
    return Pictures(
        [draw_training(epochs, metric, f"{name}-training")] if epochs else [],
        margins if divergences else [],
        hurts,
        [draw_attention(e, f"{name}-attention-{n}") for n, e in enumerate(bundle.attention)],
    )
