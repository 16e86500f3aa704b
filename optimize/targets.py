"""The targets that bundles are optimized for, and their recipes.

A new target is a row of `TARGETS` and a module with its `RECIPE`. Rows do not import ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from dragoman.errors import DragomanError, shown
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import Precision

if TYPE_CHECKING:
    import onnx_ir as ir

    from dragoman.runtime.format.contract import GraphSpec
    from dragoman.runtime.format.manifest import PassRecord
    from dragoman.runtime.format.model_spec import ModelSpec

    from .graph_pass import GraphPass
    from .precision.calibration import CalibrationBatch
    from .precision.weights import Scheme

ALL_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8", "int4")

Graphs: TypeAlias = "Mapping[str, tuple[ir.Model, GraphSpec]]"
"""The graphs of a bundle by name, each with its specification in the contract."""


class Schemes(NamedTuple):
    """How the weights of products and of embeddings are quantized."""

    products: Mapping[str, Scheme]
    """The scheme of each graph, by the graph's name."""
    embedding: Scheme
    """The scheme of tables that token ids are looked up in."""


class BuiltEngines(NamedTuple):
    """A bundle of engines."""

    bundle: Bundle
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TargetRecipe:
    """The steps from a neutral fp32 bundle to a target's bundle."""

    passes: Callable[[str, ModelSpec, Precision], Sequence[GraphPass]]
    """Returns the passes of a graph, by its name, that precede the change of precision."""
    schemes: Callable[[Precision, Collection[str], Collection[int]], Schemes]
    """Returns the quantization of int8 and int4, for graphs of these names, whose embeddings have
    these widths."""
    half_activations: Precision | None = None
    """Precision of activations if weights are quantized; None: fp32, or the scheme's own
    quantization."""
    check: Callable[[Mapping[str, Sequence[PassRecord]], Mapping[str, int], ModelSpec], None] = (
        lambda records, attentions, model: None
    )
    """Raises a PassError unless the passes matched everything that they are meant for; takes the
    records of each graph, the number of Attention operators that each graph had before, and the
    model."""
    file_passes: tuple[GraphPass, ...] | None = None
    """The passes of an ONNX file, after `fusions.STANDARD_PASSES`; None: the target needs a bundle.
    """
    caches: Callable[[ir.Model, Sequence[CalibrationBatch]], GraphPass] | None = None
    """Makes the pass that quantizes the decoder's caches in int8 and int4, from the graph before
    its weights are rounded and its observed inputs; None: caches are not quantized."""
    build_engines: Callable[..., BuiltEngines] | None = None
    """Turns the optimized graphs into engines, see `tensorrt.engine_bundle`; None: the graphs are
    the result."""
    candidates: bool = False
    """Whether to add a graph that selects candidates. On a GPU it keeps the logits on the device;
    on a processor it would be slower."""
    uncalibrated_warning: str | None = None
    """A warning of int8 without calibration inputs, of a target without engines."""


@dataclass(frozen=True)
class Target:
    """A target that bundles can be optimized for."""

    name: str
    summary: str
    module: str
    """The module within `dragoman.optimize` that defines `RECIPE`."""
    precisions: tuple[Precision, ...]
    """The supported precisions. int8 and int4 quantize weights only, except for the targets cpu and
    openvino, which quantize activations too. TensorRT multiplies such weights in fp16."""
    executable: Literal["onnx", "tensorrt"] = "onnx"
    """Contents of the target's bundles, see `runtime.format.executables`."""
    encoder_only: bool = False
    """Whether models with a decoder are refused."""

    @property
    def recipe(self) -> TargetRecipe:
        """The target's recipe; its module is imported on first use."""
        recipe: TargetRecipe = import_module(f"dragoman.optimize.{self.module}").RECIPE
        return recipe

    def check_precision(self, precision: Precision) -> None:
        """Check that the target offers a precision."""
        if precision not in self.precisions:
            raise DragomanError(
                f"target {self.name}: expected precision {', '.join(self.precisions)}, found "
                f"{precision}"
            )

    def check_model(self, *, has_decoder: bool) -> None:
        """Check that the target has graphs for a kind of model."""
        if self.encoder_only and has_decoder:
            raise DragomanError(
                f"target {self.name}: expected an encoder-only model, found one with a decoder"
            )

    def check_source(self, bundle: Bundle, precision: Precision) -> None:
        """Check that a bundle can be optimized for the target in this precision."""
        manifest = bundle.manifest
        if manifest.shortlist is not None and (
            self.executable == "tensorrt" or precision == "bf16"
        ):
            raise DragomanError(
                f"target {self.name}, {precision}: expected a bundle without a shortlist, which "
                "ONNX Runtime decodes with on the processor: export one without"
            )
        if (manifest.target, manifest.precision) != ("neutral", "fp32"):
            raise DragomanError(
                f"{bundle.directory}: expected a neutral bundle in fp32, found target "
                f"{manifest.target}, precision {manifest.precision}"
            )
        self.check_model(has_decoder=manifest.model.has_decoder)
        self.check_precision(precision)
        if (self.name, precision) == ("neutral", "fp32"):
            raise DragomanError(f"{bundle.directory} is neutral and in fp32 already")


TARGETS: tuple[Target, ...] = (
    Target("cpu", "ONNX Runtime's operators", "cpu.target", ("fp32", "int8", "int4")),
    Target("neutral", "standard ONNX", "precision.weight_only", ALL_PRECISIONS),
    Target(
        "openvino", "OpenVINO, encoder-only models", "openvino", ("fp32", "int8"), encoder_only=True
    ),
    Target("tensorrt-rtx", "TensorRT-RTX engines", "tensorrt.target", ALL_PRECISIONS, "tensorrt"),
    Target("tensorrt", "TensorRT engines", "tensorrt.target", ALL_PRECISIONS, "tensorrt"),
)
"""Targets in order of preference; the default is the first that offers the precision."""


def find_target(name: str) -> Target:
    """Return the target of that name."""
    for target in TARGETS:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in TARGETS)
    raise DragomanError(f"unknown target {shown(name)}, expected one of: {names}")


def choose_target(name: str | None, precision: Precision) -> Target:
    """Return the target of that name; without one, the first that offers the precision."""
    if precision not in ALL_PRECISIONS:
        raise DragomanError(
            f"precision: expected one of {', '.join(ALL_PRECISIONS)}, found {shown(precision)}"
        )
    if name is None:
        return next(target for target in TARGETS if precision in target.precisions)
    target = find_target(name)
    target.check_precision(precision)
    return target
