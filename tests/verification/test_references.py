"""References: their negative log-likelihood per token, of the oracle and of the bundle."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from dragoman.errors import DragomanError
from dragoman.reference_model import Transformer
from dragoman.runtime import Model
from dragoman.verification.checks.task import prepared
from dragoman.verification.inputs.items import Item, References, read_references
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.parity import check_parity
from dragoman.verification.tolerances import REFERENCE_TOLERANCES
from dragoman.verification.verdict import describe_failure

PAIRS = [
    ([3, 7, 1], [5, 9]),
    ([4], [6]),
    ([16] * 16, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
    ([9, 2], []),
    ([1, 2, 3, 4, 5], [18, 3, 3]),
    ([8, 8], [7, 7, 7, 7]),
    ([5, 4], [12, 3]),
]


def references(pairs: list[tuple[list[int], list[int]]]) -> References:
    return References("by hand", pairs, range(1, len(pairs) + 1))


def compared(
    bundle: Model, oracle: Transformer, pairs: list[tuple[list[int], list[int]]]
) -> ParityInputs:
    return ParityInputs("sources", [source for source, _ in pairs], references=references(pairs))


@torch.inference_mode()
def loss_per_token(model: Transformer, pairs: list[tuple[list[int], list[int]]]) -> float:
    total, tokens = 0.0, 0
    for source, target in pairs:
        labels = [*target, model.config.end_token_id]
        row = torch.tensor([source])
        read = torch.tensor([[model.config.start_token_id, *target]])
        logits = model(row, torch.ones_like(row, dtype=torch.bool), read)[0]
        total += float(cross_entropy(logits.double(), torch.tensor(labels), reduction="sum"))
        tokens += len(labels)
    return total / tokens


@pytest.mark.parametrize("count", [1, 7])
def test_both_are_the_loss_of_pytorch(bundle: Model, reference: Transformer, count: int) -> None:
    pairs = PAIRS[:count]
    parity = check_parity(bundle, reference, compared(bundle, reference, pairs), backend="")
    found = parity.references
    assert found is not None and found.passed and parity.passed
    assert found.oracle == pytest.approx(loss_per_token(reference, pairs), abs=1e-5)
    assert found.bundle == pytest.approx(found.oracle, abs=1e-4)
    assert (found.references, found.pairs) == ("by hand", count)
    assert found.tokens == sum(len(target) + 1 for _, target in pairs)
    assert found.tolerance == REFERENCE_TOLERANCES["fp32"]


def test_less_probable_references_fail_with_the_tolerance_that_would_pass(
    bundle: Model, reference: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is worse counts: the same difference the other way round passes."""
    other = copy.deepcopy(reference)
    with torch.no_grad():
        other.output.weight.mul_(1.01)
    found = check_parity(bundle, other, compared(bundle, other, PAIRS), backend="").references
    assert found is not None
    increase = found.bundle - found.oracle
    assert abs(increase) > 1e-3
    monkeypatch.setitem(REFERENCE_TOLERANCES, "fp32", increase - 1e-6)
    parity = check_parity(bundle, other, compared(bundle, other, PAIRS), backend="")
    assert parity.references is not None and not parity.references.passed and not parity.passed
    passing = dataclasses.replace(
        parity,
        checks=(),
        tensors=tuple(dataclasses.replace(t, passed=True) for t in parity.tensors),
        tokens=dataclasses.replace(parity.tokens, passed=True),
    )
    message = describe_failure(passing)
    assert message.startswith(
        f"parity failed: the negative log-likelihood of references is {found.bundle:.4f} nats per "
        f"token, the oracle's {found.oracle:.4f}; a tolerance of "
    )
    stated = float(message.removesuffix(" would pass").rpartition(" ")[2])
    assert stated >= increase and stated == pytest.approx(increase, rel=5e-3)


def test_probabilities_that_are_not_finite_fail(bundle: Model, reference: Transformer) -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(bundle.backend, name)

        def score(self, *arguments: object) -> object:
            return bundle.backend.score(*arguments) * math.nan  # type: ignore[arg-type]

    model = Model(bundle.bundle, Broken())  # type: ignore[arg-type]
    parity = check_parity(model, reference, compared(model, reference, PAIRS), backend="")
    assert parity.references is not None and not parity.references.passed
    assert parity.references.bundle > 1e200  # JSON has no NaN


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (([3, 17], [5]), "by hand, line 2: expected token ids in \\[0, 17\\), found 17"),
        (([3], [19]), "by hand, line 2: target: expected token ids in \\[0, 19\\), found 19"),
        (([3], [5] * 12), "by hand, line 2: target has 13 tokens, expected at most 12"),
        (([], [5]), "by hand, line 2: expected a source, found an empty one"),
    ],
)
def test_a_bad_reference_is_refused_before_anything_is_compared(
    bundle: Model, reference: Transformer, pair: tuple[list[int], list[int]], message: str
) -> None:
    def advance(count: int) -> None:
        raise AssertionError("too late")

    with pytest.raises(DragomanError, match="^" + message):
        check_parity(
            bundle,
            reference,
            compared(bundle, reference, [PAIRS[0], pair]),
            backend="",
            advance=advance,
        )


def test_every_reference_of_a_source_is_a_pair(tmp_path: Path) -> None:
    file = tmp_path / "references.tsv"
    file.write_text("one\ta\tb\ntwo\tc\r\n")
    read = read_references(file, audio=False, ids=False)
    assert read.pairs == [("one", "a"), ("one", "b"), ("two", "c")]
    assert (read.origin, [*read.lines]) == ("references.tsv", [1, 1, 2])
    half = read.spread(2)
    assert (half.pairs, [*half.lines]) == ([("one", "a"), ("one", "b")], [1, 1])
    assert half.origin == "references.tsv, 2 of 3 pairs"
    assert read.spread(None) == read.spread(3) == read


def test_token_ids_and_audio(tmp_path: Path) -> None:
    file = tmp_path / "references.tsv"
    file.write_text("3 4 5\t7 8\n28\t9\n")
    assert read_references(file, audio=False, ids=True).pairs == [([3, 4, 5], [7, 8]), ([28], [9])]
    file.write_text("a.flac\t7 8\n")
    assert read_references(file, audio=True, ids=True).pairs == [(tmp_path / "a.flac", [7, 8])]
    file.write_text("a.flac\tseven of clubs\n")
    assert read_references(file, audio=True, ids=False).pairs == [
        (tmp_path / "a.flac", "seven of clubs")
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected at least one line, found none"),
        ("one\ta\ntwo\n", ", line 2: expected a source, a tab and a reference, found no tab"),
        ("1\t2\n3\t\n", ", line 2: expected a reference after the tab, found none"),
        ("one\ttwo\n", "expected token ids separated by spaces, for a model without tokenizers"),
        ("\t3\n", ", line 1: expected a source text, found none"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "references.tsv"
    file.write_text(content)
    with pytest.raises(DragomanError, match=f"^{file}.*{message}"):
        read_references(file, audio=False, ids=True)


def test_examples_with_references_are_numbered_by_line() -> None:
    found = References.of([Item("a", "", ("x", "y"), 1), Item("b", "", ("z",), 2)], "file", "de")
    assert [*found.lines] == [1, 1, 2] and found.source_language == "de"


def test_the_prompt_of_decoding_is_read(bundle: Model, reference: Transformer) -> None:
    [pair] = prepared(bundle, references(PAIRS[:1]), None)
    config = reference.config
    assert pair.read == [config.start_token_id, 5, 9]
    assert pair.target == (5, 9, config.end_token_id)
