"""The table of what bundles give under other versions of the libraries."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dragoman.tested_versions as tested
from docs.tools.versions.__main__ import (
    BUNDLES,
    COLUMNS,
    OUTSIDE,
    cases,
    cell,
    outcome,
    run,
    table,
)
from dragoman.optimize.targets import ALL_PRECISIONS
from dragoman.reference_model.recipes.examples import Example

WORDS = [Example("cat", ("K AE T",)), Example("dog", ("D AO G",)), Example("a", ("AH", "EY"))]
RIGHT = ["K AE T", "D AO G", "EY"]


def found(texts: list[str], **more: Any) -> dict[str, Any]:
    return {"texts": texts, "errors": [], **more}


def test_cells_say_what_a_bundle_gives() -> None:
    built = found(RIGHT)
    expected = outcome(built, built, WORDS)
    assert (expected["differ"], expected["word_error"]) == (0, 0)
    for row, text in (
        (built, "as built"),
        (found(["K AE T", "D AO G", "AH"]), "1 words differ"),
        (found(["K AE T", "D AA G", "EY"]), "**other words**: 33.3% for 0.0%"),
        (found(RIGHT, stream="TokenizerError"), "as built; `stream` fails"),
        (found(["", "", ""]) | {"errors": ["failed"] * 3}, "refuses all inputs"),
        (found(["K AE T", "", "EY"]) | {"errors": ["failed"]}, "refuses 1 inputs"),
        ({"not_loaded": "no kernel"}, "does not load"),
        ({"died": "exit status -6"}, "ends the process"),
        ({"died": "exit status 1: ImportError: no Regex"}, "does not import"),
    ):
        assert cell(outcome(row, built, WORDS), expected) == text
    rows = [{"case": "all pinned", "outcomes": {"fp32": expected}}]
    assert table(rows).splitlines()[-1] == "| all pinned | as built |"


def test_each_library_is_tried_alone_and_all_of_them_together() -> None:
    found = cases()
    pinned = tested.tested_versions()
    assert found[0].requirements == tuple(
        f"{name}=={pinned[name]}" for name in ("onnxruntime", "tokenizers", "numpy")
    )
    for name, versions in OUTSIDE.items():
        for version in versions:
            (case,) = [c for c in found if f"{name}=={version}" in c.requirements]
            assert len({*case.requirements} - {*found[0].requirements}) == 1
    assert len({*found[-2].requirements} - {*found[0].requirements}) == 3
    assert "--pre" in found[-1].options


def test_precisions_have_a_column_and_quantized_ones_one_for_each_kind_of_kernel() -> None:
    found = Counter(
        "fp32" if options[0] == "--target" else options[1]
        for options in (BUNDLES[bundle] for bundle, _ in COLUMNS.values())
    )
    assert found.keys() == {*ALL_PRECISIONS} - {"bf16"}
    assert (found["int8"], found["int4"]) == (2, 2)


def test_a_child_reports_why_a_bundle_does_not_load(tmp_path: Path) -> None:
    row = run(Path(sys.executable), tmp_path / "nothing", ["cat"])
    assert "nothing" in row["not_loaded"]
    assert row["versions"]["numpy"]
