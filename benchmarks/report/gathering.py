"""What is known of bundles -> a report."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman import __version__
from dragoman.errors import DragomanError
from dragoman.manifest_facts import making_facts, model_facts
from dragoman.progress import Progress
from dragoman.runtime import Bundle
from dragoman.runtime.format.contract import Kind
from dragoman.runtime.format.manifest import MANIFEST_FILE, Manifest
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE

from ..machine import machine
from ..sensitivity.results import Sensitivity
from .attention import attention_examples
from .checks import checks_of, verdict_of
from .contents import AttentionExample, BundleReport, Fact, Licence, Part, Report, Speed
from .licences import licences_in
from .speed import measure_speed

KINDS: dict[Kind, str] = {
    "sequence-to-sequence": "an encoder and decoder",
    "encoder": "an encoder alone",
    "language-model": "a decoder alone",
}


@dataclass(frozen=True)
class Wanted:
    """What goes into a report beside what bundles hold.

    Attributes:
        checkpoint: the directory of the checkpoint, whose licences are read
        foreign: why bundles were not made from a model like the checkpoint, by directory
        sensitivities: of some of the bundles, by directory
        unmeasured: why the sensitivity of a bundle is missing, by its directory
        inputs: to show attention on
        held_out: the same, of the checkpoint, where there are no inputs
        threads: of the processor; None: all cores
        speed: whether to measure it
        signed: directories of bundles with a signature
    """

    checkpoint: Path | None = None
    foreign: Mapping[Path, str] = field(default_factory=dict)
    sensitivities: Mapping[Path, Sensitivity] = field(default_factory=dict)
    unmeasured: Mapping[Path, str] = field(default_factory=dict)
    inputs: Path | None = None
    held_out: Path | None = None
    threads: int | None = None
    speed: bool = True
    signed: frozenset[Path] = frozenset()


def gather(
    bundles: Sequence[Bundle], wanted: Wanted, *, command: str, progress: Progress
) -> Report:
    """Everything that the page says.

    Raises:
        DragomanError: the inputs cannot be read.
    """
    speeds = {}
    if wanted.speed:
        progress.stage("measuring speed")
        speeds = measure_speed(bundles, threads=wanted.threads, advance=progress.advance)
    reports = []
    for label, bundle in zip(_labels(bundles), bundles, strict=True):
        progress.stage(f"reading {label}")
        speed = speeds.get(bundle.directory, "not measured, as asked")
        found = _Gathered(bundle, wanted)
        reports.append(found.report(label, speed))
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    measured = any(isinstance(speed, Speed) for speed in speeds.values())
    return Report(now, __version__, machine() if measured else None, command, tuple(reports))


class _Gathered:
    """A bundle, and what is missing of its report."""

    def __init__(self, bundle: Bundle, wanted: Wanted) -> None:
        self._bundle, self._wanted = bundle, wanted
        self._foreign = wanted.foreign.get(bundle.directory)
        self._missing: dict[Part, str] = {}

    def report(self, label: str, speed: Speed | str) -> BundleReport:
        bundle, manifest = self._bundle, self._bundle.manifest
        sensitivity = self._wanted.sensitivities.get(bundle.directory)
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
        explained = None if parity is None else parity.tokens.allowed_margin
        manifest_bytes = (bundle.directory / MANIFEST_FILE).read_bytes()
        return BundleReport(
            label=label,
            name=manifest.name,
            target=manifest.target,
            precision=manifest.precision,
            verdict=verdict_of(
                f"{manifest.name} in {manifest.precision} for target {manifest.target}",
                *(manifest.precision, parity, str(bundle.directory), explained),
            ),
            facts=tuple(
                Fact(name, value)
                for name, value in (
                    ("model", _shape(manifest)),
                    *model_facts(manifest),
                    *making_facts(manifest),
                )
            ),
            architecture=manifest.architecture,
            tool_versions=manifest.tool_versions,
            manifest_sha256=hashlib.sha256(manifest_bytes).hexdigest(),
            signed=bundle.directory in self._wanted.signed,
            files=manifest.files,
            size_bytes=bundle.size,
            keep_fp32=manifest.keep_fp32,
            licences=self._licences(),
            parity=parity,
            tasks=() if parity is None else parity.tasks,
            checks=() if parity is None else checks_of(parity, explained),
            explained_margin=explained,
            passes=manifest.passes,
            sensitivity=sensitivity,
            speed=None if isinstance(speed, str) else speed,
            attention=self._attention(),
            missing=self._missing,
        )

    def _licences(self) -> tuple[Licence, ...]:
        """Of a checkpoint of another model none, which is said even if there are others."""
        beside = licences_in(self._bundle.directory, "bundle")
        none = "no licence file beside the manifest"
        checkpoint = self._wanted.checkpoint
        others: tuple[Licence, ...] = ()
        if self._foreign is not None:
            why = f"those of the checkpoint are another model's: {self._foreign}"
            self._missing["licences"] = why if beside else f"{none}; {why}"
        elif checkpoint is not None:
            others = licences_in(checkpoint, "checkpoint")
            if not beside and not others:
                self._missing["licences"] = f"{none}, nor in the checkpoint"
        elif not beside:
            self._missing["licences"] = f"{none}: --checkpoint reads those of the checkpoint"
        return beside + others

    def _no_sensitivity(self) -> str:
        bundle, manifest = self._bundle, self._bundle.manifest
        if manifest.precision == "fp32":
            return "none in fp32, which keeps every number as it is"
        if manifest.precision not in ("int8", "int4") or manifest.executable.format != "onnx":
            return "measured of graphs in int8 and int4 only"
        if bundle.directory in self._wanted.unmeasured:
            return self._wanted.unmeasured[bundle.directory]
        return (
            f"not measured: dragoman sensitivity {bundle.directory} CHECKPOINT -o "
            "sensitivity.json, then --sensitivity sensitivity.json; or --checkpoint CHECKPOINT"
        )

    def _attention(self) -> tuple[AttentionExample, ...]:
        manifest, inputs = self._bundle.manifest, self._wanted.inputs
        if inputs is None and self._foreign is None:
            inputs = self._wanted.held_out
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
            found = attention_examples(self._bundle, inputs, threads=self._wanted.threads)
            if found:
                return found
            self._missing["attention"] = (
                f"no input of {inputs.name} is one that the model reads, and short enough"
            )
        return ()


def _shape(manifest: Manifest) -> str:
    """What the model is, in a line; the configuration is information, of which some may lack."""
    known = manifest.architecture
    layers = [known.get(f"{part}_layers") for part in ("encoder", "decoder")]
    return (
        f"{manifest.name}, {KINDS[manifest.kind]} of {' + '.join(str(n) for n in layers if n)} "
        f"layers, size {known.get('d_model')}, feed-forward {known.get('d_ff')}, "
        f"{known.get('activation')}, {known.get('norm_order')}-norm"
    )


def _labels(bundles: Sequence[Bundle]) -> list[str]:
    """Names of directories, with numbers where several have the same."""
    names = [bundle.directory.resolve().name for bundle in bundles]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]


def matched(
    bundles: Sequence[Bundle], sensitivities: Sequence[Sensitivity]
) -> dict[Path, Sensitivity]:
    """By the directory of the bundle that each is about.

    Raises:
        DragomanError: one is about none of the bundles.
    """
    found: dict[Path, Sensitivity] = {}
    for sensitivity in sensitivities:
        alike = [b.directory for b in bundles if _weights_of(b) == sensitivity.weights_sha256]
        if not alike:
            raise DragomanError(
                "sensitivities: expected those of one of these bundles, found one of another "
                f"{sensitivity.bundle} in {sensitivity.precision}, or of an earlier build"
            )
        found |= dict.fromkeys(alike, sensitivity)
    return found


def _weights_of(bundle: Bundle) -> str | None:
    """The SHA-256 of a bundle's weights; None of engines."""
    return next((f.sha256 for f in bundle.manifest.files if f.path == WEIGHTS_FILE), None)
