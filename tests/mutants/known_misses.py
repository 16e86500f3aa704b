"""The faults that `verify` does not catch, each with the reason, and those without an effect."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN_MISSES: Mapping[str, str] = {}
"""By the name of a case: why nothing catches it. A case that is caught by now is taken off."""

WITHOUT_EFFECT: frozenset[str] = frozenset()
"""Names of cases whose faulty bundle behaves as the right one does: `equivalence` computes it."""
