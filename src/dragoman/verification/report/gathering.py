"""Collects into a report what bundles record, what was measured, licences and the training."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dragoman import __version__
from dragoman.errors import DragomanError
from dragoman.files.regular_files import FileError, read_regular
from dragoman.files.strict_json import read_json_object
from dragoman.metrics import shown_figure
from dragoman.pictures import heat_maps
from dragoman.progress import Progress
from dragoman.reference_model.recipes import RECIPES
from dragoman.reference_model.recipes.recipe import RECIPE_FILE
from dragoman.reference_model.training.history import HISTORY_FILE, Candidate, read_history
from dragoman.runtime import Bundle, Model, load
from dragoman.runtime.encoding.front_end import source_of_line
from dragoman.runtime.format.contract import Kind
from dragoman.runtime.format.manifest import MANIFEST_FILE, Manifest, TensorRTEngines
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE
from dragoman.settings.head import Head
from dragoman.verification.report.manifest_facts import engine_facts, making_facts, model_facts

from ..parity_rows import parity_rows, rows_of_engines
from ..sensitivity import Sensitivity
from ..verdict import verdict_of
from .contents import AttentionExample, BundleReport, Fact, Licence, Part, Report, Speed, Training

KINDS: dict[Kind, str] = {
    "sequence-to-sequence": "encoder-decoder",
    "encoder": "encoder-only",
    "language-model": "decoder-only",
}


@dataclass(frozen=True)
class Additions:
    """What a report says that its bundles do not record."""

    checkpoint: Path | None = None
    """The directory of the checkpoint, whose licences are read."""
    foreign: Mapping[Path, str] = field(default_factory=dict)
    """Why bundles were not made from a model like the checkpoint, by directory."""
    sensitivities: Mapping[Path, Sensitivity] = field(default_factory=dict)
    """The sensitivity of some of the bundles, by directory."""
    unmeasured: Mapping[Path, str] = field(default_factory=dict)
    """Why the sensitivity of a bundle is missing, by directory."""
    speeds: Mapping[Path, Speed | str] = field(default_factory=dict)
    """The speed of some of the bundles, or why it is missing, by directory."""
    machine: str | None = None
    inputs: Path | None = None
    held_out: Path | None = None
    """The checkpoint's held-out data, which replaces missing inputs."""
    threads: int | None = None
    """The number of threads for attention; None: all cores."""
    signed: frozenset[Path] = frozenset()
    """Directories of bundles with a signature."""


def gather(
    bundles: Sequence[Bundle], additions: Additions, *, command: str, progress: Progress
) -> Report:
    """Collect everything that the page says."""
    reports = []
    for label, bundle in zip(_labels(bundles), bundles, strict=True):
        progress.stage(f"reading {label}")
        reports.append(_BundleReporter(bundle, additions).report(label))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    measured = any(isinstance(speed, Speed) for speed in additions.speeds.values())
    machine = additions.machine if measured else None
    return Report(now, __version__, machine, command, tuple(reports))


class _BundleReporter:
    def __init__(self, bundle: Bundle, additions: Additions) -> None:
        self._bundle, self._additions = bundle, additions
        self._foreign = additions.foreign.get(bundle.directory)
        self._missing: dict[Part, str] = {}

    def report(self, label: str) -> BundleReport:
        bundle, manifest = self._bundle, self._bundle.manifest
        speed = self._additions.speeds.get(bundle.directory, "not measured, as requested")
        sensitivity = self._additions.sensitivities.get(bundle.directory)
        parity = manifest.parity
        if parity is None:
            self._missing["parity"] = (
                f"not verified: dragoman verify {bundle.directory} CHECKPOINT compares it with the "
                "trained model and records the figures"
            )
        if sensitivity is None:
            self._missing["sensitivity"] = self._no_sensitivity()
        if isinstance(speed, str):
            self._missing["speed"] = speed
        engines = manifest.executable
        of_engines = engines.parity if isinstance(engines, TensorRTEngines) else None
        judged = parity
        if of_engines is not None and (parity is None or not of_engines.passed):
            judged = of_engines
        facts = [
            ("model", _shape(manifest)),
            *model_facts(manifest),
            *engine_facts(manifest),
            *making_facts(manifest),
        ]
        manifest_bytes = (bundle.directory / MANIFEST_FILE).read_bytes()
        return BundleReport(
            label=label,
            name=manifest.name,
            target=manifest.target,
            precision=manifest.precision,
            verdict=verdict_of(
                f"{manifest.name} in {manifest.precision} for target {manifest.target}",
                *(manifest.precision, judged, str(bundle.directory)),
                unrun=isinstance(engines, TensorRTEngines) and of_engines is None,
            ),
            facts=tuple(itertools.starmap(Fact, facts)),
            architecture=manifest.architecture,
            tool_versions=manifest.tool_versions,
            manifest_sha256=hashlib.sha256(manifest_bytes).hexdigest(),
            signed=bundle.directory in self._additions.signed,
            files=manifest.files,
            size_bytes=bundle.size,
            keep_fp32=manifest.keep_fp32,
            licences=self._licences(),
            training=self._training(),
            parity=parity,
            tasks=() if parity is None else parity.tasks,
            checks=(
                *(() if parity is None else parity_rows(parity)),
                *(() if of_engines is None else rows_of_engines(of_engines)),
            ),
            passes=manifest.passes,
            sensitivity=sensitivity,
            speed=None if isinstance(speed, str) else speed,
            attention=self._attention(),
            missing=self._missing,
        )

    def _licences(self) -> tuple[Licence, ...]:
        own = licences_in(self._bundle.directory, "bundle")
        none = "no licence file next to the manifest"
        checkpoint = self._additions.checkpoint
        others: tuple[Licence, ...] = ()
        if self._foreign is not None:
            why = f"those of the checkpoint are another model's: {self._foreign}"
            self._missing["licences"] = why if own else f"{none}; {why}"
        elif checkpoint is not None:
            others = licences_in(checkpoint, "checkpoint")
            if not own and not others:
                self._missing["licences"] = f"{none}, nor in the checkpoint"
        elif not own:
            self._missing["licences"] = f"{none}: --checkpoint reads those of the checkpoint"
        return own + others

    def _training(self) -> Training | None:
        checkpoint = self._additions.checkpoint
        if self._foreign is not None:
            self._missing["training"] = f"the checkpoint's is another model's: {self._foreign}"
        elif checkpoint is None:
            self._missing["training"] = "known from the checkpoint: --checkpoint CHECKPOINT"
        else:
            training = training_of(checkpoint)
            if training is not None:
                return training
            self._missing["training"] = "the checkpoint has no record of dragoman train"
        return None

    def _no_sensitivity(self) -> str:
        bundle, manifest = self._bundle, self._bundle.manifest
        if manifest.precision == "fp32":
            return "none in fp32, which keeps every number as it is"
        if manifest.precision not in ("int8", "int4") or manifest.executable.format != "onnx":
            return "measured of graphs in int8 and int4 only"
        if bundle.directory in self._additions.unmeasured:
            return self._additions.unmeasured[bundle.directory]
        return (
            f"not measured: dragoman sensitivity {bundle.directory} CHECKPOINT -o "
            "sensitivity.json, then --sensitivity sensitivity.json; or --checkpoint CHECKPOINT"
        )

    def _attention(self) -> tuple[AttentionExample, ...]:
        manifest, inputs = self._bundle.manifest, self._additions.inputs
        if inputs is None and self._foreign is None:
            inputs = self._additions.held_out
        if "attention" not in manifest.graphs:
            self._missing["attention"] = (
                "no graph that shows it: build --with-attention"
                if manifest.executable.format == "onnx"
                else "engines do not show it"
            )
        elif inputs is None:
            other = "" if self._foreign is None else f"; {self._foreign}"
            self._missing["attention"] = f"no inputs are known to show it on: --inputs FILE{other}"
        else:
            found = attention_examples(self._bundle, inputs, threads=self._additions.threads)
            if found:
                return found
            self._missing["attention"] = (
                f"no input of {inputs.name} is one that the model reads, and short enough"
            )
        return ()


def _shape(manifest: Manifest) -> str:
    known = manifest.architecture
    layers = [known.get(f"{part}_layers") for part in ("encoder", "decoder")]
    return (
        f"{manifest.name}, {KINDS[manifest.kind]} with {' + '.join(str(n) for n in layers if n)} "
        f"layers, size {known.get('d_model')}, feed-forward {known.get('d_ff')}, "
        f"{known.get('activation')}, {known.get('norm_order')}-norm"
    )


def _labels(bundles: Sequence[Bundle]) -> list[str]:
    names = [bundle.directory.resolve().name for bundle in bundles]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]


def matched(
    bundles: Sequence[Bundle], sensitivities: Sequence[Sensitivity]
) -> dict[Path, Sensitivity]:
    """Assign sensitivities to the directories of the bundles that they were measured on."""
    found: dict[Path, Sensitivity] = {}
    for sensitivity in sensitivities:
        weights = WEIGHTS_FILE, sensitivity.weights_sha256
        alike = [
            bundle.directory
            for bundle in bundles
            if any((file.path, file.sha256) == weights for file in bundle.manifest.files)
        ]
        if not alike:
            raise DragomanError(
                "sensitivities: expected those of one of these bundles, found one of another "
                f"{sensitivity.bundle} in {sensitivity.precision}, or of an earlier build"
            )
        found |= dict.fromkeys(alike, sensitivity)
    return found


def training_of(checkpoint: Path) -> Training | None:
    """Read the record of a checkpoint's training; None if there is none or it is damaged."""
    try:
        record = read_json_object(checkpoint / RECIPE_FILE)
        recipe, figures, data = record["recipe"], record["held_out"], record.get("data", {})
        known = RECIPES.get(recipe)
        shown = (
            {name: known.shown(figure) for name, figure in figures.items()}
            if known is not None and not record.get("metrics")
            else {name: shown_figure(name, figure) for name, figure in figures.items()}
        )
        return Training(
            recipe=recipe,
            metric=next(iter(figures)),
            pairs={name: count for name, count in data.items() if isinstance(count, int)},
            dropped=data.get("dropped", {}),
            corpora=tuple(map(_corpus, data.get("corpora", []))),
            unknown=tuple(_unknown(record.get("unknown characters", {}))),
            held_out=shown,
            options=record["training"],
            epochs=tuple(read_history(checkpoint / HISTORY_FILE)),
            candidates=tuple(Candidate(**candidate) for candidate in record.get("candidates", [])),
        )
    except (FileError, AttributeError, KeyError, StopIteration, TypeError, ValueError):
        return None


def _corpus(corpus: Mapping[str, Any]) -> str:
    prefix = f", prefix {corpus['prefix']}" if corpus["prefix"] else ""
    files = " and ".join(corpus["files"])
    return f"{files}: {corpus['pairs']:,} pairs after cleaning, weight {corpus['weight']:g}{prefix}"


def _unknown(parts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[str]:
    for part, sides in parts.items():
        for side, counts in sides.items():
            if counts["unknown"]:
                name = f"{part} {side}".replace("_", " ")
                yield f"{name}: {counts['unknown']:,} of {counts['characters']:,}"


Place = Literal["bundle", "checkpoint"]

LICENCE_NAME = re.compile(r"(licen[cs]e|copying|notice)(?![a-z])", re.IGNORECASE)
README_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)^---\s*$", re.MULTILINE | re.DOTALL)
LICENCE_FIELD = re.compile(r"^licen[cs]e:\s*['\"]?([^'\"\n]+)", re.MULTILINE)
"""The licence in the front matter of a README, as the Hugging Face Hub has it."""
LARGEST_LICENCE = 1 << 18
"""The most bytes of a licence file."""


def licences_in(directory: Path, place: Place) -> tuple[Licence, ...]:
    """Find the licence files of a directory; files that cannot be read are passed over."""
    found = []

    def add(path: Path, data: bytes, summary: str, text: str) -> None:
        digest = hashlib.sha256(data).hexdigest()
        found.append(Licence(place, path.name, summary, digest, text))

    for path in sorted(directory.iterdir()):
        data = _read(path) if LICENCE_NAME.match(path.name) else None
        if data is not None:
            text = data.decode(errors="replace")
            lines = (line.strip() for line in text.splitlines())
            add(path, data, next(filter(None, lines), ""), text)
    readme = directory / "README.md"
    data = _read(readme) or b""
    matter = README_FRONT_MATTER.match(data.decode(errors="replace"))
    named = None if matter is None else LICENCE_FIELD.search(matter[1])
    if named is not None:
        add(readme, data, named[1].strip(), "")
    return tuple(found)


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, LARGEST_LICENCE)
    except FileError:
        return None


EXAMPLES = 2
LONGEST = 40
"""Tokens along a side of a picture, as many as can be read."""
TIMES = 100
"""Columns of a picture of audio."""
CANDIDATES = 200
"""The most inputs that are tried; inputs with more tokens, or that cannot be read, are skipped."""


def attention_examples(
    bundle: Bundle, inputs: Path, *, threads: int | None
) -> tuple[AttentionExample, ...]:
    """Compute the attention on the first inputs of a file that are short enough, two at most."""
    with load(bundle.directory, threads=threads, check="never") as model:
        tried = (_example(model, *each) for each in _sources(bundle.manifest, inputs))
        found = (example for example in tried if example is not None)
        return tuple(itertools.islice(found, EXAMPLES))


def _sources(manifest: Manifest, inputs: Path) -> Sequence[tuple[str, Any]]:
    if manifest.audio is not None:
        from dragoman.verification.inputs.items import recording_items

        return [(item.origin, item.source) for item in recording_items(inputs)]
    try:
        with inputs.open(encoding="utf-8") as texts:
            lines = [line.rstrip("\n") for line in itertools.islice(texts, CANDIDATES)]
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{inputs}: expected a file of texts, in UTF-8: {error}") from error
    if manifest.head is not None:
        return [(line, _encoder_source(line, manifest.head)) for line in lines]
    return [(source, source) for source, _, _ in (line.partition("\t") for line in lines)]


def _encoder_source(line: str, head: Head) -> Any:
    try:
        return source_of_line(line, head)
    except DragomanError:
        return line


def _example(model: Model, text: str, source: Any) -> AttentionExample | None:
    try:
        attention = model.attention(source)
    except DragomanError:
        return None
    if attention.cross is not None:
        title = "output to source, the heads that align words"
        rows, columns, weights = attention.target, attention.source, attention.aligning
    else:
        (chosen, *_) = heat_maps(attention).values()
        title = f"{chosen.title} to itself, mean of all layers and heads"
        rows, columns, weights = chosen.rows, chosen.columns, chosen.chosen(None, None)
    unit = ""
    if model.manifest.audio is not None:
        firsts, unit = np.arange(0, len(columns), -(-len(columns) // TIMES)), "s"
        columns = tuple(columns[first] for first in firsts)
        weights = np.add.reduceat(weights, firsts, axis=1)
    elif max(len(rows), len(columns)) > LONGEST:
        return None
    plain = tuple(tuple(map(float, row)) for row in np.round(weights.astype(float), 4))
    return AttentionExample(title, text, rows, columns, plain, unit)
