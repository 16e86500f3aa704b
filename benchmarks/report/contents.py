"""Everything that a report says, as plain data: the page shows it, and its JSON is it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.runtime.format.manifest import FileRecord
from dragoman.runtime.format.plain_data import to_plain
from dragoman.runtime.format.records import Parity, PassRecord, TaskParity

from ..latency import Percentiles
from ..sensitivity.results import Sensitivity

Part = Literal["parity", "licences", "sensitivity", "speed", "attention"]


@dataclass(frozen=True)
class Fact:
    name: str
    value: str


@dataclass(frozen=True)
class Verdict:
    """What to know before signing.

    Attributes:
        sentence: for people
    """

    state: Literal["passed", "failed", "not verified"]
    sentence: str


@dataclass(frozen=True)
class Check:
    """A row of parity: what was compared, and what came out.

    Attributes:
        level: proof, numbers, tokens or task
        allowed: the limit; empty if there is none
        undecided: whether it passed because what was compared can show nothing
    """

    level: str
    what: str
    found: str
    allowed: str
    passed: bool
    undecided: bool = False

    @property
    def state(self) -> str:
        """The outcome in a word."""
        return "undecided" if self.undecided else "passed" if self.passed else "failed"


@dataclass(frozen=True)
class Licence:
    """
    Attributes:
        place: the directory that it is in: the bundle's or the checkpoint's
        name: of the file; of a licence that a README only names, the README
        summary: its first line, or the name
        text: all of it; empty of a licence that is only named
    """

    place: Literal["bundle", "checkpoint"]
    name: str
    summary: str
    sha256: str
    text: str


@dataclass(frozen=True)
class Timing:
    """Of a batch size and a length of sources.

    Attributes:
        encoder, prompt, step, sentence: see `latency.BatchFigures`
        tokens_per_second: see there
    """

    batch_size: int
    source_length: int
    new_tokens: int
    encoder: Percentiles | None
    prompt: Percentiles | None
    step: Percentiles | None
    sentence: Percentiles
    tokens_per_second: float


@dataclass(frozen=True)
class Speed:
    """What processes that only ran the bundle have measured.

    Attributes:
        threads: None: all cores
        runs: batches for each size
        audio: whether sources are windows of audio, whose lengths are positions of the encoder
        load_seconds: the median of these processes
        peak_memory_mb: the most of these processes, in MB of 10^6 bytes
        timings: by length, then by batch size
    """

    backend: str
    threads: int | None
    runs: int
    audio: bool
    load_seconds: float
    peak_memory_mb: float
    timings: tuple[Timing, ...]

    @property
    def spread(self) -> float:
        """The largest 90th percentile over its median, of whole batches."""
        return max(timing.sentence.p90 / timing.sentence.p50 for timing in self.timings)


@dataclass(frozen=True)
class AttentionExample:
    """What attends to what.

    Attributes:
        title: whose attention it is, and of which layers and heads
        rows: tokens that attend
        columns: tokens that are attended to
        weights: [rows][columns]; a row adds up to 1
        unit: of columns that are times
    """

    title: str
    text: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    unit: str = ""


@dataclass(frozen=True)
class BundleReport:
    """
    Attributes:
        label: of the bundle within the report
        facts: what it is, and how it was made
        architecture: the full configuration of the model
        manifest_sha256: of the manifest's file
        signed: whether there is a signature beside the manifest, which is not checked here
        files: with sizes and hashes, all checked
        size_bytes: of all files but the manifest
        tasks: of parity's third level
        checks: rows of parity
        explained_margin: the largest margin of a divergence that parity allows; None: unknown
        missing: why a part is missing, and the command that adds it
    """

    label: str
    name: str
    target: str
    precision: str
    verdict: Verdict
    facts: tuple[Fact, ...]
    architecture: dict[str, Any]
    tool_versions: dict[str, str]
    manifest_sha256: str
    signed: bool
    files: tuple[FileRecord, ...]
    size_bytes: int
    keep_fp32: tuple[str, ...]
    licences: tuple[Licence, ...]
    parity: Parity | None
    tasks: tuple[TaskParity, ...]
    checks: tuple[Check, ...]
    explained_margin: float | None
    passes: tuple[PassRecord, ...]
    sensitivity: Sensitivity | None
    speed: Speed | None
    attention: tuple[AttentionExample, ...]
    missing: dict[Part, str]


@dataclass(frozen=True)
class Report:
    """
    Attributes:
        created: when, ISO 8601, UTC
        dragoman: the version that wrote it
        machine: that speed was measured on; None: it was not
        command: that wrote it
    """

    created: str
    dragoman: str
    machine: str | None
    command: str
    bundles: tuple[BundleReport, ...]

    @property
    def title(self) -> str:
        return "Deployment report: " + ", ".join(bundle.label for bundle in self.bundles)

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=1, allow_nan=False) + "\n"
