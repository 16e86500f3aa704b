"""The base class of all errors that users see."""

from __future__ import annotations

import copyreg
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from importlib.metadata import Distribution

LONGEST_MESSAGE, LONGEST_PROBLEM, LONGEST_VALUE, LONGEST_LIST = 1000, 600, 60, 2000
"""The most characters of an error; of a problem that it lists, of a value in either, of a list."""
LONGEST_NAMES = 200
"""The most characters of names that an error lists."""
MOST_NEAREST = 3
"""How many unknown names an error names the nearest known ones of."""


class DragomanError(Exception):
    """An input, an option or the environment is not as expected.

    The message says what was expected, what was found and what to do. The command line prints it
    in place of a traceback and exits with status 2. The server answers with the message, `status`
    and `code`.

    Args:
        message: text of the error; a long one loses its middle, see `shortened`
        problems: problems to list after the message, one sentence each, shortened likewise

    Attributes:
        problems: all problems, also those of a long list that the text only counts
        status: the HTTP status of the server's answer
        code: the name by which programs know the error
        headers: HTTP headers of the answer, besides the usual ones
    """

    status: int = 400
    code: str = "invalid_request"
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str = "", problems: Sequence[str] = ()) -> None:
        self.problems = list(problems)
        text = shortened(message)
        for number, problem in enumerate(self.problems):
            problem = shortened(problem, LONGEST_PROBLEM)
            if len(text) + len(problem) > LONGEST_LIST:
                text += f"; and {len(self.problems) - number} more"
                break
            separator = "; " if number else ": " if text else ""
            text += separator + problem
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled as their class and `args`. The constructors of subclasses take
        # other arguments, so none is called: the attributes are restored as they are.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def cannot_pickle(self: object) -> NoReturn:
    """Raise a `TypeError`; as `__reduce__` of a class that holds a loaded bundle.

    Raises:
        TypeError: always; says how other processes load the bundle.
    """
    name = type(self).__name__
    raise TypeError(
        f"{'an' if name[0] in 'AEIOU' else 'a'} {name} cannot be pickled: load the bundle in each "
        "worker, such as ProcessPoolExecutor(initializer=...)"
    )


def shortened(message: str, longest: int = LONGEST_MESSAGE) -> str:
    """Remove the middle of a message of more than `longest` characters."""
    if len(message) <= longest:
        return message
    end = longest // 4
    return f"{message[: longest - end - 3]}...{message[-end:]}"


def shown(value: object) -> str:
    """Format a value for an error message: on one line, shortened if long."""
    if isinstance(value, str | bytes) and len(value) > 2 * LONGEST_VALUE:
        value = value[: 2 * LONGEST_VALUE]  # repr takes long, and the rest is not shown
    try:
        text = str(value) if isinstance(value, Integral) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply; too many digits
        text = f"a {type(value).__name__} too large to show"
    text = " ".join(text.split()) if "\n" in text else text  # an array
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Format names for an error message: in order, shortened if they are long."""
    return shortened(", ".join(sorted(names)), LONGEST_NAMES)


def nearest(names: Iterable[str], known: Iterable[str]) -> str:
    """Return the end of an error message about unknown names: known ones that are like them.

    It is empty if none is.
    """
    import difflib  # takes long to import

    among = list(known)
    few = [name[:LONGEST_VALUE] for name in sorted(names)[:MOST_NEAREST]]
    found = dict.fromkeys(
        near for name in few for near in difflib.get_close_matches(name, among, 1)
    )
    if not found:
        return ""
    return f"; the nearest {'is' if len(found) == 1 else 'are'} {', '.join(found)}"


def import_problem(package: str, requirement: str, error: ImportError) -> tuple[str, str] | None:
    """Return what is wrong with an installed library that cannot be imported, and what mends it.

    Files are missing, for example, where two distributions that share them, such as onnxruntime
    and onnxruntime-gpu, were installed and one was removed. For pip, the other is still installed.

    Args:
        package: Python package, such as "onnxruntime"
        requirement: what installs the package, such as "dragoman[cpu]"

    Returns:
        the problem and the command that mends it; None if the library is not installed
    """
    if package not in packages_of(error):
        return None
    installed = distributions_of(package)
    module = error.name or package
    hidden = all(_has_module(distribution, module) for distribution in installed.values())
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{package}.") and hidden:
        return None
    problem = shortened(" ".join(str(error).split()), LONGEST_PROBLEM)
    mend = f"pip install --force-reinstall {next(iter(installed), package)}"
    if len(installed) > 1:
        mend = f"pip uninstall --yes {' '.join(installed)}, then pip install '{requirement}'"
    return f"{package} is damaged: {problem}", mend


def packages_of(error: Exception) -> list[str]:
    """Return the packages that an error is about: the one it names, then those that raised it."""
    names: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        names.insert(0, traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    return [name.partition(".")[0] for name in (getattr(error, "name", None) or "", *names)]


def distributions_of(package: str) -> dict[str, Distribution]:
    """Return the installed distributions that a Python package belongs to, by name."""
    from importlib.metadata import distributions  # takes long to import

    found = {}
    for distribution in distributions():
        record = distribution.read_text("RECORD") or ""
        if f"\n{package}/__init__.py," in f"\n{record}":
            found[distribution.metadata["Name"]] = distribution
    return dict(sorted(found.items()))


def _has_module(distribution: Distribution, module: str) -> bool:
    """Return whether the files of a module are there."""
    path = Path(str(distribution.locate_file(module.replace(".", "/"))))
    return (path / "__init__.py").exists() or any(path.parent.glob(f"{path.name}.*"))


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Check that a path may be written.

    Raises:
        DragomanError: the path exists, and may not be overwritten.
    """
    if not overwrite and (path.is_symlink() or path.exists()):
        raise DragomanError(
            f"{path} already exists: choose another name, or replace it with --force"
        )


def refuse_unwritable(path: Path) -> None:
    """Check that a file can be created at a path, and leave nothing behind.

    Raises:
        DragomanError: the path cannot be created or replaced.
    """
    directory = next(parent for parent in path.absolute().parents if parent.exists())
    if not directory.is_dir():
        raise DragomanError(f"cannot write {path}: {directory} is not a directory")
    try:
        str(path).encode()
        tempfile.TemporaryFile(dir=directory).close()
    except UnicodeEncodeError as error:
        raise DragomanError(f"cannot write {path}: expected a path in UTF-8") from error
    except OSError as error:
        raise DragomanError(f"cannot write {path}: {directory}: {error.strerror}") from error


def refuse_unwritable_file(path: Path) -> None:
    """Check that a file can be created or replaced at a path, and leave nothing behind.

    Raises:
        DragomanError: it cannot, or the path is a directory or a device.
    """
    if path.exists() and not path.is_file():
        raise DragomanError(f"{path}: expected the name of a file, found a directory or device")
    refuse_unwritable(path)
