"""Bundles are compared with their known answers where they are loaded."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from dragoman.errors import DragomanError
from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import BundleError, KnownAnswersError, Model, load, read_bundle
from dragoman.runtime import loading as module
from dragoman.runtime.answer_comparison import TOLERANCES, compare_answers
from dragoman.runtime.audio.log_mel import sound
from dragoman.runtime.backends import machine as machines
from dragoman.runtime.backends.onnxruntime import cpu
from dragoman.runtime.backends.onnxruntime.cpu_state import HostState
from dragoman.runtime.format.bundle import read_known_answers
from dragoman.runtime.format.known_answers import (
    KNOWN_ANSWERS_FILE,
    LARGEST_FILE,
    GeneratedAnswer,
    KnownAnswers,
)
from dragoman.runtime.format.manifest import MANIFEST_FILE

from ..bundle_files import add_answers, record_again
from ..zoo import letters_model, letters_tokenizers

WORDS = ["a", "is", "you", "all", "encoder", "decoder", "dragoman", "attention", "transformer"]


@pytest.fixture(scope="session")
def reference() -> Transformer:
    return letters_model(max_target_positions=150)


@pytest.fixture(scope="session")
def original(reference: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with known answers, not to be changed: texts, and room beyond position 128."""
    directory = tmp_path_factory.mktemp("known") / "letters"
    directory.mkdir()
    tokenizers = letters_tokenizers(tmp_path_factory.mktemp("tokenizers"))
    export_bundle(reference, directory, name="letters", tokenizers=tokenizers)
    add_answers(directory, reference, WORDS)
    return directory


@pytest.fixture
def bundle(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy on a machine with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(original, tmp_path / "letters"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of answers of each comparison that took place."""
    counts: list[int] = []

    def count(model: Model, known: KnownAnswers, answers: Any, **options: Any) -> Any:
        counts.append(len(answers))
        return compare_answers(model, known, answers, **options)

    monkeypatch.setattr(module, "compare_answers", count)
    yield counts


def test_they_reach_what_matters(original: Path) -> None:
    known = read_known_answers(read_bundle(original))
    assert known is not None
    answers = [a for a in known.answers if isinstance(a, GeneratedAnswer)]
    short = [a for a in answers if a.at_load and not a.prefix]
    assert len(short) >= 5
    assert len({len(a.source) for a in short}) >= 4, "ragged"
    assert min(len(a.source) for a in short) == 2, "a letter and the end"
    assert max(len(a.prefix) + len(a.tokens) for a in answers) > 128
    assert any(a.text == "a" for a in answers)
    assert all(a.output is not None for a in answers)
    assert all(len(a.margins) == len(a.tokens) == len(a.log_probabilities) for a in answers)
    assert (original / KNOWN_ANSWERS_FILE).stat().st_size <= LARGEST_FILE


def test_their_tokens_are_the_oracles_and_log_probabilities_those_of_scores(
    original: Path, reference: Transformer
) -> None:
    known = read_known_answers(read_bundle(original))
    assert known is not None
    with load(original, threads=1) as model:
        for answer in known.answers:
            assert isinstance(answer, GeneratedAnswer)
            assert answer.oracle is None, "as the oracle's"
            if answer.prefix:
                continue
            (scored,) = model.score([(answer.source, answer.tokens)], end_token=False)
            assert scored.token_log_probabilities == pytest.approx(
                answer.log_probabilities, abs=2e-5
            )


def test_a_pass_is_remembered(bundle: Path, compared: list[int]) -> None:
    load(bundle, threads=1).close()
    known = read_known_answers(read_bundle(bundle))
    assert known is not None
    assert compared == [len(known.at_load), 1]
    load(bundle, threads=1).close()
    assert len(compared) == 2, "not repeated"
    load(bundle, threads=1, check="always").close()
    assert len(compared) == 4


def test_another_version_or_bundle_is_checked_anew(
    bundle: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(bundle, threads=1).close()
    monkeypatch.setattr("tokenizers.__version__", "0.0.1")
    load(bundle, threads=1).close()
    assert len(compared) == 4
    monkeypatch.setattr(machines, "processor", lambda: ("Another", ("avx2",)))
    load(bundle, threads=1).close()
    assert len(compared) == 6
    (bundle / "README").write_text("another file")
    record_again(bundle)
    load(bundle, threads=1).close()
    assert len(compared) == 8


def test_a_pass_is_of_the_manifest_too_but_for_its_parity(
    bundle: Path, compared: list[int]
) -> None:
    load(bundle, threads=1).close()
    for name, value, count in (("parity", None, 2), ("default_max_new_tokens", 5, 4)):
        manifest = json.loads((bundle / MANIFEST_FILE).read_text())
        (bundle / MANIFEST_FILE).write_text(json.dumps(manifest | {name: value}))
        load(bundle, threads=1).close()
        assert len(compared) == count


def test_the_oldest_passes_are_forgotten(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_PASSES", 2)
    folder, passes = tmp_path / "cache/dragoman/known-answers", list[Path]()
    for number in range(3):
        monkeypatch.setattr("tokenizers.__version__", f"0.0.{number}")
        load(bundle, threads=1).close()
        (new,) = {*folder.iterdir()}.difference(passes)
        os.utime(new, (number, number))
        passes.append(new)
    assert {*folder.iterdir()} == {*passes[1:]}


def test_never_checks_nothing(bundle: Path, compared: list[int]) -> None:
    load(bundle, threads=1, check="never").close()
    assert compared == []


def test_without_a_cache_each_load_checks(
    bundle: Path, compared: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for count in (2, 4):
        load(bundle, threads=1).close()
        assert len(compared) == count
    monkeypatch.setattr(module, "user_cache", lambda *names: None)  # no home
    for count in (6, 8):
        load(bundle, threads=1).close()
        assert len(compared) == count


def test_a_bundle_that_cannot_be_written_is_checked(bundle: Path, compared: list[int]) -> None:
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    bundle.chmod(0o555)
    load(bundle, threads=1).close()
    bundle.chmod(0o755)
    assert compared
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before


def test_a_bundle_without_them_is_loaded(bundle: Path, compared: list[int]) -> None:
    (bundle / KNOWN_ANSWERS_FILE).unlink()
    record_again(bundle)
    load(bundle, threads=1).close()
    assert compared == []


@pytest.mark.parametrize("check", ["sometimes", "", None, True, ["once"]])
def test_a_wrong_argument_is_refused(bundle: Path, check: Any) -> None:
    with pytest.raises(DragomanError, match="check: expected one of once, always, never, found"):
        load(bundle, check=check)


def wrong_product(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Let the runtime compute one product wrongly: values of a layer's cross-attention."""
    encode = HostState._encode

    def wrong(self: HostState, encoder: Any, manifest: Any, source: Any) -> None:
        encode(self, encoder, manifest, source)
        tensor = next(t for t in manifest.graphs["encoder"].outputs if t.role == "cross_value")
        buffer = self._buffers[tensor.slot]
        buffer.write(change(np.array(buffer.array)))

    monkeypatch.setattr(HostState, "_encode", wrong)


def test_a_runtime_that_is_wrong_in_one_product_is_refused(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_product(monkeypatch, lambda values: values * np.float32(1.02))
    monkeypatch.setattr("onnxruntime.__version__", "9.9.9")
    with pytest.raises(KnownAnswersError) as caught:
        load(bundle, threads=1)
    proven = read_known_answers(read_bundle(bundle))
    assert proven is not None
    count = len(proven.at_load)
    message = str(caught.value)
    assert message.startswith("letters: onnxruntime 9.9.9 gives other probabilities than those")
    assert f"of {count} known answers differ" in message
    assert f"install onnxruntime=={proven.versions['onnxruntime']}" in message
    assert (caught.value.status, caught.value.code) == (503, "known_answers")
    with pytest.raises(KnownAnswersError):
        load(bundle, threads=1), "a failure is not remembered"
    load(bundle, threads=1, check="never").close()


def test_a_failure_undoes_a_pass(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(bundle, threads=1).close()
    wrong_product(monkeypatch, lambda values: -values)
    load(bundle, threads=1).close()  # remembered
    with pytest.raises(KnownAnswersError):
        load(bundle, threads=1, check="always")
    with pytest.raises(KnownAnswersError):
        load(bundle, threads=1)


def test_rounding_is_no_difference(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels add in another order."""
    noise = np.random.default_rng(0)
    wrong_product(
        monkeypatch,
        lambda values: values * (1 + 3e-7 * noise.standard_normal(values.shape)).astype("float32"),
    )
    load(bundle, threads=1, check="always").close()


def test_the_file_is_read_once_while_a_bundle_is_read(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, original = list[str](), io.open

    def counted(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(file))
        return original(file, *arguments, **options)

    monkeypatch.setattr(io, "open", counted)
    read_bundle(bundle)
    assert opened.count(str(bundle / KNOWN_ANSWERS_FILE)) == 1


def test_a_changed_weight_behind_right_hashes_is_refused(bundle: Path) -> None:
    weights = np.fromfile(bundle / "weights.bin", np.float32)
    changed = len(weights) // 2
    weights[changed] += 1
    weights.tofile(bundle / "weights.bin")
    with pytest.raises(BundleError, match="SHA-256"):
        load(bundle, threads=1)
    record_again(bundle)
    with pytest.raises(KnownAnswersError, match="its files or this machine's memory are damaged"):
        load(bundle, threads=1)


def test_another_processor_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_product(monkeypatch, lambda values: -values)
    monkeypatch.setattr(machines, "processor", lambda: ("Some CPU", ("avx2", "one_more")))
    with pytest.raises(KnownAnswersError, match=r"letters: Some CPU gives other .* one_more"):
        load(bundle, threads=1)


def test_other_tokens_of_texts_name_the_tokenizer(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = Model.tokenize
    monkeypatch.setattr(Model, "tokenize", lambda self, *a, **k: tokenize(self, *a, **k)[::-1])
    monkeypatch.setattr("tokenizers.__version__", "0.0.1")
    with pytest.raises(KnownAnswersError, match=r"tokenizers 0\.0\.1 gives other"):
        load(bundle, threads=1)


def test_a_near_tie_is_excused_and_nothing_else(original: Path) -> None:
    """The second token is replaced by one that the record calls as probable, or less so."""
    known = read_known_answers(read_bundle(original))
    assert known is not None
    answer = next(a for a in known.answers if isinstance(a, GeneratedAnswer) and len(a.tokens) > 2)
    step, tolerance = 1, TOLERANCES["fp32"]
    with load(original, threads=1, check="never") as model:
        other = (answer.tokens[step] + 1) % 42
        for margin, difference, excused in (
            (tolerance, tolerance, True),
            (1.0, tolerance, False),
            (tolerance, 1.0, False),
        ):
            values = list(answer.log_probabilities)
            values[step] -= difference
            margins = list(answer.margins)
            margins[step] = margin
            tokens = list(answer.tokens)
            tokens[step] = other
            recorded = dataclasses.replace(
                answer,
                tokens=tuple(tokens),
                log_probabilities=tuple(values),
                margins=tuple(margins),
            )
            (outcome,) = compare_answers(model, known, [recorded])
            assert (outcome.problem is None) == excused, outcome
            assert outcome.tied == (step if excused else None)


def hostile(data: dict[str, Any], change: Any) -> dict[str, Any]:
    answer = data["answers"][0]
    target, name, value = change
    (data if target == "file" else answer)[name] = value
    return data


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("file", "format_version", 2), "format_version: found 2, newer than 1"),
        (("file", "format_version", "1"), "known answers.format_version: expected an integer"),
        (("file", "versions", []), "known answers.versions: expected an object"),
        (("file", "answers", {}), "known answers.answers: expected a list"),
        (("file", "answers", []), "answers: expected at least one with at_load"),
        (("file", "target_language", "de"), "target_language: expected a language of the model"),
        (("file", "more", 1), "known answers.more: unknown name"),
        (("answer", "source", [999]), r"answers\[0\].source: expected ids in \[0, 29\), found 999"),
        (("answer", "source", []), r"answers\[0\].source: expected at least one token"),
        (("answer", "source", [1] * 99), r"source: expected at most 32, found 99"),
        (("answer", "tokens", [-1]), r"answers\[0\].tokens: expected ids in \[0, 42\), found -1"),
        (("answer", "log_probabilities", [0.5]), "log_probabilities: expected one for each of"),
        (("answer", "margins", [1.0]), "margins: expected one for each of"),
        (("answer", "max_new_tokens", 10**9), "max_new_tokens: expected 1 to 150"),
        (("answer", "likely", [[1]] * 99), "likely: expected one for each of"),
        (("answer", "oracle_log_probabilities", []), "expected one for each token of likely"),
        (("answer", "num_beams", 10**6), "num_beams: expected 1 to 42"),
        (("answer", "seconds", 3.0), "seconds: expected none for a model that reads tokens"),
        (("answer", "kind", "encode"), "known answers.answers"),
        (("answer", "name", None), r"answers\[0\].name: expected"),
    ],
)
def test_hostile_files_are_refused(
    bundle: Path, change: tuple[str, str, Any], problem: str
) -> None:
    path = bundle / KNOWN_ANSWERS_FILE
    path.write_text(json.dumps(hostile(json.loads(path.read_bytes()), change)))
    record_again(bundle)
    with pytest.raises(BundleError, match=problem):
        read_bundle(bundle)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[]", "known answers: expected an object"),
        (b" " * (LARGEST_FILE + 1), "expected at most 65536 bytes"),
        (b"[" * 1000, "expected"),
    ],
)
def test_other_content_is_refused(bundle: Path, content: bytes, problem: str) -> None:
    (bundle / KNOWN_ANSWERS_FILE).write_bytes(content)
    record_again(bundle)
    with pytest.raises(BundleError, match=f"{KNOWN_ANSWERS_FILE}: {problem}"):
        read_bundle(bundle)


def test_all_problems_are_listed_at_once(bundle: Path) -> None:
    path = bundle / KNOWN_ANSWERS_FILE
    data = json.loads(path.read_bytes())
    data["answers"][0]["source"], data["answers"][1]["tokens"] = [99], [99]
    path.write_text(json.dumps(data))
    record_again(bundle)
    (bundle / "weights.bin").write_bytes(b"short")
    with pytest.raises(BundleError) as caught:
        read_bundle(bundle)
    assert len(caught.value.problems) >= 3


def test_generated_sound_is_the_same_everywhere() -> None:
    signal = sound(16_000, 1.5)
    assert signal.shape == (24_000,)
    assert signal.dtype == np.float32
    assert 0.3 < np.abs(signal).max() <= 1
    phase, expected = 0.0, {}
    for n in range(9001):
        t = n / 16_000
        pitch = 120 + 30 * math.sin(2 * math.pi * 0.7 * t)
        phase += 2 * math.pi * pitch / 16_000
        if n in (1000, 9000):
            total = 0.0
            for harmonic in range(1, 21):
                for rate, formant in ((1.3, 500), (0.9, 1500), (1.1, 2500)):
                    centre = formant * (1 + 0.2 * math.sin(2 * math.pi * rate * t))
                    gain = math.exp(-(((harmonic * pitch - centre) / 150) ** 2))
                    total += gain * math.sin(harmonic * phase)
            expected[n] = 0.2 * math.sqrt(math.sin(4 * math.pi * t)) * total
    assert signal[[1000, 9000]] == pytest.approx([*expected.values()], abs=1e-6)


@pytest.fixture(scope="session")
def quantized(reference: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle in int8, whose known answers were computed without saturation."""
    folder = tmp_path_factory.mktemp("quantized")
    (folder / "neutral").mkdir()
    (folder / "letters").mkdir()
    neutral = export_bundle(reference, folder / "neutral", name="letters")
    optimize_bundle(neutral, folder / "letters", target="cpu", precision="int8")
    add_answers(folder / "letters", reference)
    return folder / "letters"


def saturate(path: Path) -> int:
    """Let a graph add 8-bit products in pairs that saturate at 16 bits, as kernels for processors
    without VNNI do; return the number of its products."""
    graph = (model := onnx.load(path)).graph
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    count = 0

    def add(operator: str, *inputs: str | NDArray[Any], to: str = "", **attributes: Any) -> str:
        names = []
        for number, value in enumerate(inputs):
            if not isinstance(value, str):
                name = f"constant_{len(nodes)}_{number}"
                graph.initializer.append(numpy_helper.from_array(value, name))
                value = name
            names.append(value)
        output = to or f"saturating_{len(nodes)}"
        nodes.append(onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    for node in graph.node:
        if node.op_type != "MatMulIntegerToFloat":
            nodes.append(node)
            continue
        count += 1
        values, weight, scale, weight_scale, zero = node.input[:5]
        integers = known[weight].astype(np.float32)
        wide = add("Cast", values, to=f"wide_{count}")
        nodes[-1].attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.FLOAT))
        products = []
        for first in (0, 1):
            every_other = np.arange(first, len(integers), 2)
            one = add("Unsqueeze", add("Gather", wide, every_other, axis=-1), np.array([-1]))
            products.append(add("Mul", one, integers[first::2]))
        limits = np.float32(-(2**15)), np.float32(2**15 - 1)
        pairs = add("Clip", add("Add", *products), *map(np.array, limits))
        total = add("ReduceSum", pairs, np.array([-2]), keepdims=0)
        offset = known[zero].astype(np.float32) * integers.sum(0)
        exact = add("Mul", add("Mul", add("Sub", total, offset), scale), weight_scale)
        bias = node.input[6:] or [np.zeros(1, np.float32)]
        add("Add", exact, bias[0], to=node.output[0])
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
    return count


def test_saturation_that_the_probe_misses_is_refused(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any case as emulated, and where this processor saturates as it does itself."""
    copy = Path(shutil.copytree(quantized, tmp_path / "letters"))
    bundle = read_bundle(copy)
    load(bundle, threads=1, check="always").close()
    assert sum(saturate(bundle.graph_path(name)) for name in ("encoder", "decoder")) > 10
    with pytest.raises(KnownAnswersError, match="its files or this machine's memory are damaged"):
        load(bundle, threads=1, check="always")
    if cpu.saturates():
        monkeypatch.setattr(cpu, "saturates", lambda: False)
        with pytest.raises(KnownAnswersError):
            load(quantized, threads=1, check="always")
