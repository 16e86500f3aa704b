"""The text of a model's `config.pbtxt`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.errors import DragomanError

from ...format.manifest import Manifest
from ..apis.open_inference import TensorSpec, input_of, outputs_of

MARK = "# Written by `dragoman deploy triton`: --force replaces it.\n"
"""The first line of a model that may be replaced."""
OPTIONS = "options"
"""The input that holds what a request's parameters cannot."""

DATA_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}
SHAPES = {"question-answering": (-1, 2), "sequence-classification": (-1, -1)}
"""Of the texts of an encoder that reads pairs, by the task of its head: Triton holds requests to
the number of dimensions."""

PARAMETERS = {"workers": "loops", "threads": "threads", "batch_size": "rows"}
"""The names of engine options in a configuration."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How Triton runs a model.

    Attributes:
        loops, threads, rows: see `arrangement`, which the machine that serves is asked for
        streaming: whether a request may have an answer for each token (Triton: decoupled)
    """

    loops: int | None = None
    threads: int | None = None
    rows: int | None = None
    streaming: bool = True


def config_text(name: str, manifest: Manifest, deployment: Deployment) -> str:
    """
    Args:
        name: of the model; of letters, digits, `_`, `-` and `.`
    """
    return "\n".join(_lines(name, manifest, deployment)) + "\n"


def deployment_of(config: Mapping[str, Any]) -> Deployment:
    """What a configuration says, as Triton tells a model its own.

    Raises:
        DragomanError: an option is not a number.
    """
    found = config.get("parameters", {})
    options: dict[str, int] = {}
    for name, field in PARAMETERS.items():
        if name in found:
            text = found[name]["string_value"]
            if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
                raise DragomanError(f"{name}: expected an integer from 1, found {text!r:.40}")
            options[field] = int(text)
    policy = config.get("model_transaction_policy", {})
    return Deployment(streaming=bool(policy.get("decoupled", False)), **options)


def _lines(name: str, manifest: Manifest, deployment: Deployment) -> Iterator[str]:
    yield MARK.rstrip()
    yield f'name: "{name}"'
    yield 'backend: "python"'
    # Requests are not put together here: those that come later join a batch that is being decoded.
    yield "max_batch_size: 0"
    yield f"model_transaction_policy {{ decoupled: {str(deployment.streaming).lower()} }}"
    source = input_of(manifest)
    if manifest.head is not None:
        shape = SHAPES.get(manifest.head.task, source.shape)
        source = TensorSpec(source.name, source.datatype, shape)
    options = TensorSpec(OPTIONS, "BYTES", (1,))
    yield f"input {_tensor(source)}"
    yield f"input {_tensor(options, ' optional: true')}"
    yield from (f"output {_tensor(spec)}" for spec in outputs_of(manifest))
    # One process has the weights and all loops.
    yield "instance_group { count: 1 kind: KIND_CPU }"
    for parameter, field in PARAMETERS.items():
        value = getattr(deployment, field)
        if value is not None:
            yield f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}'


def _tensor(spec: TensorSpec, more: str = "") -> str:
    dims = ", ".join(map(str, spec.shape))
    data_type = DATA_TYPES[spec.datatype]
    return f'{{ name: "{spec.name}" data_type: {data_type} dims: [ {dims} ]{more} }}'
