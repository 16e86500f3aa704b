"""The manifest: what a bundle says of itself. Plain data, the same for every backend.

A change that an older reader would misread takes the next schema version. `validation` reads a
manifest and checks it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.errors import DragomanError

from .audio import AudioFeatures
from .contract import GraphSpec, Kind
from .executables import Executable
from .generation_settings import GenerationSettings
from .languages import Languages
from .model_spec import ModelSpec
from .plain_data import to_plain
from .records import Parity, PassRecord
from .speech import SpeechTokens
from .tokenizers import Tokenizers

SCHEMA_VERSION = 2
MANIFEST_FILE = "manifest.json"

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class BundleError(DragomanError):
    """A bundle that cannot be used; lists every problem found."""

    def __init__(self, place: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{place}: " + "; ".join(problems))


@dataclass(frozen=True)
class FileRecord:
    """A file of the bundle: its path inside it, its size in bytes, its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything that a runtime needs to know of a bundle.

    Attributes:
        target: a row of `optimize.targets`: what the graphs were optimized for
        architecture: the full configuration of the model as its framework states it; for people
        graphs: by name; which there are follows from the kind, see `contract.CONTRACTS`
        executable: what the graphs are stored as
        tokenizers: None: the model takes and gives token ids
        languages: None: the model is not told any language
        parity: None: not verified
        generation: settings that the model was published with
        audio: how audio becomes the source; None: the source is tokens
        speech: what prompts of a speech model consist of
        passes: what made the graphs of this target, in order
    """

    schema_version: int
    kind: Kind
    name: str
    target: str
    precision: Precision
    model: ModelSpec
    architecture: dict[str, Any]
    default_max_new_tokens: int
    graphs: dict[str, GraphSpec]
    executable: Executable
    tokenizers: Tokenizers | None
    files: tuple[FileRecord, ...]
    tool_versions: dict[str, str]
    languages: Languages | None = None
    parity: Parity | None = None
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    audio: AudioFeatures | None = None
    speech: SpeechTokens | None = None
    passes: tuple[PassRecord, ...] = ()

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=1, allow_nan=False) + "\n"
