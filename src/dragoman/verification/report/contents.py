"""Everything that a report says, as plain data, which the page shows and its JSON holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dragoman.reference_model.training.history import Candidate, Epoch
from dragoman.runtime.format.manifest import FileRecord, PassRecord
from dragoman.runtime.format.parity import Parity, TaskParity
from dragoman.runtime.format.plain_data import to_plain

from ..parity_rows import ParityRow
from ..sensitivity import Sensitivity
from ..verdict import Verdict

Part = Literal["licences", "training", "parity", "sensitivity", "speed", "attention"]


@dataclass(frozen=True)
class Fact:
    """A line about what a bundle is or how it was made."""

    name: str
    value: str


@dataclass(frozen=True)
class Licence:
    """A licence file, or the licence that a README names."""

    place: Literal["bundle", "checkpoint"]
    name: str
    """The name of the licence file, or of the README that names the licence."""
    summary: str
    """Its first line, or the name."""
    sha256: str
    text: str
    """The whole text; empty if the licence is only named."""


@dataclass(frozen=True)
class Training:
    """What `dragoman train` recorded of the checkpoint's training."""

    recipe: str
    """The name of the recipe, or of the file that described the training."""
    metric: str
    pairs: dict[str, int]
    """The number of pairs or texts by the part of the data; empty if not recorded."""
    dropped: dict[str, int]
    """The number of pairs that were left out, by reason."""
    corpora: tuple[str, ...]
    """The corpora of the training data, one line each; empty for one without options."""
    unknown: tuple[str, ...]
    """Characters that the vocabularies lack, one line for each part of the data that has some."""
    held_out: dict[str, str]
    """The figures on the held-out data, as texts, by name."""
    options: dict[str, Any]
    """The options of the training, and its number of steps."""
    epochs: tuple[Epoch, ...]
    candidates: tuple[Candidate, ...]
    """The weights that were judged; empty if not recorded."""


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of durations, in milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """Compute the percentiles of durations in seconds."""
        return cls(*(round(float(p) * 1e3, 4) for p in np.percentile(seconds, (50, 90, 99))))


@dataclass(frozen=True)
class BatchFigures:
    """The figures of one batch size."""

    batch_size: int
    encoder: Percentiles | None
    """One call of the encoder, caches allocated, ms; None for a decoder-only model."""
    prompt: Percentiles | None
    """Prefill, including the first new token, ms; decoder-only models."""
    step: Percentiles | None
    """One decoding step of the whole batch, ms; on a GPU, the mean of the steps of a batch, since
    tokens of several steps are read together; None for an encoder-only model."""
    sentence: Percentiles
    """From source tokens to the last new token, or to the encoder's outputs, for each sentence of
    the batch, ms."""
    tokens_per_second: float
    """New tokens (for an encoder-only model, source tokens) of all rows over the median time of a
    batch."""


@dataclass(frozen=True)
class Timing(BatchFigures):
    """How long batches of one size and one length of sources take."""

    source_length: int
    new_tokens: int


@dataclass(frozen=True)
class Speed:
    """What was measured in processes that only ran the bundle."""

    backend: str
    threads: int | None
    """None: all cores."""
    runs: int
    """Batches for each size."""
    audio: bool
    """Whether sources are windows of audio, whose lengths are positions of the encoder."""
    load_seconds: float
    """The median load time of these processes."""
    peak_memory_mb: float
    """The highest peak memory of these processes, in MB of 10^6 bytes."""
    timings: tuple[Timing, ...]
    """By length, then by batch size."""

    @property
    def spread(self) -> float:
        """The largest ratio of the 90th percentile to the median, of whole batches."""
        return max(timing.sentence.p90 / timing.sentence.p50 for timing in self.timings)


@dataclass(frozen=True)
class AttentionExample:
    """The attention of a model on one input, for a heat map."""

    title: str
    """The attention, with its layers and heads."""
    text: str
    rows: tuple[str, ...]
    """Tokens that attend."""
    columns: tuple[str, ...]
    """Tokens that are attended to."""
    weights: tuple[tuple[float, ...], ...]
    """[rows][columns]; a row adds up to 1."""
    unit: str = ""
    """The unit of columns that are times."""


@dataclass(frozen=True)
class BundleReport:
    """Everything that a report says of one bundle."""

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
    """Whether there is a signature next to the manifest, which is not checked here."""
    files: tuple[FileRecord, ...]
    size_bytes: int
    """The size of all files except the manifest."""
    keep_fp32: tuple[str, ...]
    licences: tuple[Licence, ...]
    training: Training | None
    parity: Parity | None
    tasks: tuple[TaskParity, ...]
    checks: tuple[ParityRow, ...]
    passes: tuple[PassRecord, ...]
    sensitivity: Sensitivity | None
    speed: Speed | None
    attention: tuple[AttentionExample, ...]
    missing: dict[Part, str]
    """Why a part is missing, and the command that adds it."""


@dataclass(frozen=True)
class Report:
    """A report of some bundles."""

    created: str
    """The time of creation, ISO 8601, UTC."""
    dragoman: str
    """The version of Dragoman."""
    machine: str | None
    """The machine of the speed measurements; None: there are none."""
    command: str
    """The command that wrote the report."""
    bundles: tuple[BundleReport, ...]

    @property
    def title(self) -> str:
        """The title of the page."""
        return "Deployment report: " + ", ".join(bundle.label for bundle in self.bundles)

    def to_json(self) -> str:
        """Write the report as JSON."""
        return json.dumps(to_plain(self), indent=1, allow_nan=False) + "\n"


def counted(number: int, what: str) -> str:
    """Format a count with its noun, as in 1 output and 2 outputs."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
