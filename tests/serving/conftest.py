"""Small random bundles of every kind, and a server that answers with them on a socket."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Bundle, Model, load, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.writing import write_manifest
from dragoman.runtime.serving import process
from dragoman.runtime.serving.app import create_app
from dragoman.runtime.serving.options import EngineOptions, ListenOptions, ServerOptions
from dragoman.runtime.texts.shortlist import Shortlist

from ..runtime.encoding.conftest import CONFIG, PIECES, transformers
from ..speech_models import MODELS, save
from ..zoo import letters_model, letters_tokenizers

Serve = Callable[..., httpx.Client]


def make_letters(
    directory: Path, *, seed: int = 0, precision: Precision = "fp32", **changes: object
) -> Path:
    """Letters to phonemes, at random: greedy outputs vary in length."""
    files = directory.parent / f"{directory.name}-tokenizers"
    files.mkdir(parents=True)
    model, tokenizers = letters_model(seed=seed, **changes), letters_tokenizers(files)
    return optimized(
        lambda into: export_bundle(
            model, into, name="letters", tokenizers=tokenizers, attention=True
        ),
        directory,
        precision,
    )


def make_quantized(directory: Path) -> Path:
    """Letters to phonemes in int8."""
    return make_letters(directory, precision="int8")


def make_student(directory: Path) -> Path:
    """Letters to phonemes in int8, with a recurrent decoder and a shortlist."""
    made = read_bundle(make_letters(directory, precision="int8", decoder_kind="ssru"))
    spec, random = made.manifest.model, np.random.default_rng(0)
    entries: dict[tuple[int, ...], NDArray[np.int32]] = {
        (source,): np.sort(random.choice(spec.target_vocab_size, 9, replace=False)).astype(np.int32)
        for source in range(spec.source_vocab_size or 0)
    }
    shortlist = Shortlist(entries, np.array([5], np.int32)).with_always([spec.end_token_id], [])
    write_manifest(add_shortlist(made, shortlist).manifest, directory)
    return directory


def make_vectors(directory: Path) -> Path:
    """Embeddings of BERT: the mean over the tokens."""
    return _make_bert(directory, "Model", {})


def make_labels(directory: Path, *labels: str) -> Path:
    """Labels of texts and pairs by BERT."""
    return _make_bert(directory, "ForSequenceClassification", {"id2label": dict(enumerate(labels))})


def _make_bert(directory: Path, head: str, settings: dict[str, Any]) -> Path:
    import torch

    torch.manual_seed(0)
    checkpoint = directory.with_name("bert")
    config = transformers.BertConfig(**CONFIG | settings)
    getattr(transformers, f"Bert{head}")(config).save_pretrained(checkpoint)
    (checkpoint / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return _from_checkpoint(checkpoint, directory)


def make_speech(directory: Path) -> Path:
    """Whisper with windows of a second and four languages."""
    checkpoint = save(MODELS["multilingual"](), directory.with_name("whisper"))
    return _from_checkpoint(checkpoint, directory)


def make_verses(directory: Path) -> Path:
    """The shipped decoder-only model."""
    from dragoman.reference_model import pretrained

    checkpoint = Path(str(pretrained.__path__[0])) / "verses-en"
    return _from_checkpoint(checkpoint, directory)


def _from_checkpoint(checkpoint: Path, directory: Path) -> Path:
    read = read_checkpoint(checkpoint)
    return optimized(
        lambda into: export_bundle(
            read.model, into, name=directory.name, tokenizers=read.tokenizers
        ),
        directory,
    )


def optimized(
    export: Callable[[Path], Bundle], directory: Path, precision: Precision = "fp32"
) -> Path:
    neutral = directory.with_name(f"{directory.name}-neutral")
    neutral.mkdir(parents=True)
    directory.mkdir(parents=True)
    optimize_bundle(export(neutral), directory, target="cpu", precision=precision)
    return directory


MAKERS: dict[str, Callable[[Path], Path]] = {
    "letters": make_letters,
    "quantized": make_quantized,
    "student": make_student,
    "vectors": make_vectors,
    "relevance": lambda directory: make_labels(directory, "relevance"),
    "classes": lambda directory: make_labels(directory, "contradiction", "entailment"),
    "speech": make_speech,
    "verses": make_verses,
}


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a bundle by name; not to be changed."""
    made: dict[str, Path] = {}

    def bundle(name: str) -> Path:
        if name not in made:
            made[name] = MAKERS[name](tmp_path_factory.mktemp("bundles") / name)
        return made[name]

    return bundle


@pytest.fixture(scope="module")
def model(bundle: Callable[[str], Path]) -> Callable[[str], Model]:
    """The model that the server is compared with."""
    loaded: dict[str, Model] = {}

    def model(name: str) -> Model:
        if name not in loaded:
            loaded[name] = load(bundle(name), threads=1)
        return loaded[name]

    return model


class Server(process.Server):
    """Sets an event when it listens."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def _leave(self, *, is_clean: bool = True) -> None:
        """Let the process go on, which is that of the tests."""


@contextmanager
def running(
    directories: dict[str, Path],
    listen: ListenOptions,
    *,
    preload: bool = True,
    **options: Any,
) -> Iterator[tuple[Server, str]]:
    """A server in another thread, and its URL; the server ends with the context."""
    engine = EngineOptions(**{"workers": 1, "threads": 1} | options.pop("engine", {}))
    options = {"greedy": True} | options
    app = create_app(directories, ServerOptions(engine=engine, **options), preload=preload)
    config = process.configuration(app, listen)
    with process.listening(listen) as bound:
        server = Server(config, bound, listen, process.tls_context(listen), app.state.service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        assert server.ready.wait(60)
        try:
            yield server, process.url_of(bound, "http")
        finally:
            server.should_exit = True
            thread.join()
            server.cancel_end()


@contextmanager
def serving(
    directories: dict[str, Path], *, preload: bool = True, **options: Any
) -> Iterator[httpx.Client]:
    """A client of a server in another thread, on a free port; the server ends with the context."""
    listen = ListenOptions(port=0, drain_seconds=5)
    with (
        running(directories, listen, preload=preload, **options) as (_, url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def copy_as(bundle: Path, directory: Path) -> Path:
    return Path(shutil.copytree(bundle, directory))


__all__ = ["Serve", "copy_as", "make_letters", "read_bundle", "serving"]
