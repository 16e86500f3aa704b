"""Weights take the space of the unique parameters, across both graphs, tied or not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dragoman.api import optimize
from dragoman.export.neutral_bundle import share_weights
from dragoman.onnx_graphs.graph_files import load_graph, place_of
from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle
from dragoman.runtime.format.manifest import Manifest

MakeModel = Callable[..., Transformer]
ExportTo = Callable[..., tuple[Path, Manifest]]

CONSTANTS = 512
"""Bytes of small constants that both graphs may hold besides the weights."""


def external_ranges(directory: Path) -> dict[tuple[int, int], list[str]]:
    """Ranges of weights.bin -> the initializers of both graphs that are stored there."""
    ranges: dict[tuple[int, int], list[str]] = {}
    for graph in ("encoder", "decoder"):
        for name, value in ir.load(directory / f"{graph}.onnx").graph.initializers.items():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                assert tensor.location == "weights.bin"
                assert tensor.offset is not None and tensor.length is not None
                stretch = (tensor.offset, tensor.length)
                ranges.setdefault(stretch, []).append(f"{graph}: {name}")
    return ranges


def stored_bytes(directory: Path) -> int:
    """The size of all initializers, each range of the weight file counted once."""
    inline = sum(
        value.const_value.nbytes
        for graph in ("encoder", "decoder")
        for value in ir.load(directory / f"{graph}.onnx").graph.initializers.values()
        if value.const_value is not None and not isinstance(value.const_value, ir.ExternalTensor)
    )
    return inline + sum(length for _, length in external_ranges(directory))


def parameter_bytes(model: Transformer) -> int:
    """Bytes of unique parameters: named_parameters lists a tied one once."""
    return sum(p.numel() * p.element_size() for _, p in model.named_parameters())


def test_source_target_and_output_as_one(make_model: MakeModel, export_to: ExportTo) -> None:
    model = make_model(source_vocab_size=100, target_vocab_size=100, tie_source_target=True)
    directory, _ = export_to(model)
    tables = [16 * 32 * 4, 12 * 32 * 4]
    excess = stored_bytes(directory) - parameter_bytes(model) - sum(tables)
    assert 0 <= excess <= CONSTANTS
    embedding = [n for n in external_ranges(directory).values() if "tokens" in n[0]]
    assert embedding == [
        ["encoder: encoder.embedding.tokens.weight", "decoder: encoder.embedding.tokens.weight"]
    ]


def test_nothing_tied_and_positions_learned(make_model: MakeModel, export_to: ExportTo) -> None:
    model = make_model(tie_target_output=False, logits_bias=True, positions="learned")
    directory, _ = export_to(model)
    assert 0 <= stored_bytes(directory) - parameter_bytes(model) <= CONSTANTS
    names = external_ranges(directory).values()
    for name in (
        "encoder: encoder.embedding.tokens.weight",
        "decoder: decoder.embedding.tokens.weight",
        "decoder: output.weight",
        "encoder: encoder.embedding.positions.table",
        "decoder: decoder.embedding.positions.table",
    ):
        assert [name] in names


def test_a_fixed_table_of_both_stacks_is_stored_once(
    tiny: Transformer, tiny_bundle: tuple[Path, Manifest]
) -> None:
    directory, _ = tiny_bundle
    table = 128 * 64 * 4
    assert 0 <= stored_bytes(directory) - parameter_bytes(tiny) - table <= CONSTANTS
    shared = [names for names in external_ranges(directory).values() if len(names) > 1]
    assert shared == [
        ["encoder: encoder.embedding.positions.table", "decoder: decoder.embedding.positions.table"]
    ]


def test_the_weight_file_has_no_gaps_to_speak_of(tiny_bundle: tuple[Path, Manifest]) -> None:
    directory, _ = tiny_bundle
    ranges = sorted(external_ranges(directory))
    size = (directory / "weights.bin").stat().st_size
    end = 0
    for offset, length in ranges:
        assert end <= offset <= end + 64 * 1024, "overlapping, or far apart"
        end = offset + length
    assert end == size
    assert size <= 1.02 * sum(length for _, length in ranges)


def test_quantized_weights_of_a_small_model_have_no_gaps_either(
    tiny_bundle: tuple[Path, Manifest], tmp_path: Path
) -> None:
    for precision in ("int8", "int4"):
        bundle = optimize(tiny_bundle[0], tmp_path / precision, precision=precision).bundle
        used = sum(length for _, length in external_ranges(bundle.directory))
        assert (bundle.directory / "weights.bin").stat().st_size <= 1.02 * used


@torch.no_grad()
def test_a_model_reads_its_weights_from_the_bundle(
    make_model: MakeModel, export_to: ExportTo
) -> None:
    """But for one that is not what the bundle holds."""
    model = make_model(source_vocab_size=29, tie_source_target=True)
    bundle = Bundle(*export_to(model))
    other = "decoder.layers.0.feed_forward.inner.weight"
    dict(model.named_parameters())[other][3, 4] += 1e-6
    before = copy.deepcopy(model.state_dict())
    share_weights(model, bundle)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len(names) > len(dict(model.named_parameters()))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            ways = (parameter.numpy(), parameter.T.numpy())
            assert any(map(place_of, ways)) == (name != other), name


def test_graphs_of_a_file_share_its_memory(make_model: MakeModel, export_to: ExportTo) -> None:
    directory, _ = export_to(make_model())
    arrays = []
    for _ in range(2):
        graph = load_graph(directory / "decoder.onnx").graph
        tensor = graph.initializers["decoder.layers.0.feed_forward.inner.weight"].const_value
        assert tensor is not None
        arrays.append(tensor.numpy())
    place = place_of(arrays[0])
    assert place is not None and place == place_of(arrays[1])
    path, offset = place
    stored = np.fromfile(path, np.float32, arrays[0].size, offset=offset)
    np.testing.assert_array_equal(stored.reshape(arrays[0].shape), arrays[1])
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][:] = 0
    assert place_of(np.zeros(3)) is None
