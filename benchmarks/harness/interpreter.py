"""The Pythons that contenders run in: some tools need an environment of their own, and an older
Dragoman is another source tree.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import dragoman
from dragoman.errors import DragomanError


@dataclass(frozen=True)
class Interpreter:
    """A Python, and the Dragoman that it imports.

    Attributes:
        executable: of an environment with numpy and the libraries that the contender needs;
            Dragoman need not be installed there
        package: the folder of the package `dragoman`. Whichever it is, `dragoman.benchmarks` is the
            one that is running: what differs is what is measured, never how
    """

    executable: Path
    package: Path

    @classmethod
    def of_tree(cls, tree: Path) -> Interpreter:
        """The running Python with the Dragoman of another source tree.

        Raises:
            DragomanError: the folder is none.
        """
        package = tree.absolute() / "src" / "dragoman"
        if not (package / "__init__.py").is_file():
            raise DragomanError(f"expected a source tree with src/dragoman, found {tree}")
        return cls(HERE.executable, package)

    @classmethod
    def of_environment(cls, executable: Path) -> Interpreter:
        """The running Dragoman in another environment.

        Raises:
            DragomanError: there is no such file.
        """
        if not executable.is_file():
            raise DragomanError(f"expected the Python of an environment, found {executable}")
        return cls(executable.absolute(), HERE.package)


HERE = Interpreter(Path(sys.executable), Path(dragoman.__file__).parent)
"""That of this process."""
