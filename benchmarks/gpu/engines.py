"""Checks whether TensorRT-RTX engines run on this GPU.

Engines are built for the default GPUs, for this one, and for compute capability 9.0. Each is
checked for validity according to the package, for loading, and for correct output. Without a GPU,
engines are built only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.request import EngineOptions
from dragoman.runtime import BackendError, Bundle, Model, load, read_bundle
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.cuda.device import Device
from dragoman.runtime.backends.tensorrt.backend import TensorRTBackend
from dragoman.runtime.backends.tensorrt.engines import check_validity
from dragoman.runtime.backends.tensorrt.packages import find_package
from dragoman.runtime.format.manifest import Profile, Range, TensorRTEngines

from ..models.bundles import exported, optimized_bundle
from ..processes import reason
from .parts import command

WORD = "dragoman"
HOPPER, ADA = "9.0", "8.9"
"""H100 and H200, which are not on TensorRT-RTX's list; and GPUs which are."""


def check(workspace: Path, device: str) -> Iterator[list[dict[str, str]]]:
    """Build engines for the default GPUs, and for compute capabilities, and run them."""
    present = ADA if device == "cpu" else find_gpu().compute_capability
    neutral = exported(workspace / "neutral")
    expected = load(neutral).generate([WORD])[0].text
    kind = {"target": "tensorrt-rtx", "precision": "fp16"}
    graphs = read_bundle(optimized_bundle(neutral, workspace / "graphs", **kind))
    rows = []
    for capabilities in dict.fromkeys([(), (present,), (HOPPER,)]):
        name = ", ".join(capabilities) or "default"
        try:
            folder = workspace / f"for {name}"
            folder.mkdir()
            profiles = (Profile(Range(1, 1, 1), Range(1, 16, 32)),)
            built = build_engines(graphs, folder, EngineOptions(profiles, 32, capabilities))
            outcome = "built" if device == "cpu" else _run(built[0], expected)
        except Exception as error:  # any error is the result
            outcome = reason(error)
        rows.append({"built for": name, "outcome": outcome})
        yield rows


def _run(bundle: Bundle, expected: str | None) -> str:
    """Decode with engines, even if the validity check rejects them, and return the outcome."""
    engines, package = bundle.manifest.executable, find_package(bundle.manifest.target)
    assert isinstance(engines, TensorRTEngines)
    validity = "found valid"
    try:
        check_validity(bundle, engines, package, find_gpu())
    except BackendError as error:
        validity = str(error)
    with Model(bundle, TensorRTBackend(bundle, engines, package, Device())) as model:
        result = model.generate([WORD], max_new_tokens=32)[0]
    if result.error:
        return f"{validity}; loads, but does not decode: {result.error}"
    correct = result.text == expected
    decodes = "decodes" if correct else f"decodes to {result.text}, not {expected}"
    return f"{validity}; {decodes}"


main = command("engines", check)

if __name__ == "__main__":
    main()
