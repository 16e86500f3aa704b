"""`dragoman deploy triton` writes a whole repository or none, and replaces its own only."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman import DragomanError
from dragoman.cli.main import cli
from dragoman.runtime import read_bundle
from dragoman.runtime.format.manifest import Profile, Range, TensorRTEngines
from dragoman.runtime.serving.triton import repository
from dragoman.runtime.serving.triton.repository import Deployment, config_text

Bundle = Callable[[str], Path]
ONE = Range(1, 1, 1)
ENGINES = TensorRTEngines(
    version="1",
    cuda_version="13",
    compute_capabilities=(),
    capacity=9,
    profiles=(Profile(ONE, ONE),),
    refittable=False,
    reports={},
)
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "triton.md"


def deploy(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["deploy", "triton", *map(str, arguments)])


def refusal(result: Result) -> str:
    assert isinstance(result.exception, DragomanError), result.output
    return str(result.exception)


def files_in(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def parsed() -> Callable[[Path], Any]:
    """Reads a configuration by Triton's own description of it, which its client carries."""
    found = importlib.util.find_spec("tritonclient")
    assert found is not None and found.submodule_search_locations is not None
    (root,) = found.submodule_search_locations
    file = Path(root) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text_format: Any = importlib.import_module("google.protobuf.text_format")
    return lambda path: text_format.Parse(path.read_text(encoding="utf-8"), module.ModelConfig())


def test_a_folder_for_each_bundle(bundle: Bundle, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "repository"
    result = deploy(bundle("letters"), bundle("vectors"), "-o", output)
    assert result.exit_code == 0, result.output
    assert result.output == f"Wrote {output}: letters, vectors\n"
    expected = set()
    for name in ("letters", "vectors"):
        expected |= {f"{name}/config.pbtxt", f"{name}/1/model.py"}
        expected |= {f"{name}/1/bundle/{file}" for file in files_in(bundle(name))}
        assert read_bundle(output / name / "1" / "bundle").manifest == (
            read_bundle(bundle(name)).manifest
        )
    assert files_in(output) == expected
    assert [path.name for path in output.parent.iterdir()] == ["repository"]


def test_the_model_file_is_the_packaged_one(bundle: Bundle, tmp_path: Path) -> None:
    deploy(bundle("letters"), "-o", tmp_path / "repository")
    shipped = Path(repository.__file__).with_name("model.py")
    assert (tmp_path / "repository/letters/1/model.py").read_bytes() == shipped.read_bytes()


def test_configurations(bundle: Bundle, tmp_path: Path, parsed: Callable[[Path], Any]) -> None:
    output = tmp_path / "repository"
    names = ("letters", "vectors", "speech")
    deploy(*map(bundle, names), "-o", output, "--workers", 2, "--threads", 3, "--batch-size", 5)
    configs = {name: parsed(output / name / "config.pbtxt") for name in names}
    for name, config in configs.items():
        assert (config.name, config.backend, config.max_batch_size) == (name, "python", 0)
        assert config.model_transaction_policy.decoupled
        assert [group.count for group in config.instance_group] == [1]
        values = {key: value.string_value for key, value in config.parameters.items()}
        assert values == {"workers": "2", "threads": "3", "batch_size": "5"}
        optional = [(one.name, list(one.dims)) for one in config.input if one.optional]
        assert optional == [("options", [1])]
    inputs = {name: config.input[0].name for name, config in configs.items()}
    assert inputs == {"letters": "text", "vectors": "text", "speech": "audio"}
    assert [one.name for one in configs["letters"].output] == [
        *("text", "score", "log_probability", "finish_reason")
    ]
    assert [(one.name, list(one.dims)) for one in configs["vectors"].output] == [
        ("embedding", [-1, 24])
    ]


def test_engines_have_an_instance_on_each_gpu(
    bundle: Bundle, tmp_path: Path, parsed: Callable[[Path], Any]
) -> None:
    manifest = read_bundle(bundle("letters")).manifest
    engines = dataclasses.replace(manifest, target="tensorrt", executable=ENGINES)
    for one, kind in ((manifest, "KIND_CPU"), (engines, "KIND_GPU")):
        file = tmp_path / "config.pbtxt"
        file.write_text(config_text("letters", one, Deployment()), encoding="utf-8")
        (group,) = parsed(file).instance_group
        assert group.count == 1 and not group.gpus
        assert group.Kind.Name(group.kind) == kind


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        ("sequence-classification", [-1, -1]),
        ("question-answering", [-1, 2]),
        ("token-classification", [-1]),
    ],
)
def test_models_that_read_pairs(
    bundle: Bundle, tmp_path: Path, parsed: Callable[[Path], Any], task: Any, shape: list[int]
) -> None:
    manifest = read_bundle(bundle("vectors")).manifest
    assert manifest.head is not None
    head = dataclasses.replace(manifest.head, task=task)
    text = config_text("pairs", dataclasses.replace(manifest, head=head), Deployment())
    (tmp_path / "config.pbtxt").write_text(text, encoding="utf-8")
    config = parsed(tmp_path / "config.pbtxt")
    assert list(config.input[0].dims) == shape
    assert [(one.name, list(one.dims)) for one in config.output] == [("result", [-1])]


def test_defaults_are_not_written(
    bundle: Bundle, tmp_path: Path, parsed: Callable[[Path], Any]
) -> None:
    deploy(bundle("letters"), "-o", tmp_path / "repository", "--no-streaming")
    config = parsed(tmp_path / "repository" / "letters" / "config.pbtxt")
    assert not config.parameters
    assert not config.model_transaction_policy.decoupled


def test_links_instead_of_copies(bundle: Bundle, tmp_path: Path) -> None:
    deploy(bundle("letters"), "-o", tmp_path / "repository", "--link")
    link = tmp_path / "repository/letters/1/bundle"
    assert link.is_symlink()
    assert link.resolve() == bundle("letters").resolve()


def test_names(bundle: Bundle, tmp_path: Path) -> None:
    letters, output = bundle("letters"), tmp_path / "repository"
    result = deploy(letters, letters, "--name", "one", "--name", "two", "-o", output)
    assert result.exit_code == 0
    assert sorted(path.name for path in output.iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["one"], "--name: expected 2 names, one for each bundle, found 1"),
        (["one", "one"], "--name: expected different names, found one twice"),
        (["one", "../two"], "expected a name of letters, digits, _, - and ., found '../two'"),
        (["one", ""], "found ''"),
        ([], "expected bundles of different names"),
    ],
)
def test_invalid_names(bundle: Bundle, tmp_path: Path, names: list[str], message: str) -> None:
    options = [word for name in names for word in ("--name", name)]
    result = deploy(bundle("letters"), bundle("letters"), *options, "-o", tmp_path / "repository")
    assert message in refusal(result)
    assert not (tmp_path / "repository").exists()


def test_an_existing_one_is_refused_without_force(bundle: Bundle, tmp_path: Path) -> None:
    output = tmp_path / "repository"
    deploy(bundle("letters"), "-o", output)
    assert "already exists" in refusal(deploy(bundle("vectors"), "-o", output))
    assert [path.name for path in output.iterdir()] == ["letters"]
    assert deploy(bundle("vectors"), "-o", output, "--force").exit_code == 0
    assert [path.name for path in output.iterdir()] == ["vectors"]
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


@pytest.mark.parametrize(
    "stranger",
    [
        "other/config.pbtxt",
        "notes.txt",
        "letters/notes.txt",
        "letters/1/my.bin",
        "letters/2/model.py",
    ],
)
def test_other_files_are_never_replaced(bundle: Bundle, tmp_path: Path, stranger: str) -> None:
    output = tmp_path / "repository"
    deploy(bundle("letters"), "-o", output)
    (output / stranger).parent.mkdir(exist_ok=True)
    (output / stranger).write_text('name: "other"\n')
    found = refusal(deploy(bundle("vectors"), "-o", output, "--force"))
    assert found.endswith(f" is not part of a model repository: {output} will not be replaced")
    assert (output / stranger).exists()


def test_a_linked_bundle_outlives_its_repository(bundle: Bundle, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle("letters"), tmp_path / "letters"))
    deploy(copy, "-o", tmp_path / "repository", "--link")
    deploy(bundle("vectors"), "-o", tmp_path / "repository", "--force")
    read_bundle(copy)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_changes_nothing(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, existing: bool
) -> None:
    output = tmp_path / "repository"
    if existing:
        deploy(bundle("letters"), "-o", output)
    before = files_in(tmp_path)
    real = shutil.copyfile

    def copy(source: Path, destination: Path) -> Path:
        if Path(source).name == "manifest.json":
            raise OSError(code, "it is full")
        return real(source, destination)

    monkeypatch.setattr(shutil, "copyfile", copy)
    found = refusal(deploy(bundle("vectors"), "-o", output, "--force"))
    assert found == f"cannot write {output}: it is full; nothing was left behind"
    assert files_in(tmp_path) == before


def test_no_bundle(tmp_path: Path) -> None:
    found = refusal(deploy(tmp_path / "none", "-o", tmp_path / "repository"))
    assert "expected a bundle, found no such directory" in found
    assert not (tmp_path / "repository").exists()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "deploy", "triton", "none", "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_commands_of_the_guide(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bundle("letters"), tmp_path / "bundles" / "g2p-en")
    shutil.copytree(bundle("vectors"), tmp_path / "bundles" / "minilm")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ dragoman (deploy .*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        result = CliRunner().invoke(cli, shlex.split(command))
        assert result.exit_code == 0, result.output


def test_help_has_an_example() -> None:
    for words in (["deploy"], ["deploy", "triton"]):
        result = CliRunner().invoke(cli, [*words, "--help"])
        assert any(
            line.strip().startswith("dragoman deploy ") for line in result.output.splitlines()
        )
        assert len(result.output.splitlines()) <= 40
