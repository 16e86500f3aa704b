"""The table of backends. A new backend is a module or a folder here and a row of `BACKENDS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..format.bundle import Bundle
from ..format.manifest import Precision


@dataclass(frozen=True)
class BackendRecord:
    """The properties of a backend that are known without importing it."""

    name: str
    module: str
    """Module within this package, with `open_backend(bundle, threads) -> Backend`; that of a GPU
    has `open_backend(bundle, threads, gpu) -> Backend`."""
    library: str
    extra: str
    """Extra that installs the package: pip install 'dragoman[EXTRA]'."""
    runs: Literal["onnx", "tensorrt"]
    device: Literal["cpu", "cuda"]
    targets: tuple[str, ...] | None = None
    other_targets: tuple[str, ...] = ()
    """Targets whose bundles only their own backend runs."""
    precisions: tuple[Precision, ...] | None = None
    missing_kernels: str = ""
    """Reason why other targets and precisions do not run."""
    encoder_only: bool = False
    """Whether models with a decoder do not run."""
    falls_back: bool = False
    """Whether nodes may run on the processor if `open_backend` gets `allow_fallback`."""

    def refusal(self, bundle: Bundle) -> str | None:
        """Return an error message if this backend cannot run a bundle, by its manifest."""
        manifest, directory = bundle.manifest, bundle.directory
        target = manifest.target
        if manifest.executable.format != self.runs:
            if self.runs == "onnx":
                return (
                    f"{directory} holds engines: expected backend {target}, which runs them, found "
                    f"{self.name}, which runs ONNX graphs"
                )
            return (
                f"{directory} holds ONNX graphs: backend {self.name} runs engines, which dragoman "
                f"build --target {self.name} builds from its checkpoint"
            )
        if self.encoder_only and manifest.model.has_decoder:
            return (
                f"{directory}: expected an encoder-only model, which backend {self.name} is for, "
                "found one with a decoder"
            )
        if target in self.other_targets:
            return (
                f"{directory}: its graphs are for target {target}, and its parity was checked with "
                f"it: expected backend {target}, found {self.name}"
            )
        if self.targets is not None and target not in self.targets:
            if self.runs == "tensorrt":
                return (
                    f"{directory} holds engines of {target}: expected that backend, found "
                    f"{self.name}"
                )
            expected = " or ".join(self.targets)
            return (
                f"{directory}: its graphs are for target {target}: {self.name} "
                f"{self.missing_kernels}: expected target {expected} (dragoman build --target "
                f"{self.targets[0]})"
            )
        if self.precisions is not None and manifest.precision not in self.precisions:
            return (
                f"{directory}: its precision is {manifest.precision}: {self.name} "
                f"{self.missing_kernels}: expected {', '.join(self.precisions)}"
            )
        return None


BACKENDS: tuple[BackendRecord, ...] = (
    BackendRecord(
        *("openvino", "openvino", "openvino", "openvino", "onnx"),
        device="cpu",
        targets=("openvino",),
        missing_kernels="runs bundles whose parity was checked with it",
        encoder_only=True,
    ),
    BackendRecord(
        *("onnxruntime", "onnxruntime.cpu", "onnxruntime", "cpu", "onnx"),
        device="cpu",
        other_targets=("openvino",),
    ),
    BackendRecord(
        *("onnxruntime-cuda", "onnxruntime.cuda", "onnxruntime", "cuda", "onnx"),
        device="cuda",
        targets=("neutral",),
        precisions=("fp32", "fp16", "int8", "int4"),
        other_targets=("openvino",),
        missing_kernels="lacks kernels for it (the CUDA provider has no ArgMax in bf16, and few of "
        "the cpu target's operators)",
        falls_back=True,
    ),
    BackendRecord(
        *("tensorrt-rtx", "tensorrt.backend", "tensorrt_rtx", "tensorrt-rtx", "tensorrt"),
        device="cuda",
        targets=("tensorrt-rtx",),
    ),
    BackendRecord(
        *("tensorrt", "tensorrt.backend", "tensorrt", "tensorrt", "tensorrt"),
        device="cuda",
        targets=("tensorrt",),
    ),
)
"""All backends in order of preference; by default, the first that runs a bundle is used."""

BACKEND_NAMES = tuple(record.name for record in BACKENDS)
