"""Inputs of parity and calibration of encoder-only models are the lines that `encode` takes.

They are compared with Hugging Face's tokenizer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.export.checkpoints import OpenedCheckpoint, open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.optimize.precision.calibration import calibration_batches
from dragoman.runtime import DragomanError, read_bundle
from dragoman.verification.inputs.choosing import inputs_for
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.inputs.sources import calibration_sources
from dragoman.verification.parity import check_parity

from .conftest import Case, Make
from .test_tasks import ENTITIES, LABELS, LONG

BY_NUMBER = dict(enumerate(ENTITIES))
TAGS = {"id2label": BY_NUMBER, "label2id": {label: n for n, label in BY_NUMBER.items()}}
PAIRS = ["paris is in\tthe man is in france. a food", "a\tb", "the man eats\tfood"]
HEADS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Model": ({}, ["The man eats food.", "paris\tis in France."]),
    "ForSequenceClassification": (LABELS, ["paris", *PAIRS]),
    "ForTokenClassification": (TAGS, ["The man eats food.", "paris is in France."]),
    "ForMaskedLM": ({}, ["The [MASK] eats food.", "[MASK] is in [MASK].", "paris"]),
    "ForQuestionAnswering": ({}, PAIRS),
}
"""Changes of the configuration, and lines of the documented format."""
READ_PAIRS = ("ForSequenceClassification", "ForQuestionAnswering")


def opened(case: Case) -> OpenedCheckpoint:
    checkpoint = case.ours.bundle.directory.parent / "checkpoint"
    return open_checkpoint(locate_checkpoint(checkpoint))


def written(lines: list[str], directory: Path) -> Path:
    file = directory / "lines.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def theirs(case: Case, head: str, lines: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and segments by Hugging Face's tokenizer."""
    texts = [line.split("\t") if head in READ_PAIRS else [line] for line in lines]
    encoded = [case.tokenizer(*each, return_token_type_ids=True) for each in texts]
    return [e["input_ids"] for e in encoded], [e["token_type_ids"] for e in encoded]


@pytest.mark.parametrize("head", HEADS)
def test_parity_on_lines(
    head: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph gets what Hugging Face's tokenizer makes of the lines, the longest first."""
    changes, lines = HEADS[head]
    case = make(head, **changes)
    checkpoint = opened(case)
    inputs = inputs_for(checkpoint, Comparison(written(lines, tmp_path)))
    ids, types = theirs(case, head, lines)
    assert inputs.sources == ids
    assert inputs.description == f"lines.txt, {len(lines)} lines"
    seen: list[tuple[list[int], list[int]]] = []
    encode = case.ours.backend.encode

    def recorded(source: Any, mask: Any, segments: Any = None) -> Any:
        known = np.zeros_like(source) if segments is None else segments
        seen.extend(
            (row[own].tolist(), of_row[own].tolist())
            for row, own, of_row in zip(source, mask, known, strict=True)
        )
        return encode(source, mask, segments)

    assert check_parity(case.ours, checkpoint.model, inputs, backend="").passed
    # Without probes, which are no lines.
    monkeypatch.setattr("dragoman.verification.parity.check_numerics", lambda *_: ([], None))
    monkeypatch.setattr(case.ours.backend, "encode", recorded)
    assert check_parity(case.ours, checkpoint.model, inputs, backend="").passed
    assert sorted(seen) == sorted(zip(ids, types, strict=True))
    assert any(1 in segments for _, segments in seen) == (head in READ_PAIRS)


def test_a_limit_spreads_over_the_lines(make: Make, tmp_path: Path) -> None:
    case = make("ForQuestionAnswering")
    inputs = inputs_for(opened(case), Comparison(written(PAIRS, tmp_path), 2))
    assert inputs.sources == theirs(case, "ForQuestionAnswering", PAIRS[:2])[0]
    assert inputs.description == "lines.txt, 3 lines, 2 of them spread evenly"


@pytest.mark.parametrize(
    ("head", "lines", "problem"),
    [
        ("ForQuestionAnswering", [PAIRS[0], "paris"], "line 2: expected a question, a tab and a"),
        ("ForMaskedLM", ["paris", "a", LONG], "line 3: text has 47 tokens, expected at most 24$"),
        ("ForMaskedLM", ["paris", ""], "line 2: expected a text, found none"),
        ("ForMaskedLM", [], ": expected at least one line, found none"),
    ],
)
def test_lines_that_are_no_inputs(
    head: str, lines: list[str], problem: str, make: Make, tmp_path: Path
) -> None:
    case, file = make(head), written(lines, tmp_path)
    with pytest.raises(DragomanError, match=problem) as refused:
        inputs_for(opened(case), Comparison(file))
    with pytest.raises(DragomanError, match=re.escape(str(refused.value))):
        calibration_sources(case.ours.bundle, file)


def test_another_tokenizer_is_found_out(make: Make, tmp_path: Path) -> None:
    case = make("ForQuestionAnswering")
    checkpoint = opened(case)
    inputs = inputs_for(checkpoint, Comparison(written(PAIRS, tmp_path)))
    assert inputs.lines is not None
    line = inputs.lines[0]
    other = line._replace(source=("paris", "a"))
    wrong = ParityInputs("", inputs.sources, lines=[other, *inputs.lines[1:]])
    with pytest.raises(DragomanError, match="the bundle's tokenizer is not the checkpoint's"):
        check_parity(case.ours, checkpoint.model, wrong, backend="")


@pytest.mark.filterwarnings("ignore")
def test_a_trained_model_that_overflows(make: Make, tmp_path: Path) -> None:
    case = make("ForQuestionAnswering")
    checkpoint = opened(case)
    inputs = inputs_for(checkpoint, Comparison(written(PAIRS, tmp_path)))
    for parameter in checkpoint.model.parameters():
        parameter.data.fill_(3e38)
    with pytest.raises(DragomanError, match="the trained model itself gives values that are NaN"):
        check_parity(case.ours, checkpoint.model, inputs, backend="")


def test_calibration_is_on_pairs(make: Make, tmp_path: Path) -> None:
    case = make("ForQuestionAnswering")
    found = calibration_sources(case.ours.bundle, written(PAIRS, tmp_path))
    ids, types = theirs(case, "ForQuestionAnswering", PAIRS)
    assert (found.encodable, found.types) == (ids, types)
    neutral = read_bundle(case.ours.bundle.directory.parent / "neutral")
    (batch,) = calibration_batches(neutral, found.encodable, found.types)["encoder"]
    by_role = {t.role: batch.samples[t.name] for t in neutral.manifest.graphs["encoder"].inputs}
    longest_first = sorted(zip(ids, types, strict=True), key=lambda each: -len(each[0]))
    for row, (own_ids, own_types) in enumerate(longest_first):
        length = len(own_ids)
        np.testing.assert_array_equal(by_role["source"][row, :length], own_ids)
        np.testing.assert_array_equal(by_role["token_type"][row, :length], own_types)
