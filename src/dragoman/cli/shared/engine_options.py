"""Options of engines, for `build` and `optimize`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from dragoman import DragomanError
from dragoman.optimize.targets import TARGETS, choose_target
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.runtime.format.manifest import Precision, Range

from .options import POSITIVE, SectionedOption, gathered


class RangeType(click.ParamType):  # type: ignore[type-arg]
    """A size, or a range with an optional best size: 8, 1..32, 1..8..32."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Range:
        """Parse the option."""
        if isinstance(value, Range):
            return value
        if value in NAMED_BATCHES:
            return NAMED_BATCHES[value]
        try:
            return parse_range(value)
        except ValueError:
            expected = "a size or a range such as 8, 1..32 or 1..8..32"
            raise click.BadParameter(f"expected {expected}, found {value}", ctx, param) from None


def parse_range(text: str) -> Range:
    """Parse a range."""
    numbers = [int(part) for part in text.split("..")]
    match numbers:
        case [size]:
            return Range(size, size, size)
        case [smallest, largest]:
            return Range(smallest, largest, largest)
        case [smallest, best, largest]:
            return Range(smallest, best, largest)
    raise ValueError(text)


engine_option = partial(click.option, cls=SectionedOption, section="TensorRT engines")

OPTIONS = (
    engine_option(
        "--profile",
        "batches",
        type=RangeType(),
        multiple=True,
        metavar="BATCH",
        help="Batch sizes: 8, 1..32, 1..8..32 (best 8), latency or throughput; repeatable "
        "[1..8..32].",
    ),
    engine_option(
        "--source-length",
        type=RangeType(),
        metavar="TOKENS",
        help="Tokens of a source, in the same form [all that the model takes].",
    ),
    engine_option(
        "--capacity",
        type=POSITIVE,
        metavar="N",
        help="Maximum number of new tokens [the model's default].",
    ),
    engine_option(
        "--compute-capability",
        "compute_capabilities",
        multiple=True,
        metavar="X.Y",
        help="Build for these GPUs, such as 8.9,12.0 [Ampere and later].",
    ),
    engine_option(
        "--refittable", is_flag=True, help="Allow `build --refit` with new weights later."
    ),
)


engine_options = gathered("engine_values", *OPTIONS)
"""Adds the options of engines to a command, whose `engine_values` `engine_request` takes."""


def engine_request(
    target: str | None, precision: Precision, engine_values: Mapping[str, Any]
) -> EngineRequest | None:
    """Create an engine request from the options; None: no option is set."""
    batches, capabilities = engine_values["batches"], engine_values["compute_capabilities"]
    names = [name for text in capabilities for name in text.replace(",", " ").split()]
    request = EngineRequest(
        batches or EngineRequest.batches,
        engine_values["source_length"],
        engine_values["capacity"],
        tuple(dict.fromkeys(names)),
        engine_values["refittable"],
    )
    if request == EngineRequest():
        return None
    chosen = choose_target(target, precision)
    if chosen.executable == "onnx":
        defaults = dataclasses.asdict(EngineRequest())
        options = {"batches": "--profile", "compute_capabilities": "--compute-capability"}
        name = next(n for n, v in dataclasses.asdict(request).items() if v != defaults[n])
        with_engines = " or ".join(t.name for t in TARGETS if t.executable != "onnx")
        raise DragomanError(
            f"{options.get(name, '--' + name.replace('_', '-'))} is for engines: expected "
            f"--target {with_engines}, found {chosen.name}"
        )
    return request
