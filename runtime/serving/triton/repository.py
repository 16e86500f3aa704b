"""Writes model repositories for Triton."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, shown

from ...format.bundle import read_bundle
from ...format.manifest import Manifest
from ...format.writing import new_directory
from ..apis.open_inference import TensorSpec, input_spec, output_specs

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.py"
VERSION = "1"
BUNDLE = "bundle"
"""The folder of a model's version that holds its bundle."""
OPTIONS = "options"
"""The input that holds options which the parameters of a request cannot hold."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MARK = "# Written by `dragoman deploy triton`: --force replaces it.\n"
"""The first line of the configuration of a model that may be replaced."""

PLACES = re.compile(rf"config\.pbtxt|{VERSION}(/model\.py|/({BUNDLE}|__pycache__)(/.*)?)?", re.S)
"""What is replaced of a model: the folder of its bundle as a whole."""

DATA_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}
PAIR_SHAPES = {"question-answering": (-1, 2), "sequence-classification": (-1, -1)}
"""Shapes of the texts of encoder-only models that read pairs, by the task of the head. Triton holds
requests to the number of dimensions."""
PARAMETERS = ("workers", "threads", "batch_size")
"""Fields of a deployment that are parameters of a configuration."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How Triton runs a model."""

    workers: int | None = None
    threads: int | None = None
    batch_size: int | None = None
    """`workers`, `threads` and `batch_size`: see `arrangement`; None: chosen on the serving
    machine."""
    streaming: bool = True
    """Whether a request may have a response for each token (Triton: decoupled)."""


def write_repository(
    directories: Mapping[str, Path],
    destination: Path,
    deployment: Deployment,
    *,
    link: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a model repository atomically.

    Args:
        link: whether to link to the bundles instead of copying them

    Raises:
        DragomanError: a name is not valid for Triton, or the destination exists (without
            `overwrite`), holds other files or cannot be written.
        BundleError: a directory does not hold a bundle.
    """
    for name in directories:
        if not NAME.fullmatch(name):
            raise DragomanError(
                f"expected a name of letters, digits, _, - and ., found {shown(name)}: choose one "
                "with --name"
            )
    manifests = {name: read_bundle(path).manifest for name, path in directories.items()}
    with new_directory(
        destination, overwrite=overwrite, kind="model repository", foreign=not_of_repository
    ) as directory:
        for name, bundle in directories.items():
            version = directory / name / VERSION
            version.mkdir(parents=True)
            text = config_text(name, manifests[name], deployment)
            (directory / name / CONFIG_FILE).write_text(text, encoding="utf-8")
            shutil.copyfile(Path(__file__).with_name(MODEL_FILE), version / MODEL_FILE)
            if link:
                (version / BUNDLE).symlink_to(bundle.resolve(), target_is_directory=True)
            else:
                _copy(bundle, version / BUNDLE)


def _copy(directory: Path, destination: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            copied = destination / path.relative_to(directory)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


def not_of_repository(directory: Path) -> Iterator[Path]:
    """Yield what neither `write_repository` nor Python wrote."""
    for model in directory.iterdir():
        if not _is_ours(model / CONFIG_FILE):
            yield model
            continue
        for path in model.rglob("*"):
            if not PLACES.fullmatch(path.relative_to(model).as_posix()):
                yield path


def _is_ours(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.readline(len(MARK)) == MARK.encode()
    except OSError:
        return False


def config_text(name: str, manifest: Manifest, deployment: Deployment) -> str:
    """Write the configuration of a model, `config.pbtxt`."""
    return "\n".join(_config_lines(name, manifest, deployment)) + "\n"


def deployment_of(config: Mapping[str, Any]) -> Deployment:
    """Parse the configuration that Triton passes to a model."""
    found = config.get("parameters", {})
    options: dict[str, int] = {}
    for name in PARAMETERS:
        if name in found:
            text = found[name]["string_value"]
            if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
                raise DragomanError(f"{name}: expected an integer from 1, found {shown(text)}")
            options[name] = int(text)
    policy = config.get("model_transaction_policy", {})
    return Deployment(streaming=bool(policy.get("decoupled", False)), **options)


def _config_lines(name: str, manifest: Manifest, deployment: Deployment) -> Iterator[str]:
    yield MARK.rstrip()
    yield f'name: "{name}"'
    yield 'backend: "python"'
    # Triton does not batch: requests join the running batch.
    yield "max_batch_size: 0"
    yield f"model_transaction_policy {{ decoupled: {str(deployment.streaming).lower()} }}"
    source = input_spec(manifest)
    if manifest.head is not None:
        shape = PAIR_SHAPES.get(manifest.head.task, source.shape)
        source = TensorSpec(source.name, source.datatype, shape)
    options = TensorSpec(OPTIONS, "BYTES", (1,))
    yield f"input {_config_tensor(source)}"
    yield f"input {_config_tensor(options, ' optional: true')}"
    yield from (f"output {_config_tensor(spec)}" for spec in output_specs(manifest))
    # One process has the weights and all workers; with KIND_GPU, Triton starts one for each GPU.
    kind = "KIND_CPU" if manifest.executable.format == "onnx" else "KIND_GPU"
    yield f"instance_group {{ count: 1 kind: {kind} }}"
    for parameter in PARAMETERS:
        value = getattr(deployment, parameter)
        if value is not None:
            yield f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}'


def _config_tensor(spec: TensorSpec, more: str = "") -> str:
    dims = ", ".join(map(str, spec.shape))
    data_type = DATA_TYPES[spec.datatype]
    return f'{{ name: "{spec.name}" data_type: {data_type} dims: [ {dims} ]{more} }}'
