"""Records of files that a test has changed or written by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dragoman.reference_model import ReferenceModel
from dragoman.runtime import load, read_bundle
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.known_answers import KnownAnswers
from dragoman.runtime.format.manifest import MANIFEST_FILE, FileRecord
from dragoman.runtime.format.writing import add_known_answers, write_manifest
from dragoman.verification.inputs.parity_inputs import ParityInputs, random_inputs
from dragoman.verification.known_answers import make_known_answers


def record_files(directory: Path) -> tuple[FileRecord, ...]:
    """Records of all files in a directory but the manifest, in order of path."""
    return tuple(
        FileRecord(
            path.relative_to(directory).as_posix(),
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST_FILE
    )


def record_again(directory: Path) -> None:
    """Let the manifest of a changed bundle name the files as they are now."""
    manifest = json.loads((directory / MANIFEST_FILE).read_text(encoding="utf-8"))
    manifest["files"] = [vars(record) for record in record_files(directory)]
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest), encoding="utf-8")


def add_answers(
    directory: Path, reference: ReferenceModel, texts: Sequence[str] | None = None
) -> KnownAnswers:
    """Give a bundle known answers, as `build` does after parity.

    Args:
        texts: inputs, for a bundle with tokenizers; None: random tokens
    """
    bundle = read_bundle(directory)
    inputs = random_inputs(reference, 12)
    if texts is not None:
        with load(bundle, threads=1) as model:
            sources: list[EncoderInput] = [model.tokenize(text) for text in texts]
        inputs = ParityInputs("texts", sources, texts=list(texts))
    known = make_known_answers(bundle, reference, inputs, 1)
    write_manifest(add_known_answers(known, bundle.manifest, directory), directory)
    return known
