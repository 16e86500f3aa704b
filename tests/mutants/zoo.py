"""The right bundles of the trial and their checkpoints, each made once.

A bundle is named by its model, target and precision: "g2p-en cpu int8".
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman import api
from dragoman.export import neutral_bundle
from dragoman.export.exporter import export_graph
from dragoman.export.shortlists import shortlist_of
from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.writing import write_manifest

from ..export_cache import cached_export
from .checkpoints import WITH_SHORTLIST, WRITERS, write_shortlist

SHIPPED_LIMITS = {"g2p-en": 32, "bible-en-es": 8, "verses-en": 8}
"""The held-out inputs that bundles of models that come with Dragoman are verified on."""


@dataclass(frozen=True)
class BundleName:
    """The name of a right bundle.

    Attributes:
        model: a name from `checkpoints.WRITERS` or `SHIPPED_LIMITS`
        target: a name from `optimize.targets.TARGETS`
    """

    model: str
    target: str
    precision: Precision

    def __str__(self) -> str:
        return f"{self.model} {self.target} {self.precision}"

    @property
    def limit(self) -> int | None:
        """The inputs to verify on; None: as many as `verify` takes by default."""
        return SHIPPED_LIMITS.get(self.model)

    @classmethod
    def parse(cls, name: str) -> BundleName:
        """The bundle of a name, such as "t5 cpu fp32"."""
        return next(bundle for bundle in BUNDLES if str(bundle) == name)


BUNDLES: tuple[BundleName, ...] = (
    BundleName("t5", "cpu", "fp32"),
    BundleName("t5", "neutral", "fp32"),
    BundleName("t5", "neutral", "fp16"),
    BundleName("t5", "cpu", "int8"),
    BundleName("t5", "cpu", "int4"),
    BundleName("t5-odd", "cpu", "fp32"),
    BundleName("bart", "cpu", "fp32"),
    BundleName("bart", "neutral", "fp32"),
    BundleName("bart", "cpu", "int8"),
    BundleName("bart", "cpu", "int4"),
    BundleName("bart", "neutral", "int4"),
    BundleName("gpt2", "cpu", "fp32"),
    BundleName("gpt2", "neutral", "fp16"),
    BundleName("gpt2", "neutral", "int8"),
    BundleName("gpt2", "cpu", "int8"),
    BundleName("gpt2", "cpu", "int4"),
    BundleName("bert-embedding", "cpu", "fp32"),
    BundleName("bert-embedding", "cpu", "int8"),
    BundleName("bert-embedding", "openvino", "fp32"),
    BundleName("bert-embedding", "openvino", "int8"),
    BundleName("bert-classifier", "cpu", "fp32"),
    BundleName("bert-classifier", "neutral", "fp16"),
    BundleName("whisper", "cpu", "fp32"),
    BundleName("whisper", "cpu", "int8"),
    BundleName("ssru", "cpu", "fp32"),
    BundleName("ssru", "neutral", "fp16"),
    BundleName("ssru", "neutral", "int8"),
    BundleName("ssru", "cpu", "int8"),
    BundleName("ssru", "cpu", "int4"),
    BundleName("ssru-untied", "cpu", "fp32"),
    BundleName("ssru-untied", "cpu", "int8"),
    BundleName("g2p-en", "cpu", "fp32"),
    BundleName("g2p-en", "neutral", "fp16"),
    BundleName("g2p-en", "cpu", "int8"),
    BundleName("g2p-en", "cpu", "int4"),
    BundleName("bible-en-es", "cpu", "fp32"),
    BundleName("bible-en-es", "cpu", "int8"),
    BundleName("verses-en", "cpu", "fp32"),
    BundleName("verses-en", "cpu", "int4"),
)
"""All right bundles. Each must pass."""


class Zoo:
    """Makes checkpoints and right bundles on first use, in a directory that may be kept.

    Several processes may share the directory. Within `exporting_once`, `verify` exports each model
    once for all bundles that fail.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def checkpoint(self, model: str) -> str:
        """What `verify` and `build` take as the checkpoint of a model."""
        if model in SHIPPED_LIMITS:
            return model

        def make(output: Path) -> None:
            output.mkdir()
            WRITERS[model](output)

        return str(self._made(f"checkpoints/{model}", make))

    def shortlist(self, model: str) -> Path | None:
        """The file that `build` takes as the shortlist of a model; None: it has none."""
        if model not in WITH_SHORTLIST:
            return None
        return self._made("shortlist.bin", write_shortlist)

    def bundle(self, name: BundleName) -> Path:
        """The directory of a right bundle, which is not changed."""

        def make(output: Path) -> None:
            if (name.target, name.precision) == ("neutral", "fp32"):
                bundle = api.export(self.checkpoint(name.model), output)
                shortlist = self.shortlist(name.model)
                if shortlist is not None:
                    bundle = add_shortlist(bundle, shortlist_of(shortlist, bundle))
                    write_manifest(bundle.manifest, output)
            else:
                neutral = self.bundle(BundleName(name.model, "neutral", "fp32"))
                api.optimize(neutral, output, target=name.target, precision=name.precision)

        return self._made(str(name).replace(" ", "-"), make)

    def answering(self, name: BundleName) -> Path:
        """The directory of a right bundle with known answers, as `build` makes it."""

        def make(output: Path) -> None:
            api.build(
                self.checkpoint(name.model),
                output,
                target=name.target,
                precision=name.precision,
                limit=name.limit,
                threads=1,
                shortlist=self.shortlist(name.model),
            )

        return self._made(f"answering/{str(name).replace(' ', '-')}", make)

    def _made(self, path: str, make: Callable[[Path], None]) -> Path:
        """A directory or file that appears whole; of two that make it, the first one's stays."""
        directory = self.directory / path
        if not directory.exists():
            partial = directory.with_name(f"{directory.name}.{os.getpid()}")
            partial.parent.mkdir(parents=True, exist_ok=True)
            make(partial)
            try:
                partial.rename(directory)
            except OSError:
                shutil.rmtree(partial)
        return directory

    def calibrated(self, name: BundleName, calibration: Path, output: Path) -> Path:
        """A right bundle that is calibrated on texts, which is not kept."""
        neutral = self.bundle(BundleName(name.model, "neutral", "fp32"))
        api.optimize(
            neutral, output, target=name.target, precision=name.precision, calibration=calibration
        )
        return output

    @contextlib.contextmanager
    def exporting_once(self) -> Iterator[None]:
        """Keep exported graphs in the directory, too."""
        exports = self.directory / "exports"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(neutral_bundle, "export_graph", cached_export(export_graph, exports))
            yield
