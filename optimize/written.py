"""Graphs that were changed -> the files of a bundle."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from dragoman.runtime.format.bundle import Bundle, record_files, write_manifest
from dragoman.runtime.format.manifest import Manifest
from dragoman.stored_weights import store_weights


def write_graphs(
    manifest: Manifest, graphs: Mapping[str, ir.Model], source: Bundle, directory: Path
) -> Manifest:
    """Write encoder and decoder, with the tokenizers of the bundle they came from.

    Returns:
        the manifest as written, with the files that there are now
    """
    store_weights(list(graphs.values()), directory)
    for name, model in graphs.items():
        ir.save(model, directory / getattr(manifest, name).file)
    copy_tokenizers(source, directory)
    written = dataclasses.replace(manifest, files=record_files(directory))
    write_manifest(written, directory)
    return written


def copy_tokenizers(source: Bundle, directory: Path) -> None:
    """Those of a bundle, if it has any."""
    tokenizers = source.manifest.tokenizers
    for file in () if tokenizers is None else tokenizers.files:
        shutil.copyfile(source.path(file), directory / file)
