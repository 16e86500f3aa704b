"""A partly read CTranslate2 model, and the record of a kind of model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import shown
from dragoman.reference_model import CheckpointError, GenerationConfig

from ...formats.ctranslate2 import MODEL_FILE, ModelFile, Vocabulary
from ...formats.json_files import Values
from ...formats.tensor_files import Weights
from ...tokenizers import TokenizerFiles
from ..checkpoint import measure
from .weights import TABLES, TARGET_TABLE, Rows

Fields = dict[str, Any]
"""Fields of a `ModelConfig`."""


@dataclass(frozen=True)
class Specification:
    """A kind of model, which CTranslate2 calls a specification, with its weights and options."""

    revisions: range
    """The supported revisions."""
    token_stacks: tuple[str, ...]
    """The stacks that embed tokens; only they state options."""
    describe: Callable[[StoredModel], tuple[Fields, GenerationConfig]]
    """Returns the fields of a `ModelConfig` that only this kind has, and the rules of decoding; may
    change the weights."""
    find_tokenizers: Callable[[Path, Values, Rows], TokenizerFiles | None]
    """Directory, fields of `config.json` and rows of the token tables -> tokenizers; None if there
    are none."""
    num_heads: int = 8
    """Number of heads for files that lack it."""


@dataclass(frozen=True)
class StoredModel:
    """A partly read model."""

    directory: Path
    file: ModelFile
    specification: Specification
    values: Values
    """Fields of `config.json`."""
    rows: Rows
    """Numbers of rows of the stored token tables."""
    weights: Weights
    """Weights, which are converted in place to the shapes of `Transformer`."""
    problems: list[str]
    """Problems found so far."""
    notes: list[str] = field(default_factory=list)
    """See `Checkpoint`."""

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """Return the shape of a weight; raise a `CheckpointError` if it has not so many axes."""
        origin = self.directory / MODEL_FILE
        return measure(self.weights, {name: axes}, origin, self.problems)[0]

    def option(self, stack: str, name: str, default: float) -> int | float:
        """Return an option of a stack or, in old revisions, of the model."""
        options = self.file.options
        return options.get(f"{stack}/{name}", options.get(name, default))

    def common_option(self, name: str, default: float) -> int | float:
        """Return an option that must be the same in both stacks."""
        decoder = self.option("decoder", name, default)
        states_options = "encoder" in self.specification.token_stacks
        encoder = self.option("encoder", name, default if states_options else decoder)
        if encoder != decoder:
            self.problems.append(
                f"{name} must be equal in both stacks, found {shown(encoder)} and {shown(decoder)}"
            )
        return decoder

    def count(self, name: str, value: float) -> int:
        """Return an option that counts something, as an integer of at least 1; add problems."""
        if math.isfinite(value) and value == int(value) >= 1:
            return int(value)
        self.problems.append(f"{name} must be an integer of at least 1, found {shown(value)}")
        return 1

    def layers(self, stack: str) -> int:
        """Count the layers of a stack."""
        matches = (re.match(rf"{stack}/(layer_\d+)/", name) for name in self.weights)
        return len({match[1] for match in matches if match})

    def scales_by_sqrt_depth(self) -> bool:
        """Return whether all stacks scale embeddings by sqrt(d_model); scale tables if not."""
        usual = math.sqrt(self.shape(TARGET_TABLE, 2)[1])
        scales = {
            TABLES[stack]: self._embedding_scale(stack, usual)
            for stack in self.specification.token_stacks
        }
        if all(math.isclose(scale, usual, rel_tol=1e-6) for scale in scales.values()):
            return True
        for table, scale in scales.items():
            if scale != 1:
                self.weights[table] = self.weights[table] * scale
        return False

    def _embedding_scale(self, stack: str, usual: float) -> float:
        """Return a stack's embedding scale; a file states a number, or a flag for `usual`."""
        options = self.file.options
        old_flag = options.get(f"{stack}/embeddings/multiply_by_sqrt_depth", 1)
        value = options.get(f"{stack}/scale_embeddings", old_flag)
        if isinstance(value, float):
            return value
        return usual if value else 1.0


def merge_equal(weights: Weights, name: str, other: str) -> bool:
    """Return whether two tables are equal; if so, remove the second."""
    equal = name in weights and other in weights and weights[name].equal(weights[other])
    if equal:
        del weights[other]
    return equal


def token_ids(directory: Path, vocabulary: Vocabulary, *tokens: str) -> list[int]:
    """Return the ids of special tokens, or list those that the vocabulary lacks in an error."""
    missing = [f"expected the token {t!r} in the vocabulary" for t in tokens if t not in vocabulary]
    if missing:
        raise CheckpointError(directory, missing)
    return [vocabulary.index(token) for token in tokens]
