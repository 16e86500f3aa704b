"""What the libraries that tokenize raise when a file makes them fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .interface import TokenizerError, UnknownSymbolsError


def is_panic(error: BaseException) -> bool:
    """Whether Rust code met what it holds impossible, such as an index out of bounds.

    No `Exception`, so that nobody catches it by accident. Rust also writes it to standard error.
    """
    return type(error).__module__ == "pyo3_runtime"


@contextmanager
def failures_of(path: Path) -> Iterator[None]:
    """Raises a TokenizerError that names the file, in place of whatever the library raises.

    Unknown symbols are the text's fault, and pass.
    """
    try:
        yield
    except UnknownSymbolsError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise TokenizerError(f"{path.name}: this tokenizer fails: {summary(error)}") from error


def summary(error: BaseException) -> str:
    """The first line of a message, without the texts that the library repeats in it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
