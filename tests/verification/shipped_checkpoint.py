"""A checkpoint that comes with Dragoman, and bundles of it, for the tests of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dragoman.export.checkpoints import OpenedCheckpoint, open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import Example, read_examples
from dragoman.runtime import Bundle, Model, load
from dragoman.runtime.format.manifest import Precision

FILES = {
    "README.md",
    "config.json",
    "curve.png",
    "held_out.tsv",
    "history.jsonl",
    "model.safetensors",
    "recipe.json",
    "source_tokenizer.json",
    "target_tokenizer.json",
}
"""The files of each besides its licence."""


@dataclass
class ShippedCheckpoint:
    """
    Attributes:
        bundles: an empty directory for them
    """

    name: str
    bundles: Path

    @property
    def directory(self) -> Path:
        return find_checkpoint(self.name)

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    @cached_property
    def opened(self) -> OpenedCheckpoint:
        return open_checkpoint(locate_checkpoint(self.name))

    @cached_property
    def held_out(self) -> list[Example]:
        return read_examples(self.directory / "held_out.tsv")

    @cached_property
    def record(self) -> dict[str, Any]:
        text = (self.directory / "recipe.json").read_text(encoding="utf-8")
        record: dict[str, Any] = json.loads(text)
        return record

    def bundle(self, precision: Precision) -> Model:
        """For the processor; each is made once."""
        directory = self.bundles / precision
        if not directory.exists():
            directory.mkdir()
            optimize_bundle(self._neutral, directory, target="cpu", precision=precision)
        return load(directory, threads=1)

    @cached_property
    def _neutral(self) -> Bundle:
        (self.bundles / "neutral").mkdir()
        return export_bundle(
            self.opened.model,
            self.bundles / "neutral",
            name=self.name,
            tokenizers=self.opened.tokenizers,
        )
