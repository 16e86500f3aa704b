"""What `transformers.exporters` writes: every pattern is fused, and tokens are PyTorch's."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from docs.tools.fusion_table.__main__ import count
from docs.tools.fusion_table.transformers_exports import COMPONENTS, Exported, export, make

from ...export_cache import cached, hash_of_makers

pytestmark = pytest.mark.filterwarnings("ignore")  # exporters warn of their own calls


def zipped(name: str) -> bytes:
    """The files that transformers' exporter writes, in a zip archive."""
    content = io.BytesIO()
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(content, "w") as archive:
        exported = export(name, Path(directory))
        for component, path in exported.graphs.items():
            model = onnx.load(path)
            archive.writestr(f"{component}.onnx", model.SerializeToString())
    return content.getvalue()


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_every_pattern_is_fused_and_tokens_stay(name: str, tmp_path: Path) -> None:
    key = f"{hash_of_makers('docs.tools.fusion_table.transformers_exports')} {name}"
    with zipfile.ZipFile(io.BytesIO(cached(key, lambda: zipped(name)))) as archive:
        archive.extractall(tmp_path)
    graphs = {component: tmp_path / f"{component}.onnx" for component in COMPONENTS[name]}
    exported = Exported(name, *make(name), graphs)
    expected = exported.expected()
    for target in ("cpu", "neutral"):
        files, records = exported.optimized(tmp_path, target)
        np.testing.assert_array_equal(exported.found(files), expected)
        assert all(r.difference is not None for rows in records.values() for r in rows)
    for component, counts in COMPONENTS[name].items():
        assert count(ir.load(files[component])) == " / ".join(map(str, vars(counts).values()))
        assert [refusal for record in records[component] for refusal in record.refusals] == []
