"""How sessions of ONNX Runtime's CUDA provider open, and what is said where they do not.

The sessions are those of the installed onnxruntime, on the processor. They pretend to be the
provider's: what it says and records is as onnxruntime-gpu 1.31.1 does.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_inference_collection as collection

from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle, DeviceLostError, load, read_bundle
from dragoman.runtime.backends.cuda import Gpu
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.onnxruntime import cuda
from dragoman.runtime.backends.onnxruntime.cuda import open_backend, open_sessions

from ...device_double import DoubleDevice

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
REFUSAL = "[ONNXRuntimeError] : 1 : FAIL : This session cannot use the graph capture feature as "
COMPUTE_NODES = f"{REFUSAL}requested by the user  as all compute graph nodes have not been "
CONTROL_FLOW = f"{REFUSAL}requested by the user as the model has control flow nodes which can't be "
AWAITED = "disable_synchronize_execution_providers"
Options = dict[str, str]


@dataclass
class Subgraph:
    """An OrtEpAssignedSubgraph: a provider, and nodes with name, op_type and domain."""

    ep_name: str
    nodes: list[Any]

    def get_nodes(self) -> list[Any]:
        return self.nodes


@pytest.fixture
def bundle(ids_case: tuple[Transformer, Path]) -> Bundle:
    return read_bundle(ids_case[1])


@pytest.fixture
def opened() -> list[tuple[str, Options]]:
    """The file and the provider's options of each session that was opened."""
    return []


@pytest.fixture
def pretend(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, Options]]
) -> Callable[..., None]:
    """Lets real sessions open as the provider's.

    `refusal` is raised for one that shall be captured. Nodes of the operators `on_processor` are
    placed there.
    """
    real = collection.InferenceSession._create_inference_session

    def pretend(refusal: str = "", on_processor: Sequence[str] = ()) -> None:
        def create(session: Any, providers: Any, options: Any, *more: Any) -> None:
            ((name, chosen),) = providers
            assert name == CUDA, "a session that falls back"
            opened.append((Path(session._model_path).name, chosen))
            if refusal and chosen["enable_cuda_graph"] == "1":
                raise RuntimeError(refusal)
            real(session, [CPU], None, *more)
            session._providers = [CUDA, CPU]
            nodes = [
                node
                for part in session._sess.get_provider_graph_assignment_info()
                for node in part.get_nodes()
            ]
            placed = [Subgraph(CPU if n.op_type in on_processor else CUDA, [n]) for n in nodes]
            session.get_provider_graph_assignment_info = lambda: placed

        monkeypatch.setattr(collection.InferenceSession, "_create_inference_session", create)

    return pretend


@pytest.fixture(autouse=True)
def libraries() -> Iterator[None]:
    cuda.load_libraries.cache_clear()
    yield
    cuda.load_libraries.cache_clear()


def test_the_double_records_placement_as_onnxruntime_does(bundle: Bundle) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(str(bundle.path("decoder.onnx")), options)
    part = session.get_provider_graph_assignment_info()[0]
    assert part.ep_name == CPU
    public = {name for name in dir(part) if not name.startswith("_")}
    assert public == {"ep_name", "get_nodes"}
    assert {n for n in dir(part.get_nodes()[0]) if n[0] != "_"} == {"name", "op_type", "domain"}


def test_options_of_the_sessions(
    bundle: Bundle, pretend: Callable[..., None], opened: list[tuple[str, Options]]
) -> None:
    pretend()
    sessions = open_sessions(bundle, DoubleDevice(index=1), 77)
    assert sessions.captures
    assert [(file, options["enable_cuda_graph"]) for file, options in opened] == [
        ("encoder.onnx", "0"),
        ("candidates.onnx", "0"),
        ("decoder.onnx", "1"),
    ]
    assert {options["device_id"] for _, options in opened} == {"1"}
    assert {options["user_compute_stream"] for _, options in opened} == {"77"}
    assert {options["use_tf32"] for _, options in opened} == {"0"}


def test_a_decoder_with_control_flow_is_opened_without_graphs(
    bundle: Bundle, pretend: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    pretend(CONTROL_FLOW, ("Squeeze", "Concat"))
    with caplog.at_level(logging.INFO, logger="dragoman"):
        assert not open_sessions(bundle, DoubleDevice(), 77).captures
    assert "without CUDA graphs" in caplog.text and "control flow nodes" in caplog.text


def test_a_decoder_that_computes_on_the_processor_is_refused(
    bundle: Bundle, pretend: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    pretend(COMPUTE_NODES, ("Squeeze", "Concat", "TensorScatter"))
    with pytest.raises(BackendError) as error:
        open_sessions(bundle, DoubleDevice(), 77)
    message = str(error.value)
    assert message.startswith(f"{bundle.path('decoder.onnx')}: expected a decoder that runs on the")
    assert "(TensorScatter), " in message and "Squeeze" not in message
    assert message.endswith(
        " and 3 more; upgrade onnxruntime-gpu, use the backend onnxruntime, or allow it with "
        "--allow-fallback (allow_fallback=True), which is slow"
    )
    assert "\n" not in message
    assert capfd.readouterr().out == ""


def test_a_decoder_may_compute_on_the_processor_if_that_is_allowed(
    bundle: Bundle,
    pretend: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such runs are synchronous, and a warning names the nodes."""
    pretend(COMPUTE_NODES, ("Squeeze", "TensorScatter"))
    monkeypatch.setattr(cuda, "find_gpu", lambda gpu: None)
    monkeypatch.setattr(cuda, "Device", lambda gpu: DoubleDevice(index=gpu))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    with pytest.raises(BackendError, match="expected a decoder that runs on the GPU"):
        load(bundle, device="cuda:1", check="never")
    with load(bundle, device="cuda:1", check="never", allow_fallback=True) as model:
        (stream,) = model.backend._streams  # type: ignore[attr-defined]
        assert stream.sessions.synchronous and not stream.sessions.captures
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "(TensorScatter)" in warnings[0]
    assert "on the processor, which is slow" in warnings[0]
    (awaited,), (asynchronous,) = (
        {
            cuda.run_options(number, synchronous=wait).get_run_config_entry(AWAITED)
            for number in (-1, 3)
        }
        for wait in (True, False)
    )
    assert (awaited, asynchronous) == ("0", "1")


def test_other_backends_ignore_that_nodes_may_run_on_the_processor(bundle: Bundle) -> None:
    with load(bundle, threads=1, check="never", allow_fallback=True) as model:
        assert model.generate([[3, 4]], max_new_tokens=3)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", DeviceLostError),
        ("CUDA failure 2: out of memory ; GPU=0 ;\n\nStacktrace:\n", BackendError),
    ],
)
def test_a_session_that_does_not_open_says_why_and_prints_nothing(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    message: str,
    kind: type[Exception],
) -> None:
    """ONNX Runtime's own way is to print a banner and to use the processor."""

    def create(session: Any, providers: Any, *more: Any) -> None:
        assert providers != [CPU], "the processor"
        session._fallback_providers = [CPU]
        raise RuntimeError(message)

    monkeypatch.setattr(collection.InferenceSession, "_create_inference_session", create)
    with pytest.raises(kind) as error:
        open_sessions(bundle, DoubleDevice(), 77)
    assert " ".join(message.split()) in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_whose_libraries_are_missing_names_them_and_prints_nothing(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ONNX Runtime prints their names, and opens the session on the processor without an error."""

    def preload() -> None:
        builtins.print("Failed to load libcublas.so.13: libcublas.so.13: cannot open shared object")
        builtins.print("Failed to load libcurand.so.10: libcurand.so.10: cannot open shared object")
        builtins.print("Please follow https://onnxruntime.ai/docs/install/#cuda-and-cudnn")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(cuda, "find_gpu", lambda index: Gpu("GPU", "9.0", "13.0"))
    monkeypatch.setattr(cuda, "Device", lambda index: DoubleDevice(index=index))
    with (
        caplog.at_level(logging.INFO, logger="dragoman"),
        pytest.raises(BackendError) as error,
    ):
        open_backend(bundle, None, 0)
    assert str(error.value) == (
        f"onnxruntime {onnxruntime.__version__} cannot load its {CUDA}: found no usable "
        "libcublas.so.13, libcurand.so.10: pip install 'dragoman[cuda]', or use the backend "
        "onnxruntime"
    )
    assert "Failed to load libcublas.so.13" in caplog.text
    assert capfd.readouterr().out == ""
