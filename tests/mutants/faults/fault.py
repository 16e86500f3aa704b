"""The records of the trial: a fault, and a case, which is a fault in one bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from ..editing import EditedBundle
from ..zoo import BundleName

Kind = Literal[
    "masks and operators",
    "weights and epsilons",
    "positions and caches",
    "cached path destroyed",
    "buckets and capacity",
    "rows of a batch",
    "log-probabilities",
    "scales and integers",
    "vocabulary",
    "tokenizers",
    "settings",
    "recurrent states",
    "shortlists",
]
"""What a fault is about."""

Place = Literal["bundle", "pass", "exporter", "runtime"]
"""Where a fault is injected: into a finished bundle, a pass of the optimizer, the exporter, or the
runtime."""


@dataclass(frozen=True)
class BundleFault:
    """A mistake that a careless exporter, optimizer or quantizer leaves in a finished bundle.

    Attributes:
        name: what is wrong, as a phrase
        bundles: names of the right bundles that it is injected into, each a case
        inject: changes a copy of a bundle
    """

    name: str
    kind: Kind
    bundles: tuple[str, ...]
    inject: Callable[[EditedBundle], None]
    place: ClassVar[Place] = "bundle"


@dataclass(frozen=True)
class PassFault:
    """A pass of the optimizer that is wrong on purpose while `build` runs.

    Attributes:
        name, bundles: as for `BundleFault`; a bundle is built anew
        patch: puts wrong code in the place of the optimizer's
        calibrated: whether the build is calibrated on texts in place of random sources
    """

    name: str
    kind: Kind
    bundles: tuple[str, ...]
    patch: Callable[[pytest.MonkeyPatch], None]
    calibrated: bool = False
    place: ClassVar[Place] = "pass"


@dataclass(frozen=True)
class ExporterFault:
    """A model that the exporter gets other than the oracle is, while `build` runs.

    Attributes:
        name, bundles: as for `PassFault`
        change: changes a copy of the oracle in place, which is exported
    """

    name: str
    kind: Kind
    bundles: tuple[str, ...]
    change: Callable[[Any], None]
    calibrated: ClassVar[bool] = False
    place: ClassVar[Place] = "exporter"


@dataclass(frozen=True)
class RuntimeFault:
    """A runtime that is wrong on purpose while `verify` runs a right bundle.

    Attributes:
        name, bundles: as for `BundleFault`
        patch: puts wrong code in the place of the runtime's
    """

    name: str
    kind: Kind
    bundles: tuple[str, ...]
    patch: Callable[[pytest.MonkeyPatch], None]
    place: ClassVar[Place] = "runtime"


Fault = BundleFault | PassFault | ExporterFault | RuntimeFault


@dataclass(frozen=True)
class Case:
    """A fault in one bundle."""

    fault: Fault
    bundle: BundleName

    @property
    def name(self) -> str:
        return f"{self.fault.name} / {self.bundle}"


def cases_of(faults: Sequence[Fault]) -> tuple[Case, ...]:
    """A case for each fault and each of its bundles."""
    return tuple(Case(fault, BundleName.parse(name)) for fault in faults for name in fault.bundles)
