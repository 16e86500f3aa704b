"""The graphs' weights: the checkpoint's names and values, products as [in, out]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dragoman.export.exporter import ExportedGraph, check_graph, export_graph
from dragoman.reference_model import Transformer

TABLE = "decoder.embedding.positions.table"
ENCODER_TABLE = "encoder.embedding.positions.table"
EMBEDDINGS = ("encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight")


def weights(exported: ExportedGraph) -> dict[str, ir.TensorProtocol]:
    """Initializers that are not constants of the exporter's."""
    found = {}
    for name, value in exported.model.graph.initializers.items():
        assert value.const_value is not None
        if "." in name:
            found[name] = value.const_value
    return found


def constants(exported: ExportedGraph) -> dict[str, ir.TensorProtocol]:
    initializers = exported.model.graph.initializers.values()
    return {str(v.name): v.const_value for v in initializers if "." not in str(v.name)}  # type: ignore[misc]


def test_every_weight_is_there_under_its_name(
    tiny: Transformer, encoder: ExportedGraph, decoder: ExportedGraph
) -> None:
    expected = {name for name, _ in tiny.named_parameters()}
    in_encoder, in_decoder = set(weights(encoder)), set(weights(decoder))
    assert in_encoder | in_decoder == expected | {TABLE, ENCODER_TABLE}
    assert in_encoder & in_decoder == set()
    # Keys and values of the source are the encoder's work.
    crossing = {n for n in expected if "cross_attention.key" in n or "cross_attention.value" in n}
    assert len(crossing) == 8
    assert {n for n in in_encoder if n.startswith("decoder.")} == crossing


def test_every_weight_has_its_value_and_products_are_transposed(
    tiny: Transformer, encoder: ExportedGraph, decoder: ExportedGraph
) -> None:
    transposed = set()
    stored = weights(encoder) | weights(decoder)
    for name, parameter in tiny.named_parameters():
        found, expected = stored[name].numpy(), parameter.detach().numpy()
        if expected.ndim == 2 and name not in EMBEDDINGS:
            transposed.add(name)
            expected = expected.T
        np.testing.assert_array_equal(found, expected, err_msg=name)
    # 4 of each of 6 attentions, 2 of each of 4 feed-forwards
    assert len(transposed) == 4 * 6 + 2 * 4


def test_tied_output_and_embedding_are_one_weight(decoder: ExportedGraph) -> None:
    value = decoder.model.graph.initializers["decoder.embedding.tokens.weight"]
    assert sorted(usage.node.op_type for usage in value.uses()) == ["Gather", "Transpose"]
    assert value.shape == ir.Shape([50, 64])


def test_the_position_table_is_that_of_the_model(tiny: Transformer, decoder: ExportedGraph) -> None:
    table = tiny.get_buffer(TABLE).numpy()
    np.testing.assert_array_equal(weights(decoder)[TABLE].numpy(), table)


def test_other_constants_are_small(encoder: ExportedGraph, decoder: ExportedGraph) -> None:
    for exported in (encoder, decoder):
        assert all(tensor.nbytes <= 16 for tensor in constants(exported).values())
        assert sum(tensor.nbytes for tensor in constants(exported).values()) <= 256


def copied_layer(model: Transformer) -> None:
    model.decoder.layers[1].load_state_dict(model.decoder.layers[0].state_dict())


def keys_as_values(model: Transformer) -> None:
    attention: Any = model.decoder.layers[0].cross_attention
    attention.value.load_state_dict(attention.key.state_dict())


def zeros(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.zero_()


@pytest.mark.parametrize("equal", [copied_layer, keys_as_values, zeros])
@torch.no_grad()
def test_equal_weights_are_not_merged(
    equal: Callable[[Transformer], None], make_model: Callable[..., Transformer]
) -> None:
    """Nor are the outputs that they compute."""
    model = make_model(decoder_layers=2)
    equal(model)
    exported = [export_graph(model, "encoder"), export_graph(model, "decoder")]
    for graph in exported:
        check_graph(graph, "other")
        assert all(node.op_type != "Identity" for node in graph.model.graph)
    found = {name for graph in exported for name in weights(graph)}
    assert found == {name for name, _ in model.named_parameters()} | {TABLE, ENCODER_TABLE}
