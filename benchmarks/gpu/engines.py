"""Checks whether TensorRT-RTX engines run on this GPU.

An engine is built for the default GPUs, then one for each compute capability. Each is checked for
validity according to the package, for loading, and for correct output.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.request import GPUS, EngineOptions
from dragoman.runtime import BackendError, Bundle, Model, load, read_bundle
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.cuda.device import Device
from dragoman.runtime.backends.tensorrt.backend import TensorRTBackend
from dragoman.runtime.backends.tensorrt.engines import check_validity
from dragoman.runtime.backends.tensorrt.packages import find_package
from dragoman.runtime.format.manifest import Profile, Range, TensorRTEngines

from ..models.bundles import optimized_bundle
from ..models.shipped import exported
from .parts import one_line

WORD = "dragoman"


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write engines.json after every engine, since a faulty one may end the process."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        neutral = exported(workspace / "neutral")
        expected = load(neutral).generate([WORD])[0].text
        graphs = optimized_bundle(
            neutral, workspace / "graphs", target="tensorrt-rtx", precision="fp16"
        )
        for capabilities in ((), *((capability,) for capability in GPUS)):
            name = ", ".join(capabilities) or "default"
            try:
                outcome = _build_and_run(
                    read_bundle(graphs), workspace / f"for {name}", capabilities, expected
                )
            except Exception as error:  # any error is the result
                outcome = one_line(error)
            rows.append({"built for": name, "outcome": outcome})
            (output / "engines.json").write_text(json.dumps(rows, indent=1) + "\n")


def _build_and_run(
    graphs: Bundle, directory: Path, capabilities: tuple[str, ...], expected: str | None
) -> str:
    """Build an engine, decode with it, and return the outcome.

    The engine runs even if the validity check rejects it.
    """
    directory.mkdir()
    profile = Profile(Range(1, 1, 1), Range(1, 16, 32))
    options = EngineOptions((profile,), 32, capabilities)
    bundle, _ = build_engines(graphs, directory, options)
    engines, package = bundle.manifest.executable, find_package(bundle.manifest.target)
    assert isinstance(engines, TensorRTEngines)
    validity = "found valid"
    try:
        check_validity(bundle, package, find_gpu())
    except BackendError as error:
        validity = str(error)
    with Model(bundle, TensorRTBackend(bundle, engines, package, Device())) as model:
        result = model.generate([WORD], max_new_tokens=32)[0]
    if result.error:
        return f"{validity}; loads, but does not decode: {result.error}"
    correct = result.text == expected
    decodes = "decodes" if correct else f"decodes to {result.text}, not {expected}"
    return f"{validity}; {decodes}"


if __name__ == "__main__":
    main()
