"""The graph contract: the inputs and outputs of the graphs in a bundle.

This is the only place that says it. The exporter names its tensors and dynamic axes by it, the
checker and the manifest hold graphs to it, the optimizer makes sample inputs from it, and a backend
finds in it whose row a tensor is and how it changes, so that rows can be dropped, repeated,
reordered and shared without looking at names. `docs/contract.md` explains it to backend authors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Literal, NamedTuple

from .audio import AudioFeatures
from .model_spec import ModelSpec

DataType = Literal["float32", "float16", "bfloat16", "int64", "int32", "bool"]
FLOATING: frozenset[DataType] = frozenset({"float32", "float16", "bfloat16"})

Kind = Literal["sequence-to-sequence"]
"""What a bundle's graphs are together."""

GraphName = Literal["encoder", "decoder", "candidates"]

OPTIONAL_GRAPHS: frozenset[GraphName] = frozenset({"candidates"})
"""Beside those that compute the model. Without candidates, logits leave the device."""

Role = Literal[
    "source",
    "source_mask",
    "cross_key",
    "cross_value",
    "token",
    "position",
    "past_key",
    "past_value",
    "logits",
    "next_token",
    "next_log_probability",
    "present_key",
    "present_value",
    "candidate_token",
    "candidate_log_probability",
]

Axis = Literal["batch", "source_batch", "source", "query", "capacity", "candidates"]
"""A dynamic axis of a neutral graph. A target may pin one to a number; `candidates` always is one.

`batch` counts rows being decoded, `source_batch` the sources they are decoded from. The former is a
multiple of the latter: row r belongs to source r // (batch / source_batch)."""

ModelAxis = Literal["heads", "head_size", "target_vocabulary"]
"""An axis whose size the model fixes."""


class Owner(StrEnum):
    """What a tensor belongs to."""

    STEP = "step"
    """One call of a graph: computed for it or by it, and of no use afterwards."""
    DECODER_ROW = "decoder row"
    """A sequence being decoded. Beams of one source are several."""
    ENCODER_ROW = "encoder row"
    """A source. What belongs to it is computed once and shared by all sequences decoded from it."""
    MASK = "mask"
    """The positions of a source that are tokens; follows the source's row."""


class Change(StrEnum):
    """How a tensor changes from step to step."""

    APPENDED = "appended"
    """Written at each row's position; what lies before the position stays as it is."""
    REPLACED = "replaced"
    """Written whole in every step, such as the state of a recurrent decoder."""
    NEVER = "never"


@dataclass(frozen=True)
class RoleDefinition:
    """What the contract says of a role.

    Attributes:
        axes: the shape; an axis of a source is pinned where the model takes windows of audio
        dtype: None: floating point, in the precision of the graph
        layered: whether there is one tensor for each decoder layer
        updates: the role of the input whose memory an output is written to, in place
    """

    owner: Owner
    change: Change
    axes: tuple[Axis | ModelAxis, ...]
    dtype: DataType | None
    description: str
    layered: bool = False
    updates: Role | None = None


_OF_SOURCE: tuple[Axis | ModelAxis, ...] = ("source_batch", "heads", "source", "head_size")
_OF_CACHE: tuple[Axis | ModelAxis, ...] = ("batch", "heads", "capacity", "head_size")
_LOGITS: tuple[Axis | ModelAxis, ...] = ("batch", "query", "target_vocabulary")

ROLES: Mapping[Role, RoleDefinition] = {
    "source": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "source"), "int64"),
        "source token ids; of a model that takes audio, features float32 [source_batch, bins, "
        "frames]",
    ),
    "source_mask": RoleDefinition(
        *(Owner.MASK, Change.NEVER, ("source_batch", "source"), "bool"),
        "True at tokens, False at padding",
    ),
    "cross_key": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, _OF_SOURCE, None),
        "keys of cross-attention, projected from the encoder's output once per source",
        layered=True,
    ),
    "cross_value": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, _OF_SOURCE, None),
        "values of cross-attention, likewise",
        layered=True,
    ),
    "token": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch", "query"), "int64"),
        "the target tokens that this step reads",
    ),
    "position": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch",), "int64"),
        "the position of each row's first query: where its keys and values are written",
    ),
    "past_key": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _OF_CACHE, None),
        "keys of self-attention at all positions before this step",
        layered=True,
    ),
    "past_value": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _OF_CACHE, None),
        "values of self-attention, likewise",
        layered=True,
    ),
    "logits": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, _LOGITS, None),
        "unnormalized log-probabilities of the token that follows each query",
    ),
    "next_token": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch",), "int64"),
        "the most probable token after the last query, suppressed tokens excluded",
    ),
    "next_log_probability": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch",), "float32"),
        "its log-probability, in nats, among all tokens that are not suppressed",
    ),
    "present_key": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _OF_CACHE, None),
        "past_key with this step's keys; bound to the same memory",
        layered=True,
        updates="past_key",
    ),
    "present_value": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _OF_CACHE, None),
        "past_value with this step's values; bound to the same memory",
        layered=True,
        updates="past_value",
    ),
    "candidate_token": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch", "candidates"), "int64"),
        "the most probable tokens after the last query, best first, suppressed ones included",
    ),
    "candidate_log_probability": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch", "candidates"), "float32"),
        "their log-probabilities, in nats, among all tokens",
    ),
}


class GraphContract(NamedTuple):
    """The roles of a graph's inputs and outputs, in order; layered ones layer by layer."""

    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]


CONTRACTS: Mapping[Kind, Mapping[GraphName, GraphContract]] = {
    "sequence-to-sequence": {
        "encoder": GraphContract(("source", "source_mask"), ("cross_key", "cross_value")),
        "decoder": GraphContract(
            (
                *("token", "position", "source_mask"),
                *("cross_key", "cross_value", "past_key", "past_value"),
            ),
            ("logits", "next_token", "next_log_probability", "present_key", "present_value"),
        ),
        "candidates": GraphContract(("logits",), ("candidate_token", "candidate_log_probability")),
    },
}


class Slot(NamedTuple):
    """The identity of a tensor in a graph: its role and, in layered roles, its layer."""

    role: Role
    layer: int | None = None

    def __str__(self) -> str:
        return self.role if self.layer is None else f"{self.role}_{self.layer}"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Attributes:
        shape: a number, or the name of a dynamic axis, for each dimension
        layer: of the decoder; None where the role has one tensor for all
    """

    name: str
    role: Role
    dtype: DataType
    shape: tuple[int | str, ...]
    layer: int | None = None

    @property
    def slot(self) -> Slot:
        return Slot(self.role, self.layer)

    @property
    def memory(self) -> Slot:
        """The slot whose memory holds the tensor: for an output that updates an input, the
        input's."""
        return Slot(ROLES[self.role].updates or self.role, self.layer)

    @property
    def owner(self) -> Owner:
        return ROLES[self.role].owner

    @property
    def change(self) -> Change:
        return ROLES[self.role].change


@dataclass(frozen=True)
class GraphSpec:
    """A graph: its file, which is ONNX or the engine built from it, and its inputs and outputs."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def map(self, change: Callable[[TensorSpec], TensorSpec]) -> GraphSpec:
        """The graph with every tensor changed."""
        return GraphSpec(
            self.file, tuple(map(change, self.inputs)), tuple(map(change, self.outputs))
        )

    def input(self, role: Role) -> TensorSpec:
        """The first input of a role."""
        return next(tensor for tensor in self.inputs if tensor.role == role)

    def output(self, role: Role) -> TensorSpec:
        """The first output of a role."""
        return next(tensor for tensor in self.outputs if tensor.role == role)

    @property
    def shares_sources(self) -> bool:
        """Of a decoder: whether several rows can be decoded from one source, as beams are. Without,
        as in graphs of schema 2, every row needs a source of its own: their axes are the same."""
        rows = self.input("token").shape[0]
        return all(
            tensor.shape[0] != rows
            for tensor in self.inputs
            if tensor.owner in (Owner.ENCODER_ROW, Owner.MASK)
        )


def neutral_graph(
    graph: GraphName,
    file: str,
    model: ModelSpec,
    audio: AudioFeatures | None,
    *,
    kind: Kind = "sequence-to-sequence",
) -> GraphSpec:
    """What the contract demands of a graph of a neutral bundle in fp32.

    Args:
        audio: how audio becomes the source; None: the source is tokens
    """
    contract = CONTRACTS[kind][graph]
    inputs = [
        role
        for role in contract.inputs
        # Every frame of a window of audio is attended to, silence too.
        if not (graph == "encoder" and role == "source_mask" and model.takes_audio)
    ]
    return GraphSpec(
        file,
        *(
            tuple(
                TensorSpec(str(slot), slot.role, _dtype(slot.role, model), shape, slot.layer)
                for slot in _slots(roles, model.decoder_layers)
                for shape in [_shape(slot.role, model, audio)]
            )
            for roles in (inputs, contract.outputs)
        ),
    )


def slot_breaches(found: GraphSpec, expected: GraphSpec) -> list[str]:
    """Tensors of a graph that are missing, unexpected, or there twice, a line each.

    Args:
        expected: from `neutral_graph`
    """
    problems = []
    for side in ("inputs", "outputs"):
        slots = [tensor.slot for tensor in getattr(found, side)]
        known = [tensor.slot for tensor in getattr(expected, side)]
        problems += [f"{side}: no tensor with {_words(s)}" for s in known if s not in slots]
        unexpected = dict.fromkeys(slot for slot in slots if slot not in known)
        problems += [f"{side}: unexpected tensor with {_words(slot)}" for slot in unexpected]
        twice = dict.fromkeys(slot for slot in slots if slots.count(slot) > 1)
        problems += [f"{side}: two tensors with {_words(slot)}" for slot in twice]
    return problems


def shape_breaches(found: GraphSpec, expected: GraphSpec) -> list[str]:
    """Tensors of a graph with another shape or kind of numbers than the contract's, a line each. A
    number may stand in place of a dynamic axis, `batch` in place of `source_batch` (see
    `GraphSpec.shares_sources`), and any floating-point format in place of float32.

    Args:
        expected: from `neutral_graph`
    """
    problems = []
    for side in ("inputs", "outputs"):
        by_slot = {tensor.slot: tensor for tensor in getattr(expected, side)}
        for tensor in getattr(found, side):
            if tensor.slot in by_slot:
                differences = _differences(tensor, by_slot[tensor.slot])
                problems += [f"{side}: {difference}" for difference in differences]
    return problems


def _differences(found: TensorSpec, expected: TensorSpec) -> Iterator[str]:
    same_shape = len(found.shape) == len(expected.shape) and all(
        map(_may_stand_for, found.shape, expected.shape)
    )
    if not same_shape:
        yield f"{found.name}: expected shape {list(expected.shape)}, found {list(found.shape)}"
    allowed = FLOATING if expected.dtype in FLOATING else {expected.dtype}
    if found.dtype not in allowed:
        kind = "floating point" if len(allowed) > 1 else expected.dtype
        yield f"{found.name}: expected {kind}, found {found.dtype}"


def _may_stand_for(found: int | str, expected: int | str) -> bool:
    """Whether a graph may have this dimension where the contract has the expected one."""
    if isinstance(found, int) and isinstance(expected, str):
        return found > 0
    return found == expected or (found, expected) == ("batch", "source_batch")


def _slots(roles: Sequence[Role], layers: int) -> list[Slot]:
    """Layered roles of one owner go together layer by layer: key 0, value 0, key 1, value 1."""
    slots: list[Slot] = []
    for (layered, _), group in groupby(roles, key=lambda r: (ROLES[r].layered, ROLES[r].owner)):
        together = list(group)
        if layered:
            slots += [Slot(role, layer) for layer in range(layers) for role in together]
        else:
            slots += [Slot(role) for role in together]
    return slots


def _shape(role: Role, model: ModelSpec, audio: AudioFeatures | None) -> tuple[int | str, ...]:
    if role == "source" and audio is not None:
        return ("source_batch", audio.bins, audio.frames)
    sizes: dict[Axis | ModelAxis, int] = {
        "heads": model.num_heads,
        "head_size": model.head_size,
        "target_vocabulary": model.target_vocab_size,
    }
    if model.takes_audio:
        sizes["source"] = model.max_source_positions
    return tuple(sizes.get(axis, axis) for axis in ROLES[role].axes)


def _dtype(role: Role, model: ModelSpec) -> DataType:
    if role == "source" and model.takes_audio:
        return "float32"
    return ROLES[role].dtype or "float32"


def _words(slot: Slot) -> str:
    return f"role {slot.role}" if slot.layer is None else f"role {slot.role}, layer {slot.layer}"
