"""Shortlists: outputs have only tokens that the source allows, whatever else is in the batch.

The oracle is the reference model in PyTorch, whose logits of all other tokens are -inf.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dragoman import DragomanError, api
from dragoman.export import export_bundle
from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.optimize.targets import find_target
from dragoman.reference_model import GenerationConfig, ModelConfig, Transformer
from dragoman.reference_model.models import as_batch
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.backends import open_backend
from dragoman.runtime.backends.interface import StepOutput
from dragoman.runtime.backends.prediction import ShortlistPrediction
from dragoman.runtime.decoding.request import as_batch as batch_of
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import BundleError, Precision
from dragoman.runtime.format.writing import write_manifest
from dragoman.runtime.texts.shortlist import (
    MOST_ENTRIES,
    SHORTLIST_FILE,
    Shortlist,
    read_shortlist,
)
from dragoman.settings.generation import GenerationOptions

from ...random_weights import random_transformer

SOURCES, TARGETS, POSITIONS = 31, 203, 24
SHAPE: dict[str, Any] = {
    "source_vocab_size": SOURCES,
    "target_vocab_size": TARGETS,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_model": 36,
    "num_heads": 3,
    "d_ff": 40,
    "max_source_positions": 17,
    "max_target_positions": POSITIONS,
    "dropout": 0.0,
}
KINDS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_target_output": False},
    "recurrent, with a bias": {
        "decoder_kind": "ssru",
        "norm_order": "post",
        "final_norm": False,
        "logits_bias": True,
    },
}
PRECISIONS: list[tuple[str, Precision]] = [
    ("neutral", "fp32"),
    ("cpu", "fp32"),
    ("cpu", "int8"),
    ("cpu", "int4"),
    ("neutral", "int8"),
]
Bundles = dict[tuple[str, str, Precision], Path]
NEVER = 5
"""A token that is suppressed."""


def shortlist_of(seed: int = 0) -> Shortlist:
    """Some tokens for most source tokens, and more for some that follow each other."""
    random = np.random.default_rng(seed)
    entries: dict[tuple[int, ...], NDArray[np.int32]] = {
        (source,): np.sort(random.choice(TARGETS, 1 + source % 9, replace=False)).astype(np.int32)
        for source in range(1, SOURCES - 2)
    }
    entries[(7, 9)] = np.array([100, 101], np.int32)
    entries[(3, 3, 4)] = np.array([150], np.int32)
    return Shortlist(entries, np.array([10, 11], np.int32)).with_always([2], [NEVER])


@pytest.fixture(scope="module")
def models() -> dict[str, Transformer]:
    found = {}
    for kind, changes in KINDS.items():
        found[kind] = random_transformer(ModelConfig(**SHAPE | changes), seed=4)
        found[kind].generation = GenerationConfig(suppressed_token_ids=(NEVER,))
    return found


@pytest.fixture(scope="module")
def neutral(
    models: dict[str, Transformer], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Bundle]:
    found = {}
    for number, (kind, model) in enumerate(models.items()):
        directory = tmp_path_factory.mktemp(f"neutral-{number}")
        found[kind] = export_bundle(model, directory, name=kind)
    return found


@pytest.fixture(scope="module")
def bundles(neutral: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    found = {}
    for number, (kind, bundle) in enumerate(neutral.items()):
        for target, precision in PRECISIONS:
            if (target, precision) == ("neutral", "fp32"):
                made = bundle
            else:
                directory = tmp_path_factory.mktemp(f"{target}-{precision}-{number}")
                made = optimize_bundle(bundle, directory, target=target, precision=precision)
            listed = add_shortlist(made, shortlist_of())
            write_manifest(listed.manifest, listed.directory)
            found[kind, target, precision] = listed.directory
    return found


def sources_of(count: int, seed: int = 1) -> list[list[int]]:
    """Ragged sources, one of a single token and one whose tokens allow nothing."""
    random = np.random.default_rng(seed)
    lengths = [1, *random.integers(2, 15, max(0, count - 2)), 2][:count]
    found = [random.integers(1, SOURCES - 2, int(length)).tolist() for length in lengths]
    return [*found[:-1], [SOURCES - 1, SOURCES - 1]] if count > 1 else found


def oracle_tokens(
    model: Transformer, source: list[int], allowed: NDArray[np.int64], limit: int
) -> list[int]:
    """Decode greedily with the reference model, whose other logits are -inf."""
    tokens, mask = as_batch([source], model.config)
    read = [model.config.start_token_id]
    with torch.inference_mode():
        while len(read) <= limit:
            logits = model(tokens, mask, torch.tensor([read]))[0, -1]
            masked = torch.full_like(logits, -math.inf)
            masked[allowed] = logits[allowed]
            masked[NEVER] = -math.inf
            read.append(int(masked.argmax()))
            if read[-1] == model.config.end_token_id:
                return read[1:-1]
    return read[1:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("target", "precision"), PRECISIONS)
def test_outputs_are_those_of_the_allowed_tokens(
    kind: str,
    target: str,
    precision: Precision,
    models: dict[str, Transformer],
    bundles: Bundles,
) -> None:
    shortlist, sources = shortlist_of(), sources_of(7)
    with load(bundles[kind, target, precision], threads=1) as model:
        ends = model.manifest.end_tokens
        found = [list(r.tokens) for r in model.generate(sources, max_new_tokens=9)]
        whole = [list(r.tokens) for r in model.generate(sources, max_new_tokens=9, shortlist=False)]
    allowed = [shortlist.allowed(source, ends) for source in sources]
    for tokens, own in zip(found, allowed, strict=True):
        assert set(tokens) <= set(own.tolist())
    if precision == "fp32":
        every = np.arange(TARGETS)
        oracle = models[kind]
        pairs = zip(sources, allowed, strict=True)
        assert found == [oracle_tokens(oracle, source, own, 9) for source, own in pairs]
        assert whole == [oracle_tokens(oracle, source, every, 9) for source in sources]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("target", "precision"), PRECISIONS)
def test_outputs_are_batch_invariant(
    kind: str, target: str, precision: Precision, bundles: Bundles
) -> None:
    """Bit for bit: greedy search, beams and samples, with and without the shortlist, that join and
    leave a running batch."""
    sources = sources_of(11)
    settings: list[dict[str, Any]] = [
        {"alternatives": 3},
        {"num_beams": 3, "num_return_sequences": 2, "alternatives": 2},
        {"do_sample": True, "seed": 7, "min_new_tokens": 2},
        {"shortlist": False},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    ]
    with load(bundles[kind, target, precision], threads=1) as model:
        options = [
            GenerationOptions(**settings[i % 5], max_new_tokens=3 + i) for i in range(len(sources))
        ]
        together = model.generate(sources, [o.replace(max_batch_size=6) for o in options])
        for source, own, found in zip(sources, options, together, strict=True):
            (single,) = model.generate([source], own)
            assert single == found


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A product of 160 inputs, which are more than are added at once, in fp32 and with threads."""
    changes: dict[str, Any] = {"d_model": 160, "num_heads": 4, "decoder_layers": 1}
    model = random_transformer(ModelConfig(**SHAPE | changes | {"target_vocab_size": 900}), seed=2)
    neutral = export_bundle(model, tmp_path_factory.mktemp("wide"), name="wide")
    made = optimize_bundle(neutral, tmp_path_factory.mktemp("wide-cpu"), target="cpu")
    random = np.random.default_rng(3)
    entries: dict[tuple[int, ...], NDArray[np.int32]] = {
        (source,): np.unique(random.choice(900, 30)).astype(np.int32) for source in range(SOURCES)
    }
    shortlist = Shortlist(entries, np.arange(2, 20, dtype=np.int32))
    return add_shortlist(made, shortlist)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_sums_do_not_depend_on_neighbours_and_threads(wide: Bundle, threads: int) -> None:
    sources = sources_of(6)
    with load(wide, threads=1, check="never") as model:
        alone = [model.generate([s], max_new_tokens=5, num_beams=2)[0] for s in sources]
    with load(wide, threads=threads, check="never") as model:
        assert model.generate(sources, max_new_tokens=5, num_beams=2) == alone


def test_fewer_sources_join_than_have_left(wide: Bundle) -> None:
    """Rows of sources that have left allow something, and disturb no others."""
    with load(wide, threads=1, check="never") as model:
        shortlist = read_shortlist(wide.path(SHORTLIST_FILE), model.manifest.model)
        sources = sources_of(5)
        spec, allowed = model.manifest.model, [shortlist.allowed(s) for s in sources]

        def started(numbers: Sequence[int]) -> Any:
            source, mask = batch_of([sources[i] for i in numbers], spec, 4)
            prompt = np.full((len(numbers), 1), spec.start_token_id)
            lists = [allowed[i] for i in numbers]
            return model.backend.start(source, mask, prompt, 8, 2, allowed=lists)

        state, other, single = started([0, 1, 2, 3]), started([4]), started([4])
        state.retire(np.array([1, 2]))
        state.join(other, np.array([1]))
        found, expected = state.advance(), single.advance()
        for name in ("tokens", "log_probabilities"):
            ours, theirs = getattr(found.candidates(3), name), getattr(expected.candidates(3), name)
            assert np.array_equal(ours[2:4], theirs)
        assert np.array_equal(found.normalizers[2:4], expected.normalizers)
        assert (found.choice.tokens >= 0).all()


def test_candidates_do_not_depend_on_padding() -> None:
    """Of equal scores, the tokens with the lowest ids come first."""
    random = np.random.default_rng(0)
    for _ in range(50):
        scores = random.integers(-2, 2, (2, 64)).astype(np.float32)
        tokens = np.sort(random.choice(500, (2, 64), replace=False), axis=1)
        chosen = scores.argmax(1)
        choice = StepOutput(
            np.take_along_axis(tokens, chosen[:, None], 1)[:, 0], np.full(2, -1.0, np.float32)
        )
        padded = np.pad(scores, ((0, 0), (0, 128)), constant_values=-np.inf)
        more = np.pad(tokens, ((0, 0), (0, 128)), constant_values=-1)
        pairs = ((scores, tokens), (padded, more))
        found = [ShortlistPrediction(*pair, choice, (), 500).candidates(7) for pair in pairs]
        order = np.argsort(-scores, axis=1, kind="stable")[:, :7]
        assert np.array_equal(found[0].tokens, np.take_along_axis(tokens, order, 1))
        assert np.array_equal(found[0].tokens, found[1].tokens)


def test_a_neutral_bundle_keeps_its_shortlist(bundles: Bundles, tmp_path: Path) -> None:
    source = bundles["tied", "neutral", "fp32"]
    made = api.optimize(source, tmp_path / "int8", precision="int8").bundle
    assert made.manifest.shortlist == read_bundle(source).manifest.shortlist
    with load(made, threads=1) as model, load(bundles["tied", "cpu", "int8"], threads=1) as other:
        sources = sources_of(3)
        assert model.generate(sources) == other.generate(sources)
    for target, precision in (("tensorrt-rtx", "fp16"), ("neutral", "bf16")):
        with pytest.raises(DragomanError, match="expected a bundle without a shortlist"):
            find_target(target).check_source(read_bundle(source), cast("Precision", precision))


def test_every_strategy_keeps_to_the_allowed_tokens(
    bundles: Bundles,
) -> None:
    """Few tokens are allowed: fewer than beams have candidates."""
    few = [[SOURCES - 1], [SOURCES - 1, SOURCES - 1, 1]]
    with load(bundles["tied", "cpu", "int8"], threads=1) as model:
        ends = model.manifest.end_tokens
        settings: list[dict[str, Any]] = [
            {"num_beams": 4, "num_return_sequences": 4},
            {"num_beams": 4, "alternatives": 60},
            {"do_sample": True, "seed": 1, "num_return_sequences": 5},
            {"do_sample": True, "seed": 1, "top_k": 70},
            {"num_beams": 3, "no_repeat_ngram_size": 1},
        ]
        for options in settings:
            for source, result in zip(few, model.generate(few, **options), strict=True):
                allowed = set(shortlist_of().allowed(source, ends).tolist())
                assert result.hypotheses
                for hypothesis in result.hypotheses:
                    assert set(hypothesis.tokens) <= allowed
                    assert all(math.isfinite(p) for p in hypothesis.token_log_probabilities)
                    for best in hypothesis.alternatives or ():
                        assert {one.token for one in best} <= allowed


def test_required_phrases_prefixes_and_end_tokens_are_allowed(
    bundles: Bundles,
) -> None:
    source = [SOURCES - 1, 2]
    with load(bundles["tied", "cpu", "fp32"], threads=1) as model:
        (found,) = model.generate([source], num_beams=4, must_contain=[[60, 61]])
        tokens = list(found.tokens)
        assert any(tokens[i : i + 2] == [60, 61] for i in range(len(tokens)))
        (found,) = model.generate([source], prefix=[70, 71], max_new_tokens=5)
        assert list(found.tokens[:2]) == [70, 71]
        (found,) = model.generate([source], end_token_id=[88], max_new_tokens=20)
        allowed = {*shortlist_of().allowed(source).tolist(), 88}
        assert set(found.tokens) <= allowed


def test_streams_and_scores(bundles: Bundles) -> None:
    """A stream gives the output's tokens. Scores of given targets count the whole vocabulary."""
    sources = sources_of(3)
    with load(bundles["untied", "cpu", "fp32"], threads=1) as model:
        whole = load(bundles["untied", "neutral", "fp32"], threads=1)
        for source, result in zip(sources, model.generate(sources), strict=True):
            streamed = [s.id for s in model.stream(source) if not s.is_end]
            assert streamed == list(result.tokens)
        target = [3, 90, 150, 2]
        scored, expected = (m.score([(sources[0], target)])[0] for m in (model, whole))
        assert scored.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
        whole.close()


def test_a_server_decodes_with_the_shortlist(bundles: Bundles) -> None:
    from dragoman.runtime.serving.async_model import AsyncModel

    sources = sources_of(6)
    with load(bundles["recurrent, with a bias", "cpu", "int8"], threads=1) as model:
        expected = model.generate(sources)

        async def served() -> list[Any]:
            async with AsyncModel(model) as server:
                found = await asyncio.gather(*(server.generate([s]) for s in sources))
                return [result for (result,) in found]

        assert [r.tokens for r in asyncio.run(served())] == [r.tokens for r in expected]


def test_entries_of_several_tokens_and_suppressed_tokens() -> None:
    shortlist = shortlist_of()
    assert {100, 101} <= set(shortlist.allowed([1, 7, 9]).tolist())
    assert not {100, 101} <= set(shortlist.allowed([9, 7]).tolist())
    assert 150 in shortlist.allowed([3, 3, 4])
    allowed = shortlist.allowed(range(SOURCES), [199, 2])
    assert NEVER not in allowed
    assert {2, 10, 11, 199} <= set(allowed.tolist())
    assert (np.diff(allowed) > 0).all()
    assert shortlist.allowed([]).tolist() == [2, 10, 11]


def test_a_file_holds_the_shortlist(tmp_path: Path, neutral: dict[str, Bundle]) -> None:
    shortlist, path = shortlist_of(), tmp_path / SHORTLIST_FILE
    path.write_bytes(shortlist.to_bytes())
    found = read_shortlist(path, neutral["tied"].manifest.model)
    assert found.entries.keys() == shortlist.entries.keys()
    assert found.always.tolist() == shortlist.always.tolist()
    for source, tokens in shortlist.entries.items():
        assert found.entries[source].tolist() == tokens.tolist()
    empty = Shortlist({}, np.array([2], np.int32))
    path.write_bytes(empty.to_bytes())
    assert read_shortlist(path, neutral["tied"].manifest.model).allowed([1]).tolist() == [2]


def _archive(tmp_path: Path, **changes: Any) -> Path:
    arrays = {
        "sources": np.array([[1], [2]], np.int32),
        "offsets": np.array([0, 1, 2]),
        "tokens": np.array([4, 6], np.int32),
        "always": np.array([2], np.int32),
    }
    path = tmp_path / SHORTLIST_FILE
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array([4, TARGETS])}, f"expected target tokens in \\[0, {TARGETS}\\)"),
        ({"sources": np.array([[1], [SOURCES]])}, f"expected source tokens in \\[0, {SOURCES}\\)"),
        ({"always": np.array([-3])}, "expected target tokens"),
        ({"offsets": np.array([0, 2, 1])}, "expected the tokens of each entry"),
        ({"offsets": np.array([0, 2])}, "expected the tokens of each entry"),
        ({"offsets": np.zeros(0, int)}, "expected the tokens of each entry"),
        ({"tokens": None}, "expected the arrays of a shortlist"),
        ({"tokens": np.array([[4, 6]])}, "expected integers with 1 axes"),
        ({"tokens": np.array([4.0, 6.0])}, "expected integers"),
        ({"tokens": np.array([4, "6"], object)}, "expected integers with 1 axes, found object"),
        (
            {"sources": np.array([[1], [1]], np.int32)},
            "expected entries of different source",
        ),
        ({"sources": np.ones((1 << 21, 1), np.int8)}, "expected the tokens of each entry"),
    ],
)
def test_damaged_files_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, neutral: dict[str, Bundle]
) -> None:
    path = _archive(tmp_path, **changes)
    with pytest.raises(BundleError, match=message):
        read_shortlist(path, neutral["tied"].manifest.model)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"'shape': (2,)", b"'shape': (9,)"),
        lambda data: data.replace(b"NUMPY", b"NUMPI"),
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    ],
)
def test_arrays_that_are_not_there_are_refused(
    change: Any, tmp_path: Path, neutral: dict[str, Bundle]
) -> None:
    """The last one has another CRC."""
    path = _archive(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BundleError, match="expected the arrays of a shortlist"):
        read_shortlist(path, neutral["tied"].manifest.model)


def test_too_many_entries_are_refused(tmp_path: Path, neutral: dict[str, Bundle]) -> None:
    count = MOST_ENTRIES + 1
    changes: dict[str, Any] = {
        "sources": np.ones((count, 1), np.int8),
        "offsets": np.array([0] * count + [2]),
    }
    path = _archive(tmp_path, **changes)
    with pytest.raises(BundleError, match=f"expected at most {MOST_ENTRIES} entries"):
        read_shortlist(path, neutral["tied"].manifest.model)


def test_no_archive_is_refused(tmp_path: Path, neutral: dict[str, Bundle]) -> None:
    path = tmp_path / SHORTLIST_FILE
    for data in (b"", b"PK\x03\x04", _archive(tmp_path).read_bytes()[:200]):
        path.write_bytes(data)
        with pytest.raises(BundleError, match="expected the arrays of a shortlist"):
            read_shortlist(path, neutral["tied"].manifest.model)


def test_manifests_and_graphs_that_do_not_fit_are_refused(
    bundles: Bundles,
) -> None:
    bundle = read_bundle(bundles["tied", "cpu", "int8"])
    manifest = bundle.manifest
    gathered = manifest.graphs["shortlist_weights"]
    wrong: Sequence[tuple[Any, str]] = (
        (dataclasses.replace(manifest, shortlist=None), "shortlist: expected one exactly if"),
        (
            dataclasses.replace(
                manifest,
                graphs={k: v for k, v in manifest.graphs.items() if k != "shortlist_weights"},
            ),
            "found one of them",
        ),
        (
            dataclasses.replace(
                manifest,
                graphs=manifest.graphs
                | {
                    "shortlist_weights": dataclasses.replace(gathered, outputs=gathered.outputs[:1])
                },
            ),
            "expected the outputs of shortlist_weights",
        ),
    )
    try:
        for changed, message in wrong:
            write_manifest(changed, bundle.directory)
            with pytest.raises(BundleError, match=message):
                read_bundle(bundle.directory)
    finally:
        write_manifest(manifest, bundle.directory)


@pytest.fixture
def lexicon(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "lex.txt"
    path.write_text("".join(f"{s} {t} 0.2\n" for s in range(3, 20) for t in range(s, s + 5)))
    yield path


def test_a_build_proves_the_graphs_and_states_the_cost(
    models: dict[str, Transformer], lexicon: Path, tmp_path: Path
) -> None:
    from dragoman.reference_model import save_checkpoint

    save_checkpoint(models["tied"], tmp_path / "checkpoint")
    built = api.build(
        tmp_path / "checkpoint",
        tmp_path / "bundle",
        precision="int8",
        shortlist=lexicon,
        limit=4,
        threads=1,
    )
    assert built.parity.passed
    check = next(check for check in built.parity.checks if check.name == "shortlist")
    assert check.passed and check.compared > 0
    cost = built.parity.shortlist
    assert cost is not None and cost.sequences == 4 and 0 <= cost.identical <= 4
    with load(tmp_path / "bundle", check="always", threads=1) as model:
        (result,) = model.generate([[3, 4]], max_new_tokens=6)
        assert set(result.tokens) <= {2, *range(3, 30)}
    verified = api.verify(tmp_path / "bundle", tmp_path / "checkpoint", limit=2, threads=1)
    assert verified.parity.passed and verified.parity.shortlist is not None


def test_wrong_weights_of_a_shortlist_fail_the_check(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.runtime.backends.onnxruntime.cpu import OnnxRuntimeBackend
    from dragoman.verification.checks.shortlist import compare_shortlist
    from dragoman.verification.inputs.parity_inputs import ParityInputs

    gather = OnnxRuntimeBackend._shortlist_weights

    def shifted(self: OnnxRuntimeBackend, tokens: NDArray[np.int64]) -> Any:
        return gather(self, np.roll(tokens, 1))

    inputs = ParityInputs("random", sources_of(5))
    with load(bundles["tied", "cpu", "fp32"], threads=1) as model:
        assert compare_shortlist(model, inputs)[0].passed
        monkeypatch.setattr(OnnxRuntimeBackend, "_shortlist_weights", shifted)
        check, _ = compare_shortlist(model, inputs)
    assert not check.passed
    assert "logits of a token of the shortlist differ" in check.problem


def test_choices_of_suppressed_tokens_fail_the_check(bundles: Bundles, tmp_path: Path) -> None:
    """Lists have no suppressed tokens, but required phrases and prefixes may."""
    from dragoman.verification.checks.shortlist import compare_shortlist
    from dragoman.verification.inputs.parity_inputs import ParityInputs

    copy = tmp_path / "bundle"
    shutil.copytree(bundles["tied", "cpu", "fp32"], copy)
    bundle = read_bundle(copy)
    path = bundle.graph_path("shortlist_decoder")
    graph = ir.load(path)
    graph.graph.initializers["shortlist/suppression"].const_value = ir.tensor(
        np.zeros(TARGETS, np.float32)
    )
    ir.save(graph, path)
    with Model(bundle, open_backend(bundle, "onnxruntime", 1)) as model:
        check, _ = compare_shortlist(model, ParityInputs("random", sources_of(5)))
    assert not check.passed
    assert "by its logits" in check.problem or "the best of its logits" in check.problem


def test_a_shortlist_that_costs_much_is_worth_a_warning() -> None:
    """A point of a metric, the hundredth part of a fraction, or half of the outputs."""
    from dragoman.runtime.format.parity import ShortlistParity, TaskParity
    from dragoman.verification.checks.shortlist import shortlist_warnings

    def task(name: str, whole: float, listed: float, *, higher: bool = True) -> TaskParity:
        return TaskParity(name, whole, listed, passed=True, higher_is_better=higher)

    good = task("BLEU", 31.8, 31.0), task("word error", 0.26, 0.265, higher=False)
    assert shortlist_warnings(ShortlistParity(100, 50, 700.0, good)) == []
    (few,) = shortlist_warnings(ShortlistParity(100, 49, 700.0, good))
    assert few.startswith("the shortlist: 49 of 100 outputs are those of the whole vocabulary; it ")
    lost = task("BLEU", 31.8, 21.9), task("word error", 0.26, 0.28, higher=False)
    (both,) = shortlist_warnings(ShortlistParity(100, 90, 700.0, lost))
    assert "BLEU is 21.90 in place of 31.80; word error is 0.28 in place of 0.26" in both


def test_engines_and_files_that_are_missing_are_refused(lexicon: Path, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="shortlist: expected a file, found none"):
        api.build("g2p-en", tmp_path / "out", shortlist=tmp_path / "missing")
    with pytest.raises(DragomanError, match="shortlist: expected a target of graphs"):
        api.build("g2p-en", tmp_path / "out", shortlist=lexicon, target="tensorrt-rtx")
    assert not (tmp_path / "out").exists()


def test_all_outputs_of_a_model_are_checked_at_load(
    bundles: Bundles,
) -> None:
    """The decoder of the whole vocabulary is not opened before it is needed."""
    with load(bundles["tied", "cpu", "int8"], threads=1) as model:
        assert isinstance(model, Model)
        model.generate([[3, 4, 5]])
        assert "decoder" not in model.backend.sessions  # type: ignore[attr-defined]
        model.score([([3, 4], [5, 2])])
        assert "decoder" in model.backend.sessions  # type: ignore[attr-defined]
