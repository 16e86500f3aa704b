"""The graph contract: what each role belongs to, and graphs compared with it."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from dragoman.runtime.format.contract import (
    CONTRACTS,
    ROLES,
    Change,
    GraphSpec,
    Owner,
    Role,
    Slot,
    TensorSpec,
)
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.neutral_graphs import (
    neutral_graph,
    shape_breaches,
    slot_breaches,
)
from dragoman.settings.speech import AudioFeatures

TEXT = ModelSpec(
    source_vocab_size=17,
    target_vocab_size=19,
    decoder_layers=3,
    num_heads=5,
    head_size=7,
    max_source_positions=33,
    max_target_positions=21,
    pad_token_id=0,
    start_token_id=1,
    end_token_id=2,
)
SPEECH = dataclasses.replace(TEXT, source_vocab_size=None)
AUDIO = AudioFeatures(bins=11, sampling_rate=8000, n_fft=400, hop=100, chunk_seconds=0.825)

ENCODER, DECODER = Owner.ENCODER_ROW, Owner.DECODER_ROW
KEY_OF_SOURCE = ("source_batch", "heads", "source", "head_size")
VALUE_OF_SOURCE = ("source_batch", "heads", "source", "value_size")
KEY_CACHE = ("batch", "heads", "capacity", "head_size")
VALUE_CACHE = ("batch", "heads", "capacity", "value_size")
EXPECTED: dict[Role, tuple[Owner, Change, tuple[str, ...], str | None]] = {
    "source": (ENCODER, Change.NEVER, ("source_batch", "source"), "int64"),
    "source_mask": (Owner.MASK, Change.NEVER, ("source_batch", "source"), "bool"),
    "token_type": (ENCODER, Change.NEVER, ("source_batch", "source"), "int64"),
    "cross_key": (ENCODER, Change.NEVER, KEY_OF_SOURCE, None),
    "cross_value": (ENCODER, Change.NEVER, VALUE_OF_SOURCE, None),
    "token": (Owner.STEP, Change.REPLACED, ("batch", "query"), "int64"),
    "position": (Owner.STEP, Change.REPLACED, ("batch",), "int64"),
    "read": (Owner.STEP, Change.REPLACED, ("batch", "read"), "int64"),
    "past_key": (DECODER, Change.APPENDED, KEY_CACHE, None),
    "past_value": (DECODER, Change.APPENDED, VALUE_CACHE, None),
    "past_state": (DECODER, Change.REPLACED, ("batch", "state_size"), "float32"),
    "logits": (Owner.STEP, Change.REPLACED, ("batch", "read", "target_vocabulary"), None),
    "next_token": (Owner.STEP, Change.REPLACED, ("batch",), "int64"),
    "next_log_probability": (Owner.STEP, Change.REPLACED, ("batch",), "float32"),
    "present_key": (DECODER, Change.APPENDED, KEY_CACHE, None),
    "present_value": (DECODER, Change.APPENDED, VALUE_CACHE, None),
    "present_state": (DECODER, Change.REPLACED, ("batch", "state_size"), "float32"),
    "candidate_token": (Owner.STEP, Change.REPLACED, ("batch", "candidates"), "int64"),
    "candidate_log_probability": (Owner.STEP, Change.REPLACED, ("batch", "candidates"), "float32"),
    "hidden": (ENCODER, Change.NEVER, ("source_batch", "source", "d_model"), None),
    "embedding": (ENCODER, Change.NEVER, ("source_batch", "head_outputs"), None),
    "class_logits": (ENCODER, Change.NEVER, ("source_batch", "head_outputs"), None),
    "token_logits": (ENCODER, Change.NEVER, ("source_batch", "source", "head_outputs"), None),
    "encoder_attention": (
        *(ENCODER, Change.NEVER, ("source_batch", "layers", "heads", "source", "source")),
        "float32",
    ),
    "self_attention": (
        *(DECODER, Change.REPLACED, ("batch", "layers", "heads", "query", "query")),
        "float32",
    ),
    "cross_attention": (
        *(DECODER, Change.REPLACED, ("batch", "layers", "heads", "query", "source")),
        "float32",
    ),
    "shortlist": (Owner.STEP, Change.REPLACED, ("shortlist",), "int64"),
    "shortlist_weight": (Owner.STEP, Change.NEVER, ("shortlist",), None),
    "allowed_token": (Owner.STEP, Change.NEVER, ("batch", "allowed"), "int64"),
    "allowed_column": (Owner.STEP, Change.NEVER, ("batch", "allowed"), "int64"),
}


def test_every_role_is_defined() -> None:
    assert set(ROLES) == set(EXPECTED) == set(get_args(Role))


@pytest.mark.parametrize("role", EXPECTED)
def test_what_a_role_belongs_to_and_how_it_changes(role: Role) -> None:
    found = ROLES[role]
    assert (found.owner, found.change, found.axes, found.dtype) == EXPECTED[role]
    assert found.layered == role.endswith(("_key", "_value", "_state", "_weight"))
    assert found.description


def test_outputs_update_inputs_that_have_the_same_layout() -> None:
    updates = {role: found.updates for role, found in ROLES.items() if found.updates}
    assert updates == {
        "present_key": "past_key",
        "present_value": "past_value",
        "present_state": "past_state",
    }
    for output, updated in updates.items():
        assert updated is not None
        assert EXPECTED[output] == EXPECTED[updated]
        for graphs in CONTRACTS.values():
            for contract in graphs.values():
                assert (output in contract.outputs) == (updated in contract.inputs)


def tensors(graph: GraphSpec) -> list[tuple[str, str, tuple[int | str, ...]]]:
    return [(t.name, t.dtype, t.shape) for t in (*graph.inputs, *graph.outputs)]


def pairs(prefix: str, rows: str, axis: int | str) -> list[tuple[str, str, tuple[int | str, ...]]]:
    """Keys and values layer by layer."""
    return [
        (f"{prefix}_{kind}_{layer}", "float32", (rows, 5, axis, 7))
        for layer in range(3)
        for kind in ("key", "value")
    ]


def test_the_graphs_of_a_text_model() -> None:
    encoder = neutral_graph("encoder", "e.onnx", TEXT, None)
    assert encoder.file == "e.onnx"
    assert (len(encoder.inputs), len(encoder.outputs)) == (2, 6)
    assert tensors(encoder) == [
        ("source", "int64", ("source_batch", "source")),
        ("source_mask", "bool", ("source_batch", "source")),
        *pairs("cross", "source_batch", "source"),
    ]
    decoder = neutral_graph("decoder", "d.onnx", TEXT, None)
    assert (len(decoder.inputs), len(decoder.outputs)) == (15, 9)
    assert tensors(decoder) == [
        ("token", "int64", ("batch", "query")),
        ("position", "int64", ("batch",)),
        ("source_mask", "bool", ("source_batch", "source")),
        *pairs("cross", "source_batch", "source"),
        *pairs("past", "batch", "capacity"),
        ("logits", "float32", ("batch", "query", 19)),
        ("next_token", "int64", ("batch",)),
        ("next_log_probability", "float32", ("batch",)),
        *pairs("present", "batch", "capacity"),
    ]


def test_the_graphs_of_a_speech_model() -> None:
    """The encoder takes features and no mask; the axis of the source has the model's size."""
    encoder = neutral_graph("encoder", "e.onnx", SPEECH, AUDIO)
    assert tensors(encoder) == [
        ("source", "float32", ("source_batch", 11, 66)),
        *pairs("cross", "source_batch", 33),
    ]
    decoder = neutral_graph("decoder", "d.onnx", SPEECH, AUDIO)
    assert tensors(decoder)[2:9] == [
        ("source_mask", "bool", ("source_batch", 33)),
        *pairs("cross", "source_batch", 33),
    ]
    others = neutral_graph("decoder", "d.onnx", TEXT, None)
    assert tensors(decoder)[9:] == tensors(others)[9:]
    assert tensors(decoder)[:2] == tensors(others)[:2]


def test_the_graph_of_candidates() -> None:
    candidates = neutral_graph("candidates", "c.onnx", TEXT, None)
    assert tensors(candidates) == [
        ("logits", "float32", ("batch", "query", 19)),
        ("candidate_token", "int64", ("batch", "candidates")),
        ("candidate_log_probability", "float32", ("batch", "candidates")),
    ]
    assert candidates == neutral_graph("candidates", "c.onnx", SPEECH, AUDIO)


def test_a_tensor_knows_its_slot_owner_and_change() -> None:
    decoder = neutral_graph("decoder", "d.onnx", TEXT, None)
    for tensor in (*decoder.inputs, *decoder.outputs):
        assert tensor.slot == Slot(tensor.role, tensor.layer)
        assert str(tensor.slot) == tensor.name
        assert (tensor.owner, tensor.change) == EXPECTED[tensor.role][:2]
        assert (tensor.layer is None) == (not ROLES[tensor.role].layered)
    assert decoder.input("past_value").slot == Slot("past_value", 0)
    assert decoder.output("logits").slot == Slot("logits")


def test_caches_are_written_in_place() -> None:
    decoder = neutral_graph("decoder", "d.onnx", TEXT, None)
    memory = {str(t.slot): str(t.memory) for t in (*decoder.inputs, *decoder.outputs)}
    moved = {slot: where for slot, where in memory.items() if slot != where}
    assert moved == {
        f"present_{kind}_{layer}": f"past_{kind}_{layer}"
        for kind in ("key", "value")
        for layer in range(3)
    }
    inputs = {tensor.slot for tensor in decoder.inputs}
    assert {t.memory for t in decoder.outputs if t.memory != t.slot} <= inputs


def test_map_changes_every_tensor() -> None:
    encoder = neutral_graph("encoder", "e.onnx", TEXT, None)
    renamed = encoder.map(lambda t: dataclasses.replace(t, name=f"{t.name}!"))
    assert renamed.file == encoder.file
    assert [t.name for t in renamed.outputs] == [f"{t.name}!" for t in encoder.outputs]
    assert [t.name for t in renamed.inputs] == ["source!", "source_mask!"]


@pytest.fixture
def expected() -> GraphSpec:
    return neutral_graph("decoder", "d.onnx", TEXT, None)


def changed(graph: GraphSpec, tensor_name: str, /, **changes: object) -> GraphSpec:
    """With some attributes of one tensor replaced."""

    def change(tensor: TensorSpec) -> TensorSpec:
        return dataclasses.replace(tensor, **changes) if tensor.name == tensor_name else tensor  # type: ignore[arg-type]

    assert graph.map(change) != graph
    return graph.map(change)


def test_the_contract_itself_has_no_breaches(expected: GraphSpec) -> None:
    assert slot_breaches(expected, expected) == []
    assert shape_breaches(expected, expected) == []


def test_names_of_tensors_are_free(expected: GraphSpec) -> None:
    found = changed(expected, "past_key_2", name="self_attention.2.keys")
    assert slot_breaches(found, expected) == []
    assert shape_breaches(found, expected) == []


def test_a_missing_tensor_is_named(expected: GraphSpec) -> None:
    found = dataclasses.replace(
        expected,
        inputs=tuple(t for t in expected.inputs if t.role != "position"),
        outputs=tuple(t for t in expected.outputs if t.name != "present_value_1"),
    )
    assert slot_breaches(found, expected) == [
        "inputs: no tensor with role position",
        "outputs: no tensor with role present_value, layer 1",
    ]
    assert shape_breaches(found, expected) == []


def test_a_tensor_that_occurs_several_times_is_named_once(expected: GraphSpec) -> None:
    again = dataclasses.replace(expected.inputs[3], name="again")
    found = dataclasses.replace(expected, inputs=(*expected.inputs, again, again))
    assert slot_breaches(found, expected) == ["inputs: two tensors with role cross_key, layer 0"]


def test_an_unexpected_tensor_is_named_once(expected: GraphSpec) -> None:
    found = dataclasses.replace(
        expected,
        inputs=(*expected.inputs, expected.outputs[0]),
        outputs=(*expected.outputs, dataclasses.replace(expected.outputs[-1], layer=3)),
    )
    assert slot_breaches(found, expected) == [
        "inputs: unexpected tensor with role logits",
        "outputs: unexpected tensor with role present_value, layer 3",
    ]
    assert shape_breaches(found, expected) == []


def test_a_layered_role_needs_a_layer(expected: GraphSpec) -> None:
    found = changed(expected, "past_key_1", layer=None)
    assert slot_breaches(found, expected) == [
        "inputs: no tensor with role past_key, layer 1",
        "inputs: unexpected tensor with role past_key",
    ]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("past_key_1", ("batch", 5, "capacity")),
        ("past_key_1", ("batch", 5, "capacity", 7, 1)),
        ("past_key_1", ("batch", 7, "capacity", 5)),
        ("past_key_1", ("batch", 5, "source", 7)),
        ("past_key_1", ("batch", "heads", "capacity", 7)),
        ("past_key_1", ("batch", 5, 0, 7)),
        ("past_key_1", ("batch", 5, -3, 7)),
        ("past_key_1", ("source_batch", 5, "capacity", 7)),
        ("past_key_1", ()),
    ],
)
def test_another_shape_is_a_breach(
    expected: GraphSpec, name: str, shape: tuple[int | str, ...]
) -> None:
    found = changed(expected, name, shape=shape)
    assert slot_breaches(found, expected) == []
    assert shape_breaches(found, expected) == [
        f"inputs: {name}: expected shape ['batch', 5, 'capacity', 7], found {list(shape)}"
    ]


def test_a_dynamic_axis_may_be_pinned(expected: GraphSpec) -> None:
    sizes = {"batch": 4, "source_batch": 2, "query": 1, "capacity": 9, "source": 12}
    pinned = expected.map(
        lambda t: dataclasses.replace(
            t, shape=tuple(sizes[d] if isinstance(d, str) else d for d in t.shape)
        )
    )
    assert shape_breaches(pinned, expected) == []
    assert shape_breaches(expected, pinned) != []  # the contract's own numbers are not free


def axis_renamed(graph: GraphSpec, axis: str, to: int | str) -> GraphSpec:
    return graph.map(
        lambda t: dataclasses.replace(t, shape=tuple(to if d == axis else d for d in t.shape))
    )


def test_rows_and_sources_have_axes_of_their_own() -> None:
    for model, audio in ((TEXT, None), (SPEECH, AUDIO)):
        encoder = neutral_graph("encoder", "e.onnx", model, audio)
        for axis in ("batch", "rows"):
            assert shape_breaches(axis_renamed(encoder, "source_batch", axis), encoder) != []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_any_floating_point_format_is_allowed(expected: GraphSpec, dtype: str) -> None:
    assert (
        shape_breaches(
            expected.map(
                lambda t: dataclasses.replace(t, dtype=dtype) if t.dtype == "float32" else t  # type: ignore[arg-type]
            ),
            expected,
        )
        == []
    )


@pytest.mark.parametrize(
    ("name", "dtype", "breach"),
    [
        ("position", "int32", "inputs: position: expected int64, found int32"),
        ("source_mask", "int64", "inputs: source_mask: expected bool, found int64"),
        ("past_key_0", "int64", "inputs: past_key_0: expected floating point or int8, found int64"),
        ("logits", "int8", "outputs: logits: expected floating point, found int8"),
        ("logits", "bool", "outputs: logits: expected floating point, found bool"),
        ("next_token", "float32", "outputs: next_token: expected int64, found float32"),
    ],
)
def test_another_dtype_is_a_breach(expected: GraphSpec, name: str, dtype: str, breach: str) -> None:
    assert shape_breaches(changed(expected, name, dtype=dtype), expected) == [breach]


def test_both_breaches_of_a_tensor_are_reported(expected: GraphSpec) -> None:
    found = changed(expected, "token", dtype="int32", shape=("batch",))
    assert shape_breaches(found, expected) == [
        "inputs: token: expected shape ['batch', 'query'], found ['batch']",
        "inputs: token: expected int64, found int32",
    ]
