"""Importing what may not be installed."""

from __future__ import annotations

import importlib
from typing import Any

from dragoman.errors import DragomanError


def import_library(name: str, *, group: str = "peers") -> Any:
    """Import an optional module, untyped.

    Args:
        group: of dependencies, which installs it

    Raises:
        DragomanError: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DragomanError(
            f"cannot import {name} ({error}): pip install --group {group}"
        ) from error
