"""The graphs that the contract requires of a model, and the comparison of graphs with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from dragoman.settings.head import Head
from dragoman.settings.speech import AudioFeatures

from .contract import (
    CONTRACTS,
    FLOATING,
    HEAD_OUTPUTS,
    IN_RECURRENT_DECODERS,
    ROLES,
    Axis,
    Change,
    DataType,
    GraphName,
    GraphSpec,
    Kind,
    ModelAxis,
    Role,
    Slot,
    TensorSpec,
)
from .model_spec import ModelSpec


def kind_of(model: ModelSpec) -> Kind:
    """Return the kind of a model."""
    if not model.has_decoder:
        return "encoder"
    return "sequence-to-sequence" if model.has_encoder else "language-model"


def aligning_heads(
    model: ModelSpec, named: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """Return the layer and head of each cross-attention that aligns words with audio.

    Without `named` alignment heads of the checkpoint, all heads of the upper half of the decoder's
    layers align, as in openai-whisper.
    """
    if named:
        return tuple(sorted(named))
    upper = range(model.decoder_layers // 2, model.decoder_layers)
    return tuple((layer, head) for layer in upper for head in range(model.num_heads))


def aligning_layers(model: ModelSpec, named: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the layers of `aligning_heads`, ascending."""
    return tuple(sorted({layer for layer, _ in aligning_heads(model, named)}))


def neutral_graph(
    graph: GraphName,
    file: str,
    model: ModelSpec,
    audio: AudioFeatures | None,
    head: Head | None = None,
) -> GraphSpec:
    """Return the graph of a neutral bundle in fp32 that the contract requires."""
    graphs, layers = CONTRACTS[kind_of(model)], model.decoder_layers
    inputs, outputs = graphs[graph]
    if graph == "encoder" and model.takes_audio:
        # Every frame of a window of audio is attended to, including silence.
        inputs = tuple(role for role in inputs if role != "source_mask")
    if head is not None:
        if graph == "encoder":
            outputs = HEAD_OUTPUTS[head.task]
        if not head.token_types:
            inputs = tuple(role for role in inputs if role != "token_type")
    if model.state_size is not None:
        inputs, outputs = _recurrent(inputs), _recurrent(outputs)
        if graph == "attention":
            inputs = (*inputs, "past_state")
    sizes = _sizes(model, head)
    if "decoder" in graphs and "read" not in graphs["decoder"].inputs:
        sizes["read"] = "query"
    if graph == "shortlist_decoder":  # after the last query only
        sizes |= {"read": 1, "target_vocabulary": "allowed"}
    return GraphSpec(
        file,
        *(
            tuple(_tensor(slot, sizes, model, audio) for slot in _slots(roles, layers))
            for roles in (inputs, outputs)
        ),
    )


def _recurrent(roles: Sequence[Role]) -> tuple[Role, ...]:
    kept = (IN_RECURRENT_DECODERS.get(role, role) for role in roles)
    return tuple(role for role in kept if role is not None)


def without_shortlist_weights(graph: GraphSpec) -> GraphSpec:
    """Return a graph without the tensors that depend on target and precision of a shortlist."""
    inputs, outputs = (
        tuple(tensor for tensor in side if tensor.role != "shortlist_weight")
        for side in (graph.inputs, graph.outputs)
    )
    return GraphSpec(graph.file, inputs, outputs)


def slot_breaches(found: GraphSpec, expected: GraphSpec) -> list[str]:
    """Return one line for each missing, unexpected or duplicate tensor of a graph."""
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
    """Return one line for each tensor whose shape or number format breaks the contract.

    A number may replace a dynamic axis, and any floating-point format may replace float32.
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
    allowed: frozenset[DataType] = frozenset({expected.dtype})
    kind: str = expected.dtype
    if expected.dtype in FLOATING:
        allowed, kind = FLOATING, "floating point"
        if expected.change is Change.APPENDED:
            allowed, kind = FLOATING | {"int8"}, "floating point or int8"
    if found.dtype not in allowed:
        yield f"{found.name}: expected {kind}, found {found.dtype}"


def _may_stand_for(found: int | str, expected: int | str) -> bool:
    if isinstance(found, int) and isinstance(expected, str):
        return found > 0
    return found == expected


def _slots(roles: Sequence[Role], layers: int) -> list[Slot]:
    """Return slots; layered roles of one owner are grouped by layer: key 0, value 0, key 1, ..."""
    slots: list[Slot] = []
    for (layered, _), group in groupby(roles, key=lambda r: (ROLES[r].layered, ROLES[r].owner)):
        together = list(group)
        if layered:
            slots += [Slot(role, layer) for layer in range(layers) for role in together]
        else:
            slots += [Slot(role) for role in together]
    return slots


def _sizes(model: ModelSpec, head: Head | None) -> dict[Axis | ModelAxis, int | str]:
    sizes: dict[Axis | ModelAxis, int | str] = {
        "heads": model.num_heads,
        "head_size": model.head_size,
        "value_size": model.value_size or model.head_size,
        "state_size": model.state_size or 0,
        "target_vocabulary": model.target_vocab_size,
    }
    if model.takes_audio:
        sizes["source"] = model.max_source_positions
    if head is not None:
        sizes |= {"d_model": head.d_model, "head_outputs": head.outputs}
    return sizes


def _tensor(
    slot: Slot,
    sizes: Mapping[Axis | ModelAxis, int | str],
    model: ModelSpec,
    audio: AudioFeatures | None,
) -> TensorSpec:
    definition = ROLES[slot.role]
    dtype: DataType = definition.dtype or "float32"
    shape: tuple[int | str, ...] = tuple(sizes.get(axis, axis) for axis in definition.axes)
    if slot.role == "source" and model.takes_audio:
        dtype = "float32"
    if slot.role == "source" and audio is not None:
        shape = ("source_batch", audio.bins, audio.frames)
    return TensorSpec(str(slot), slot.role, dtype, shape, slot.layer)


def _words(slot: Slot) -> str:
    return f"role {slot.role}" if slot.layer is None else f"role {slot.role}, layer {slot.layer}"
