"""The entry point of a process of `processes.Child`, which runs one function.

Arguments are the file descriptor of a connection, and the folders of the packages `dragoman` and
`dragoman.benchmarks`, which may be of different source trees. Neither needs to be installed.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path


def main() -> None:
    """Receive paths for imports, then a function and its arguments, and call it."""
    descriptor, package, benchmarks = sys.argv[1:]
    del sys.path[0]  # this folder, whose modules are parts of a package
    connection = Connection(int(descriptor))
    try:
        paths = connection.recv()
        sys.path += [path for path in paths if path not in sys.path]
        _import("dragoman", Path(package))
        _import("dragoman.benchmarks", Path(benchmarks))
        function, arguments = connection.recv()
    except Exception as error:  # such as a missing module
        connection.send((False, f"starting: {type(error).__name__}: {error}"))
        return
    function(connection, *arguments)


def _import(name: str, folder: Path) -> None:
    spec = spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
