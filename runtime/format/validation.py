"""Reads a manifest: checks the schema first, then the consistency between its parts."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.errors import shown
from dragoman.files.strict_json import parse_json

from .contract import CONTRACTS, OPTIONAL_GRAPHS, SHORTLIST_GRAPHS, GraphSpec
from .manifest import SCHEMA_VERSION, BundleError, Manifest, TensorRTEngines
from .neutral_graphs import (
    kind_of,
    neutral_graph,
    shape_breaches,
    slot_breaches,
    without_shortlist_weights,
)
from .plain_data import Problems, from_plain


def manifest_from_json(text: str, origin: str) -> Manifest:
    """Read and check a manifest; a BundleError lists all problems."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise BundleError(origin, [f"expected JSON: {error}"]) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BundleError(
            origin,
            [
                f"schema version {version} is newer than {SCHEMA_VERSION}, the newest that this "
                "Dragoman reads: upgrade with pip install --upgrade dragoman"
            ],
        )
    problems = Problems()
    manifest = from_plain(Manifest, data, "manifest", problems)
    if manifest is not None and manifest.schema_version != SCHEMA_VERSION:
        problems.append(
            f"schema_version: expected {SCHEMA_VERSION}, found {shown(manifest.schema_version)}"
        )
    if manifest is not None:
        problems.extend(inconsistencies(manifest))
    if manifest is None or problems:
        raise BundleError(origin, problems)
    return manifest


def inconsistencies(manifest: Manifest) -> list[str]:
    """Return one line for each inconsistency of a manifest."""
    problems = _kind(manifest)
    if problems:
        return problems
    known, layers = CONTRACTS[manifest.kind], manifest.model.decoder_layers
    needed = [name for name in known if name not in OPTIONAL_GRAPHS]
    if not set(needed) <= set(manifest.graphs) <= set(known):
        found = ", ".join(manifest.graphs) or "none"
        graphs = [f"graphs: expected {', '.join(needed)} for kind {manifest.kind}, found {found}"]
    elif layers > max(len(graph.inputs) for graph in manifest.graphs.values()):
        graphs = [
            f"model.decoder_layers: found {layers}, but the graphs have inputs for fewer layers"
        ]
    else:
        graphs = list(_graphs(manifest))
    return [
        *(f"model.{problem}" for problem in manifest.model.problems()),
        *(
            f"generation.{p}"
            for p in manifest.generation.problems(manifest.model.target_vocab_size)
            if manifest.model.has_decoder
        ),
        *_limits(manifest),
        *_executable(manifest),
        *_tokenizers(manifest),
        *_languages(manifest),
        *_files(manifest),
        *_speech(manifest),
        *graphs,
    ]


def _kind(manifest: Manifest) -> list[str]:
    problems = []
    found = kind_of(manifest.model)
    if manifest.kind != found:
        problems.append(f"kind: expected {found} for a model of these sizes, found {manifest.kind}")
    if (manifest.kind == "encoder") != (manifest.head is not None):
        expected = "one" if manifest.kind == "encoder" else "none"
        problems.append(f"head: expected {expected} for kind {manifest.kind}")
    if manifest.head is not None:
        vocabulary = manifest.model.source_vocab_size or 0
        problems += [f"head.{problem}" for problem in manifest.head.problems(vocabulary)]
    return problems


def _limits(manifest: Manifest) -> Iterator[str]:
    model, limit = manifest.model, manifest.default_max_new_tokens
    prompt = len(manifest.generation.prompt)
    longest = model.max_target_positions - prompt
    if not model.has_decoder and limit != 0:
        yield f"default_max_new_tokens: expected 0 for an encoder-only model, found {limit}"
    if model.has_decoder and not 1 <= limit <= longest:
        yield (
            f"default_max_new_tokens: expected 1 to {longest} "
            f"(max_target_positions{', less the prompt' if prompt else ''}), "
            f"found {shown(limit)}"
        )
    layers, heads = model.decoder_layers, model.num_heads
    for pair in manifest.generation.alignment_heads:
        if len(pair) == 2 and not (pair[0] < layers and pair[1] < heads):
            yield (
                f"generation.alignment_heads: expected layers below {layers} and heads below "
                f"{heads}, found {list(pair)}"
            )


def _executable(manifest: Manifest) -> Iterator[str]:
    engines = manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return
    if not engines.profiles:
        yield "executable.profiles: expected at least one, found none"
    for index, profile in enumerate(engines.profiles):
        for name, sizes in (("batch", profile.batch), ("source", profile.source)):
            if not sizes.in_order:
                yield (
                    f"executable.profiles[{index}].{name}: expected 1 <= smallest <= best <= "
                    "largest"
                )
    if manifest.model.has_decoder and not (
        1 <= engines.capacity <= manifest.model.max_target_positions
    ):
        yield (
            f"executable.capacity: expected 1 to {manifest.model.max_target_positions}, the "
            f"positions of the model, found {shown(engines.capacity)}"
        )
    if set(engines.reports) != set(manifest.graphs):
        found = ", ".join(engines.reports) or "none"
        yield f"executable.reports: expected {', '.join(manifest.graphs)}, found {found}"


def _tokenizers(manifest: Manifest) -> Iterator[str]:
    tokenizers = manifest.tokenizers
    if tokenizers is None:
        return
    template = tokenizers.template
    if tokenizers.source_vocabulary is not None and template is None:
        yield "tokenizers.template: expected one with source_vocabulary, found none"
    if template is not None and template.has_language and manifest.languages is None:
        yield "tokenizers.template: has a source language, but the model has no languages"
    known = manifest.model.source_vocab_size or 0
    for token in (*template.prefix, *template.suffix) if template else ():
        if isinstance(token, int) and not 0 <= token < known:
            yield f"tokenizers.template: expected ids in [0, {known}), found {shown(token)}"


def _languages(manifest: Manifest) -> Iterator[str]:
    languages = manifest.languages
    if languages is None:
        return
    known = manifest.model.target_vocab_size
    known = min(manifest.model.source_vocab_size or known, known)
    for code, token in languages.tokens.items():
        if not 0 <= token < known:
            yield f"languages.tokens.{code}: expected an id in [0, {known}), found {shown(token)}"
    for name in ("default_source", "default_target"):
        code = getattr(languages, name)
        if code is not None and code not in languages.tokens:
            yield f"languages.{name}: expected one of languages.tokens, found {shown(code)}"


def _files(manifest: Manifest) -> Iterator[str]:
    recorded = {file.path for file in manifest.files}
    used = [graph.file for graph in manifest.graphs.values()]
    if manifest.tokenizers is not None:
        used += manifest.tokenizers.files
    for name in used:
        if name not in recorded:
            yield f"file {name} is used but not listed in files"


def _speech(manifest: Manifest) -> Iterator[str]:
    model = manifest.model
    for name, value in (("audio", manifest.audio), ("speech", manifest.speech)):
        if (value is not None) != model.takes_audio:
            yield (
                f"{name}: expected {'one' if model.takes_audio else 'none'}, as "
                f"model.source_vocab_size is {model.source_vocab_size}, found "
                f"{'none' if value is None else 'one'}"
            )
    if manifest.speech is not None:
        for problem in manifest.speech.problems(model.target_vocab_size):
            yield f"speech.{problem}"
    if manifest.audio is not None:
        for problem in manifest.audio.problems():
            yield f"audio.{problem}"


def _graphs(manifest: Manifest) -> Iterator[str]:
    model, audio = manifest.model, manifest.audio
    sizes_known = not model.problems() and not (audio and audio.problems())
    for name in CONTRACTS[manifest.kind]:
        if name not in manifest.graphs:
            continue
        graph = manifest.graphs[name]
        settings = audio if sizes_known else None
        expected = neutral_graph(name, graph.file, model, settings, manifest.head)
        graph = without_shortlist_weights(graph)
        for problem in slot_breaches(graph, expected):
            yield f"graphs.{name}.{problem}"
        for problem in shape_breaches(graph, expected) if sizes_known else ():
            yield f"graphs.{name}.{problem}"
    if "candidates" in manifest.graphs and sizes_known:
        yield from _candidates(manifest.graphs["candidates"], manifest)
    yield from _shortlist(manifest)


def _shortlist(manifest: Manifest) -> Iterator[str]:
    present = SHORTLIST_GRAPHS & manifest.graphs.keys()
    if present and present != SHORTLIST_GRAPHS:
        yield f"graphs: expected {' and '.join(sorted(SHORTLIST_GRAPHS))}, found one of them"
        return
    if bool(present) != (manifest.shortlist is not None):
        yield "shortlist: expected one exactly if there are graphs of a shortlist"
    if not present:
        return
    gathered = manifest.graphs["shortlist_weights"].outputs
    taken = manifest.graphs["shortlist_decoder"].inputs
    taken = tuple(tensor for tensor in taken if tensor.role == "shortlist_weight")
    numbers = [tensor.layer for tensor in gathered]
    if gathered != taken or numbers != list(range(max(1, len(numbers)))):
        yield "graphs.shortlist_decoder.inputs: expected the outputs of shortlist_weights"
    for tensor in gathered:
        if tensor.role != "shortlist_weight" or tensor.shape.count("shortlist") != 1:
            yield (
                f"graphs.shortlist_weights.outputs: expected {tensor.name} to have one axis "
                f"shortlist, found {list(tensor.shape)}"
            )
    if manifest.shortlist is not None and manifest.shortlist.file not in {
        file.path for file in manifest.files
    }:
        yield f"file {manifest.shortlist.file} is used but not listed in files"


def _candidates(graph: GraphSpec, manifest: Manifest) -> Iterator[str]:
    """Check that candidates are selected from the decoder's logits, with one fixed count."""
    found = {(tensor.role, tensor.dtype, tensor.shape) for tensor in graph.inputs}
    logits = manifest.graphs["decoder"].outputs
    if not found <= {(tensor.role, tensor.dtype, tensor.shape) for tensor in logits}:
        yield "graphs.candidates.inputs: expected the decoder's logits"
    counts = {tensor.shape[-1] for tensor in graph.outputs}
    vocabulary = manifest.model.target_vocab_size
    if not (len(counts) == 1 and all(isinstance(n, int) and n <= vocabulary for n in counts)):
        yield (
            f"graphs.candidates.outputs: expected one number of candidates, at most {vocabulary}, "
            f"found {', '.join(map(str, counts))}"
        )
