"""Writes the bundles that the tests on a real Triton serve: its environment has no PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

from ..conftest import make_letters, make_vectors


def main() -> None:
    directory = Path(sys.argv[1])
    make_letters(directory / "letters")
    make_vectors(directory / "vectors")


if __name__ == "__main__":
    main()
