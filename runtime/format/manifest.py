"""The manifest, which describes a bundle: plain data, the same for every backend.

A change that an older reader would misread increments the schema version. `validation` reads and
checks manifests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.errors import DragomanError

from . import parity_data
from .audio import AudioFeatures
from .contract import OPTIONAL_GRAPHS, GraphSpec, Kind
from .executables import Executable
from .generation_settings import STRATEGY, GenerationSettings
from .head import Head
from .languages import Languages
from .model_spec import ModelSpec
from .plain_data import to_plain
from .records import Origin, Parity, PassRecord
from .speech import SpeechTokens
from .tokenizers import Tokenizers

SCHEMA_VERSION = 3
MANIFEST_FILE = "manifest.json"

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class BundleError(DragomanError):
    """A bundle that cannot be used; lists all problems."""

    def __init__(self, origin: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{origin}: " + "; ".join(problems))


@dataclass(frozen=True)
class FileRecord:
    """A file of the bundle: its path inside it, its size in bytes, its SHA-256 in hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything that a runtime needs to know about a bundle.

    Attributes:
        target: a row of `optimize.targets`: what the graphs were optimized for
        architecture: the full configuration of the model, for information only
        graphs: by name; the kind determines the names, see `contract.CONTRACTS`
        executable: the form in which the graphs are stored
        tokenizers: None: inputs and outputs are token ids
        languages: None: the model takes no languages
        parity: None: not verified
        generation: how to decode it unless the caller says otherwise, as it was published
        audio: how audio becomes the source; None: the source is tokens
        speech: what prompts of a speech model consist of
        head: what an encoder alone gives; None: there is a decoder
        passes: the passes that made the graphs of this target, in order
        notes: where the model was read otherwise than its checkpoint might lead one to expect, a
            sentence each
        origin: the model of the Hugging Face Hub that the bundle was made from, if it was
        keep_fp32: modules of the trained model, such as "decoder.layers.3.feed_forward.inner",
            whose weights stayed in fp32 because the user wanted it
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
    head: Head | None = None
    passes: tuple[PassRecord, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Origin | None = None
    keep_fp32: tuple[str, ...] = ()

    @property
    def model_graphs(self) -> dict[str, GraphSpec]:
        """The graphs that compute the model: those of every bundle of its kind."""
        return {name: spec for name, spec in self.graphs.items() if name not in OPTIONAL_GRAPHS}

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end an output."""
        return self.generation.end_tokens(self.model.end_token_id)

    def to_json(self) -> str:
        plain = to_plain(self)
        # Without what says nothing, as in bundles of versions that do not know it.
        for name in ("notes", "origin", "head", "keep_fp32"):
            if not getattr(self, name):
                del plain[name]
        if self.model.value_size is None:
            del plain["model"]["value_size"]
        for name in (*STRATEGY, "alignment_heads"):
            if getattr(self.generation, name) == getattr(GenerationSettings, name):
                del plain["generation"][name]
        if self.parity is not None:
            plain["parity"] = parity_data.to_data(self.parity)
        return json.dumps(plain, indent=1, allow_nan=False) + "\n"
