"""Writes down the Python API of a TensorRT package: classes, members, signatures.

    python tests/optimize/tensorrt/record_api.py tensorrt-cu13-bindings==11.4.0.106
    python tests/optimize/tensorrt/record_api.py tensorrt_rtx

TensorRT's libraries come from NVIDIA's own index and want a GPU, but its Python bindings lie on
PyPI and say what they are without them: stand-ins for the libraries (made with cc) are enough to
import the bindings and read their signatures. Nothing of TensorRT is run.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

CLASSES = (
    "Builder",
    "BuilderFlag",
    "ComputeCapability",
    "CudaGraphStrategy",
    "DataType",
    "DynamicShapesKernelSpecializationStrategy",
    "EngineInspector",
    "EngineInvalidityDiagnostics",
    "EngineValidity",
    "ExecutionContextAllocationStrategy",
    "IAttention",
    "IAttentionInputLayer",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILayer",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IProgressMonitor",
    "IRuntimeCache",
    "IRuntimeConfig",
    "ITimingCache",
    "LayerInformationFormat",
    "LayerType",
    "Logger",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "OnnxParserRefitter",
    "ParserError",
    "ProfilingVerbosity",
    "Refitter",
    "Runtime",
    "TensorIOMode",
)
Api = dict[str, dict[str, list[str]]]


def api_of(module: ModuleType) -> Api:
    """For every class its members, for every method its signatures."""
    return {name: _members(getattr(module, name)) for name in CLASSES if hasattr(module, name)}


def _members(kind: Any) -> dict[str, list[str]]:
    names = {n for n in dir(kind) if not n.startswith("_")} | {"__init__"}
    return {name: _signatures(name, getattr(kind, name)) for name in sorted(names)}


def _signatures(name: str, member: Any) -> list[str]:
    text = getattr(member, "__doc__", None) or ""
    if not callable(member):
        return []
    found = re.findall(rf"^(?:\d+\. )?({re.escape(name)}\(.*\) -> .*)$", text, re.MULTILINE)
    return [re.sub(r"\b\w+(\.\w+)*\.(\w+)", r"\2", signature) for signature in found]


def _bindings(requirement: str, directory: Path) -> ModuleType:
    """Import the bindings of a wheel, with stand-ins for the libraries that they load."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", str(directory), requirement], check=True)
    (wheel,) = directory.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(directory)
    library = directory / "tensorrt_bindings" / "tensorrt.so"
    lines = _output("nm", "--dynamic", "--undefined-only", library).splitlines()
    symbols = [line.split()[-1] for line in lines if re.search(r" U [a-z]\w+$", line)]
    source = directory / "stand_in.c"
    source.write_text("".join(f"void *{s}(void) {{ return 0; }}\n" for s in symbols))
    for name in re.findall(r"\[(libnv\w+\.so\.\d+)\]", _output("readelf", "--dynamic", library)):
        made = directory / name
        options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", made]
        subprocess.run(["cc", "-w", *options, source], check=True)  # noqa: S607
        ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL)  # the bindings take a library that is loaded
    sys.path.insert(0, str(library.parent))
    return importlib.import_module("tensorrt")


def _output(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def main() -> None:
    wanted = sys.argv[1]
    if "==" not in wanted:
        module = importlib.import_module(wanted)
        name = f"{wanted}-{module.__version__}"
    else:
        module = _bindings(wanted, Path(tempfile.mkdtemp()))
        name = f"tensorrt-{wanted.partition('==')[2]}"
    file = Path(__file__).parent / "api" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(api_of(module), indent=1, sort_keys=True) + "\n")
    print(file)


if __name__ == "__main__":
    main()
