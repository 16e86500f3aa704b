"""Running graphs on ONNX Runtime exactly as they are, and comparing outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass
from onnxruntime import OrtValue

from dragoman.onnx_graphs.graph_files import INLINE_BYTES
from dragoman.runtime.backends.onnxruntime.cpu import (
    OnnxRuntimeBackend,
    saturates,
    session_options,
)
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import ROLES, Change, GraphSpec, Owner
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.parity import NOT_FINITE

from .emulation import emulate_half, has_halves
from .graph_pass import PassError
from .graph_values import MICROSOFT, constant, new_weight, replace_by

Samples = Mapping[str, NDArray[np.generic]]
"""One value for each input of a graph."""

WINDOWS = 2
"""The number of windows of audio in samples of an encoder: each is 1,500 positions of Whisper."""


def samples_for_graph(
    spec: GraphSpec, model: ModelSpec, *, seed: int = 0, windows: int = WINDOWS
) -> Samples:
    """Make sample inputs of a graph of the contract, from a seed.

    Rows have unequal lengths and positions, up to which caches are filled. There are two rows of
    each source if the graph lets rows share sources.

    Args:
        windows: windows of audio for an encoder of speech
    """
    generator = np.random.default_rng(seed)
    sizes = _sizes(spec, model, windows)
    position = np.linspace(0, sizes["capacity"] - 1, sizes["batch"]).astype(np.int64)
    values: dict[str, NDArray[np.generic]] = {}
    for tensor in spec.inputs:
        shape = tensor.sized(sizes)
        value: NDArray[np.generic]
        if tensor.owner is Owner.MASK:
            lengths = np.linspace(1, shape[1], shape[0]).astype(int)
            value = np.arange(shape[1]) < lengths[:, None]
        elif tensor.role == "position":
            value = position
        elif tensor.role in ("read", "token_type"):
            value = np.zeros(shape)
        elif tensor.role == "token":
            value = generator.integers(0, model.target_vocab_size, shape)
        elif tensor.role == "source" and model.source_vocab_size is not None:
            value = generator.integers(0, model.source_vocab_size, shape)
        else:
            value = generator.standard_normal(shape)
        if tensor.change is Change.APPENDED:
            # Positions that a row has not written yet are zero.
            written = np.arange(sizes["capacity"]) < position[:, None]
            value = value * written[:, None, :, None]
        values[tensor.name] = value.astype(np.dtype(tensor.dtype))
    return values


def _sizes(spec: GraphSpec, model: ModelSpec, windows: int) -> dict[str, int]:
    sizes = {
        "batch": 6,
        "source_batch": 3,
        "source": min(5, model.max_source_positions),
        "query": 1,
        "read": 1,
        "capacity": min(9, model.max_target_positions),
    }
    for tensor in spec.inputs:
        if tensor.role == "source" and model.takes_audio:
            sizes["source_batch"] = windows
        if tensor.role == "source":
            continue  # audio features have other axes
        for axis, size in zip(ROLES[tensor.role].axes, tensor.shape, strict=True):
            if axis in sizes and isinstance(size, int):
                sizes[axis] = size
    return sizes


EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
DECLARED = Path(__file__).absolute()
"""The file that is declared to hold the weights in memory; it must exist and is not read."""


class InMemorySession:
    """A session of a graph in memory, whatever the graph's size; no file is written.

    A serialized graph may not exceed 2 GB (protobuf). Large initializers are therefore declared as
    external data, which ONNX Runtime's own optimizations, disabled here, would read.

    Attributes:
        session: ONNX Runtime's own; valid as long as this object
    """

    def __init__(self, model: ir.Model, options: onnxruntime.SessionOptions) -> None:
        """Load a graph, which stays unchanged.

        Raises:
            Exception: ONNX Runtime cannot load the graph; its errors share no other base.
        """
        graph = model.clone()
        # Kept because the session reads them as long as it exists.
        self._weights = _detach_weights(graph)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(EXTERNAL_FOLDER, str(DECLARED.parent))
        for name, value in self._weights.items():
            options.add_initializer(name, value)
        self.session = onnxruntime.InferenceSession(
            ir.to_proto(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.output_names: Sequence[str] = [o.name for o in self.session.get_outputs()]

    def run(
        self,
        inputs: Mapping[str, NDArray[np.generic]],
        options: onnxruntime.RunOptions | None = None,
    ) -> dict[str, NDArray[np.generic]]:
        """Return all outputs of the graph, by name."""
        outputs = self.session.run(self.output_names, dict(inputs), options)
        return dict(zip(self.output_names, outputs, strict=True))


def _detach_weights(model: ir.Model) -> dict[str, OrtValue]:
    """Take large initializers out of the main graph, the only one with external tensors."""
    weights = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes <= INLINE_BYTES:
            continue
        weights[name] = _ort_value(tensor)
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor(
            DECLARED.name, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name
        )
    return weights


def _ort_value(tensor: ir.TensorProtocol) -> OrtValue:
    """Make a tensor of ONNX Runtime that shares memory, except for elements of less than a byte."""
    if tensor.dtype.bitwidth < 8:
        # The shape is taken from the array, which has a byte per element; only the packed elements
        # at its start are read.
        array = np.empty(tensor.shape.numpy(), np.uint8)
        array.reshape(-1)[: tensor.nbytes] = np.frombuffer(tensor.tobytes(), np.uint8)
    else:
        array = np.ascontiguousarray(tensor.numpy())
        array = array.view(f"u{array.itemsize}")  # for element types that NumPy does not have
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(tensor.dtype))


class InMemoryBackend(OnnxRuntimeBackend):
    """ONNX Runtime on graphs in memory."""

    def __init__(self, bundle: Bundle, graphs: Mapping[str, ir.Model], threads: int | None) -> None:
        self._graphs = graphs
        self._held: list[InMemorySession] = []
        super().__init__(bundle, threads=threads)

    def _session(self, graph: str) -> onnxruntime.InferenceSession:
        options = session_options(self._threads)
        # Kernels' own layouts of weights would be a second copy of all of them.
        options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            held = InMemorySession(_without_transposition(self._graphs[graph]), options)
        except Exception as error:  # ONNX Runtime's errors share no other base
            raise PassError(f"{graph}: {error}") from error
        self._held.append(held)  # owns the weights that the session reads
        return held.session


Outputs = dict[str, NDArray[np.generic]]
"""The outputs of a graph, by name."""

RESOLUTION: dict[ir.DataType, float] = {ir.DataType.FLOAT16: 1e-2, ir.DataType.BFLOAT16: 8e-2}
"""The largest difference that rounding to these types may cause, relative to the largest value."""


class Runner:
    """A graph that runs exactly as it is, without ONNX Runtime's own optimizations.

    Only products by a large table avoid a transposed copy of it, 16-bit types are emulated (see
    `emulation`; outputs are then float32), and int8 weights become unsigned where this processor's
    8-bit products would saturate.
    """

    def __init__(self, model: ir.Model, threads: int | None = 1) -> None:
        if has_halves(model):
            model = model.clone()
            InlinePass()(model)
            emulate_half(model)
        if saturates():
            model = model.clone()
            _avoid_saturation(model.graph)
        model = _without_transposition(model)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads or 0
        options.add_session_config_entry("session.disable_prepacking", "1")  # runs are few
        self._session = _try(InMemorySession, model, options)
        self._dtypes = {v.name: v.dtype.numpy() for v in model.graph.inputs if v.dtype is not None}

    def run(self, samples: Samples, *, seconds: float | None = None) -> Outputs:
        """Return the outputs of the graph, by name, on samples cast to the types of its inputs.

        Args:
            seconds: the time after which the run fails, since a loop may not end; None: unlimited
        """
        feeds = {name: value.astype(self._dtypes[name]) for name, value in samples.items()}
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4
        if seconds is None:
            return _arrays(_try(self._session.run, feeds, options))
        timer = threading.Timer(seconds, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return _arrays(_try(self._session.run, feeds, options))
        finally:
            timer.cancel()


LARGE_BYTES = 1 << 26
"""Tables from this size are not transposed for a product."""


def is_large(model: ir.Model) -> bool:
    """Return whether the weights of a graph take more than a small model's."""
    values = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in values if tensor is not None) > 4 * LARGE_BYTES


def _multiplied_tables(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value]]:
    for node in graph:
        factor = node.inputs[1] if node.op_type == "MatMul" and not node.domain else None
        transpose = None if factor is None else factor.producer()
        if transpose is None or transpose.op_type != "Transpose":
            continue
        table = transpose.inputs[0]
        tensor = None if table is None else table.const_value
        if table is None or tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        if len(tensor.shape) == 2 and tensor.nbytes >= LARGE_BYTES:
            yield node, table


def _without_transposition(model: ir.Model) -> ir.Model:
    if not any(_multiplied_tables(model.graph)):
        return model
    model = model.clone()
    for node, table in list(_multiplied_tables(model.graph)):
        factors = [node.inputs[0], table]
        product = ir.node("FusedMatMul", factors, {"transB": 1}, domain=MICROSOFT)
        replace_by(model.graph, node, [product])
    model.opset_imports.setdefault(MICROSOFT, 1)
    RemoveUnusedNodesPass()(model)
    return model


def _avoid_saturation(graph: ir.Graph) -> None:
    for node in graph:
        weight, zero = _PRODUCTS.get((node.domain, node.op_type), (0, 0))
        inputs = [*node.inputs, *[None] * (zero + 1 - len(node.inputs))]
        value, integers, offset = inputs[weight], constant(inputs[weight]), constant(inputs[zero])
        if not zero or integers is None or integers.dtype != np.int8:
            continue
        if offset is None and inputs[zero] is not None:
            continue  # computed
        assert value is not None
        added = getattr(inputs[zero], "name", "no_zero_point")
        unsigned = new_weight(graph, f"{value.name}.unsigned", _unsigned(integers))
        offset = _unsigned(np.zeros((), np.int8) if offset is None else offset)
        node.resize_inputs(len(inputs))
        node.replace_input_with(weight, unsigned)
        node.replace_input_with(zero, new_weight(graph, f"{value.name}+{added}.unsigned", offset))
        # ONNX Runtime refuses external weights that nothing reads.
        for old in (value, inputs[zero]):
            if old is not None and not (old.uses() or old.is_graph_output()):
                graph.initializers.pop(old.name or "", None)


def _unsigned(integers: NDArray[Any]) -> NDArray[np.uint8]:
    return (integers.astype(np.int16) + 128).astype(np.uint8)


_PRODUCTS: Mapping[tuple[str, str], tuple[int, int]] = {
    ("", "MatMulInteger"): (1, 3),
    ("", "QLinearMatMul"): (3, 5),
    ("com.microsoft", "DynamicQuantizeMatMul"): (1, 3),
    ("com.microsoft", "MatMulIntegerToFloat"): (1, 5),
    ("com.microsoft", "QGemm"): (3, 5),
}
"""Products of integers: the input indices of the weight and of its zero point."""


def _arrays(outputs: Mapping[str, Any]) -> Outputs:
    arrays: Outputs = {}
    for name, value in outputs.items():
        if isinstance(value, list):
            arrays |= {f"{name}.size": np.array(len(value))}
            arrays |= _arrays({f"{name}[{index}]": item for index, item in enumerate(value)})
        elif isinstance(value, dict):
            arrays |= _arrays({f"{name}[{key}]": np.asarray(value[key]) for key in value})
        else:
            arrays[name] = np.zeros(0, bool) if value is None else np.asarray(value)
    return arrays


def run(model: ir.Model, samples: Samples) -> Outputs:
    """Return the outputs of a graph that runs only once. See `Runner`."""
    return Runner(model).run(samples)


def _try(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # ONNX Runtime's error types share no other base
        raise PassError(f"onnxruntime {onnxruntime.__version__}: {error}") from error


def difference(before: Samples, after: Samples) -> tuple[str, float]:
    """Return the output that differs most, and its difference.

    That is the largest absolute one, divided by max(1, the largest absolute value before). Integer
    and boolean outputs, even if they have only become so, count only if there are no others, by the
    fraction of unequal elements.
    """
    floats = [n for n, value in before.items() if _is_float(value) and _is_float(after[n])]
    # Token choices and masks follow from the float outputs.
    worst = [(distance(before[name], after[name]), name) for name in floats or before]
    value, name = max(worst, default=(0.0, ""))
    return name, value


def resolution(model: ir.Model) -> float:
    """Return the tolerance of the coarsest type among a graph's outputs; 0.0 if all are float32."""
    return max((RESOLUTION.get(v.dtype, 0.0) for v in model.graph.outputs if v.dtype), default=0.0)


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of a model in which these values of the main graph are outputs too."""
    copy = model.clone()
    added = set(names) - {value.name for value in copy.graph.outputs}
    for node in copy.graph:
        copy.graph.outputs.extend(value for value in node.outputs if value.name in added)
    return copy


def only_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of a model that computes these values of the main graph, and nothing else."""
    copy = with_outputs(model, names)
    wanted = set(names)
    copy.graph.outputs[:] = [value for value in copy.graph.outputs if value.name in wanted]
    RemoveUnusedNodesPass()(copy)
    return copy


def _is_float(value: NDArray[np.generic]) -> bool:
    return np.issubdtype(value.dtype, np.floating) or value.dtype == ml_dtypes.bfloat16


NUMBERS_AT_ONCE = 2**22
"""Numbers that are compared at once, in float64."""


def distance(before: NDArray[np.generic], after: NDArray[np.generic]) -> float:
    """Return the difference of two values of an output. See `difference`."""
    if before.shape != after.shape:
        return NOT_FINITE
    if not _is_float(before):
        return float(np.mean(before != after)) if before.size else 0.0
    size, largest = 1.0, 0.0
    before, after = before.reshape(-1), after.reshape(-1)
    for first in range(0, before.size, NUMBERS_AT_ONCE):
        part = slice(first, first + NUMBERS_AT_ONCE)
        old, new = before[part].astype(np.float64), after[part].astype(np.float64)
        same = (old == new) | (np.isnan(old) & np.isnan(new))
        apart = np.abs(np.where(same, 0.0, new - np.where(same, 0.0, old)))
        if not np.isfinite(apart).all():
            return NOT_FINITE
        size = max(size, float(np.abs(old[np.isfinite(old)]).max(initial=0.0)))
        largest = max(largest, float(apart.max(initial=0.0)))
    return largest / size
