"""The graph contract: the inputs and outputs of the graphs in a bundle.

It is defined only here; `neutral_graphs` adds the sizes of a model. It tells a backend what owns
each tensor and how it changes, so that rows can be dropped, repeated, reordered and shared without
relying on names. `docs/contract.md` explains it to backend authors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from dragoman.settings.head import Task

DataType = Literal["float32", "float16", "bfloat16", "int64", "int32", "int8", "bool"]
FLOATING: frozenset[DataType] = frozenset({"float32", "float16", "bfloat16"})

Kind = Literal["sequence-to-sequence", "encoder", "language-model"]
"""The kind of a bundle's model: encoder-decoder, encoder-only or decoder-only."""

GraphName = Literal[
    "encoder",
    "decoder",
    "candidates",
    "attention",
    "alignment",
    "shortlist_weights",
    "shortlist_decoder",
]

ATTENTION_GRAPHS: frozenset[GraphName] = frozenset({"attention", "alignment"})
"""Graphs that are made of the model's own and share its weights. Without the attention graph,
attention weights are not available; without the alignment graph of a speech model, the times of
words are not."""

SHORTLIST_GRAPHS: frozenset[GraphName] = frozenset({"shortlist_weights", "shortlist_decoder"})
"""The decoder that computes the logits of a shortlist only, and the graph that gathers the weights
of these tokens for it. A bundle has both or none."""

OPTIONAL_GRAPHS: frozenset[GraphName] = frozenset(
    {"candidates", *ATTENTION_GRAPHS, *SHORTLIST_GRAPHS}
)
"""Optional graphs. Without the candidates graph, logits are copied to the host."""

Role = Literal[
    "source",
    "source_mask",
    "token_type",
    "cross_key",
    "cross_value",
    "token",
    "position",
    "read",
    "past_key",
    "past_value",
    "past_state",
    "logits",
    "next_token",
    "next_log_probability",
    "present_key",
    "present_value",
    "present_state",
    "candidate_token",
    "candidate_log_probability",
    "hidden",
    "embedding",
    "class_logits",
    "token_logits",
    "encoder_attention",
    "self_attention",
    "cross_attention",
    "shortlist",
    "shortlist_weight",
    "allowed_token",
    "allowed_column",
]

Axis = Literal[
    "batch",
    "source_batch",
    "source",
    "query",
    "read",
    "capacity",
    "candidates",
    "layers",
    "shortlist",
    "allowed",
]
"""A dynamic axis of a neutral graph. A target may pin one to a number; `candidates` and
`layers` always are one. `shortlist` is the number of tokens that the logits of a batch are computed
for, `allowed` the largest number of tokens that one of its sources allows.

`batch` is the number of rows being decoded, `source_batch` the number of their sources. Row r
belongs to source r // (batch / source_batch). `read` is the number of queries that logits are
computed for: the queries in the `read` input, or all of `query` without such an input."""

ModelAxis = Literal[
    "heads", "head_size", "value_size", "state_size", "target_vocabulary", "d_model", "head_outputs"
]
"""An axis whose size the model fixes."""

Axes = tuple[Axis | ModelAxis, ...]


class Owner(StrEnum):
    """What a tensor belongs to."""

    STEP = "step"
    """One call of a graph; the tensor is not needed afterwards."""
    DECODER_ROW = "decoder row"
    """A sequence being decoded. A source has one for each beam."""
    ENCODER_ROW = "encoder row"
    """A source. Its tensors are computed once and shared by all sequences decoded from it."""
    MASK = "mask"
    """The token positions of a source; follows the source's row."""


class Change(StrEnum):
    """How a tensor changes from step to step."""

    APPENDED = "appended"
    """Written at each row's position; earlier positions stay as they are."""
    REPLACED = "replaced"
    """Fully rewritten in every step, such as the state of a recurrent decoder."""
    NEVER = "never"


@dataclass(frozen=True)
class RoleDefinition:
    """The contract of a role."""

    owner: Owner
    change: Change
    axes: Axes
    """The shape; the axis `source` is fixed for models that take windows of audio."""
    dtype: DataType | None
    """None: floating point, in the precision of the graph."""
    description: str
    layered: bool = False
    """Whether there is one tensor for each decoder layer."""
    updates: Role | None = None
    """The role of the input that an output overwrites in place."""


_SOURCE_KEY: Axes = ("source_batch", "heads", "source", "head_size")
_SOURCE_VALUE: Axes = ("source_batch", "heads", "source", "value_size")
_KEY_CACHE: Axes = ("batch", "heads", "capacity", "head_size")
_VALUE_CACHE: Axes = ("batch", "heads", "capacity", "value_size")
_STATE: Axes = ("batch", "state_size")
_LOGITS: Axes = ("batch", "read", "target_vocabulary")
_ATTENTION_OF_SOURCE: Axes = ("source_batch", "layers", "heads", "source", "source")
_SELF_ATTENTION: Axes = ("batch", "layers", "heads", "query", "query")
_CROSS_ATTENTION: Axes = ("batch", "layers", "heads", "query", "source")

ROLES: Mapping[Role, RoleDefinition] = {
    "source": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "source"), "int64"),
        "source token ids; for a speech model, features float32 [source_batch, bins, frames]",
    ),
    "source_mask": RoleDefinition(
        *(Owner.MASK, Change.NEVER, ("source_batch", "source"), "bool"),
        "True at tokens, False at padding",
    ),
    "token_type": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "source"), "int64"),
        "the segment of each source token: 1 in the second text of a pair, otherwise 0",
    ),
    "cross_key": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, _SOURCE_KEY, None),
        "keys of cross-attention, projected from the encoder's output once per source",
        layered=True,
    ),
    "cross_value": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, _SOURCE_VALUE, None),
        "values of cross-attention, in the same way",
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
    "read": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch", "read"), "int64"),
        "the queries of each row, counted from 0, that logits are computed for; the next token "
        "follows the last of them",
    ),
    "past_key": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _KEY_CACHE, None),
        "keys of self-attention at all positions before this step",
        layered=True,
    ),
    "past_value": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _VALUE_CACHE, None),
        "values of self-attention at all positions before this step",
        layered=True,
    ),
    "past_state": RoleDefinition(
        *(Owner.DECODER_ROW, Change.REPLACED, _STATE, "float32"),
        "state of a recurrent decoder before this step; 0 before the first one",
        layered=True,
    ),
    "logits": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, _LOGITS, None),
        "unnormalized log-probabilities of the token that follows each query that is read",
    ),
    "next_token": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch",), "int64"),
        "the most probable token after the last query that is read, suppressed tokens excluded",
    ),
    "next_log_probability": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch",), "float32"),
        "its log-probability, in nats, among all tokens that are not suppressed",
    ),
    "present_key": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _KEY_CACHE, None),
        "past_key with this step's keys; bound to the same memory",
        layered=True,
        updates="past_key",
    ),
    "present_value": RoleDefinition(
        *(Owner.DECODER_ROW, Change.APPENDED, _VALUE_CACHE, None),
        "past_value with this step's values; bound to the same memory",
        layered=True,
        updates="past_value",
    ),
    "present_state": RoleDefinition(
        *(Owner.DECODER_ROW, Change.REPLACED, _STATE, "float32"),
        "state after this step; bound to the same memory on the processor",
        layered=True,
        updates="past_state",
    ),
    "candidate_token": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch", "candidates"), "int64"),
        "the most probable tokens after the last query that is read, best first, suppressed tokens "
        "excluded",
    ),
    "candidate_log_probability": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("batch", "candidates"), "float32"),
        "their log-probabilities, in nats, among all tokens",
    ),
    "hidden": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "source", "d_model"), None),
        "the encoder's hidden states; at padding they mean nothing",
    ),
    "embedding": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "head_outputs"), None),
        "the embedding of each source",
    ),
    "class_logits": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "head_outputs"), None),
        "unnormalized log-probabilities of the labels of each source",
    ),
    "token_logits": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, ("source_batch", "source", "head_outputs"), None),
        "the same for each token: of labels, of the tokens that may stand there, or of the answer "
        "beginning and ending there",
    ),
    "encoder_attention": RoleDefinition(
        *(Owner.ENCODER_ROW, Change.NEVER, _ATTENTION_OF_SOURCE, "float32"),
        "how much each source token attends to each; rows sum to 1",
    ),
    "self_attention": RoleDefinition(
        *(Owner.DECODER_ROW, Change.REPLACED, _SELF_ATTENTION, "float32"),
        "how much each target token attends to each, itself and earlier ones",
    ),
    "cross_attention": RoleDefinition(
        *(Owner.DECODER_ROW, Change.REPLACED, _CROSS_ATTENTION, "float32"),
        "how much each target token attends to each source token",
    ),
    "shortlist": RoleDefinition(
        *(Owner.STEP, Change.REPLACED, ("shortlist",), "int64"),
        "the tokens that any source of the batch allows",
    ),
    "shortlist_weight": RoleDefinition(
        *(Owner.STEP, Change.NEVER, ("shortlist",), None),
        "weights, scales or biases of these tokens' logits, one column or number for each token; "
        "numbered, and in any number format",
        layered=True,
    ),
    "allowed_token": RoleDefinition(
        *(Owner.STEP, Change.NEVER, ("batch", "allowed"), "int64"),
        "the tokens that the source of a row allows, then -1 as padding",
    ),
    "allowed_column": RoleDefinition(
        *(Owner.STEP, Change.NEVER, ("batch", "allowed"), "int64"),
        "the place of each of these tokens in the shortlist; 0 for padding",
    ),
}


class GraphContract(NamedTuple):
    """The roles of a graph's inputs and outputs, in order; layered ones layer by layer."""

    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]


_CHOICE: tuple[Role, ...] = ("logits", "next_token", "next_log_probability")
_PAST: tuple[Role, ...] = ("past_key", "past_value")
_PRESENT: tuple[Role, ...] = ("present_key", "present_value")
_CANDIDATES = GraphContract(("logits",), ("candidate_token", "candidate_log_probability"))

CONTRACTS: Mapping[Kind, Mapping[GraphName, GraphContract]] = {
    "sequence-to-sequence": {
        "encoder": GraphContract(("source", "source_mask"), ("cross_key", "cross_value")),
        "decoder": GraphContract(
            ("token", "position", "source_mask", "cross_key", "cross_value", *_PAST),
            (*_CHOICE, *_PRESENT),
        ),
        "candidates": _CANDIDATES,
        "attention": GraphContract(
            ("source", "source_mask", "token"),
            ("encoder_attention", "self_attention", "cross_attention"),
        ),
        "alignment": GraphContract(
            ("token", "source_mask", "cross_key", "cross_value"), ("logits", "cross_attention")
        ),
        "shortlist_weights": GraphContract(("shortlist",), ()),
        "shortlist_decoder": GraphContract(
            (
                *("token", "position", "source_mask", "cross_key", "cross_value", *_PAST),
                *("allowed_token", "allowed_column"),
            ),
            (*_CHOICE, *_PRESENT),
        ),
    },
    "encoder": {
        "encoder": GraphContract(
            ("source", "source_mask", "token_type"),
            ("hidden", "embedding", "class_logits", "token_logits"),
        ),
        "attention": GraphContract(("source", "source_mask", "token_type"), ("encoder_attention",)),
    },
    "language-model": {
        "decoder": GraphContract(("token", "position", "read", *_PAST), (*_CHOICE, *_PRESENT)),
        "candidates": _CANDIDATES,
        "attention": GraphContract(("token",), ("self_attention",)),
    },
}
"""The inputs and outputs of graphs. An encoder-only model has only the outputs of its head, see
`HEAD_OUTPUTS`, and the `token_type` input only if it uses token types. A recurrent decoder has
states instead of keys and values, see `IN_RECURRENT_DECODERS`; its attention graph takes states,
too. Of the graphs of a shortlist, one
also gives `shortlist_weight` tensors, which the other takes: their number, shapes and number
formats depend on target and precision."""

IN_RECURRENT_DECODERS: Mapping[Role, Role | None] = {
    "past_key": "past_state",
    "past_value": None,
    "present_key": "present_state",
    "present_value": None,
    "self_attention": None,
}
"""What stands in a recurrent decoder for roles of self-attention; None: nothing."""

HEAD_OUTPUTS: Mapping[Task, tuple[Role, ...]] = {
    "embedding": ("hidden", "embedding"),
    "sequence-classification": ("class_logits",),
    "token-classification": ("token_logits",),
    "masked-language-model": ("token_logits",),
    "question-answering": ("token_logits",),
}
"""The outputs of an encoder-only model."""


class Slot(NamedTuple):
    """The identity of a tensor in a graph: its role and, for layered roles, its layer."""

    role: Role
    layer: int | None = None

    def __str__(self) -> str:
        return self.role if self.layer is None else f"{self.role}_{self.layer}"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph."""

    name: str
    role: Role
    dtype: DataType
    shape: tuple[int | str, ...]
    """A number, or the name of a dynamic axis, for each dimension."""
    layer: int | None = None
    """Decoder layer; None if the role has one tensor for all layers."""

    @property
    def slot(self) -> Slot:
        """The role and the layer, if any."""
        return Slot(self.role, self.layer)

    @property
    def memory(self) -> Slot:
        """The slot whose memory holds the tensor; an updated input's, if the tensor updates one.

        On a GPU, `cuda.layout.memory_slot` gives states memory of their own.
        """
        return Slot(ROLES[self.role].updates or self.role, self.layer)

    @property
    def owner(self) -> Owner:
        """What the tensor belongs to."""
        return ROLES[self.role].owner

    @property
    def change(self) -> Change:
        """How the tensor changes from step to step."""
        return ROLES[self.role].change

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in numbers, given the sizes of dynamic axes by name."""
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in self.shape)


@dataclass(frozen=True)
class GraphSpec:
    """A graph: its file (ONNX, or the engine built from it), and its inputs and outputs."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def map(self, change: Callable[[TensorSpec], TensorSpec]) -> GraphSpec:
        """Return the graph with a change applied to every tensor."""
        return GraphSpec(
            self.file, tuple(map(change, self.inputs)), tuple(map(change, self.outputs))
        )

    def input(self, role: Role) -> TensorSpec:
        """Return the first input of a role."""
        return next(tensor for tensor in self.inputs if tensor.role == role)

    def output(self, role: Role) -> TensorSpec:
        """Return the first output of a role."""
        return next(tensor for tensor in self.outputs if tensor.role == role)
