"""What is measured, as plain data, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.errors import DragomanError
from dragoman.regular_files import FileError
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain
from dragoman.strict_json import read_json
from dragoman.whole_files import write_whole

Measure = Literal["divergence", "cosine distance"]


@dataclass(frozen=True)
class Effect:
    """How far predictions are from those of the trained model in fp32.

    Attributes:
        mean, largest: over all positions. Kullback-Leibler divergences of distributions, in nats;
            or 1 - the cosine of the angle between vectors, of an encoder alone that gives some
        same_choice: the share of positions with the same most probable choice; None of vectors
    """

    mean: float
    largest: float
    same_choice: float | None


@dataclass(frozen=True)
class ProductSensitivity:
    """A product, or a table that is looked up, and what its precision does.

    Attributes:
        name: as `--keep-fp32` takes it
        modules: of the trained model, whose weights it has
        layer: that it is part of
        error: of its output, relative, as the precision measures it; None: not measurable, since
            its inputs are not finite
        allowed: the largest error with which it is quantized
        quantized: whether it is, if nobody wants it to be kept
        kept: whether the bundle keeps it in fp32 because the user wanted it
        alone: the effect if it alone is in the precision; None if it is not quantized
        extra_bytes: that its weights have more in fp32
    """

    name: str
    modules: tuple[str, ...]
    layer: str
    parameters: int
    error: float | None
    allowed: float
    quantized: bool
    kept: bool
    alone: Effect | None
    extra_bytes: int


@dataclass(frozen=True)
class LayerSensitivity:
    """
    Attributes:
        alone: the effect if it alone is in the precision
    """

    name: str
    products: tuple[str, ...]
    alone: Effect


@dataclass(frozen=True)
class Keeping:
    """What it gives to keep the worst products in fp32.

    Attributes:
        count: of the products that are kept
        added: their names, the worst first, without those of the step before
        effect: of all others, which are in the precision
        weight_bytes: of all weights
    """

    count: int
    added: tuple[str, ...]
    effect: Effect
    weight_bytes: int


@dataclass(frozen=True)
class Sensitivity:
    """
    Attributes:
        weights_sha256: of the bundle's weights, to tell which bundle this is about
        measure: what effects are
        inputs: what was predicted on
        random: whether they are random, and say nothing about quality
        calibration: the file that errors were measured on; None: random inputs
        positions: predictions that were compared
        products: in the order of computation
        keeping: from none to all
        differing: products whose rounded weights are not the bundle's, which was calibrated on
            something else or made from another checkpoint
    """

    bundle: str
    target: str
    precision: Precision
    weights_sha256: str
    measure: Measure
    inputs: str
    random: bool
    calibration: str | None
    positions: int
    products: tuple[ProductSensitivity, ...]
    layers: tuple[LayerSensitivity, ...]
    keeping: tuple[Keeping, ...]
    differing: tuple[str, ...] = ()

    @property
    def worst(self) -> list[ProductSensitivity]:
        """Quantized products, the worst first."""
        return sorted((p for p in self.products if p.alone is not None), key=_badness, reverse=True)

    @property
    def best(self) -> Keeping | None:
        """The fewest kept products with which the rest does half the harm or less; None if nothing
        short of all does.
        """
        none, *steps = self.keeping
        enough = [s for s in steps[:-1] if s.effect.mean <= none.effect.mean / 2]
        return enough[0] if enough else None

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=1, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        write_whole(path, lambda partial: partial.write_text(self.to_json(), encoding="utf-8"))


def _badness(product: ProductSensitivity) -> tuple[float, float]:
    assert product.alone is not None
    return product.alone.mean, product.error or 0.0


def read_sensitivity(path: Path) -> Sensitivity:
    """
    Raises:
        DragomanError: the file is not what `Sensitivity.write` writes; says what is wrong.
    """
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
