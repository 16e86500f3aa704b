"""Public names: what `dir()` shows, what importing costs, and where types can be imported from."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dragoman

ROOT = Path(__file__).parents[1]
PUBLIC = re.findall(
    r"^\| `(dragoman[\w.]*)` \|", (ROOT / "docs" / "stability.md").read_text(encoding="utf-8"), re.M
)


def modules() -> list[ModuleType]:
    return [import_module(name) for name in PUBLIC]


def test_every_documented_module_states_its_public_names() -> None:
    assert {"dragoman", "dragoman.api", "dragoman.runtime", "dragoman.metrics"} <= set(PUBLIC)
    for module in modules():
        assert len(set(module.__all__)) == len(module.__all__), module
        for name in module.__all__:
            getattr(module, name)


INTERNAL = {
    *("dragoman.cli", "dragoman.export", "dragoman.verification.stored"),
    *("dragoman.export.families.ctranslate2", "dragoman.export.tokenizers"),
    *("dragoman.optimize.fusions", "dragoman.runtime.backends.cuda"),
    *("dragoman.runtime.serving.ray", "dragoman.runtime.texts.codecs"),
}
"""Packages whose `__all__` serves other packages of this project."""


def test_the_list_of_public_modules_is_whole() -> None:
    package = Path(dragoman.__file__).parent
    files = [package / "__init__.py"]
    files += [file for part in package.iterdir() for file in part.rglob("__init__.py")]
    found = {
        ".".join(["dragoman", *file.parent.relative_to(package).parts])
        for file in files
        if re.search(r"^__all__ = ", file.read_text(encoding="utf-8"), re.M)
    }
    assert found - INTERNAL == set(PUBLIC)


def test_what_the_reference_shows_is_public() -> None:
    public = {id(getattr(module, name)) for module in modules() for name in module.__all__}
    pages = [
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")
    ]
    shown = [name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page, re.M)]
    assert len(shown) > 60
    for name in shown:
        module, _, attribute = name.rpartition(".")
        assert id(getattr(import_module(module), attribute)) in public, name


@pytest.mark.parametrize("name", ["dragoman", "dragoman.api", "dragoman.runtime"])
def test_dir_shows_the_public_names_alone(name: str) -> None:
    module = import_module(name)
    assert dir(module) == sorted(module.__all__)


def test_the_package_offers_what_most_programs_need() -> None:
    assert set(dragoman.__all__) == {
        *("DragomanError", "__version__", "build", "load", "read_bundle", "verify")
    }
    from dragoman import api, runtime

    assert (dragoman.build, dragoman.verify) == (api.build, api.verify)
    assert (dragoman.load, dragoman.read_bundle) == (runtime.load, runtime.read_bundle)
    with pytest.raises(AttributeError, match="module 'dragoman' has no attribute 'lode'"):
        getattr(dragoman, "lode")  # noqa: B009


IMPORTED = """
import json, sys
import dragoman
first = [name for name in sys.modules if name.startswith(("dragoman", "numpy", "onnx", "torch"))]
dragoman.load, dragoman.read_bundle
print(json.dumps([first, [name in sys.modules for name in ("torch", "onnx", "click", "rich")]]))
"""


def test_importing_the_package_imports_nothing_else() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, check=True)
    first, after = json.loads(run.stdout)
    assert sorted(first) == ["dragoman", "dragoman.lazy"]
    assert after == [False] * 4


def test_lower_parts_import_no_function_of_the_package() -> None:
    """The import contracts leave out what the package imports for type checkers."""
    lazy = {"build", "verify", "load", "read_bundle"}
    for part in ("export", "optimize", "runtime", "reference_model", "src/dragoman/verification"):
        for file in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module == "dragoman":
                    assert not lazy & {alias.name for alias in node.names}, file


def for_type_checkers(module: ModuleType) -> dict[str, Any]:
    """What a module imports under `TYPE_CHECKING`."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                if isinstance(statement, ast.ImportFrom):
                    package = module.__name__ if hasattr(module, "__path__") else module.__package__
                    code = compile(ast.Module([statement], []), module.__name__, "exec")
                    exec(code, {"__package__": package}, names)  # noqa: S102
    return names


def hints(of: Any) -> dict[str, Any]:
    return typing.get_type_hints(of, localns=for_type_checkers(import_module(of.__module__)))


def classes_of(annotation: Any) -> Iterator[type]:
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation) if arguments else annotation
    if isinstance(origin, type):
        yield origin
    if isinstance(annotation, typing.TypeVar):
        yield from classes_of(annotation.__bound__)
    if origin is typing.Literal:
        return
    for argument in arguments:
        for each in argument if isinstance(argument, list) else [argument]:
            yield from classes_of(each)


def public_functions(of: type) -> Iterator[tuple[str, Any]]:
    yield "__init__", of.__init__  # type: ignore[misc]
    for name, member in inspect.getmembers_static(of):
        if name.startswith("_"):
            continue
        found = member.fget if isinstance(member, property) else member
        found = found.func if isinstance(found, cached_property) else found
        yield name, getattr(found, "__func__", found)


def signatures(module: ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """Everything that a user of a public name reads, with its annotation."""
    value = getattr(module, name)
    if inspect.isfunction(value):
        yield from hints(value).items()
    if not inspect.isclass(value):
        return
    for field, annotation in hints(value).items():
        if not field.startswith("_"):
            yield field, annotation
    for method, function in public_functions(value):
        generated = method == "__init__" and dataclasses.is_dataclass(value)
        ours = inspect.isfunction(function) and function.__module__.startswith("dragoman")
        if ours and not generated:
            for argument, annotation in hints(function).items():
                yield f"{method}({argument})", annotation


def test_every_type_in_a_public_signature_is_public() -> None:
    public = {id(getattr(module, name)) for module in modules() for name in module.__all__}
    missing = {
        f"{each.__module__}.{each.__qualname__}: in {module.__name__}.{name}, {where}"
        for module in modules()
        for name in module.__all__
        for where, annotation in signatures(module, name)
        for each in classes_of(annotation)
        if each.__module__.startswith("dragoman.") and id(each) not in public
    }
    assert not missing, "\n".join(sorted(missing))
