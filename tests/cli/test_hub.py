"""A checkpoint by its id at the Hugging Face Hub: what is fetched, what is recorded, and how every
failure is told, against a hub on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import huggingface_hub.constants
import pytest

from dragoman import DragomanError
from dragoman.benchmarks.models.random_checkpoint import write_random_text_model
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.formats.contents import HARMLESS_FILES, OTHER_WEIGHTS, READ_FILES
from dragoman.export.formats.hub import is_model_id
from dragoman.export.locating import locate_checkpoint
from dragoman.runtime import read_bundle
from dragoman.runtime.format.manifest import Origin

from .. import hub_double
from ..hub_double import Hub, Model
from ..recorded_progress import RecordedProgress
from .test_disk_full import limited
from .test_missing_libraries import hiding
from .test_user_mistakes import error_of

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

NAME = "owner/opus-mt-xx-yy"
FIRST, SECOND = "1" * 40, "2" * 40
NOT_READ = (
    *("README.md", "modeling_marian.py", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"),
    *("onnx/config.json", "onnx/model.onnx", ".gitattributes"),
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints") / "opus-mt-xx-yy"
    write_random_text_model("tiny", directory, vocab_size=50, seed=0)
    settings = directory / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_length": 20}))
    return directory


@pytest.fixture(scope="session")
def files(marian: Path) -> dict[str, bytes]:
    """Of the model, and much that is not to be fetched."""
    read = {path.name: path.read_bytes() for path in marian.iterdir()}
    return read | dict.fromkeys(("pytorch_model.bin", *NOT_READ), b"not to be read")


@pytest.fixture
def hub(
    files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Hub]:
    """With one model: two commits, a tag, and the branch main at the second."""
    commits = {FIRST: {**files, "config.json": b"{}"}, SECOND: files}
    hub = Hub({NAME: Model(commits, {"main": SECOND, "v1": FIRST})})
    hub.start()
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)  # for processes to come
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    library = huggingface_hub.constants
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(tmp_path / "home" / "hub"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": True,
    }.items():
        monkeypatch.setattr(library, name, value)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the library's own attempts
    yield hub
    hub.stop()


def test_a_bundle_of_a_model_at_the_hub(
    spawn: Dragoman, dragoman: Dragoman, hub: Hub, marian: Path, tmp_path: Path
) -> None:
    """As a process of its own, by HF_ENDPOINT alone; it computes what the local files compute."""
    output = tmp_path / "out"
    outcome = spawn("export", NAME, "-o", output, "--revision", "main")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.endswith(f"dragoman verify {output} {NAME} --revision main\n")
    manifest = read_bundle(output).manifest
    assert (manifest.name, manifest.origin) == ("opus-mt-xx-yy", Origin(NAME, SECOND))
    inspected = dragoman("inspect", output).stdout
    assert f"made from {NAME}, commit {SECOND}" in " ".join(inspected.split())
    outcome = dragoman("verify", output, marian, "--limit", 2)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_only_what_is_read_is_fetched(hub: Hub, marian: Path) -> None:
    located = locate_checkpoint(NAME)
    read = {path.name: path.read_bytes() for path in marian.iterdir()}
    assert {path.name: path.read_bytes() for path in located.directory.iterdir()} == read
    assert sorted(hub.fetched) == sorted(f"{SECOND}/{name}" for name in read)


def test_a_tag_and_a_commit(hub: Hub) -> None:
    assert locate_checkpoint(NAME, SECOND).origin == Origin(NAME, SECOND)
    located = locate_checkpoint(NAME, "v1")
    assert located.origin == Origin(NAME, FIRST)
    assert (located.directory / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize("offline", [True, False], ids=["HF_HUB_OFFLINE", "no connection"])
def test_the_cache_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    before = locate_checkpoint(NAME)
    hub.stop()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    asked = hub.requests
    assert locate_checkpoint(NAME) == locate_checkpoint(NAME, SECOND) == before
    assert hub.requests == asked


def test_nothing_is_fetched_twice(hub: Hub) -> None:
    locate_checkpoint(NAME)
    fetched = list(hub.fetched)
    locate_checkpoint(NAME)
    assert hub.fetched == fetched


def test_bytes_are_reported(hub: Hub, files: Mapping[str, bytes]) -> None:
    hub.models[NAME].commits[SECOND] = {**files, "vocab.json": b" " * 3_000_000}
    progress = RecordedProgress()
    locate_checkpoint(NAME, progress=progress)
    assert progress.stages == [f"fetching {NAME}, MB"]
    assert progress.done == sorted(progress.done)
    assert progress.done[-1][0] == progress.done[-1][1] >= 3


@pytest.mark.parametrize("kept", ["pytorch_model.bin", "index"])
def test_other_forms_of_weights(hub: Hub, files: Mapping[str, bytes], kept: str) -> None:
    rest = {n: d for n, d in files.items() if n not in ("model.safetensors", "pytorch_model.bin")}
    if kept == "index":
        parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        index = {"weight_map": dict(zip("abc", [*parts, parts[0]], strict=True))}
        weights = {"model.safetensors.index.json": json.dumps(index).encode()}
        weights |= {name: name.encode() for name in parts}
        others = {"pytorch_model.bin": b"", "model-fp16.safetensors": b""}
    else:
        weights, others = {"pytorch_model.bin": b"tensors"}, {"pytorch_model.fp16.bin": b""}
    hub.models[NAME].commits[SECOND] = rest | weights | others
    locate_checkpoint(NAME)
    fetched = {path.rpartition("/")[2] for path in hub.fetched}
    assert fetched == {"config.json", "generation_config.json", *weights}


def test_a_model_of_ctranslate2(hub: Hub) -> None:
    of_theirs = ("config.json", "model.bin", "tokenizer.json", "vocabulary.txt", "vocabulary.json")
    names = (*of_theirs, "README.md")
    texts = {name: json.dumps({"name": name}).encode() for name in names}
    hub.models[NAME].commits[SECOND] = texts
    locate_checkpoint(NAME)
    assert sorted(hub.fetched) == sorted(f"{SECOND}/{name}" for name in of_theirs)


def sentence_transformers(**folders: str) -> dict[str, bytes]:
    """A `modules.json` with the folders of modules, by kind."""
    modules = [{"type": f"library.{kind}", "path": path} for kind, path in folders.items()]
    return {"modules.json": json.dumps(modules).encode()}


def test_folders_of_sentence_transformers(hub: Hub) -> None:
    """Whatever their names are, and of the weights one format in each."""
    listed = sentence_transformers(Transformer="0_Transformer", Pooling="1_P", Dense="to/ours")
    read = [
        *("0_Transformer/config.json", "0_Transformer/sentence_xlm-roberta_config.json"),
        *("0_Transformer/tokenizer.json", "0_Transformer/model.safetensors", "1_P/config.json"),
        *("to/ours/config.json", "to/ours/pytorch_model.bin"),
    ]
    others = ["0_Transformer/pytorch_model.bin", "0_Transformer/onnx/model.onnx", "1_P/README.md"]
    others += ["2_Dense/config.json", "model.safetensors", "to/model.safetensors", "README.md"]
    texts = {name: json.dumps({"file": name}).encode() for name in [*read, *others]}
    texts["0_Transformer/config.json"] = b'{"model_type": "bert"}'
    hub.models[NAME].commits[SECOND] = listed | texts
    locate_checkpoint(NAME)
    assert sorted(hub.fetched) == sorted(f"{SECOND}/{name}" for name in ["modules.json", *read])


def test_weights_of_sentence_transformers_in_parts(hub: Hub) -> None:
    listed = sentence_transformers(Transformer="", Pooling="1_Pooling")
    parts = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    index = json.dumps({"weight_map": dict(zip("ab", parts, strict=True))}).encode()
    texts = {"config.json": b'{"model_type": "bert"}', "1_Pooling/config.json": b"{}"}
    texts |= {"model.safetensors.index.json": index, **{name: name.encode() for name in parts}}
    hub.models[NAME].commits[SECOND] = listed | texts | {"pytorch_model.bin": b""}
    locate_checkpoint(NAME)
    expected = ["modules.json", *texts]
    assert sorted(hub.fetched) == sorted(f"{SECOND}/{name}" for name in expected)


def test_weights_in_a_folder_of_an_unknown_kind_are_not_fetched(hub: Hub) -> None:
    listed = sentence_transformers(Transformer="0_T", Pooling="1_P")
    texts = {"0_T/config.json": b'{"model_type": "llama"}', "0_T/model.safetensors": b""}
    hub.models[NAME].commits[SECOND] = listed | texts
    with pytest.raises(DragomanError, match=r"model_type: expected one of .*, found 'llama'"):
        locate_checkpoint(NAME)
    assert hub.fetched == [f"{SECOND}/modules.json", f"{SECOND}/0_T/config.json"]


@pytest.mark.parametrize(
    "modules",
    [
        *([{"type": "x.Transformer", "path": path}] for path in ("..", "/etc", "*", "a\0b", "[a]")),
        *([{"type": "x.Transformer"}], [{"type": 5, "path": ""}], [5], {"a": 1}, 5),
        [{"type": "x.Transformer", "path": 5}],
    ],
    ids=str,
)
def test_folders_that_are_no_names_of_folders(hub: Hub, modules: object) -> None:
    """They are left to the reader, which refuses them; nothing else is fetched for them."""
    texts = {"modules.json": json.dumps(modules).encode()}
    others = dict.fromkeys(("secret/config.json", "a/model.safetensors"), b"{}")
    hub.models[NAME].commits[SECOND] = texts | others
    located = locate_checkpoint(NAME)
    assert hub.fetched == [f"{SECOND}/modules.json"]
    with pytest.raises(DragomanError):
        read_checkpoint(located.directory)


def test_weights_of_an_unknown_kind_are_not_fetched(
    dragoman: Dragoman, hub: Hub, files: Mapping[str, bytes], tmp_path: Path
) -> None:
    hub.models[NAME].commits[SECOND] = {**files, "config.json": b'{"model_type": "llama"}'}
    message = error_of(dragoman("build", NAME, "-o", tmp_path / "out"))
    assert "model_type: expected one of" in message and "found 'llama'" in message
    assert not any("model." in path for path in hub.fetched)


def test_a_model_without_weights(
    dragoman: Dragoman, hub: Hub, files: Mapping[str, bytes], tmp_path: Path
) -> None:
    hub.models[NAME].commits[SECOND] = {"config.json": files["config.json"], "tf_model.h5": b""}
    message = error_of(dragoman("build", NAME, "-o", tmp_path / "out"))
    assert "expected model.safetensors or pytorch_model.bin" in message
    hub.models["owner/empty"] = Model({FIRST: {"README.md": b""}}, {"main": FIRST})
    message = error_of(dragoman("build", "owner/empty", "-o", tmp_path / "out"))
    assert message == (
        "Error: owner/empty: expected a checkpoint, found none of its files at the hub"
    )


REFUSALS = {
    "no such model": (hub_double.NO_SUCH_MODEL, "no such directory, and no such model at HUB; if"),
    "gated": (hub_double.GATED, f"its owner grants access to it at HUB/{NAME}: then log in"),
    "forbidden": (hub_double.FORBIDDEN, "HUB answers 403: Your token may not read this"),
    "a bad token": (hub_double.UNAUTHORIZED, "HUB answers 401: Invalid credentials"),
    "a failure": (hub_double.FAILING, "HUB answers 500: Internal Server Error"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refusal(dragoman: Dragoman, hub: Hub, tmp_path: Path, reason: str) -> None:
    hub.models[NAME].refusal, message = REFUSALS[reason]
    outcome = dragoman("build", NAME, "-o", tmp_path / "out")
    expected = f"Error: {NAME}: " + message.replace("HUB", hub.endpoint)
    assert error_of(outcome).startswith(expected)
    assert not (tmp_path / "out").exists()


def test_a_wrong_revision(dragoman: Dragoman, hub: Hub, tmp_path: Path) -> None:
    for revision in ("v9", "3" * 40):
        outcome = dragoman("export", NAME, "-o", tmp_path / "out", "--revision", revision)
        assert error_of(outcome) == (
            f"Error: {NAME}: expected a branch, a tag or a commit as its revision, found "
            f"{revision!r}"
        )


def test_a_wrong_name(dragoman: Dragoman, hub: Hub, tmp_path: Path) -> None:
    message = error_of(dragoman("export", "bundles/nothing", "-o", tmp_path / "out"))
    assert message.startswith(
        f"Error: bundles/nothing: no such directory, and no such model at {hub.endpoint}"
    )
    message = error_of(dragoman("export", "a--b/c", "-o", tmp_path / "out"))
    assert message.startswith("Error: a--b/c: fetching it") and "--" in message


def test_no_connection(spawn: Dragoman, hub: Hub, tmp_path: Path) -> None:
    """As a process of its own: the library logs nothing either. No PyTorch is imported."""
    hub.stop()
    outcome = spawn("build", NAME, "-o", tmp_path / "out", prelude=hiding("torch", "onnx"))
    assert error_of(outcome).startswith(
        f"Error: {NAME}: no such directory, and no such model, or not all of it, in "
        f"{tmp_path / 'home' / 'hub'}; {hub.endpoint} cannot be reached: "
    )


def test_offline(
    dragoman: Dragoman, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = error_of(dragoman("build", NAME, "-o", tmp_path / "out"))
    assert "not looked for" in message and message.endswith("as HF_HUB_OFFLINE is set")
    assert hub.requests == 0


def test_a_connection_that_breaks(
    dragoman: Dragoman, hub: Hub, files: Mapping[str, bytes], tmp_path: Path
) -> None:
    hub.cut = 10_000
    message = error_of(dragoman("build", NAME, "-o", tmp_path / "out"))
    assert message.startswith(f"Error: {NAME}: ") and hub.endpoint in message
    assert not (tmp_path / "out").exists()
    hub.cut = None
    located = locate_checkpoint(NAME)
    read = (located.directory / "model.safetensors").read_bytes()
    assert read == files["model.safetensors"]


def test_a_full_disk(spawn: Dragoman, hub: Hub, tmp_path: Path) -> None:
    outcome = spawn("build", NAME, "-o", tmp_path / "out", prelude=limited(20_000))
    assert error_of(outcome) == (
        f"Error: {NAME}: cannot write to {tmp_path / 'home' / 'hub'}: File too large"
    )


@pytest.mark.parametrize(
    "path", ["nowhere", "./x/y", "../x", "x/y/z", "x/", "/x/y", "~/x", "x/.y", "x y/z", "a\nb/c"]
)
def test_a_wrong_path_stays_here(
    dragoman: Dragoman, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where none of these exists
    assert not is_model_id(path)
    outcome = dragoman("build", path, "-o", tmp_path / "out")
    assert outcome.returncode == 2 and "expected the directory of a checkpoint" in outcome.stderr
    assert "owner/model" in outcome.stderr
    with pytest.raises(DragomanError, match="found 'owner/name'"):
        locate_checkpoint(Path("owner/name"))
    assert hub.requests == 0


def test_a_directory_comes_before_the_hub(
    hub: Hub, marian: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(marian.parent.parent)
    name = f"{marian.parent.name}/{marian.name}"
    assert is_model_id(name)
    located = locate_checkpoint(name)
    assert (located.directory, located.origin) == (Path(name), None)
    for local in (name, "g2p-en"):
        with pytest.raises(
            DragomanError, match=f"revision: expected one only.*'main' with {local}"
        ):
            locate_checkpoint(local, "main")
    assert hub.requests == 0


def test_every_file_that_readers_name_is_fetched() -> None:
    """Except weights, which are chosen, and what is not read from a checkpoint."""
    package = ROOT / "src" / "dragoman"
    sources = [*package.glob("export/**/*.py"), *package.glob("reference_model/**/*.py")]
    assert sources
    named = {
        name
        for path in sources
        for name in re.findall(
            r'"([a-zA-Z_.*-]+\.(?:json|txt|tsv|model|spm|tiktoken))"', path.read_text()
        )
    }
    licences = {name for name in named if name.startswith("LICENSE-")}
    assert named - {
        ".index.json",
        "corpora.json",
        *HARMLESS_FILES,
        *OTHER_WEIGHTS,
    } - licences <= set(READ_FILES)
