"""Describes a bundle by its manifest, with a name and a text for each fact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dragoman.runtime.backends.rows import POSITION_MULTIPLE
from dragoman.runtime.format.manifest import Manifest, PassRecord, TensorRTEngines
from dragoman.runtime.format.texts import Languages
from dragoman.settings.generation_settings import GenerationSettings, Part, setting_names
from dragoman.settings.head import Head
from dragoman.settings.speech import SpeechTokens

Facts = list[tuple[str, str]]

NOT_RUN = "engines not run: their outputs were not compared with the trained model's"
"""What the manifest of engines says that were built where no GPU runs them."""

SHOWN = 8
"""The most tokens of a setting that are listed."""


def model_facts(manifest: Manifest) -> Facts:
    """Describe where the model is from, what it is, and its inputs and outputs."""
    origin, languages = manifest.origin, manifest.languages
    return [
        *([("made from", f"{origin.model}, commit {origin.commit}")] if origin else []),
        *[
            ("adapter", f"{adapter.name}, SHA-256 {adapter.sha256}")
            for adapter in manifest.adapters
        ],
        ("target", f"{manifest.target}, {manifest.precision}"),
        *(_decoder(manifest) if manifest.head is None else _encoder(manifest, manifest.head)),
        ("tokenizers", _tokenizers(manifest)),
        *_speech(manifest),
        *([("languages", _languages(languages))] if languages else []),
        *_shortlist(manifest),
        *_batch_invariance(manifest),
    ]


def engine_facts(manifest: Manifest) -> Facts:
    """Describe how the engines' own outputs compare with the trained model's; nothing of graphs."""
    engines = manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return []
    parity = engines.parity
    if parity is None:
        return [("engines", NOT_RUN)]
    outcome = "passed" if parity.passed else "failed"
    return [("engines", f"{outcome} on {parity.backend} ({parity.inputs})")]


def making_facts(manifest: Manifest) -> Facts:
    """Describe how the bundle was made."""
    versions = ", ".join(f"{name} {version}" for name, version in manifest.tool_versions.items())
    kept, build = manifest.keep_fp32, manifest.build
    taken = ""
    if build is not None:
        memory = build.peak_memory_mb / 1000
        taken = f"{build.seconds:,.0f} s, with at most {memory:.1f} GB of memory"
    return [
        ("passes", _passes(manifest.passes)),
        *([("in fp32", f"{', '.join(kept)}, as requested")] if kept else []),
        *([("calibrated", f"on {manifest.calibrated_on} inputs")] * bool(manifest.calibrated_on)),
        *([("built in", taken)] if taken else []),
        ("made with", versions),
        *(("note", note) for note in manifest.notes),
    ]


def _shortlist(manifest: Manifest) -> Facts:
    shortlist = manifest.shortlist
    if shortlist is None:
        return []
    found = (
        f"{shortlist.entries:,} entries that allow {shortlist.mean:,.0f} tokens on average, "
        f"{shortlist.always:,} tokens are always allowed"
    )
    cost = None if manifest.parity is None else manifest.parity.shortlist
    if cost is not None:
        found += (
            f"; {cost.allowed:,.0f} tokens a source, {cost.identical} of {cost.sequences} outputs "
            "are those of the whole vocabulary"
        )
    return [("shortlist", found)]


def _tokenizers(manifest: Manifest) -> str:
    if manifest.tokenizers is None:
        return "none: token ids in and out"
    if manifest.tokenizers.pretokenized:
        return "vocabularies: tokens, separated by spaces, in and out"
    return "inside"


def _decoder(manifest: Manifest) -> list[tuple[str, str]]:
    model = manifest.model
    heads = f"{model.num_heads} of size {model.head_size}"
    of_source = model.has_encoder and manifest.audio is None
    vocabularies = f"{model.source_vocab_size} source, " if of_source else ""
    positions = f"{model.max_source_positions} source, " if model.has_encoder else ""
    return [
        ("decoder", f"{model.decoder_layers} layers, heads: {heads}"),
        ("vocabulary", f"{vocabularies}{model.target_vocab_size} target"),
        ("positions", f"{positions}{model.max_target_positions} target"),
        ("decodes", _strategy(manifest.generation)),
        ("new tokens", f"at most {manifest.default_max_new_tokens} by default"),
        *_settings(manifest.generation),
    ]


def _encoder(manifest: Manifest, head: Head) -> list[tuple[str, str]]:
    model = manifest.model
    rows = [
        ("encoder", f"encoder-only; heads: {model.num_heads} of size {model.head_size}"),
        ("vocabulary", f"{model.source_vocab_size}"),
        ("positions", f"{model.max_source_positions}"),
        ("gives", head.task.replace("-", " ") + f", {head.outputs} numbers"),
    ]
    return [*rows, ("labels", ", ".join(head.labels))] if head.labels else rows


def _speech(manifest: Manifest) -> list[tuple[str, str]]:
    audio, speech = manifest.audio, manifest.speech
    if audio is None or speech is None:
        return []
    rate = f"{audio.sampling_rate} Hz, {audio.bins} mel bins"
    codes = ", ".join(sorted(speech.languages))
    default = speech.default_language or "detected"
    languages = f"{len(speech.languages)}: {codes} (default: {default})"
    return [
        ("audio", f"windows of {audio.chunk_seconds:g} s, {rate}"),
        ("languages", languages if speech.languages else "one"),
        ("tasks", ", ".join(sorted(speech.tasks)) or "transcribe"),
        ("timestamps", _timestamps(speech)),
    ]


def _batch_invariance(manifest: Manifest) -> Facts:
    if manifest.target != "cpu":
        return []
    promise = "every output is the same bit for bit, whatever else is in it (x86 processors)"
    model = manifest.model
    beyond = model.max_source_positions % POSITION_MULTIPLE
    if beyond and model.has_encoder and manifest.audio is None:
        longest = model.max_source_positions - beyond
        promise += f", up to sources of {longest} tokens"
    return [("in a batch", promise)]


def _strategy(generation: GenerationSettings) -> str:
    if generation.do_sample:
        return ", ".join(["samples", *_changed(generation, setting_names(Part.SAMPLING))])
    if generation.num_beams > 1:
        early = str(generation.early_stopping).lower()
        penalty = f"length penalty {generation.length_penalty:g}"
        return f"{generation.num_beams} beams, {penalty}, early stopping {early}"
    return "greedily"


def _settings(generation: GenerationSettings) -> list[tuple[str, str]]:
    strategy = setting_names(Part.STRATEGY)
    if generation.do_sample:
        strategy += setting_names(Part.SAMPLING)
    elif generation.num_beams > 1:
        strategy += setting_names(Part.BEAMS)
    names = [name for name in vars(generation) if name not in strategy]
    shown = "; ".join(_changed(generation, names))
    return [("settings", shown)] if shown else []


def _changed(generation: GenerationSettings, names: Iterable[str]) -> Iterator[str]:
    plain = type(generation)()
    for name in names:
        value = getattr(generation, name)
        if value == getattr(plain, name):
            continue
        if isinstance(value, tuple):
            value = f"{len(value)} tokens" if len(value) > SHOWN else [*value]
        yield f"{name} {value}"


def _timestamps(speech: SpeechTokens) -> str:
    if speech.no_timestamps_token_id is None:
        return "no"
    return "by default" if speech.default_timestamps else "on demand"


def _passes(passes: tuple[PassRecord, ...]) -> str:
    matches: Counter[str] = Counter()
    details: dict[str, Counter[str]] = {}
    for step in passes:
        matches[step.name] += step.matches
        counts = details.setdefault(step.name, Counter())
        counts.update(choice.chosen for choice in step.choices)
        counts["refused"] += len(step.refusals)
    texts = []
    for name, counts in details.items():
        shown = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        texts.append(f"{name} {matches[name]}" + (f" ({shown})" if shown else ""))
    return ", ".join(texts) or "none"


def _languages(languages: Languages) -> str:
    texts = [f"{len(languages.tokens)}: {', '.join(sorted(languages.tokens))}"]
    if languages.default_source is not None:
        texts.append(f"default source {languages.default_source}")
    if languages.default_target is not None:
        texts.append(f"default target {languages.default_target}")
    return "; ".join(texts)
