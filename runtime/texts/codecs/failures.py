"""What the libraries that tokenize raise when a file makes them fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .interface import TokenizerError, UnknownSymbolsError


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raises a RuntimeError in place of a panic of Rust code, such as an index out of bounds.

    A panic is no `Exception`, so that nobody catches it by accident. Rust also writes it to
    standard error.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__module__ == "pyo3_runtime":
            raise RuntimeError(str(error)) from error
        raise


@contextmanager
def failures_of(path: Path) -> Iterator[None]:
    """Raises a TokenizerError that names the file, in place of whatever the library raises.

    Unknown symbols are the text's fault, and pass.
    """
    try:
        with panics_as_errors():
            yield
    except UnknownSymbolsError:
        raise
    except Exception as error:
        raise TokenizerError(f"{path.name}: this tokenizer fails: {summary(error)}") from error


def summary(error: Exception) -> str:
    """The first line of a message, without the texts that the library repeats in it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
