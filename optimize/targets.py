"""Every target, a row each. A new target is a folder beside this file and a row here.

The rows are light, so that the command line can show and check them without importing ONNX; what a
target does is in its module, a `recipe.TargetRecipe`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from dragoman.errors import DragomanError
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Precision

if TYPE_CHECKING:
    from .recipe import TargetRecipe

ALL_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")


@dataclass(frozen=True)
class Target:
    """What bundles can be optimized for.

    Attributes:
        name: as users give it
        summary: for the command line's help
        module: within `dragoman.optimize`; its `RECIPE` says what the target does
        precisions: that it offers. int8 and int4 quantize weights only, and the cpu target's also
            activations; what TensorRT multiplies such weights with is fp16
        executable: what its bundles hold, see `runtime.format.executables`
    """

    name: str
    summary: str
    module: str
    precisions: tuple[Precision, ...]
    executable: Literal["onnx", "tensorrt"] = "onnx"

    @property
    def recipe(self) -> TargetRecipe:
        """Imported on first use."""
        recipe: TargetRecipe = import_module(f"dragoman.optimize.{self.module}").RECIPE
        return recipe

    def check_precision(self, precision: Precision) -> None:
        """
        Raises:
            DragomanError: the target does not offer the precision.
        """
        if precision not in self.precisions:
            raise DragomanError(
                f"target {self.name}: expected precision {', '.join(self.precisions)}, found "
                f"{precision}"
            )

    def check_source(self, bundle: Bundle, precision: Precision) -> None:
        """
        Raises:
            DragomanError: the bundle is not neutral in fp32, or the result would be the same; or
                the target does not offer the precision.
        """
        manifest = bundle.manifest
        if (manifest.target, manifest.precision) != ("neutral", "fp32"):
            raise DragomanError(
                f"{bundle.directory}: expected a neutral bundle in fp32, found target "
                f"{manifest.target}, precision {manifest.precision}"
            )
        self.check_precision(precision)
        if (self.name, precision) == ("neutral", "fp32"):
            raise DragomanError(f"{bundle.directory} is neutral and in fp32 already")


TARGETS: tuple[Target, ...] = (
    Target(
        "cpu",
        "ONNX Runtime's operators",
        "cpu.target",
        ("fp32", "int8", "int4"),
    ),
    Target(
        "neutral",
        "standard ONNX",
        "neutral.target",
        ALL_PRECISIONS,
    ),
    Target(
        "tensorrt-rtx",
        "TensorRT-RTX engines",
        "tensorrt.target",
        ALL_PRECISIONS,
        "tensorrt",
    ),
    Target(
        "tensorrt",
        "TensorRT engines",
        "tensorrt.target",
        ALL_PRECISIONS,
        "tensorrt",
    ),
)
"""In order of preference: without a name, the first that offers the precision is taken."""


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
        DragomanError: there is no such target; lists the known ones.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in TARGETS)
    raise DragomanError(f"unknown target {name!r}, expected one of: {names}")


def choose_target(name: str | None, precision: Precision) -> Target:
    """The target of that name; without one, the first that offers the precision.

    Raises:
        DragomanError: there is no such target or precision, or it does not offer the precision.
    """
    if precision not in ALL_PRECISIONS:
        raise DragomanError(
            f"precision: expected one of {', '.join(ALL_PRECISIONS)}, found {precision!r}"
        )
    if name is None:
        return next(target for target in TARGETS if precision in target.precisions)
    target = find_target(name)
    target.check_precision(precision)
    return target
