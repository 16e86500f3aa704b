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
from dragoman.optimize.tensorrt.bundle import build_engines
from dragoman.optimize.tensorrt.capabilities import GPUS
from dragoman.optimize.tensorrt.profiles import LATENCY
from dragoman.runtime import Bundle, load, read_bundle
from dragoman.runtime.engines import Profile, Range

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
    directory.mkdir()
    profile = Profile(LATENCY, Range(1, 16, 32))
    build_engines(graphs, directory, EngineOptions((profile,), 32, wanted))
    with load(directory) as model:
        found = model.generate([WORD], 32)[0]
    if found.error:
        return f"loads, but does not decode: {found.error}"
    return "decodes" if found.text == expected else f"decodes to {found.text}, not {expected}"


if __name__ == "__main__":
    main()
