"""The results of a sensitivity measurement as plain data, and their file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.errors import DragomanError
from dragoman.files.regular_files import FileError, write_whole
from dragoman.files.strict_json import read_json
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain

Measure = Literal["divergence", "cosine distance"]


@dataclass(frozen=True)
class Effect:
    """How far predictions are from those of the trained model in fp32.

    Attributes:
        mean, largest: over all positions. Kullback-Leibler divergences of distributions, in nats;
            or 1 - the cosine of the angle between embeddings
        same_choice: the share of positions with the same most probable choice; None for embeddings
    """

    mean: float
    largest: float
    same_choice: float | None


@dataclass(frozen=True)
class ProductSensitivity:
    """A product, or a look-up table, and the effect of its precision.

    Attributes:
        name: the name for `--keep-fp32`
        modules: the modules of the trained model whose weights it has
        error: the relative error of its output, as the precision measures it; None: not measurable,
            since its inputs are not finite
        allowed: the largest error with which it is quantized
        quantized: whether it is quantized unless a user keeps it
        kept: whether the user kept it in fp32 in the bundle
        alone: the effect if only this product is in the precision; None if it is not quantized
        extra_bytes: the bytes that its weights need more in fp32
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
    """A layer and the effect of its precision.

    Attributes:
        alone: the effect if only this layer is in the precision
    """

    name: str
    products: tuple[str, ...]
    alone: Effect


@dataclass(frozen=True)
class Keeping:
    """The gain of keeping the worst products in fp32.

    Attributes:
        added: the names of those that the step before did not keep, the worst first
        effect: the effect of all other products, which are in the precision
    """

    count: int
    added: tuple[str, ...]
    effect: Effect
    weight_bytes: int


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a bundle to the precision of its products.

    Attributes:
        weights_sha256: the SHA-256 of the bundle's weights, which identifies it
        measure: the name of the measure of effects
        inputs: the inputs of the predictions
        random: whether they are random, and say nothing about quality
        calibration: the file that errors were measured on; None: random inputs
        positions: how many predictions were compared
        products: in the order of computation
        keeping: the gains of keeping products, from none to all
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
        write_whole(path, lambda partial: partial.write_text(self.to_json(), encoding="utf-8"))


def read_sensitivity(path: Path) -> Sensitivity:
    """Read a file that `Sensitivity.write` wrote.

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
