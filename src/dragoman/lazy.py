"""Public names of a package that are imported on first use.

Importing PyTorch takes seconds. A wrong path is refused, and a configuration or a list of recipes
is read, without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_attributes(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` (PEP 562) of a package whose submodules are imported on first use.

    Type checkers do not see these names: the package imports them under `TYPE_CHECKING`, too.

    Args:
        package: its `__name__`
        names: public names by submodule, or by module relative to the package: ".errors"
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{modules[name]}", package), name)

    return get
