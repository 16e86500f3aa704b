"""A kit for a GPU machine without a network, of small wheels: made, cut, carried in pieces, put
together by its own script in an empty environment, imported."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.specifiers import SpecifierSet

from dragoman.benchmarks.gpu.cuda_libraries import with_cuda_libraries
from dragoman.benchmarks.gpu.kit import install, making
from dragoman.benchmarks.gpu.kit.contents import PACKS, Pack
from dragoman.benchmarks.gpu.kit.making import make_kit
from dragoman.benchmarks.gpu.kit.needs import Distribution, needs
from dragoman.benchmarks.gpu.kit.packing import pack
from dragoman.benchmarks.gpu.kit.wheels import unpack
from dragoman.errors import DragomanError

from ..wheels import write_wheel

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
PART_BYTES = 40_000
NOISE = random.Random(1).randbytes(100_000)
"""Does not compress: three parts."""

TESTED = (
    Pack("first", "has noise", wheels=("alpha",), sources=("pure",)),
    Pack("second", "is small", wheels=("beta",), optional=True),
    Pack("third", "may be there", wheels=("gamma",), unless={"Present-Here": ">=1.5"}),
)


class Made(NamedTuple):
    """A kit and the folder it is in."""

    directory: Path
    kit: dict[str, Any]

    def parts(self, pack: str) -> list[str]:
        return [part["file"] for p in self.kit["packs"] if p["name"] == pack for part in p["parts"]]


def write_index(index: Path, project: Path) -> None:
    """Wheels to choose from, and a repository that pins one of them."""
    index.mkdir()
    project.mkdir()
    platform = f"{TAG}-{TAG}-manylinux_2_17_x86_64"
    code = b"from pathlib import Path\nnoise = (Path(__file__).parent / 'noise').read_bytes()\n"
    alpha = {"alpha/__init__.py": code, "alpha/noise": NOISE}
    write_wheel(index, "alpha", alpha, requires=["beta>=1", "pure"], tag=platform)
    write_wheel(index, "alpha", {"alpha/__init__.py": b"raise SystemExit"}, version="2.0")
    write_wheel(index, "alpha", {"alpha/__init__.py": b""}, version="0.9", tag="cp36-cp36m-win32")
    write_wheel(index, "pure", {"pure.py": b"name = 'pure'\n"})
    write_wheel(index, "beta", {"beta.py": b"name = 'beta'\n"})
    write_wheel(index, "gamma", {"gamma.py": b"name = 'gamma'\n"})
    (project / "constraints.txt").write_text("# pinned\nAlpha==1.0\n")
    (project / "pyproject.toml").write_text("[dependency-groups]\ngpu-peers = []\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    workspace = tmp_path_factory.mktemp("kit")
    index, project = workspace / "index", workspace / "project"
    write_index(index, project)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(index))
        patch.setattr(making, "LIBRARIES", ())
        kit = make_kit(
            project, workspace / "made", python=PYTHON, packs=TESTED, part_bytes=PART_BYTES
        )
    return Made(workspace / "made", kit)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment, without pip."""
    directory = tmp_path_factory.mktemp("empty")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    return directory / "bin" / "python"


class Arrival:
    """A machine to which parts come in deliveries."""

    def __init__(self, made: Made, python: Path, directory: Path) -> None:
        self.made, self.python, self.directory = made, python, directory
        self.target = directory / "installed"
        self.script = directory / "script"
        self.script.mkdir()
        for name in ("install.py", "kit.json"):
            shutil.copy(made.directory / name, self.script)

    def deliver(self, name: str, *parts: str) -> Path:
        folder = self.directory / name
        folder.mkdir()
        for part in parts:
            shutil.copy(self.made.directory / part, folder)
        return folder

    def install(self, *folders: Path) -> tuple[int, str]:
        """Exit status and output."""
        return self.run(self.python, self.script / "install.py", *folders, "--to", self.target)

    def run(self, *command: str | Path) -> tuple[int, str]:
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.target)}
        done = subprocess.run(
            list(map(str, command)),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def files(self) -> dict[str, bytes]:
        """Everything that is installed."""
        return {
            str(path.relative_to(self.target)): path.read_bytes()
            for path in self.target.rglob("*")
            if path.is_file() and ".kit" not in path.parts and "__pycache__" not in path.parts
        }


@pytest.fixture
def arrival(made: Made, python: Path, tmp_path: Path) -> Arrival:
    return Arrival(made, python, tmp_path)


def test_parts_are_what_the_list_says(made: Made) -> None:
    listed = {}
    for p in made.kit["packs"]:
        whole = b""
        for part in p["parts"]:
            content = (made.directory / part["file"]).read_bytes()
            assert 0 < len(content) <= PART_BYTES
            assert len(content) == part["size"]
            assert hashlib.sha256(content).hexdigest() == part["sha256"]
            whole += content
            listed[part["file"]] = content
        assert hashlib.sha256(whole).hexdigest() == p["sha256"]
        assert len(whole) == p["size"]
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            assert archive.getnames() == sorted(archive.getnames())
    assert made.parts("first") == [f"first.tar.xz.{number}" for number in (1, 2, 3)]
    written = {path.name for path in made.directory.iterdir()}
    assert written == {*listed, "install.py", "kit.json"}
    assert json.loads((made.directory / "kit.json").read_text()) == made.kit
    assert [p["holds"] for p in made.kit["packs"]] == [
        {"alpha": "1.0", "pure": "1.0"},
        {"beta": "1.0"},
        {"gamma": "1.0"},
    ]


def test_any_order_and_several_folders(arrival: Arrival, made: Made) -> None:
    one, two, three = made.parts("first")
    folders = [
        arrival.deliver("b", three, *made.parts("third")),
        arrival.deliver("a", one),
        arrival.deliver("c", *made.parts("second"), two),
    ]
    status, output = arrival.install(*folders)
    assert status == 0, output
    assert output.count(": installed") == 3
    code = (
        "import alpha, beta, gamma, hashlib, pure; print(hashlib.sha256(alpha.noise).hexdigest())"
    )
    status, output = arrival.run(arrival.python, "-c", code)
    assert (status, output.strip()) == (0, hashlib.sha256(NOISE).hexdigest())
    assert arrival.files()["alpha/noise"] == NOISE
    assert sorted(arrival.target.glob("*.dist-info")) == [
        arrival.target / f"{name}-1.0.dist-info" for name in ("alpha", "beta", "gamma", "pure")
    ]


def test_without_folders_the_parts_lie_beside_the_script(arrival: Arrival, made: Made) -> None:
    for part in (path for path in made.directory.iterdir() if ".tar.xz." in path.name):
        shutil.copy(part, arrival.script)
    status, output = arrival.install()
    assert status == 0, output


def test_what_is_missing_is_named_and_the_next_run_continues(arrival: Arrival, made: Made) -> None:
    one, two, three = made.parts("first")
    folder = arrival.deliver("now", two, *made.parts("second"))
    status, output = arrival.install(folder)
    assert status == 1
    assert "first: has noise: incomplete" in output
    assert f"missing: {one} (part 1 of 3, 40000 bytes)" in output
    assert f"missing: {three} (part 3 of 3, " in output
    assert f"missing: {two}" not in output
    assert "second (optional): is small: installed" in output
    assert "alpha/__init__.py" not in arrival.files()
    shutil.rmtree(folder)  # as on a machine that keeps the target alone
    status, output = arrival.install(arrival.deliver("later", one, three, *made.parts("third")))
    assert status == 0, output
    assert output.count(": installed") == 3
    assert not list((arrival.target / ".kit" / "parts").iterdir())
    status, output = arrival.install(arrival.deliver("nothing"))
    assert status == 0, output


def test_an_optional_pack_may_be_missing(arrival: Arrival, made: Made) -> None:
    folder = arrival.deliver("now", *made.parts("first"), *made.parts("third"))
    status, output = arrival.install(folder)
    assert status == 0, output
    assert "second (optional): is small: incomplete" in output


@pytest.mark.parametrize("damage", ["a bit", "the end"])
def test_what_is_damaged_is_named_and_may_come_again(
    arrival: Arrival, made: Made, damage: str
) -> None:
    folder = arrival.deliver("now", *(part for p in TESTED for part in made.parts(p.name)))
    bad = folder / made.parts("first")[1]
    content = bytearray(bad.read_bytes())
    if damage == "a bit":
        content[12345] ^= 4
    else:
        del content[-1]
    bad.write_bytes(content)
    status, output = arrival.install(folder)
    assert status == 1
    assert f"damaged: {bad}: expected " in output
    assert "missing" not in output
    assert "alpha/__init__.py" not in arrival.files()
    again = arrival.deliver("again", bad.name)
    status, output = arrival.install(folder, again)
    assert status == 0, output


def test_parts_that_do_not_make_the_pack(arrival: Arrival, made: Made) -> None:
    """Every part is what the list says, and together they are another pack."""
    changed = json.loads(json.dumps(made.kit))
    changed["packs"][0]["sha256"] = "0" * 64
    (arrival.script / "kit.json").write_text(json.dumps(changed))
    status, output = arrival.install(arrival.deliver("now", *made.parts("first")))
    assert status == 2
    assert "Error: first: expected SHA-256 0000" in output
    assert arrival.files() == {}
    changed["packs"][0]["parts"].reverse()
    (arrival.script / "kit.json").write_text(json.dumps(changed))
    status, output = arrival.install(arrival.directory / "now")
    assert status == 2
    assert "and on: expected a .tar.xz, found" in output
    assert arrival.files() == {}


def test_a_newer_pack_replaces_the_old_one(arrival: Arrival, made: Made, tmp_path: Path) -> None:
    parts = [part for p in TESTED for part in made.parts(p.name)]
    arrival.install(arrival.deliver("now", *parts))
    (arrival.target / "alpha" / "old.py").write_text("")
    status, output = arrival.install(arrival.deliver("nothing"))
    assert "alpha/old.py" in arrival.files()  # installed already: left alone
    newer = tmp_path / "newer"
    newer.mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "alpha").mkdir()
    (tmp_path / "tree" / "alpha" / "__init__.py").write_text("new = True\n")
    packed = pack(tmp_path / "tree", newer, "first", PART_BYTES)
    changed = json.loads(json.dumps(made.kit))
    changed["packs"][0] |= {
        "sha256": packed.sha256,
        "parts": [part._asdict() for part in packed.parts],
    }
    (arrival.script / "kit.json").write_text(json.dumps(changed))
    status, output = arrival.install(newer)
    assert status == 0, output
    files = arrival.files()
    assert [name for name in files if name.startswith(("alpha", "pure"))] == ["alpha/__init__.py"]


def test_what_the_machine_has_is_checked(arrival: Arrival, made: Made, tmp_path: Path) -> None:
    """What a folder of the machine's own has; the target does not count."""
    packages = next((arrival.python.parent.parent / "lib").glob("python*/site-packages"))
    distributions = {"present_here": "1.10", "Too.Old": "1.9.2", "fine": "3.0rc1"}
    for name, version in distributions.items():
        information = packages / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    remains = packages / "removed-1.0.dist-info"
    remains.mkdir()
    changed = made.kit | {
        "needs": {"too-old": ">=1.10,<2", "fine": ">=2.5", "gamma": "", "absent": ">=2"},
        "libraries": ["libcertainly-not.so.13"],
    }
    (arrival.script / "kit.json").write_text(json.dumps(changed))
    try:
        status, output = arrival.install(
            arrival.deliver("now", *made.parts("first"), *made.parts("second"))
        )
    finally:
        remains.rmdir()
        for name, version in distributions.items():
            shutil.rmtree(packages / f"{name}-{version}.dist-info")
    assert status == 1
    assert "third: may be there: not needed, the machine has Present-Here 1.10" in output
    assert "too-old: expected >=1.10,<2, found 1.9.2" in output
    assert "absent: expected >=2, found none" in output
    assert "gamma: expected any version, found none" in output
    assert "fine" not in output
    assert "libcertainly-not.so.13: found neither" in output


def test_libraries_of_pytorch_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcublas.so.13").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert install.missing_libraries(["libcublas.so.13"]) == []
    found = with_cuda_libraries({"LD_LIBRARY_PATH": "/before", "A": "b"})
    first, *_, last = found["LD_LIBRARY_PATH"].split(":")
    assert (first, last, found["A"]) == (str(folder), "/before", "b")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"python": "3.6"}, "expected Python 3.6, Linux, x86_64, found Python "),
        (None, "kit.json: expected the list of the kit's parts, found"),
    ],
)
def test_a_kit_for_another_machine(
    arrival: Arrival, made: Made, change: dict[str, Any] | None, problem: str
) -> None:
    text = "{" if change is None else json.dumps(made.kit | change)
    (arrival.script / "kit.json").write_text(text)
    status, output = arrival.install(arrival.deliver("now"))
    assert status == 2
    assert problem in output
    assert "Traceback" not in output
    assert not arrival.target.exists()


def test_a_folder_that_is_none(arrival: Arrival) -> None:
    status, output = arrival.install(arrival.directory / "nowhere")
    assert status == 2
    assert f"Error: {arrival.directory / 'nowhere'}: expected a folder with parts" in output


RANGES = ["", ">=1.26", ">=1.26,<3", "==2.0", "!=2.0", ">2", "<=2.0.0", "<2,>=1.2.3"]
VERSIONS = ["1.0", "1.2.3", "1.3", "1.26", "1.26.0", "1.100", "2", "2.0", "2.0.1", "2.11.0", "3"]


@pytest.mark.parametrize("accepted", RANGES)
def test_versions_are_compared_as_pip_does(accepted: str) -> None:
    for version in VERSIONS:
        assert install.accepts(accepted, version) == SpecifierSet(accepted).contains(version), (
            version
        )
    assert install.accepts(accepted, "2.5.0+cu130") == SpecifierSet(accepted).contains("2.5.0")


def test_needs_are_what_nothing_in_the_kit_meets() -> None:
    kit = [
        Distribution("dragoman", "1", ("numpy>=1.26", "torch>=2.9; extra == 'export'", "b>=2")),
        Distribution(
            "a", "1", ("NumPy!=2.0,>=1.9", "old; python_version < '3.8'", "x; extra == 'cuda'")
        ),
        Distribution("b", "2.1", ("win; sys_platform == 'win32'", "any_thing")),
    ]
    assert needs(kit, ["matplotlib>=3.8", "a"], "3.12") == {
        "numpy": ">=1.26,!=2.0",
        "torch": ">=2.9",
        "any-thing": "",
        "matplotlib": ">=3.8",
    }
    with pytest.raises(DragomanError, match=r"dragoman needs b>=2, found b 1\.9"):
        needs([*kit[:2], Distribution("b", "1.9", ())], [], "3.12")
    for unusual in ("c~=1.2", "c==1.*", "c>=1rc1"):
        with pytest.raises(DragomanError, match="expected plain numbers to compare with"):
            needs([], [unusual], "3.12")


def test_a_wheel_is_unpacked_as_installed(tmp_path: Path) -> None:
    files = {
        "m/__init__.py": b"",
        "m-1.0.data/purelib/m/a.py": b"a",
        "m-1.0.data/scripts/m": b"#!python",
    }
    wheel = write_wheel(tmp_path, "m", files)
    unpack([wheel], tmp_path / "tree")
    found = {str(p.relative_to(tmp_path / "tree")) for p in (tmp_path / "tree").rglob("*.*")}
    assert {"m/__init__.py", "m/a.py"} < found
    assert not any("scripts" in name or "data" in name for name in found)
    with pytest.raises(DragomanError, match=r"m/__init__\.py is in another wheel too"):
        unpack([wheel], tmp_path / "tree")


def test_kits_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, project = tmp_path / "index", tmp_path / "project"
    write_index(index, project)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    out = tmp_path / "out"

    def refused(pattern: str, *packs: Pack, project: Path = project, out: Path = out) -> None:
        with pytest.raises(DragomanError, match=pattern):
            make_kit(project, out, python="3.12", packs=packs)
        assert not (tmp_path / "out").exists()

    refused("expected the repository, found no constraints.txt", project=index)
    refused("expected a new directory, found .*index", out=index)
    refused("pip download: ERROR: .*nowhere", Pack("p", "", wheels=("nowhere",)))
    twice = Pack("p", "", wheels=("beta",)), Pack("q", "", wheels=("beta",))
    refused("beta.* is in the packs p and q", *twice)
    refused("expected a wheel of pure Python, found alpha-1.0", Pack("p", "", sources=("alpha",)))


def test_the_order_is_that_of_what_is_worth_knowing() -> None:
    """Engines run before ONNX Runtime's provider has arrived, and what is optional comes last."""
    names = [p.name for p in PACKS]
    assert names[0] == "tensorrt-rtx"
    assert names.index("dragoman") < names.index("onnxruntime-gpu")
    optional = [p.optional for p in PACKS]
    assert optional == sorted(optional)


def test_make_uses_the_kit(tmp_path: Path) -> None:
    """With the machine's own Python, the tree at hand and then the kit first on the path."""
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "$PYTHONPATH|$DRAGOMAN_REAL|$*"\n')
    fake.chmod(0o755)
    root = Path(__file__).parents[2]
    command = ["make", "--silent", "gpu", f"GPU_KIT={tmp_path}/kit", f"PYTHON={fake}"]
    done = subprocess.run(
        command,
        cwd=root,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    path, models, arguments = done.stdout.strip().split("|")
    assert path == f"src:{tmp_path}/kit"
    assert models == f"{tmp_path}/kit"
    assert arguments == "-m dragoman.benchmarks.gpu --output benchmarks/results"
