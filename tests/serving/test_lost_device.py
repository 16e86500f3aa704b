"""A server whose GPU is lost: ready no more, and requests fail as the protocol says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.runtime import Bundle, loading
from dragoman.runtime.backends.cuda.device import RESTART
from dragoman.runtime.backends.interface import Backend, DeviceLostError

from ..device_double import DoubleDevice
from ..provider_double import opened
from .conftest import serving

KERNEL = (
    "Non-zero status code returned while running TopK node. Name:'TopK_7' Status Message: CUDA "
    "error cudaErrorIllegalAddress:an illegal memory access was encountered"
)
CUBLAS = "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0 ; expr=cublasGemmHelper()"
GONE = "cudaMemGetInfo: unspecified launch failure (cudaErrorLaunchFailure)"


def health(client: httpx.Client) -> set[int]:
    paths = ("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready")
    return {client.get(path).status_code for path in paths}


@pytest.mark.parametrize(
    ("message", "reason"),
    [(KERNEL, f"{KERNEL}: {RESTART}"), (CUBLAS, f"{CUBLAS}: {GONE}")],
    ids=["name", "asked"],
)
def test_a_server_whose_device_is_lost_is_not_ready(
    bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, message: str, reason: str
) -> None:
    device = DoubleDevice()

    def open_backend(bundle: Bundle, *arguments: Any, **options: Any) -> Backend:
        return opened(bundle, device).backend

    def refuse(name: str) -> None:
        if name == "run":
            raise RuntimeError(message)
        if name == "free_memory":
            raise DeviceLostError(GONE)

    monkeypatch.setattr(loading, "open_backend", open_backend)
    with serving({"letters": bundle("letters")}) as client:
        body = {"source": "a"}
        assert client.post("/v1/generate", json=body).status_code == 200
        assert health(client) == {200}
        device.refuse = refuse
        for _ in range(2):
            answer = client.post("/v1/generate", json=body)
            assert answer.status_code == 503
            expected = {"error": f"onnxruntime failed: {reason}", "code": "backend_error"}
            assert answer.json() == expected
        assert health(client) == {503}
        assert client.post("/v2/repository/models/letters/unload").status_code == 200
        assert health(client) == {503}, "the device is lost for the next engine, too"
        device.refuse = lambda name: None


def test_a_server_that_finds_the_device_lost_at_loading_is_not_ready(
    bundle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_backend(*arguments: Any, **options: Any) -> Backend:
        raise DeviceLostError(GONE)

    with serving({"letters": bundle("letters")}, preload=False) as client:
        assert health(client) == {200}
        monkeypatch.setattr(loading, "open_backend", open_backend)
        answer = client.post("/v1/generate", json={"source": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"] == f"letters cannot be loaded: {GONE}"
        assert health(client) == {503}
