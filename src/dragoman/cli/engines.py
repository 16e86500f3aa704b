"""Engines with progress shown: what `build` and `optimize` share."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from dragoman.optimize.tensorrt.engine_bundle import build_engines
from dragoman.optimize.tensorrt.capabilities import describe_capabilities
from dragoman.optimize.tensorrt.profiles import describe
from dragoman.optimize.tensorrt.refit import refit_engines
from dragoman.runtime import Bundle
from dragoman.runtime.format.manifest import Manifest

from .engine_options import EngineRequest


@contextlib.contextmanager
def place_for_graphs(directory: Path, engines: bool) -> Iterator[Path]:
    """Where the graphs of a bundle go: the directory itself, or, if engines are made of them, one
    beside it for the time being."""
    if not engines:
        yield directory
        return
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".graphs-") as graphs:
        yield Path(graphs)


def engines_into(directory: Path, graphs: Bundle, request: EngineRequest) -> Manifest:
    """Build engines with a line of status, and say what they are."""
    facts = graphs.manifest
    options = request.for_model(facts.model, facts.default_max_new_tokens)
    with Console(stderr=True).status("building engines") as status:
        manifest, warnings = build_engines(
            graphs, directory, options, progress=lambda stage: status.update(f"{stage} ...")
        )
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    print_engines(manifest)
    return manifest


def refit_into(directory: Path, engines: Bundle, graphs: Bundle) -> Manifest:
    """Put the graphs' weights into engines, with a line of status."""
    with Console(stderr=True).status("refitting") as status:
        return refit_engines(
            engines, graphs, directory, progress=lambda stage: status.update(f"{stage} ...")
        )


def print_engines(manifest: Manifest) -> None:
    """What was built, for whom, and what it costs."""
    engines = manifest.engines
    assert engines is not None
    sizes = {file.path: file.size for file in manifest.files}
    click.echo(f"engines of {manifest.target} {engines.version} (CUDA {engines.cuda_version})")
    for index, profile in enumerate(engines.profiles):
        click.echo(f"  profile {index}: {describe(profile)}, at most {engines.capacity} new tokens")
    click.echo(f"  run on {describe_capabilities(manifest.target, engines.compute_capabilities)}")
    for name, spec, report in (
        ("encoder", manifest.encoder, engines.encoder),
        ("decoder", manifest.decoder, engines.decoder),
    ):
        weights = sum(report.weights.values())
        click.echo(
            f"  {name}: {sizes[spec.file] / 1e6:.1f} MB, of which the weights are "
            f"{weights / 1e6:.1f} MB; attention: {report.attentions}, {fused(report.fused)}"
        )


def fused(kernels: dict[str, int] | None) -> str:
    """Kernels of fused attention in words."""
    if kernels is None:
        return "whether fused, it does not say"
    counts = ", ".join(f"{count} {name}" for name, count in kernels.items())
    return f"fused in {counts}" if kernels else "none fused"
