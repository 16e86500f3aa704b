"""Measures how far each product in int8 or int4 moves a model's predictions.

The results are plain data, with a file of their own; `measuring` makes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.errors import DragomanError
from dragoman.files.regular_files import FileError, write_text
from dragoman.files.strict_json import read_json
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain

__all__ = ["Effect", "Keeping", "LayerSensitivity", "ProductSensitivity", "Sensitivity"]

Measure = Literal["divergence", "cosine distance"]


@dataclass(frozen=True)
class Effect:
    """How far predictions are from those of the trained model in fp32."""

    mean: float
    largest: float
    """`mean` and `largest`: over all positions. Kullback-Leibler divergences of distributions, in
    nats; or 1 - the cosine of the angle between embeddings."""
    same_choice: float | None
    """The share of positions with the same most probable choice; None for embeddings."""


@dataclass(frozen=True)
class ProductSensitivity:
    """A product, or a look-up table, and the effect of its precision."""

    name: str
    """The name for `--keep-fp32`."""
    modules: tuple[str, ...]
    """The modules of the trained model whose weights it has."""
    layer: str
    parameters: int
    error: float | None
    """The relative error of its output, as the precision measures it; None: not measurable, since
    its inputs are not finite."""
    allowed: float
    """The largest error with which it is quantized."""
    quantized: bool
    """Whether it is quantized unless a user keeps it."""
    kept: bool
    """Whether the user kept it in fp32 in the bundle."""
    alone: Effect | None
    """The effect if only this product is in the precision; None if it is not quantized."""
    extra_bytes: int
    """The bytes that its weights need more in fp32."""


@dataclass(frozen=True)
class LayerSensitivity:
    """A layer and the effect of its precision."""

    name: str
    products: tuple[str, ...]
    alone: Effect
    """The effect if only this layer is in the precision."""


@dataclass(frozen=True)
class Keeping:
    """The gain of keeping the worst products in fp32."""

    count: int
    added: tuple[str, ...]
    """The names of those that the step before did not keep, the worst first."""
    effect: Effect
    """The effect of all other products, which are in the precision."""
    weight_bytes: int


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a bundle to the precision of its products."""

    bundle: str
    target: str
    precision: Precision
    weights_sha256: str
    """The SHA-256 of the bundle's weights, which identifies it."""
    measure: Measure
    """The name of the measure of effects."""
    inputs: str
    """The inputs of the predictions."""
    random: bool
    """Whether they are random or a sentence, and say nothing about quality."""
    calibration: str | None
    """The file that errors were measured on; None: random inputs."""
    positions: int
    """How many predictions were compared."""
    products: tuple[ProductSensitivity, ...]
    """In the order of computation."""
    layers: tuple[LayerSensitivity, ...]
    keeping: tuple[Keeping, ...]
    """The gains of keeping products, from none to all."""
    differing: tuple[str, ...] = ()
    """Products whose rounded weights are not the bundle's, which was calibrated on something else
    or made from another checkpoint."""

    @property
    def worst(self) -> list[ProductSensitivity]:
        """Quantized products, the worst first."""
        measured = [(p.alone.mean, p.error or 0.0, p) for p in self.products if p.alone is not None]
        return [product for *_, product in sorted(measured, key=lambda m: m[:2], reverse=True)]

    @property
    def best(self) -> Keeping | None:
        """The fewest kept products that halve the effect of the rest; None if only all do."""
        none, *steps = self.keeping
        enough = [s for s in steps[:-1] if s.effect.mean <= none.effect.mean / 2]
        return enough[0] if enough else None

    def to_json(self) -> str:
        """Write the results as JSON."""
        return json.dumps(to_plain(self), indent=1, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        write_text(path, self.to_json())


def read_sensitivity(path: Path) -> Sensitivity:
    """Read a file that `Sensitivity.write` wrote."""
    try:
        data = read_json(path)
    except FileError as error:
        raise DragomanError(f"{path}: {error.problem}") from error
    problems = Problems()
    found = from_plain(Sensitivity, data, "sensitivity", problems)
    if found is None:
        raise DragomanError(
            f"{path}: expected what dragoman sensitivity writes: {'; '.join(problems[:3])}"
        )
    return found
