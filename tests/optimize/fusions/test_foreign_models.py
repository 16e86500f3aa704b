"""Complete foreign models: all decomposed operators are fused, and outputs do not change."""

from __future__ import annotations

from collections import Counter

import pytest

from docs.tools.fusion_table import exported_model
from docs.tools.fusion_table.exported_model import ExportedModel, serialized
from docs.tools.fusion_table.zoo import REFUSED, ZOO
from dragoman.optimize.fusions import STANDARD_PASSES
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.running import difference, run

from ...export_cache import cached, hash_of_makers

pytestmark = pytest.mark.filterwarnings("ignore")  # exporters warn of their own calls


@pytest.fixture(autouse=True)
def _files_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(model: ExportedModel) -> bytes:
        key = f"{hash_of_makers('docs.tools.fusion_table.zoo')} {model.name}"
        return cached(key, lambda: serialized(model))

    monkeypatch.setattr(exported_model, "serialized", known)


@pytest.mark.parametrize("model", ZOO, ids=lambda model: model.name)
def test_every_operator_becomes_standard(model: ExportedModel) -> None:
    graph = model.export()
    samples = model.inputs()
    records = apply_passes(graph, STANDARD_PASSES, graph="graph", samples=samples)
    found = Counter(node.op_type for node in graph.graph.all_nodes())
    assert found["Attention"] == model.counts.attentions
    assert found["LayerNormalization"] + found["RMSNormalization"] == model.counts.norms
    assert found["Gelu"] == model.counts.gelus
    assert not {"Softmax", "Erf", "Tanh", "Sqrt"} & set(found)
    assert [refusal for record in records for refusal in record.refusals] == []
    outputs = run(graph, samples)
    expected = dict(zip(outputs, model.expected(), strict=True))
    name, apart = difference(expected, outputs)
    assert apart < 2e-5, name


@pytest.mark.parametrize("model", [m for m in REFUSED if not m.dynamo], ids=lambda m: m.name)
def test_models_that_the_exporter_refuses(model: ExportedModel) -> None:
    """These have no file to optimize. Models of torch.export are left out: refusing takes 11 s."""
    with pytest.raises(Exception, match=r"(?i)unsupported|not supported|failed to"):
        serialized(model)
