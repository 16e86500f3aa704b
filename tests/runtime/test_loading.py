"""Arguments of `load`, and its errors where a bundle cannot be run."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from dragoman import DragomanError
from dragoman.reference_model import Transformer
from dragoman.runtime import BackendError, BundleError, Model, load, read_bundle

from ..bundle_files import record_files

Case = tuple[Transformer, Path]


@pytest.fixture
def copied(text_case: Case, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_case[1], tmp_path / "copied"))


def rewrite_records(bundle: Path, **changes: Any) -> None:
    """Make the manifest fit changed files, and change some of its values."""
    manifest = json.loads((bundle / "manifest.json").read_text()) | changes
    manifest["files"] = [vars(record) for record in record_files(bundle)]
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_a_loaded_model_has_its_bundle(text_case: Case, text_model: Model) -> None:
    reference, directory = text_case
    assert text_model.bundle == read_bundle(directory)
    assert text_model.manifest.model.end_token_id == reference.config.end_token_id
    assert text_model.manifest.default_max_new_tokens == reference.config.max_target_positions


def test_read_bundle_takes_what_load_takes(text_case: Case) -> None:
    assert read_bundle(str(text_case[1])) == read_bundle(text_case[1])
    wrong: Any = 5
    for call in (load, read_bundle):
        with pytest.raises(DragomanError, match=r"^expected the path of a bundle, found 5$"):
            call(wrong)


def test_a_bundle_that_was_read_is_not_read_again(
    copied: Path, text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = read_bundle(copied)

    def never(text: str, path: str) -> None:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr("dragoman.runtime.format.bundle.manifest_from_json", never)
    model = load(bundle, threads=1)
    assert model.bundle is bundle
    assert model.generate(["a"])[0].tokens == text_model.generate(["a"])[0].tokens


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_the_number_of_threads_does_not_change_the_results(
    text_case: Case, text_model: Model, threads: int | None
) -> None:
    model = load(str(text_case[1]), threads=threads)
    for one, other in zip(
        model.generate(["dragoman", "a"]), text_model.generate(["dragoman", "a"]), strict=True
    ):
        assert one.tokens == other.tokens
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)


@pytest.mark.parametrize("threads", [0, -1])
def test_less_than_one_thread_is_an_error(text_case: Case, threads: int) -> None:
    with pytest.raises(DragomanError, match=f"threads: expected at least 1, found {threads}"):
        load(text_case[1], threads=threads)


def test_an_unknown_backend_is_an_error_that_lists_the_known_ones(text_case: Case) -> None:
    with pytest.raises(BackendError, match=r"'abacus'.*onnxruntime, onnxruntime-cuda"):
        load(text_case[1], backend="abacus")


def test_without_the_cuda_provider_the_error_says_what_to_do(
    text_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BackendError) as caught:
        load(text_case[1], backend="onnxruntime-cuda")
    message = str(caught.value)
    assert "has no CUDAExecutionProvider" in message
    assert "use the backend onnxruntime" in message
    assert "pip install 'dragoman[cuda]'" in message


@pytest.mark.parametrize("content", [b"", b"not a graph at all" * 10])
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("encoder.onnx", "encoder.onnx: expected an ONNX graph as Dragoman writes one"),
        ("decoder.onnx", "decoder.onnx: expected an ONNX graph as Dragoman writes one"),
        ("weights.bin", "expected offset and length within the"),
    ],
)
def test_a_recorded_file_that_is_not_a_graph_is_an_error(
    copied: Path, file: str, expected: str, content: bytes
) -> None:
    """An empty file is ONNX that says nothing, which only the backend refuses."""
    (copied / file).write_bytes(content)
    rewrite_records(copied)
    with pytest.raises((BundleError, BackendError)) as caught:
        load(copied)
    assert str(copied) in str(caught.value)
    empty_graph = file != "weights.bin" and not content
    assert (expected if not empty_graph else "cannot load this graph") in str(caught.value)


def test_a_recorded_file_that_is_not_a_tokenizer_is_an_error(copied: Path) -> None:
    (copied / "target_tokenizer.json").write_text("{}")
    rewrite_records(copied)
    with pytest.raises(BundleError, match=r"target_tokenizer\.json: not a tokenizer file"):
        load(copied)


def test_a_recorded_tokenizer_that_makes_its_library_fail_is_an_error(copied: Path) -> None:
    path = copied / "source_tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"]["special_tokens"] = {}
    path.write_text(json.dumps(tokenizer))
    rewrite_records(copied)
    with pytest.raises(
        BundleError, match=r"source_tokenizer\.json: fails when it is tried out: no"
    ):
        load(copied)


def test_a_token_that_the_tokenizer_knows_and_the_model_does_not_is_rejected(copied: Path) -> None:
    tokenizer = json.loads((copied / "source_tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["!"] = 29
    (copied / "source_tokenizer.json").write_text(json.dumps(tokenizer))
    rewrite_records(copied)
    good, bad = load(copied, threads=1).generate(["abc", "a!"])
    assert (good.finish_reason in ("end", "length"), bad.finish_reason) == (True, "rejected")
    assert bad.error == "expected token ids in [0, 29), found 29"


def test_a_changed_bundle_with_new_records_loads(copied: Path, text_model: Model) -> None:
    """The tests above fail for the reason they state."""
    rewrite_records(copied, default_max_new_tokens=3)
    expected = text_model.generate(["dragoman"], max_new_tokens=3)
    assert load(copied, threads=1).generate(["dragoman"]) == expected


def test_a_changed_byte_of_the_weights_is_detected(copied: Path) -> None:
    data = bytearray((copied / "weights.bin").read_bytes())
    before = hashlib.sha256(data).hexdigest()
    data[len(data) // 2] ^= 1
    (copied / "weights.bin").write_bytes(data)
    assert hashlib.sha256(data).hexdigest() != before
    with pytest.raises(BundleError, match=r"weights\.bin: its SHA-256"):
        load(copied)


def test_threads_that_share_a_model_do_not_affect_each_other(text_model: Model) -> None:
    words = ["dragoman", "a", "interpreter", "translate", "transformer", "between", "zz", "word"]
    jobs = [[word[i:] + word for word in words[: i + 1]] for i in range(8)] * 2
    expected = [text_model.generate(job, min_new_tokens=i % 3) for i, job in enumerate(jobs)]
    streams = ["".join(t.text or "" for t in text_model.stream(job[0])) for job in jobs]
    assert len({result.tokens for results in expected for result in results}) > 8
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(
            lambda i: text_model.generate(jobs[i], min_new_tokens=i % 3), range(len(jobs))
        )
        found_streams = pool.map(
            lambda job: "".join(t.text or "" for t in text_model.stream(job[0])), jobs
        )
        assert list(found) == expected
        assert list(found_streams) == streams
