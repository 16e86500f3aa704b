"""What `dragoman inspect` shows of TensorRT engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from dragoman.runtime import Bundle
    from dragoman.runtime.format.executables import EngineReport, Range, TensorRTEngines


def engine_table(bundle: Bundle, engines: TensorRTEngines) -> Table:
    """The engines; what only a GPU can tell is marked as such."""
    manifest = bundle.manifest
    sizes = {file.path: file.size for file in manifest.files}
    reports = list(engines.reports.values())
    files = [manifest.graphs[name].file for name in engines.reports]
    table = Table(
        title=f"engines of {manifest.target} {engines.version}, CUDA {engines.cuda_version}",
        title_justify="left",
    )
    for heading in ("", *engines.reports):
        table.add_column(heading)
    table.add_row("size", *(f"{sizes[file]:,} bytes" for file in files))
    table.add_row("weights", *(_counts(r.weights, " bytes of ") for r in reports))
    table.add_row("layers", *(_counts(r.layers, " ") for r in reports))
    table.add_row("attention", *(f"{r.attentions}, {_fused(r.fused)}" for r in reports))
    table.add_row("dequantized by separate kernels", *(_dequantizations(r) for r in reports))
    table.add_row("memory while running", *(_memory(bundle, file) for file in files))
    for index, profile in enumerate(engines.profiles):
        batch, source = _range(profile.batch), _range(profile.source)
        limits = {
            "encoder": f"batch {batch}\nsource {source}",
            "decoder": f"batch {batch}\nsource {source}\nat most {engines.capacity} new tokens",
            "candidates": f"batch {batch}",
        }
        table.add_row(f"profile {index}", *(limits[name] for name in engines.reports))
    capabilities = ", ".join(engines.compute_capabilities) or "the package's default"
    table.add_row("compute capabilities", *([capabilities] * len(reports)))
    table.add_row("refittable", *(["yes" if engines.refittable else "no"] * len(reports)))
    return table


def _counts(counts: dict[str, int], between: str) -> str:
    return "\n".join(f"{count:,}{between}{name}" for name, count in counts.items())


def _fused(kernels: dict[str, int] | None) -> str:
    if kernels is None:
        return "unknown whether fused"
    return ", ".join(f"{count} {name}" for name, count in kernels.items()) or "none fused"


def _dequantizations(report: EngineReport) -> str:
    count = report.dequantizations
    return "unknown" if count is None else str(count)


def _range(sizes: Range) -> str:
    return f"{sizes.smallest} to {sizes.largest} (best {sizes.best})"


def _memory(bundle: Bundle, file: str) -> str:
    """Device memory of an engine, besides weights and tensors."""
    from dragoman.runtime.backends.cuda import find_gpu
    from dragoman.runtime.backends.errors import BackendError
    from dragoman.runtime.backends.tensorrt.loaded_engine import device_memory

    try:
        find_gpu()
    except BackendError:
        return "known only on a GPU"
    try:
        return f"{device_memory(bundle, file):,} bytes"
    except BackendError as error:
        return str(error)
