"""Does an engine of TensorRT-RTX run on this GPU at all? Built for its default, then for each
compute capability alone: what was built, whether the package finds it valid, whether it decodes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dragoman.benchmarks.contenders import optimized
from dragoman.benchmarks.shipped import exported
from dragoman.optimize.tensorrt.builder import EngineOptions
from dragoman.optimize.tensorrt.capabilities import GPUS
from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.profiles import LATENCY
from dragoman.runtime import BackendError, Bundle, Model, load, read_bundle
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.cuda.driver import CudaDevice
from dragoman.runtime.backends.tensorrt.backend import TensorRTBackend
from dragoman.runtime.backends.tensorrt.compatibility import check_validity
from dragoman.runtime.backends.tensorrt.packages import find_package
from dragoman.runtime.format.executables import Profile, Range

WORD = "dragoman"


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write engines.json, anew after every engine: a process that dies leaves what it knew."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        neutral = exported(place / "neutral")
        expected = load(neutral).generate([WORD])[0].text
        graphs = optimized(neutral, place / "graphs", target="tensorrt-rtx", precision="fp16")
        for wanted in ((), *((capability,) for capability in GPUS)):
            name = ", ".join(wanted) or "default"
            try:
                outcome = _try(read_bundle(graphs), place / f"for {name}", wanted, expected)
            except Exception as error:  # whatever it is, it is the answer
                outcome = f"{type(error).__name__}: {' '.join(str(error).split())}"
            rows.append({"built for": name, "outcome": outcome})
            (output / "engines.json").write_text(json.dumps(rows, indent=1) + "\n")


def _try(graphs: Bundle, directory: Path, wanted: tuple[str, ...], expected: str | None) -> str:
    """Whatever is said of the engine, it is loaded and run: our own checks do not decide here."""
    directory.mkdir()
    profile = Profile(LATENCY, Range(1, 16, 32))
    options = EngineOptions((profile,), 32, wanted)
    manifest, _ = build_engines(graphs, directory, options)
    engines, package = manifest.engines, find_package(manifest.target)
    assert engines is not None
    bundle = read_bundle(directory)
    said = "found valid"
    try:
        check_validity(bundle, package, find_gpu())
    except BackendError as error:
        said = str(error)
    with Model(bundle, TensorRTBackend(bundle, engines, package, CudaDevice())) as model:
        found = model.generate([WORD], 32)[0]
    if found.error:
        return f"{said}; loads, but does not decode: {found.error}"
    decodes = "decodes" if found.text == expected else f"decodes to {found.text}, not {expected}"
    return f"{said}; {decodes}"


if __name__ == "__main__":
    main()
