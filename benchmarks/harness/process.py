"""Runs a function in a separate process, which returns its memory to the system when it ends."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def in_own_process(
    function: Callable[Arguments, Returned], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Returned:
    """Call a function in a fresh interpreter; it, its arguments and its result must be picklable.

    Raises:
        BrokenProcessPool: the process ended without an answer.
        Exception: whatever the function raises.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(function, *args, **kwargs).result()
