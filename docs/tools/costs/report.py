"""Records of costs, and their tables in Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from docs.tools.costs.counting import Cost, Part, encoder, step, total
from docs.tools.costs.measuring import Times
from dragoman.benchmarks.compare.record import Circumstances, Table
from dragoman.reference_model import ModelConfig

BYTES = {"fp32": 4, "int8": 1, "int4": 0.5}
"""Bytes of a weight. Scales of quantized weights are left out."""
CACHED_BYTES = 4

SHORT = 32
"""Source tokens of the steps that are measured at several positions, and with several rows."""
FIRST = 8
"""The position at which steps are measured for sources of several lengths and with several rows."""
NAMES = {"source": "tokens of the source", "position": "position", "rows": "rows"}

Graph = Literal["encoder", "step"]


@dataclass(frozen=True)
class Measured:
    """The measured times of the parts of a graph.

    Attributes:
        rows: batch size
        source: tokens per source
        position: position of a step's token; 0 for an encoder
    """

    graph: Graph
    rows: int
    source: int
    position: int
    ms: Times

    def counted(self, config: ModelConfig) -> list[Cost]:
        """Count the costs of the measured parts."""
        if self.graph == "encoder":
            return encoder(config, self.source, rows=self.rows)
        return step(config, self.source, self.position, rows=self.rows)

    @property
    def milliseconds(self) -> float:
        """The time of all parts."""
        return sum(self.ms.values())


@dataclass(frozen=True)
class CostRecord:
    """The measured times of a model, and the circumstances.

    Attributes:
        shape: description of the model
    """

    shape: str
    precision: Literal["fp32", "int8", "int4"]
    threads: int
    runs: int
    config: ModelConfig
    measured: Sequence[Measured]
    circumstances: Circumstances

    def to_json(self) -> str:
        """Return the record as JSON."""
        figures = asdict(self)
        for measured in figures["measured"]:
            measured["ms"] = {part: round(ms, 4) for part, ms in measured["ms"].items()}
        circumstances = figures.pop("circumstances")
        return json.dumps(figures | circumstances, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> CostRecord:
        """Read a record that `to_json` wrote."""
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = Circumstances.__dataclass_fields__
        return cls(
            **{name: values[name] for name in ("shape", "precision", "threads", "runs")},
            config=ModelConfig.from_dict(values["config"]),
            measured=[Measured(**measured) for measured in values["measured"]],
            circumstances=Circumstances(**{name: values[name] for name in names}),
        )

    def bytes_read(self, cost: Cost) -> float:
        """Return the bytes that a part reads in the record's precision."""
        return bytes_read(cost, self.precision)


def bytes_read(cost: Cost, precision: str = "fp32") -> float:
    """Return the bytes of weights and cached numbers that a part reads."""
    return cost.weights * BYTES[precision] + cost.cached * CACHED_BYTES


def counted_table(config: ModelConfig, lengths: Sequence[int]) -> str:
    """Return a table of the costs of the encoder and a step at several lengths.

    The length is both the source length and the position of the step.
    """
    heading = ["length", *(f"{length}" for length in lengths)]
    lines: list[list[str]] = []
    for name, costs in (
        ("encoder", [encoder(config, length) for length in lengths]),
        ("step", [step(config, length, length) for length in lengths]),
    ):
        for part in (cost.part for cost in costs[0]):
            of_part = [next(c for c in each if c.part == part) for each in costs]
            lines.append([f"{name}: {part}", *(_millions(c.operations) for c in of_part)])
        sums = [total(each) for each in costs]
        lines.append([f"**{name}**", *(_millions(cost.operations) for cost in sums)])
        weights = [cost.weights * BYTES["fp32"] / 1e6 for cost in sums]
        lines.append([f"{name}: weights read, MB", *(f"{number:.1f}" for number in weights)])
        cached = [cost.cached * CACHED_BYTES / 1e6 for cost in sums]
        if any(cached):
            lines.append([f"{name}: keys and values read, MB", *(f"{n:.1f}" for n in cached)])
    return Table(heading, lines).markdown()


class Series(NamedTuple):
    """Measurements that differ in one number.

    Attributes:
        varies: name of that number
    """

    title: str
    varies: Literal["source", "position", "rows"]
    measured: Sequence[Measured]


def series(record: CostRecord) -> tuple[Series, Series, Series, Series]:
    """Select the encoder by source, and a step by source, by position and by rows."""

    def sorted_by(name: str, **others: object) -> list[Measured]:
        fits = [m for m in record.measured if others.items() <= vars(m).items()]
        return sorted(fits, key=lambda measured: vars(measured)[name])

    step = {"graph": "step"}
    return (
        Series("The encoder", "source", sorted_by("source", graph="encoder")),
        Series(
            f"A step at position {FIRST}",
            "source",
            sorted_by("source", **step, position=FIRST, rows=1),
        ),
        Series(
            f"A step for a source of {SHORT} tokens",
            "position",
            [m for m in sorted_by("position", **step, source=SHORT, rows=1) if m.position > FIRST],
        ),
        Series(
            f"A step for sources of {SHORT} tokens at position {FIRST}",
            "rows",
            sorted_by("rows", **step, source=SHORT, position=FIRST),
        ),
    )


def measured_table(record: CostRecord, chosen: Series) -> str:
    """Return a table of the milliseconds of each part."""
    measured = chosen.measured
    parts: list[Part] = list(dict.fromkeys(part for m in measured for part in m.ms))
    parts.sort(key=lambda part: part == "the rest")
    lines = [[part, *(f"{m.ms.get(part, 0.0):.2f}" for m in measured)] for part in parts]
    counted = [total(m.counted(record.config)) for m in measured]
    seconds = [m.milliseconds / 1e3 for m in measured]
    pairs = list(zip(counted, seconds, strict=True))
    lines += [
        ["**together, ms**", *(f"{m.milliseconds:.2f}" for m in measured)],
        ["counted, million", *(_millions(cost.operations) for cost in counted)],
        ["billion a second", *(f"{cost.operations / s / 1e9:.1f}" for cost, s in pairs)],
        ["GB read a second", *(f"{record.bytes_read(cost) / s / 1e9:.1f}" for cost, s in pairs)],
    ]
    heading = [NAMES[chosen.varies], *(f"{vars(m)[chosen.varies]}" for m in measured)]
    return Table(heading, lines).markdown()


def _millions(number: int) -> str:
    millions = number / 1e6
    return f"{millions:.2g}" if millions < 1 else f"{millions:,.{1 if millions < 100 else 0}f}"
