"""Fetching models of the Hugging Face Hub into the cache of `huggingface_hub`.

Only files that the checkpoint readers need are fetched, and no code.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from http.client import responses
from pathlib import Path, PurePosixPath
from typing import Any

from dragoman.errors import DragomanError, shown
from dragoman.files.strict_json import read_json, read_json_object
from dragoman.progress import Progress, quiet

from .contents import READ_FILES
from .detection import (
    CTRANSLATE2_FILE,
    INDEX_SUFFIX,
    MODULES_FILE,
    TENSOR_FILES,
    WEIGHTS_FILE,
    read_configuration,
)

MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
LONGEST_ID = 96
"""Maximum characters of a model id at the hub."""

WITH_WEIGHTS = ("Transformer", "Dense")
"""Modules of sentence-transformers that have weights."""

NO_NAME = frozenset("*?[\0")
"""Characters of file patterns, which would match more files, and one that paths cannot have."""

LOG_IN = "with `hf auth login` or HF_TOKEN"

Download = Callable[[str, Sequence[str]], Path]
"""Revision and file patterns -> cache folder of the commit."""


def is_model_id(name: str) -> bool:
    """Return whether a name has the form `owner/model`.

    The oldest models have no owner, but a mistyped directory name must not cause a network request.
    """
    return len(name) <= LONGEST_ID and MODEL_ID.fullmatch(name) is not None


def fetch(model_id: str, revision: str | None, progress: Progress) -> Path:
    """Fetch a model's files into the cache folder of the commit.

    The configuration is fetched first, so that no weights of an unsupported model are fetched.
    Weights are fetched in one format, which readers prefer. Without a connection, or with
    HF_HUB_OFFLINE, the cache is used.

    Args:
        model_id: `owner/model`
        revision: a branch, a tag or a commit; None: main
        progress: receives the number of megabytes
    """
    progress.stage(f"fetching {model_id}, MB")
    with _one_line_errors(model_id, revision):
        download = _downloader(model_id, progress)
        directory = download(revision or "main", READ_FILES)
        modules = _modules(directory / MODULES_FILE)
        folders = sorted({folder for _, folder in modules} - {""})
        if folders:
            download(directory.name, [f"{folder}/{n}" for folder in folders for n in READ_FILES])
        for folder in [f for kind, f in modules if kind in WITH_WEIGHTS] or [""]:
            values = read_configuration(directory / folder)
            in_tensors = bool(modules) or "model_type" in values
            names = TENSOR_FILES if in_tensors else (CTRANSLATE2_FILE, WEIGHTS_FILE)
            _download_weights(download, directory, folder, names)
    if not directory.is_dir():
        raise DragomanError(
            f"{model_id}: expected a checkpoint, found none of its files at the hub"
        )
    return directory


def _downloader(model_id: str, progress: Progress) -> Download:
    # The import reads this variable. Telemetry may send a list of installed libraries.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download

    bars = _reporting(progress)

    def download(revision: str, files: Sequence[str]) -> Path:
        return Path(
            snapshot_download(
                model_id, revision=revision, allow_patterns=list(files), tqdm_class=bars
            )
        )

    return download


def _download_weights(
    download: Download, directory: Path, folder: str, names: Sequence[str]
) -> None:
    prefix = f"{folder}/" if folder else ""
    for name in names:
        weights, index = directory / folder / name, directory / folder / (name + INDEX_SUFFIX)
        download(directory.name, (prefix + name, prefix + index.name))
        if weights.is_file():
            return
        if index.is_file():
            download(directory.name, [prefix + part for part in _parts(index)])
            return


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return the types and folders of the modules in `modules.json`, "" for the directory itself.

    Damaged entries and paths outside the repository are skipped, for the reader to report.
    """
    if not path.exists():
        return []
    try:
        found = [(entry["type"].rpartition(".")[2], entry["path"]) for entry in read_json(path)]
        folders = [(kind, PurePosixPath(folder)) for kind, folder in found]
    except (DragomanError, LookupError, TypeError, AttributeError):
        return []
    return [
        (kind, "/".join(folder.parts))
        for kind, folder in folders
        if not folder.is_absolute() and ".." not in folder.parts and not set(str(folder)) & NO_NAME
    ]


def _parts(index: Path) -> list[str]:
    try:
        names = set(read_json_object(index)["weight_map"].values())
    except (DragomanError, LookupError, TypeError, AttributeError):
        return []
    return sorted(n for n in names if isinstance(n, str) and not set(n) & {*NO_NAME, "/"})


def _reporting(progress: Progress) -> type[Any]:
    from tqdm import tqdm

    lock, most = threading.Lock(), 0

    class Reporting(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # the name of a group of bars, which tqdm lacks
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            with lock:  # called by several threads
                self.n += n or 0
                if self._counts_bytes and self.total:
                    # One bar counts received bytes and another one written bytes.
                    most = max(most, self.n)
                    progress.advance(round(most / 1e6), round(max(most, self.total) / 1e6))

    return Reporting


@contextlib.contextmanager
def _one_line_errors(model_id: str, revision: str | None) -> Iterator[None]:
    """Raise every failure as a `DragomanError`, and hide the library's log messages."""
    try:
        with quiet("huggingface_hub"):
            yield
    except (DragomanError, ModuleNotFoundError):
        raise
    except Exception as error:  # errors of the library, HTTP client, storage and disk
        raise DragomanError(f"{model_id}: {_problem(error, model_id, revision)}") from error


def _problem(error: Exception, model_id: str, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    is_missing = isinstance(error, errors.LocalEntryNotFoundError)  # not cached, not available
    cause = error.__cause__ or error if is_missing else error
    if isinstance(cause, errors.GatedRepoError):
        return f"its owner grants access to it at {hub}/{model_id}: then log in {LOG_IN}"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return f"no such directory, and no such model at {hub}; if it is private, log in {LOG_IN}"
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"expected a branch, a tag or a commit as its revision, found {shown(revision)}"
    if isinstance(cause, errors.HfHubHTTPError):
        status = cause.response.status_code
        found = cause.server_message or responses.get(status, "")
        return f"{hub} answers {status}: {_first_line(found)}"
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return (
            f"no such directory, and no such model, or not all of it, in {cache}; it was not "
            f"looked for at {hub}, as HF_HUB_OFFLINE is set"
        )
    if is_missing:
        return (
            f"no such directory, and no such model, or not all of it, in {cache}; {hub} cannot be "
            f"reached: {_first_line(cause)}"
        )
    if isinstance(cause, OSError) and cause.strerror:
        return f"cannot write to {cache}: {cause.strerror}"
    return f"fetching it from {hub} failed, try again to go on: {_first_line(cause)}"


def _first_line(value: object) -> str:
    return next(iter(str(value).splitlines()), "") or type(value).__name__
