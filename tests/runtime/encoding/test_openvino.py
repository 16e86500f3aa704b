"""OpenVINO runs bundles of target openvino: outputs, threads, forks, closing and refusals.

The oracles are Hugging Face's models, and the ONNX graph itself, run without optimizations.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from packaging.requirements import Requirement

from dragoman.api import build, optimize
from dragoman.api.sensitivity import check_measurable
from dragoman.cli.bench import bench
from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.optimize.running import run
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import BackendError, Bundle, ClosedModelError, load, read_bundle
from dragoman.runtime.backends import default_backend, open_backend
from dragoman.runtime.backends import openvino as backend
from dragoman.runtime.format.bundle import read_known_answers
from dragoman.runtime.format.manifest import Precision

from ...serving.conftest import serving
from .conftest import PIECES, POSITIONS, Case, Make, transformers

HEADS = [
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
    "ForQuestionAnswering",
]
LENGTHS = [5, 1, POSITIONS, 2, 9, 3, 17]


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [generator.integers(5, len(PIECES), length).tolist() for length in LENGTHS]


def neutral_of(case: Case) -> Bundle:
    return read_bundle(case.ours.bundle.directory.parent / "neutral")


def built(case: Case, directory: Path, precision: Precision = "fp32", **options: Any) -> Bundle:
    return optimize_bundle(
        neutral_of(case), directory, target="openvino", precision=precision, **options
    )


@pytest.fixture(scope="module")
def bundles(
    make: Make, sources: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Bundle]:
    """A model that gives vectors, in fp32, and in int8 with and without calibration."""
    case, made = make("Model"), {}
    options: dict[str, dict[str, Any]] = {
        "fp32": {},
        "int8": {"precision": "int8", "calibration": sources},
        "uncalibrated": {"precision": "int8"},
    }
    for name, given in options.items():
        made[name] = built(case, tmp_path_factory.mktemp(name), **given)
    return made


def batch_of(sources: list[list[int]]) -> tuple[Any, Any]:
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    source = np.zeros(mask.shape, np.int64)
    source[mask] = [token for row in sources for token in row]
    return source, mask


@pytest.mark.parametrize("head", HEADS)
def test_outputs_are_those_of_hugging_face(
    head: str, make: Make, sources: list[list[int]], tmp_path: Path
) -> None:
    case, (source, mask) = make(head), batch_of(sources)
    with torch.no_grad():
        theirs = case.theirs(torch.from_numpy(source), torch.from_numpy(mask).long())
    with load(built(case, tmp_path), threads=2) as model:
        found = model.backend.encode(source, mask)
        alone = model.backend.encode(source[1:2, :1], mask[1:2, :1])
    if "start_logits" in theirs:
        expected = {"token_logits": torch.stack([theirs.start_logits, theirs.end_logits], -1)}
    elif "last_hidden_state" in theirs:
        expected = {"hidden": theirs.last_hidden_state}
    else:
        expected = {
            "class_logits" if head == "ForSequenceClassification" else "token_logits": theirs.logits
        }
    for name, value in expected.items():
        at_tokens = slice(None) if value.shape[1] != source.shape[1] else mask
        np.testing.assert_allclose(found[name][at_tokens], value.numpy()[at_tokens], atol=1e-4)
        own = found[name][1] if value.ndim == 2 else found[name][1, :1]
        np.testing.assert_allclose(alone[name][0], own, atol=1e-5)


def test_integers_are_multiplied_as_the_graph_says(
    bundles: dict[str, Bundle], sources: list[list[int]]
) -> None:
    """All inputs have a fixed scale: only roundings at their limits may fall to the other side."""
    (record,) = bundles["int8"].manifest.passes
    assert {choice.chosen for choice in record.choices} == {"fixed scale"}
    source, mask = batch_of(sources)
    graph = load_graph(bundles["int8"].graph_path("encoder"))
    expected = run(graph, {"source": source, "source_mask": mask})["embedding"]
    with load(bundles["int8"], threads=1) as model:
        found = model.backend.encode(source, mask)["embedding"]
    size = np.abs(expected).max()
    assert np.abs(found - expected).mean() < 0.003 * size
    with load(bundles["fp32"], threads=1) as model:
        exact = model.backend.encode(source, mask)["embedding"]
    assert np.abs(found - exact).mean() > 3 * np.abs(found - expected).mean()


def test_without_calibration_openvino_rounds_inputs(
    bundles: dict[str, Bundle], sources: list[list[int]]
) -> None:
    (record,) = bundles["uncalibrated"].manifest.passes
    assert {choice.chosen for choice in record.choices} == {"scales of groups, by OpenVINO"}
    assert "random sources" in record.choices[0].reason
    source, mask = batch_of(sources)
    graph = load_graph(bundles["uncalibrated"].graph_path("encoder"))
    assert "QuantizeLinear" not in {node.op_type for node in graph.graph}
    expected = run(graph, {"source": source, "source_mask": mask})["embedding"]
    with load(bundles["uncalibrated"], threads=1) as model:
        found = model.backend.encode(source, mask)["embedding"]
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["int8", "uncalibrated"])
def test_products_are_exact_where_those_of_integers_would_saturate(
    name: str,
    bundles: dict[str, Bundle],
    sources: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, mask = batch_of(sources)
    graph = load_graph(bundles[name].graph_path("encoder"))
    expected = run(graph, {"source": source, "source_mask": mask})["embedding"]
    monkeypatch.setattr(backend, "processor", lambda: ("an old one", ("avx", "avx2", "fma")))
    with load(bundles[name], threads=1) as model:
        found = model.backend.encode(source, mask)["embedding"]
    assert np.abs(found - expected).mean() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", ("avx", "avx2"), True),
        ("x86_64", ("avx2", "avx512f"), True),
        ("x86_64", ("avx2", "avx_vnni"), False),
        ("x86_64", ("avx2", "avx512f", "avx512_vnni"), False),
        ("AMD64", (), True),  # Windows does not say what it has
        ("aarch64", ("asimd", "i8mm"), False),
        ("arm64", (), False),
    ],
)
def test_which_processors_may_saturate(
    machine: str, features: tuple[str, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "processor", lambda: ("", features))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert backend.saturates() is expected


@pytest.mark.parametrize("name", ["fp32", "int8"])
def test_texts_in_a_batch_and_alone_in_several_threads(
    name: str, bundles: dict[str, Bundle]
) -> None:
    texts = ["the man eats food.", "a", "paris is in france.", "b c", "the man", "food", "e f g"]
    with load(bundles[name], threads=2) as model:
        expected = model.encode(texts)
        with ThreadPoolExecutor(4) as pool:
            alone = list(pool.map(lambda text: model.encode([text])[0], texts * 6))
    np.testing.assert_allclose(
        alone, np.tile(expected, (6, 1)), atol=1e-5 if name == "fp32" else 0.02
    )


def test_what_was_returned_stays_as_it_is(bundles: dict[str, Bundle]) -> None:
    """Requests and their memory are used again."""
    with load(bundles["fp32"], threads=1) as model:
        first = model.hidden_states(["the man eats food."])[0]
        before = first.copy()
        model.hidden_states(["paris is in france."])
        np.testing.assert_array_equal(first, before)


def ended(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_after_all_models_were_closed_exits(bundles: dict[str, Bundle]) -> None:
    """The threads that OpenVINO keeps are not in it, and nothing waits for them."""
    code = f"""
import os
from dragoman.runtime import load
with load({str(bundles["fp32"].directory)!r}, threads=2) as model:
    model.encode(["the man"])
del model
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("ended")
"""
    found = ended(code)
    assert (found.stdout, found.returncode) == ("ended\n", 0), found.stderr


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside one that was closed"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_refused_and_exits(others: int, bundles: dict[str, Bundle]) -> None:
    """OpenVINO's threads are not started again; those of a closed model would be waited for."""
    code = f"""
import os
from dragoman.errors import DragomanError
from dragoman.runtime import load
directory = {str(bundles["int8"].directory)!r}
model = load(directory, threads=2)
for _ in range({others}):
    load(directory, threads=2).close()
expected = model.encode(["the man"])
child = os.fork()
if not child:
    for call in (lambda: model.encode(["the man"]), lambda: load(directory, check="never")):
        try:
            call()
        except DragomanError as error:
            assert "forked after OpenVINO was used" in str(error)
        else:
            os._exit(3)
    model.close()
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
assert (model.encode(["the man"]) == expected).all()
print("ended")
"""
    found = ended(code)
    assert (found.stdout, found.returncode) == ("ended\n", 0), found.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_model_is_loaded_in_a_forked_process_only(bundles: dict[str, Bundle]) -> None:
    code = f"""
import os
from dragoman.runtime import load
child = os.fork()
if not child:
    model = load({str(bundles["int8"].directory)!r}, threads=2)
    assert model.encode(["the man"]).shape == (1, 24)
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
print("ended")
"""
    found = ended(code)
    assert (found.stdout, found.returncode) == ("ended\n", 0), found.stderr


@pytest.mark.parametrize("loads", ["this", "other"])
def test_a_signal_after_a_model_was_closed_by_another_thread(
    loads: str, bundles: dict[str, Bundle]
) -> None:
    """OpenVINO gives the thread that loads a model another stack for its signals."""
    loads_it, closes_it = ("this", "other") if loads == "this" else ("other", "this")
    code = f"""
import gc, signal, threading
from concurrent.futures import ThreadPoolExecutor
from dragoman.runtime import load
directory = {str(bundles["fp32"].directory)!r}
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
with ThreadPoolExecutor(1) as pool:
    threads = dict(this=lambda call: call(), other=lambda call: pool.submit(call).result())
    model = threads[{loads_it!r}](lambda: load(directory, threads=2))
    threads[{closes_it!r}](model.close)
    del model
    gc.collect()
    threads[{loads_it!r}](lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
print("ended")
"""
    found = ended(code)
    assert (found.stdout, found.returncode) == ("heard\nended\n", 0), found.stderr


def test_onnx_runtime_is_not_needed_and_no_telemetry_is_sent(bundles: dict[str, Bundle]) -> None:
    """OpenVINO's package reports its import through another one, if that is found."""
    code = f"""
import sys
sys.modules["onnxruntime"] = None
from dragoman.runtime import load
print(load({str(bundles["int8"].directory)!r}).encode(["the man"]).shape)
print([name for name in sys.modules if name.startswith("openvino_telemetry.")])
print(sys.modules["openvino.tools.ovc.telemetry_utils"].tm.__name__)
import openvino_telemetry
"""
    found = ended(code)
    stub = "openvino.tools.ovc.telemetry_stub"
    assert found.stdout.splitlines() == ["(1, 24)", "[]", stub], found.stderr


def test_calls_beside_each_other_run_together(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a number of threads, on a copy with a stream for each part of the cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    asked: list[dict[str, Any]] = []
    core: Any = backend.CORE

    class Core:
        def compile_model(self, path: Path, device: str, options: dict[str, Any]) -> Any:
            asked.append(options)
            return core.compile_model(path, device, options)

    monkeypatch.setattr(backend, "CORE", Core())
    expected: list[Any] = [(1, 1), (6, 6), (1, 2), (3, 6)]
    for threads in (1, 2):
        with load(bundles["fp32"], threads=threads) as model:
            alone = model.encode(["the man"])
            session: Any = model.backend.session("encoder")  # type: ignore[attr-defined]
            with session._alone:
                beside = [model.encode(["the man"]) for _ in range(2)]
            np.testing.assert_allclose(beside, [alone, alone], atol=1e-6)
    waiting: list[tuple[int | None, Any]] = [(None, (None, None)), (4, (1, 4)), (9, (1, 9))]
    for number, stated in waiting:
        with load(bundles["fp32"], threads=number) as model, ThreadPoolExecutor(3) as pool:
            list(pool.map(model.encode, [["a"], ["b c"], ["the man"]]))
        expected.append(stated)
    assert [(o.get("NUM_STREAMS"), o.get("INFERENCE_NUM_THREADS")) for o in asked] == expected


def test_a_closed_model(bundles: dict[str, Bundle]) -> None:
    model = load(bundles["fp32"])
    model.close()
    with pytest.raises(ClosedModelError):
        model.encode(["a"])


def test_attention_is_that_of_hugging_face(make: Make, tmp_path: Path) -> None:
    case = make("Model")
    texts = tmp_path / "texts.txt"
    texts.write_text("the man eats food.\nparis is in france.\n", encoding="utf-8")
    checkpoint = case.ours.bundle.directory.parent / "checkpoint"
    build(checkpoint, tmp_path / "bundle", target="openvino", attention=True, inputs=texts)
    eager = transformers.BertModel.from_pretrained(checkpoint, attn_implementation="eager")
    with load(tmp_path / "bundle", threads=1) as model:
        tokens = model.tokenize("the man eats food.")
        found = model.attention("the man eats food.").encoder
    with torch.no_grad():
        maps = eager.eval()(torch.tensor([tokens]), output_attentions=True).attentions
    assert found is not None
    np.testing.assert_allclose(found, torch.cat(maps).numpy(), atol=1e-5)


def test_one_backend_for_one_target(bundles: dict[str, Bundle], make: Make) -> None:
    own, other = bundles["int8"], make("Model").ours.bundle
    assert default_backend(own) == default_backend(own, "cpu") == "openvino"
    assert default_backend(other) == "onnxruntime"
    with pytest.raises(BackendError) as caught:
        load(own, backend="onnxruntime")
    assert str(caught.value) == (
        f"{own.directory}: its graphs are for target openvino, and its parity was checked with "
        "it: expected backend openvino, found onnxruntime"
    )
    with pytest.raises(BackendError) as caught:
        load(other, backend="openvino")
    assert str(caught.value) == (
        f"{other.directory}: its graphs are for target cpu: openvino runs bundles whose parity "
        "was checked with it: expected target openvino (dragoman build --target openvino)"
    )


def test_a_graph_that_is_not_as_the_manifest_says(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["fp32"]
    graph = bundle.manifest.graphs["encoder"]
    first, *others = graph.inputs
    for inputs, problem in (
        (others, f"unexpected tensor {first.name}"),
        ([dataclasses.replace(first, name="ids"), *others], "no tensor ids"),
        (
            [dataclasses.replace(first, dtype="int32"), *others],
            "expected int32, found int64",
        ),
    ):
        graphs = {"encoder": dataclasses.replace(graph, inputs=tuple(inputs))}
        manifest = dataclasses.replace(bundle.manifest, graphs=graphs)
        with pytest.raises(BackendError, match=problem):
            open_backend(dataclasses.replace(bundle, manifest=manifest), "openvino", 1)


def test_a_graph_that_openvino_cannot_read(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_bytes(b"\x08\x08")
    broken = dataclasses.replace(bundles["fp32"], directory=tmp_path)
    with pytest.raises(BackendError, match=r"encoder\.onnx: openvino 2.* cannot load this graph: "):
        open_backend(broken, "openvino", 1)


def test_inputs_that_openvino_cannot_run(bundles: dict[str, Bundle]) -> None:
    with load(bundles["fp32"], threads=1) as model, pytest.raises(BackendError) as caught:
        model.backend.encode(np.zeros(3, np.int64), np.ones((2, 3), bool))
    assert str(caught.value).startswith("openvino failed: ")
    assert "\n" not in str(caught.value)


def test_a_missing_library(bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dragoman.runtime.backends.openvino")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(BackendError) as caught:
        load(bundles["fp32"])
    assert "pip install 'dragoman[openvino]'" in str(caught.value)


def test_a_missing_library_is_found_before_the_export(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.api.preflight.find_spec", lambda name: None)
    checkpoint = make("Model").ours.bundle.directory.parent / "checkpoint"
    with pytest.raises(BackendError) as caught:
        build(checkpoint, tmp_path / "bundle", target="openvino")
    assert str(caught.value) == (
        "target openvino: the package openvino is missing: pip install 'dragoman[openvino]'"
    )


def test_int8_without_calibration_is_warned_of(make: Make, tmp_path: Path) -> None:
    neutral, options = neutral_of(make("Model")), dict[str, Any](target="openvino")
    int8 = optimize(neutral.directory, tmp_path / "int8", precision="int8", **options)
    assert "--calibration" in "".join(int8.warnings)
    assert not optimize(neutral.directory, tmp_path / "fp32", precision="fp32", **options).warnings
    texts = tmp_path / "texts.txt"
    texts.write_text("the man\nfood\n", encoding="utf-8")
    options |= {"precision": "int8", "calibration": texts}
    assert not optimize(neutral.directory, tmp_path / "known", **options).warnings


def test_a_build_is_verified_loaded_and_measured(make: Make, tmp_path: Path) -> None:
    """With calibration; its known answers are those that OpenVINO gave."""
    texts = tmp_path / "texts.txt"
    lines = ["the man eats food.", "paris is in france.", "a b c", "food", "the man is in paris."]
    texts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    checkpoint = make("Model").ours.bundle.directory.parent / "checkpoint"
    options: dict[str, Any] = {"target": "openvino", "precision": "int8", "calibration": texts}
    report = build(checkpoint, tmp_path / "bundle", inputs=texts, **options)
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.manifest.parity is not None and bundle.manifest.parity.passed
    assert bundle.manifest.parity.backend == "openvino"
    known = read_known_answers(bundle)
    assert known is not None and Requirement(f"openvino=={known.versions['openvino']}")
    assert not any(getattr(answer, "oracle_values", ()) for answer in known.answers)  # for GPUs
    load(bundle, check="always").close()
    measured = CliRunner().invoke(bench, [str(tmp_path / "bundle"), "--runs", "1"])
    assert measured.exit_code == 0 and "openvino" in measured.output, measured.output
    with pytest.raises(DragomanError, match="expected a bundle for target cpu or neutral"):
        check_measurable(bundle)
    assert report is not None


def test_a_server(bundles: dict[str, Bundle]) -> None:
    with serving({"vectors": bundles["int8"].directory}) as client, load(bundles["int8"]) as model:
        texts = ["the man", "paris is in france."]
        answer = client.post("/embed", json={"inputs": texts, "normalize": False})
        np.testing.assert_allclose(np.array(answer.json()), model.encode(texts), atol=0.05)


def test_a_model_with_a_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DragomanError) as caught:
        build("g2p-en", tmp_path / "bundle", target="openvino")
    assert str(caught.value) == (
        "target openvino: expected an encoder-only model, found one with a decoder"
    )
    assert not list(tmp_path.iterdir())
