"""Tied weights are one parameter; untied weights are separate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dragoman.reference_model import Transformer

MakeModel = Callable[..., Transformer]

V, D = 19, 24


def embedding_parameters(model: Transformer) -> int:
    """The sizes of the three matrices that can be tied."""
    matrices = (
        model.get_parameter("encoder.embedding.tokens.weight"),
        model.decoder.embedding.tokens.weight,
        model.output.weight,
    )
    inner = {id(p) for layer in model.encoder.layers for p in layer.parameters()}
    inner |= {id(p) for layer in model.decoder.layers for p in layer.parameters()}
    rest = [p for p in model.parameters() if id(p) not in inner]
    assert {id(p) for p in rest} == {id(p) for p in matrices}
    return sum(p.numel() for p in rest)


@pytest.mark.parametrize(
    ("tie_source_target", "tie_target_output", "matrices"),
    [(False, False, 3), (False, True, 2), (True, False, 2), (True, True, 1)],
)
def test_tied_weights_are_the_same_parameter_and_counted_once(
    make_model: MakeModel, tie_source_target: bool, tie_target_output: bool, matrices: int
) -> None:
    model = make_model(
        source_vocab_size=V,
        tie_source_target=tie_source_target,
        tie_target_output=tie_target_output,
    )
    source = model.get_parameter("encoder.embedding.tokens.weight")
    target = model.decoder.embedding.tokens.weight
    assert (source is target) == tie_source_target
    assert (target is model.output.weight) == tie_target_output
    assert embedding_parameters(model) == matrices * V * D


def test_vocabularies_of_one_size_are_not_tied_unless_asked(make_model: MakeModel) -> None:
    model = make_model(source_vocab_size=V)
    source = model.get_parameter("encoder.embedding.tokens.weight")
    target = model.decoder.embedding.tokens.weight
    assert not torch.equal(source, target)


def test_the_gradient_of_a_tied_weight_comes_from_every_use(make_model: MakeModel) -> None:
    model = make_model(source_vocab_size=V, tie_source_target=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    logits = model(torch.tensor([[3, 4]]), mask, torch.tensor([[1, 5]]))
    logits[0, -1, 7].backward()
    gradient = model.output.weight.grad
    assert gradient is not None
    used = gradient.abs().sum(dim=1) > 0
    assert used.nonzero().flatten().tolist() == [1, 3, 4, 5, 7]


def test_tied_logits_are_products_with_the_embedding(make_model: MakeModel) -> None:
    model = make_model()
    hidden = torch.randn(1, 2, D)
    torch.testing.assert_close(
        model.output(hidden), hidden @ model.decoder.embedding.tokens.weight.T
    )
