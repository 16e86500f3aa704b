"""Sample inputs of a graph of which only names, types and shapes are known.

Several sets are made: flags take both values, masks leave a query without keys, and inputs are
sought that execute every branch.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..graph_pass import GraphPass, PassError
from ..graph_values import constant, is_weight, number, users
from ..running import Runner, Samples
from .branches import Branches, has_branches

TRIALS = 200
"""The largest number of sets that are tried to execute a branch."""
TRIAL_SECONDS, SEARCH_SECONDS = 20.0, 60.0
"""The longest time of a trial, as random inputs may keep a loop from ending, and of all trials."""

COMPARISONS = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Sub", "Where"}
)
LARGEST_SIZE = 2048
"""The largest size of an axis that is tried."""


@dataclass(frozen=True)
class Choices:
    """The choices that determine a set of samples."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of named axes; the others have sizes by their names."""
    together: bool = True
    """Whether all axes that come first have the same size, that of the batch."""
    total: tuple[str, ...] = ("past", "sequence")
    """The length that a mask's own axis covers: past, sequence, or both."""
    padding: str = "right"
    """What masks leave out. "right": the last row is shorter; "left": the first row starts later,
    and the last row masks everything; "inverted": the opposite of "left"; "all" or "none"."""
    kept: float = 1.0
    masked: float = 0.0
    """`kept` and `masked`: the values of masks of floats."""
    flags: Mapping[str, bool] = field(default_factory=dict)
    """The values of booleans that are not masks, by input; True if missing."""
    integer: int | None = None
    """The value of all integers; None: random."""
    scale: float = 1.0
    """The factor of floats."""
    number: float | None = None
    """The value of all floats; None: random."""
    defaults: float = 1.0
    """The factor of the default values of inputs that have some."""
    seed: int = 0


LAYOUTS = (
    Choices(),
    Choices(together=False),
    Choices(total=()),
    Choices(total=(), together=False),
    Choices(total=("past",)),
    Choices(total=("sequence",)),
)
"""How sizes of axes may be related, which names do not always say; the first that runs is taken."""

MASKS = (
    Choices(padding="left"),
    Choices(padding="inverted"),
    Choices(padding="left", kept=0.0, masked=float(np.finfo(np.float32).min)),
    Choices(padding="left", kept=0.0, masked=-np.inf),
)


def sample_sets(model: ir.Model, repairs: Sequence[GraphPass] = ()) -> list[Samples]:
    """Make sets of samples that show what passes may change in a graph, the plainest first.

    Args:
        repairs: passes without which ONNX Runtime may not run the graph; the model stays unchanged
    """
    sampler = _Sampler(model)
    found = _first_layout(model, sampler)
    if found is None:
        model = model.clone()
        with contextlib.suppress(Exception):  # foreign graphs may raise any exception in a pass
            for step in repairs:
                step.apply(model)
        found = _first_layout(model, sampler)
    if found is None:
        return [sampler.draw(Choices())]
    runner, base = found
    sets = [sampler.draw(base)]
    for choices in sampler.variants(base):
        samples = sampler.draw(choices)
        if not any(_equal(samples, other) for other in sets) and _runs(runner, samples):
            sets.append(samples)
    if has_branches(model):
        sets += _sets_for_branches(model, sampler, base, sets)
    return sets


def _first_layout(model: ir.Model, sampler: _Sampler) -> tuple[Runner, Choices] | None:
    try:
        runner = Runner(model)
    except PassError:
        return None
    tried: list[Samples] = []
    for choices in sampler.layouts:
        samples = sampler.draw(choices)
        if any(_equal(samples, other) for other in tried):
            continue
        if _runs(runner, samples):
            return runner, choices
        tried.append(samples)
    return None


def _sets_for_branches(
    model: ir.Model, sampler: _Sampler, base: Choices, sets: list[Samples]
) -> list[Samples]:
    try:
        branches = Branches(model)
        missing = branches.names.difference(*map(branches.executed, sets))
    except PassError:
        return []
    found = []
    end = time.monotonic() + SEARCH_SECONDS
    for choices in itertools.islice(sampler.searched(base), TRIALS):
        if not missing or time.monotonic() > end:
            break
        try:
            samples = sampler.draw(choices)
            executed = branches.executed(samples, seconds=TRIAL_SECONDS)
        except PassError:
            continue
        if executed & missing:
            found.append(samples)
            missing -= executed
    return found


def _runs(runner: Runner, samples: Samples) -> bool:
    try:
        runner.run(samples, seconds=TRIAL_SECONDS)
    except PassError:
        return False
    return True


def _equal(a: Samples, b: Samples) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes()
        for k in a
    )


class _Sampler:
    def __init__(self, model: ir.Model) -> None:
        self._inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
        self._defaults = {
            name: np.asarray(value.const_value.numpy())
            for name, value in model.graph.initializers.items()
            if value.is_graph_input() and value.const_value is not None
        }
        if (model.ir_version or 0) < 4:
            self._defaults = {}  # constants, which old versions list among the inputs
        for value in self._inputs:
            known = isinstance(value.type, ir.TensorType) and value.shape is not None
            if not known or value.dtype is None or value.name is None:
                raise PassError(
                    f"input {value.name}: expected a tensor of known type and number of axes, "
                    f"found {value.type}, {value.shape}; without samples the graph can be "
                    "optimized but not compared (--no-compare)"
                )
        self._tables = {v: _rows(v, model) for v in self._inputs if _is_integer(v)}
        self._flags = [v.name or "" for v in self._inputs if _is_flag(v)]
        self._thresholds = _thresholds(model)
        axes = [
            (v, index, _axis_name(d, index))
            for v in self._inputs
            for index, d in enumerate(v.shape or ())
            if not isinstance(d, int)
        ]
        self._symbols = sorted({symbol for _, _, name in axes for symbol in _symbols(name)})
        elsewhere = {name for v, index, name in axes if index > 0}
        self._first = {name for _, index, name in axes if index == 0} - elsewhere
        self.layouts = [
            *LAYOUTS,
            Choices(sizes=dict.fromkeys(self._symbols, 3), total=()),
            Choices(sizes=dict.fromkeys(self._first, 1), total=()),
            Choices(sizes=dict.fromkeys(self._symbols, 1), total=()),
        ]
        others = {s for v, _, name in axes if not _is_mask(v) for s in _symbols(name)}
        self._totals = {
            name
            for v, index, name in axes
            if _is_mask(v) and index == len(v.shape or ()) - 1 and index > 0
        } - others

    def variants(self, base: Choices) -> Iterator[Choices]:
        """Return sets that are always compared, if they differ and run: flags, masks, defaults."""
        flags = self._flags
        for name in flags:
            yield replace(base, flags={name: False})
        if len(flags) > 1:
            yield replace(base, flags=dict.fromkeys(flags, False))
        for masks in MASKS:
            yield replace(base, padding=masks.padding, kept=masks.kept, masked=masks.masked)
        if self._defaults:
            yield replace(base, defaults=1.5)

    def searched(self, base: Choices) -> Iterator[Choices]:
        flags = self._flags
        settings = [
            replace(base, flags=dict(zip(flags, values, strict=True)))
            for values in itertools.islice(itertools.product((True, False), repeat=len(flags)), 8)
        ]
        sizes = [1, 2, 3]
        for threshold in self._thresholds:
            if threshold.is_integer() and 0 <= threshold < LARGEST_SIZE:
                sizes += [int(threshold), int(threshold) + 1]
        thresholds = sorted({0.0, *self._thresholds})
        middles = [(a + b) / 2 for a, b in itertools.pairwise(thresholds)]
        largest = max(map(abs, thresholds)) + 1
        around = (int(threshold) + n for threshold in thresholds for n in (-1, 0, 1))
        alternatives: dict[str, Iterable[Any]] = {
            "integer": sorted({-1, 0, 1, 2, 3, *around}),
            "padding": ("left", "inverted", "all", "none"),
            "scale": (-1.0, 0.01, 100.0, -100.0, 2 * largest, -2 * largest),
            "number": (*thresholds, *middles, largest, -largest),
            "seed": range(1, 5),
        }
        for setting in settings:
            yield setting
            for size in sorted(set(sizes) - {0}):
                for name in self._symbols:
                    yield replace(setting, sizes={**base.sizes, name: size})
            for name, values in alternatives.items():
                for value in values:
                    yield replace(setting, **{name: value})
        for setting in settings:  # last, as little is compared on them
            for name in sorted(self._symbols, key=lambda name: name in self._first):
                yield replace(setting, sizes={**base.sizes, name: 0})
            for value in (np.nan, np.inf):
                yield replace(setting, number=value)

    def draw(self, choices: Choices) -> Samples:
        generator = np.random.default_rng(choices.seed)
        sizes = self._sizes(choices)
        values: dict[str, NDArray[np.generic]] = {}
        for tensor in self._inputs:
            assert tensor.dtype is not None and tensor.name is not None
            shape = tuple(_size(d, i, sizes) for i, d in enumerate(tensor.shape or ()))
            value = self._value(tensor, shape, choices, generator)
            with np.errstate(over="ignore", invalid="ignore"):
                values[tensor.name] = np.asarray(value).astype(tensor.dtype.numpy())
        if choices.defaults != 1:
            for name, array in self._defaults.items():
                factor = choices.defaults if array.dtype.kind == "f" else 1
                values[name] = (array * factor).astype(array.dtype)
        return values

    def _sizes(self, choices: Choices) -> dict[str, int]:
        sizes = {
            name: 2 if "batch" in name.lower() else 3 + sum(name.encode()) % 5
            for name in self._symbols
        }
        if choices.together:
            sizes |= dict.fromkeys(self._first & set(sizes), 2)
        sizes |= choices.sizes
        past = (_size(v.shape[-2], -2, sizes) for v in self._inputs if v.shape and _is_past(v))
        tokens = (_size(v.shape[1], 1, sizes) for v in self._inputs if v.shape and _is_tokens(v))
        parts = {"past": next(past, 0), "sequence": next(tokens, 0)}
        length = sum(parts[part] for part in choices.total)
        if not length:
            return sizes
        return sizes | dict.fromkeys(self._totals & set(sizes) - set(choices.sizes), length)

    def _value(
        self,
        tensor: ir.Value,
        shape: tuple[int, ...],
        choices: Choices,
        generator: np.random.Generator,
    ) -> NDArray[np.generic]:
        name = (tensor.name or "").lower()
        if tensor.dtype == ir.DataType.STRING:
            return np.full(shape, "a", object)
        if _is_mask(tensor):
            floats = not _is_integer(tensor) and tensor.dtype != ir.DataType.BOOL
            kept, masked = (choices.kept, choices.masked) if floats else (1.0, 0.0)
            return np.where(_mask(shape, choices.padding), kept, masked)
        if tensor.dtype == ir.DataType.BOOL:
            if _is_flag(tensor):
                return np.full(shape, choices.flags.get(tensor.name or "", True))
            return generator.random(shape) < 0.5
        if "position" in name and choices.integer is None:
            positions = np.arange(shape[-1] if shape else 1)
            return np.broadcast_to(positions, shape or (1,)).reshape(shape)
        if _is_integer(tensor):
            rows = self._tables[tensor]
            if choices.integer is not None:
                return np.full(shape, choices.integer if rows is None else choices.integer % rows)
            return generator.integers(0, 2 if rows is None else rows, shape)
        if choices.number is not None:
            return np.full(shape, choices.number)
        return np.asarray(choices.scale * generator.standard_normal(shape))


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _is_mask(value: ir.Value) -> bool:
    axes = len(value.shape or ())
    named = "mask" in (value.name or "").lower() and not _is_flag(value)
    return named or (value.dtype == ir.DataType.BOOL and axes > 1 and not _is_flag(value))


def _is_flag(value: ir.Value) -> bool:
    single = all(d == 1 for d in value.shape or ())
    return value.dtype == ir.DataType.BOOL and single


def _is_past(value: ir.Value) -> bool:
    name = (value.name or "").lower()
    past = any(word in name for word in ("past", "cache", "key", "value", "mem"))
    return past and len(value.shape or ()) >= 3 and not ("cross" in name or "encoder" in name)


def _is_tokens(value: ir.Value) -> bool:
    axes = len(value.shape or ())
    tokens = _is_integer(value) and axes == 2
    embedded = not _is_integer(value) and axes == 3 and not _is_past(value)
    return (tokens or embedded) and not _is_mask(value)


def _mask(shape: tuple[int, ...], padding: str) -> NDArray[np.bool_]:
    kept = np.full(shape, padding != "none")
    if not shape or padding in ("all", "none"):
        return kept
    if padding == "right":
        if len(shape) > 1 and shape[0] > 1 and shape[-1] > 2:
            kept[-1, ..., -2:] = False
        return kept
    if shape[0] > 1 or len(shape) == 1:
        kept[:1, ..., : max(1, shape[-1] // 3)] = False
    if len(shape) > 1:
        kept[-1] = False
    return kept if padding == "left" else ~kept


def _symbols(axis: str) -> frozenset[str]:
    """Return the symbols of an axis; it is one itself if it is a name such as `time-steps`."""
    if axis.isdigit():
        return frozenset()
    try:
        expression = ir.SymbolicDim(axis)
        names = expression.free_symbols()
        value = expression.evaluate(dict.fromkeys(names, 3))
    except Exception:  # not an expression; sympy's errors share no base
        return frozenset({axis})
    is_sensible = bool(names) and isinstance(value, int) and value > 0
    return names if is_sensible else frozenset({axis})


def _axis_name(axis: ir.SymbolicDim, index: int) -> str:
    return f"axis {index}" if axis.value is None else str(axis.value)


def _size(axis: int | ir.SymbolicDim, index: int, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, int):
        return axis
    name = _axis_name(axis, index)
    if name.isdigit():
        return int(name)
    if name in sizes:
        return sizes[name]
    value = axis.evaluate(dict(sizes))
    return max(0, value) if isinstance(value, int) else 1


PASS_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Flatten", "Clip"}
)


def _rows(ids: ir.Value, model: ir.Model) -> int | None:
    """Return the rows of the smallest table that ids are looked up in, or else of the graph."""
    found, seen, waiting = [], {ids}, [ids]
    while waiting:
        value = waiting.pop()
        for node in users(value):
            if node.op_type == "Gather" and node.inputs[1] is value:
                found.append(_table_rows(node))
            elif node.op_type == "GatherElements":
                found.append(1)  # 0 is in every axis
            elif node.op_type in PASS_ON and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append(node.outputs[0])
    rows = [r for r in found if r is not None]
    if not rows:
        gathers = (node for node in model.graph.all_nodes() if node.op_type == "Gather")
        rows = [r for r in map(_table_rows, gathers) if r is not None]
    return min(rows, default=None)


def _table_rows(node: ir.Node) -> int | None:
    table = node.inputs[0]
    numbers = constant(table) if is_weight(table, 2) else None
    return None if numbers is None else numbers.shape[0]


def _thresholds(model: ir.Model) -> list[float]:
    found = {
        value
        for node in model.graph.all_nodes()
        if node.op_type in COMPARISONS
        for value in map(number, node.inputs)
        if value is not None and abs(value) < 1e6
    }
    return sorted(found, key=abs)[:16]
