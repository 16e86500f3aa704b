"""A manifest with random damage is read, or refused with an error of ours in one line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from dragoman.runtime import BundleError, read_bundle

from ...mutations import mutated_json

MUTATIONS = 400


def test_mutated_manifests(small_bundle: Path, plain_manifest: dict[str, Any]) -> None:
    generator = random.Random(0)
    text = json.dumps(plain_manifest)
    refused = 0
    for _ in range(MUTATIONS):
        (small_bundle / "manifest.json").write_bytes(mutated_json(text, generator))
        try:
            read_bundle(small_bundle)
        except BundleError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
            assert str(error).encode()
    assert MUTATIONS // 2 < refused < MUTATIONS
