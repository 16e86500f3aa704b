"""Copies files that links lead to into the source distribution, which holds no links."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CopyLinkedFiles(BuildHookInterface):
    """Links to folders are followed by hatchling itself; links to files are not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Have copies take the place of the links in src/."""
        self._copies = tempfile.TemporaryDirectory()
        for number, path in enumerate(sorted(Path(self.root, "src").rglob("*"))):
            if path.is_symlink() and path.is_file():
                copy = Path(self._copies.name, str(number))
                shutil.copyfile(path, copy)
                build_data["force_include"][str(copy)] = str(path.relative_to(self.root))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copies."""
        self._copies.cleanup()
