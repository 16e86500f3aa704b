"""The manifest of a bundle: plain data, the same for every backend.

A change that an older reader would misread increments the schema version. `validation` reads and
checks manifests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from dragoman.errors import DragomanError
from dragoman.settings.fields import LEFT_OUT
from dragoman.settings.generation_settings import GenerationSettings
from dragoman.settings.head import Head
from dragoman.settings.speech import AudioFeatures, SpeechTokens

from .contract import OPTIONAL_GRAPHS, GraphSpec, Kind
from .model_spec import ModelSpec
from .parity import Parity
from .plain_data import to_plain
from .texts import Languages, Tokenizers

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "model.sig"
"""The file of the signature inside the bundle, by default. It does not cover itself."""

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class BundleError(DragomanError):
    """A bundle cannot be used; lists all problems."""

    def __init__(self, origin: str, problems: list[str]) -> None:
        super().__init__(origin, problems)


@dataclass(frozen=True)
class FileRecord:
    """A file of the bundle: its relative path, size in bytes and SHA-256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class BuildRecord:
    """What building the bundle took."""

    seconds: float
    """From the checkpoint to the verified bundle."""
    peak_memory_mb: float
    """The highest resident memory of the process, in MB of 10^6 bytes."""


@dataclass(frozen=True)
class ShortlistRecord:
    """The tokens that may follow from the tokens of a source, see `runtime.texts.shortlist`."""

    file: str
    """File of the bundle with the tokens."""
    entries: int
    """Number of source tokens, or sequences of them, that allow tokens."""
    mean: float
    """Mean number of tokens that an entry allows."""
    always: int
    """Number of tokens that every source allows."""


@dataclass(frozen=True)
class Origin:
    """A model of the Hugging Face Hub."""

    model: str
    """Model id, `owner/model`."""
    commit: str
    """Commit of the files that were read."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that was merged into the weights of the model."""

    name: str
    """Name of its directory."""
    sha256: str
    """SHA-256 of the file of its weights, in hex."""


@dataclass(frozen=True)
class OnnxGraphs:
    """ONNX files whose weights are in one file of the same directory."""

    format: Literal["onnx"] = "onnx"

    @property
    def capacity(self) -> int | None:
        """The maximum number of target positions of a cache; None: the model's."""
        return None

    @property
    def rows(self) -> int | None:
        """The maximum number of rows of a batch; None: unlimited."""
        return None


@dataclass(frozen=True)
class Range:
    """The range of sizes of an engine's axis; kernels are tuned for `best`."""

    smallest: int
    best: int
    largest: int

    @property
    def in_order(self) -> bool:
        """Whether 1 <= smallest <= best <= largest."""
        return 1 <= self.smallest <= self.best <= self.largest


@dataclass(frozen=True)
class Profile:
    """The sizes that the kernels of all engines of a bundle are chosen for."""

    batch: Range
    """Number of rows."""
    source: Range
    """Number of tokens of a source."""


@dataclass(frozen=True)
class EngineReport:
    """The contents of an engine."""

    layers: dict[str, int]
    """Number of layers of the parsed network, by kind."""
    weights: dict[str, int]
    """Bytes of the graph's weights, by number format."""
    attentions: int
    """Number of attention layers."""
    fused: dict[str, int] | None
    """Number of fused attention kernels by name, counted for each profile; None: unknown."""
    dequantizations: int | None
    """Number of products whose weights a separate kernel dequantizes in every run, counted for each
    profile; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class TensorRTEngines:
    """Engines of TensorRT or TensorRT-RTX; the bundle's target is the package that built them."""

    format: Literal["tensorrt"] = "tensorrt"
    version: str
    """Version of that package; no other version loads the engines."""
    cuda_version: str
    """CUDA version that the engines were built for."""
    compute_capabilities: tuple[str, ...]
    """Compute capabilities of the target GPUs, such as "8.9"; empty: the package's default."""
    capacity: int
    """Number of target positions in a cache, including the start token's."""
    profiles: tuple[Profile, ...]
    """Profiles in the engines' order."""
    refittable: bool
    """Whether the engines' weights can be replaced."""
    reports: dict[str, EngineReport]
    """Report of each engine, by name of the graph."""
    parity: Parity | None = None
    """The engines' own outputs compared with the oracle's; None: engines not run. The manifest's
    `parity` is that of the graphs that they were built from."""

    @property
    def rows(self) -> int:
        """The maximum number of rows of a batch."""
        return max(profile.batch.largest for profile in self.profiles)


Executable = OnnxGraphs | TensorRTEngines
"""The form in which graphs are stored: a tagged union with the tag `format`."""


@dataclass(frozen=True)
class Refusal:
    """A node that a pass is meant to replace but left unchanged, and why.

    `matched`: whether a whole pattern matched and its check failed; otherwise no pattern matched.
    """

    node: str
    operator: str
    reason: str
    matched: bool = True


@dataclass(frozen=True)
class Choice:
    """The option that a pass chose to replace a node, where there were several."""

    node: str
    operator: str
    chosen: str
    """The option, such as "fixed scale"."""
    reason: str
    """The measurement behind it."""


@dataclass(frozen=True)
class PassRecord:
    """The changes that one pass made to one graph."""

    name: str
    graph: str
    """The name "encoder" or "decoder"; the file name of a single ONNX file."""
    matches: int
    """Number of changes."""
    refusals: tuple[Refusal, ...]
    nodes_before: int
    nodes_after: int
    """`nodes_before` and `nodes_after`: number of nodes in the graph."""
    difference: float | None
    """Largest difference caused in an output, divided by max(1, the output's largest absolute
    value), measured with ONNX Runtime's own optimizations off; None: not measured."""
    tolerance: float
    """The largest allowed difference."""
    choices: tuple[Choice, ...] = ()
    """The options that were chosen, where there were several."""
    not_compared: Annotated[tuple[str, ...], LEFT_OUT] = ()
    """Branches and loop bodies of the graph that no sample executes."""


@dataclass(frozen=True)
class Manifest:
    """The description of a bundle for its runtime."""

    schema_version: int
    kind: Kind
    name: str
    target: str
    """The optimization target, a row of `optimize.targets`."""
    precision: Precision
    model: ModelSpec
    architecture: dict[str, Any]
    """The full configuration of the model, for information only."""
    default_max_new_tokens: int
    graphs: dict[str, GraphSpec]
    """Graphs by name; the kind determines the names, see `contract.CONTRACTS`."""
    executable: Executable
    """The form in which the graphs are stored."""
    tokenizers: Tokenizers | None
    """None: inputs and outputs are token ids."""
    files: tuple[FileRecord, ...]
    tool_versions: dict[str, str]
    languages: Languages | None = None
    """None: the model takes no languages."""
    parity: Parity | None = None
    """None: not verified."""
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    """Default generation settings."""
    audio: AudioFeatures | None = None
    """Feature extraction from audio; None: the source is tokens."""
    speech: SpeechTokens | None = None
    """The tokens of a speech model's prompts."""
    head: Annotated[Head | None, LEFT_OUT] = None
    """The head of an encoder-only model; None: the model has a decoder."""
    passes: tuple[PassRecord, ...] = ()
    """The passes that produced the graphs, in order."""
    notes: Annotated[tuple[str, ...], LEFT_OUT] = ()
    """Deviations from what the checkpoint suggests, a sentence each."""
    origin: Annotated[Origin | None, LEFT_OUT] = None
    """The source model on the Hugging Face Hub, if any."""
    adapters: Annotated[tuple[Adapter, ...], LEFT_OUT] = ()
    """The adapters that were merged into the source model, in order."""
    keep_fp32: Annotated[tuple[str, ...], LEFT_OUT] = ()
    """Modules of the trained model whose weights are kept in fp32 on request, such as
    "decoder.layers.3.feed_forward.inner"."""
    calibrated_on: Annotated[int, LEFT_OUT] = 0
    """Number of inputs on which errors of rounding were compensated; 0: none, every weight is
    rounded to nearest."""
    build: Annotated[BuildRecord | None, LEFT_OUT] = None
    """What building the bundle took; None: exported or optimized only."""
    shortlist: Annotated[ShortlistRecord | None, LEFT_OUT] = None
    """The tokens that sources allow; None: every token follows from every source."""

    @property
    def model_graphs(self) -> dict[str, GraphSpec]:
        """The graphs that compute the model, without optional graphs."""
        return {name: spec for name, spec in self.graphs.items() if name not in OPTIONAL_GRAPHS}

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end an output."""
        return self.generation.end_tokens(self.model.end_token_id)

    def to_json(self) -> str:
        """Return the manifest as JSON text, without optional fields that have their defaults."""
        return json.dumps(to_plain(self, brief=True), indent=1, allow_nan=False) + "\n"
