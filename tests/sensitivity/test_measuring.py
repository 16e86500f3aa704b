"""What each product does to predictions, held to bundles in which only it is quantized and to NumPy
on what their sessions compute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import DragomanError
from dragoman.export import export_bundle
from dragoman.optimize.precision.int8 import Int8
from dragoman.reference_model import EncoderModel, ReferenceModel, Transformer
from dragoman.runtime import Bundle, load
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.inputs.sources import Sources
from dragoman.verification.sensitivity import Effect, Sensitivity, read_sensitivity
from dragoman.verification.sensitivity.measuring import measure_sensitivity

from ..recorded_progress import RecordedProgress
from .conftest import Optimize, Trained

Make = Callable[[str], Trained]
Array = np.ndarray[Any, np.dtype[Any]]

INNER = "decoder.layers.1.feed_forward.inner"


def measured(
    trained: Trained,
    bundle: Bundle,
    sources: Sequence[list[int]],
    *,
    model: ReferenceModel | None = None,
    calibration: Sources | None = None,
    progress: RecordedProgress | None = None,
) -> Sensitivity:
    return measure_sensitivity(
        trained.neutral,
        bundle,
        model or trained.model,
        ParityInputs("some sources", sources),
        calibration=calibration,
        calibrated_on=None,
        threads=1,
        progress=progress or RecordedProgress(),
    )


def divergences(expected: Array, found: Array) -> Array:
    """The divergence of each row in nats, the sum of p (log p - log q)."""

    def log_softmax(logits: Array) -> Array:
        wide = logits.astype(np.float64)
        wide = wide - wide.max(-1, keepdims=True)
        return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))

    p, q = log_softmax(expected), log_softmax(found)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def forced(model: Transformer, neutral: Bundle, source: list[int]) -> tuple[Array, Array]:
    """What the decoder reads along the model's own greedy output [1, T], and PyTorch's logits."""
    with load(neutral.directory, threads=1) as loaded:
        (result,) = loaded.generate([source])
    output = [*result.tokens, *([] if result.end_token is None else [result.end_token])]
    read = np.array([[model.config.start_token_id, *output[:-1]]])
    with torch.inference_mode():
        logits = model(
            torch.tensor([source]), torch.ones(1, len(source)).bool(), torch.tensor(read)
        )
    return read, logits[0].numpy()


# Each precision and each target, in one pair.
@pytest.mark.parametrize(("precision", "target"), [("int8", "cpu"), ("int4", "neutral")])
def test_figures_are_those_of_bundles_that_keep_all_others(
    precision: Precision, target: str, trained: Make, optimized: Optimize
) -> None:
    made = trained("encoder-decoder")
    assert isinstance(made.model, Transformer)
    source = [3, 14, 15, 9, 26, 5, 30]
    bundle = optimized(made.neutral, precision, target=target)
    found = measured(made, bundle, [source])
    read, expected = forced(made.model, made.neutral, source)
    names = [product.name for product in found.products]

    def of(kept: Sequence[str]) -> tuple[Array, Array, int]:
        small = optimized(made.neutral, precision, target=target, keep_fp32=kept)
        with load(small.directory, threads=1) as model:
            mask = np.ones((1, len(source)), bool)
            logits = model.backend.score(np.array([source]), mask, read)[0]
        return divergences(expected, logits), logits, small.size

    def check(effect: Effect, kept: Sequence[str]) -> int:
        apart, logits, size = of(kept)
        assert effect.mean == pytest.approx(apart.mean(), rel=1e-3, abs=1e-9)
        assert effect.largest == pytest.approx(apart.max(), rel=1e-3, abs=1e-9)
        same = (logits.argmax(-1) == expected.argmax(-1)).mean()
        assert effect.same_choice == pytest.approx(same)
        return size

    quantized = [product for product in found.products if product.quantized]
    for product in (quantized[0], quantized[8], quantized[11], quantized[-1]):
        assert product.alone is not None
        check(product.alone, [name for name in names if name != product.name])
    layer = next(layer for layer in found.layers if layer.name == "decoder.layers.0")
    # Keys and values of cross-attention, which the encoder's graph computes, are in the layer.
    assert len(layer.products) == (8 if target == "cpu" else 10)
    check(layer.alone, [name for name in names if name not in layer.products])
    kept: list[str] = []
    sizes = []
    for step in found.keeping[:3]:
        kept += step.added
        assert len(kept) == step.count
        sizes.append((check(step.effect, kept), step.weight_bytes))
    for (size, claimed), (less, claimed_less) in zip(sizes[1:], sizes, strict=False):
        assert size - less == pytest.approx(claimed - claimed_less, abs=3000)  # graphs' own files


def test_steps_keep_the_worst_and_end_in_fp32(trained: Make, optimized: Optimize) -> None:
    made = trained("encoder-decoder")
    progress = RecordedProgress()
    found = measured(made, optimized(made.neutral), [[3, 4, 5]], progress=progress)
    worst = [product.name for product in found.worst]
    alone = [product.alone.mean for product in found.worst if product.alone is not None]
    assert alone == sorted(alone, reverse=True)
    assert [step.count for step in found.keeping] == [0, 1, 2, 4, 8, 16, len(worst)]
    assert [name for step in found.keeping for name in step.added] == worst
    assert found.keeping[-1].effect.mean < 1e-9 < found.keeping[0].effect.mean
    sizes = [step.weight_bytes for step in found.keeping]
    assert sizes == sorted(sizes)
    total = len(worst) + len(found.layers) + len(found.keeping)
    assert progress.done == [(n, total) for n in range(1, total + 1)]
    best = found.best
    assert best is None or best.effect.mean <= found.keeping[0].effect.mean / 2


@pytest.mark.parametrize("name", [INNER, "encoder.layers.0.self_attention.value"])
def test_a_product_that_rounds_badly_comes_out_worst(
    name: str, trained: Make, optimized: Optimize, tmp_path: Path
) -> None:
    """One weight of each output is so large that the scale they share rounds the others away; the
    input that it multiplies is nothing, since its gain is. The logits of this random model are so
    close that their own rounding weighs more."""
    undamaged = trained("encoder-decoder")
    # Enough for the errors of other products to be compensated.
    sources = [[3, 4, 5, 6], [9, 8, 7, 6], [5, 3, 9], [8, 4, 6, 7, 3]]
    model = copy.deepcopy(undamaged.model)
    layer = name.rpartition(".")[0].rpartition(".")[0]
    modules = dict(model.named_modules())
    residual = "feed_forward_residual" if "feed_forward" in name else "self_attention_residual"
    with torch.no_grad():
        modules[f"{layer}.{residual}.norm"].gain[0] = 0
        modules[f"{layer}.{residual}.norm"].bias[0] = 0
        weight = modules[name].weight
        assert isinstance(weight, torch.Tensor)
        weight[:, 0] = 80 * weight.abs().max()
    made = Trained(model, export_bundle(model, tmp_path, name="damaged"))
    before, found = (
        measured(
            each,
            optimized(each.neutral, calibration=sources),
            sources,
            calibration=Sources(sources, None),
        )
        for each in (undamaged, made)
    )
    errors = {p.name: p.error or 0 for p in found.products}
    assert max(errors, key=lambda n: errors[n]) == name
    worst, sound = ([p for p in f.worst if "output" not in p.modules] for f in (found, before))
    assert worst[0].name == name != sound[0].name
    assert worst[0].alone is not None and worst[1].alone is not None
    assert worst[0].alone.mean > 5 * worst[1].alone.mean


@pytest.mark.parametrize(
    ("kind", "measure"),
    [
        ("embeddings", "cosine distance"),
        ("labels", "divergence"),
        ("masks", "divergence"),
        ("decoder-only", "divergence"),
    ],
)
def test_models_of_one_part(kind: str, measure: str, trained: Make, optimized: Optimize) -> None:
    made, source = trained(kind), [3, 14, 15, 9, 26]
    found = measured(made, optimized(made.neutral), [source])
    assert found.measure == measure
    assert found.keeping[-1].effect.mean < 1e-9 < found.keeping[0].effect.mean
    product = found.products[3]
    names = [p.name for p in found.products if p.name != product.name]
    small = optimized(made.neutral, keep_fp32=names)
    if not isinstance(made.model, EncoderModel):
        assert found.positions == 17 - len(source)  # until its positions are used up
        return
    assert found.positions == (5 if kind == "masks" else 1)
    tokens = np.array([source])
    types = np.array([[0, 0, 0, 1, 1]])
    with torch.inference_mode():
        expected = made.model(torch.tensor(tokens), torch.ones(1, 5).bool(), torch.tensor(types))
    with load(small.directory, threads=1) as model:
        outputs = model.backend.encode(tokens, np.ones((1, 5), bool), types)
    ours, theirs = [*outputs.values()][-1], expected[-1].numpy()
    assert product.alone is not None
    if measure == "divergence":
        apart = divergences(theirs, ours).mean()
    else:
        a, b = theirs[0].astype(float), ours[0].astype(float)
        apart = 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert product.alone.mean == pytest.approx(apart, rel=1e-3, abs=1e-9)


def test_what_a_bundle_keeps_is_reported(trained: Make, optimized: Optimize) -> None:
    made = trained("encoder-decoder")
    found = measured(made, optimized(made.neutral, keep_fp32=[INNER]), [[3, 4, 5]])
    assert [product.name for product in found.products if product.kept] == [INNER]
    assert found.differing == ()
    plain = measured(made, optimized(made.neutral), [[3, 4, 5]])
    assert found.keeping == plain.keeping


def test_other_weights_are_noticed(trained: Make, optimized: Optimize, tmp_path: Path) -> None:
    """Such a bundle was calibrated on something else, or made from another checkpoint."""
    made = trained("encoder-decoder")
    bundle = optimized(made.neutral)
    again = measured(made, bundle, [[3, 4, 5]])
    assert again.differing == ()
    elsewhere = Sources([[4, 4, 4, 4], [5, 5]])
    assert measured(made, bundle, [[3, 4, 5]], calibration=elsewhere).differing
    model = copy.deepcopy(made.model)
    with torch.no_grad():
        weight = dict(model.named_modules())[INNER].weight
        assert isinstance(weight, torch.Tensor)
        weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    other = Trained(model, export_bundle(model, tmp_path, name="other"))
    assert INNER in measured(other, bundle, [[3, 4, 5]]).differing


def test_a_product_that_is_too_inaccurate_stays_out(
    trained: Make, optimized: Optimize, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained("encoder-decoder")
    sound = measured(made, optimized(made.neutral), [[3, 4, 5]])
    errors = sorted(product.error or 0 for product in sound.products)
    monkeypatch.setattr(Int8, "error", errors[-2])
    found = measured(made, optimized(made.neutral), [[3, 4, 5]])
    (refused,) = [product for product in found.products if not product.quantized]
    assert refused.error == errors[-1] and refused.allowed == errors[-2]
    assert refused.alone is None and refused.extra_bytes == 0
    assert refused.name not in [product.name for product in found.worst]
    assert found.keeping[-1].count == len(found.products) - 1


def test_the_file(trained: Make, optimized: Optimize, tmp_path: Path) -> None:
    made = trained("encoder-decoder")
    bundle = optimized(made.neutral)
    found = measured(made, bundle, [[3, 4, 5]])
    assert found.weights_sha256 in [file.sha256 for file in bundle.manifest.files]
    found.write(tmp_path / "new" / "sensitivity.json")
    assert read_sensitivity(tmp_path / "new" / "sensitivity.json") == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "expected JSON"),
        ("[]", "expected an object, found []"),
        ('{"bundle": 3}', "sensitivity.bundle: expected a text, found 3"),
    ],
)
def test_another_file(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "sensitivity.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DragomanError, match=r"sensitivity\.json: expected") as caught:
        read_sensitivity(path)
    assert problem in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(DragomanError, match=r"none\.json"):
        read_sensitivity(tmp_path / "none.json")
