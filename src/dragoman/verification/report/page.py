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
from dragoman.pictures import script_safe

from ..parity_rows import figure
from .charts import (
    Chart,
    draw_attention,
    draw_keeping,
    draw_layers,
    draw_margins,
    draw_products,
    draw_training,
)
from .contents import BundleReport, Report, counted
from .speed_charts import draw_speed

MOST_DIVERGENCES = 50
"""The most divergences that the page shows, those of the largest margins, whose texts parity keeps;
the JSON has all that the manifest has."""


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
        "most_divergences": MOST_DIVERGENCES,
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


def task_name(bundles: Sequence[BundleReport]) -> str:
    """Name the most important metric of all bundles: "task" if they differ, "" if there is none."""
    names = {bundle.tasks[0].metric for bundle in bundles if bundle.tasks}
    return names.pop() if len(names) == 1 else "task" if names else ""


def _pictures(bundle: BundleReport, number: int) -> dict[str, list[Chart]]:
    """Draw the charts of a bundle, by the part of the page."""
    name, training, sensitivity = f"b{number}", bundle.training, bundle.sensitivity
    drawn: dict[str, list[Chart]] = {"training": [], "margins": [], "sensitivity": []}
    if training is not None and training.epochs:
        chart = draw_training(training.epochs, training.metric, f"{name}-training")
        drawn["training"] = [chart]
    if bundle.parity is not None and bundle.parity.tokens.divergences:
        drawn["margins"] = [draw_margins(bundle.parity.tokens, f"{name}-margins")]
    if sensitivity is not None and sensitivity.worst:
        drawn["sensitivity"] = [
            draw_products(sensitivity, f"{name}-products"),
            draw_layers(sensitivity, f"{name}-layers"),
            draw_keeping(sensitivity, f"{name}-keeping"),
        ]
    drawn["attention"] = [
        draw_attention(e, f"{name}-attention-{n}") for n, e in enumerate(bundle.attention)
    ]
    return drawn
