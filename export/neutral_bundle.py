"""A reference model -> a neutral bundle: its graphs, their weights, the tokenizers."""

import gc
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from dragoman import __version__
from dragoman.onnx_graphs.graph_files import load_graph, place_of, write_graphs
from dragoman.onnx_graphs.optional_graphs import (
    alignment_graph,
    attention_graph,
    candidates_graph,
    candidates_spec,
)
from dragoman.reference_model import EncoderModel, GenerationConfig, ReferenceModel
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import SCHEMA_VERSION, Adapter, Manifest, OnnxGraphs, Origin
from dragoman.runtime.format.neutral_graphs import kind_of
from dragoman.runtime.format.plain_data import to_plain
from dragoman.runtime.format.texts import Languages, Tokenizers
from dragoman.runtime.format.writing import BundleWriter

from .exporter import (
    ExportedGraph,
    audio_features,
    check_file,
    check_graph,
    default_max_new_tokens,
    export_graph,
    generation_settings,
    graph_names,
    head,
    model_spec,
    speech_tokens,
)
from .tokenizers import TokenizerFiles

PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript")


def export_bundle(
    model: ReferenceModel,
    directory: Path,
    *,
    name: str,
    tokenizers: TokenizerFiles | None = None,
    notes: Sequence[str] = (),
    origin: Origin | None = None,
    adapters: Sequence[Adapter] = (),
    attention: bool = False,
    writer: type[BundleWriter] = BundleWriter,
    progress: Callable[[str], None] = lambda stage: None,
) -> Bundle:
    """Export a model in fp32 into an existing directory. The bundle is neutral and not verified.

    Args:
        directory: use `runtime.format.writing.new_directory` to make it appear whole
        notes, origin, adapters: for the manifest
        attention: whether to add the graph that shows attention
        writer: `ScratchWriter` for a bundle that is only an intermediate result
        progress: called with each stage as it begins

    Raises:
        ContractError: a graph breaks the contract.
    """
    exported: dict[str, ExportedGraph] = {}
    for graph in graph_names(model):
        progress(f"exporting the {graph}")
        exported[graph] = export_graph(model, graph)
        check_graph(exported[graph], graph)
    progress("writing weights")
    files = writer(directory)
    specs: dict[str, GraphSpec] = {graph: made.spec for graph, made in exported.items()}
    models = {graph: made.model for graph, made in exported.items()}
    if "decoder" in specs:
        suppressed = _generation(model).suppressed_token_ids
        specs["candidates"] = candidates_spec(specs["decoder"], suppressed)
        models["candidates"] = candidates_graph(specs["candidates"], suppressed)
    if attention:
        models["attention"], specs["attention"] = attention_graph(
            models, specs, model_spec(model.config), head(model.config)
        )
    if model.config.takes_audio:
        heads = _generation(model).heads_that_align
        models["alignment"], specs["alignment"] = alignment_graph(
            models, specs, model_spec(model.config), heads
        )
    write_graphs(models, specs, files)
    progress("checking the graphs")
    for name_of_graph, spec in specs.items():
        check_file(directory / spec.file, name_of_graph)
    return files.finish(
        manifest_of(
            model,
            name=name,
            graphs=specs,
            tokenizers=tokenizers.write(files) if tokenizers else None,
            languages=tokenizers.languages if tokenizers else None,
            notes=notes,
            origin=origin,
            adapters=adapters,
        )
    )


def share_weights(model: ReferenceModel, bundle: Bundle) -> None:
    """Let a model read its weights where a neutral bundle holds the same numbers.

    The bundle's file is mapped, so that there is one copy in memory. Weights that differ keep their
    own: a bundle that is wrong cannot change a model.
    """
    graphs = [load_graph(bundle.graph_path(name)) for name in bundle.manifest.model_graphs]
    for name, parameter in model.named_parameters():
        values = (graph.graph.initializers.get(name) for graph in graphs)
        tensor = next((value.const_value for value in values if value is not None), None)
        numbers = None if tensor is None else tensor.numpy()
        if numbers is None or parameter.dim() != 2 or place_of(numbers) is None:
            continue
        with warnings.catch_warnings(action="ignore"):  # nothing writes into what is read-only
            own = torch.from_numpy(numbers)
        ways = (own, own.T)
        same = (way for way in ways if parameter.shape == way.shape and parameter.equal(way))
        parameter.data = next(same, parameter.data)
    del graphs
    gc.collect()  # the exporter's graphs hold the former weights in cycles


def manifest_of(
    model: ReferenceModel,
    *,
    name: str,
    graphs: dict[str, GraphSpec],
    tokenizers: Tokenizers | None = None,
    languages: Languages | None = None,
    notes: Sequence[str] = (),
    origin: Origin | None = None,
    adapters: Sequence[Adapter] = (),
) -> Manifest:
    """Make the manifest of a model's neutral bundle in fp32, without records of its files.

    The names of the tokenizers' files are those of `TokenizerFiles.write`.
    """
    spec, generation = model_spec(model.config), _generation(model)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        kind=kind_of(spec),
        name=name,
        target="neutral",
        precision="fp32",
        model=spec,
        head=head(model.config),
        architecture={"family": "transformer"} | to_plain(model.config.to_dict()),
        default_max_new_tokens=default_max_new_tokens(model),
        graphs=graphs,
        executable=OnnxGraphs(),
        tokenizers=tokenizers,
        languages=languages,
        files=(),
        generation=generation_settings(generation),
        audio=audio_features(model.config),
        speech=None if isinstance(model, EncoderModel) else speech_tokens(model),
        origin=origin,
        adapters=tuple(adapters),
        tool_versions={"dragoman": __version__}
        | {package: version(package) for package in PACKAGES},
        notes=tuple(notes),
    )


def _generation(model: ReferenceModel) -> GenerationConfig:
    return GenerationConfig() if isinstance(model, EncoderModel) else model.generation
