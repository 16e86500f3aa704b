"""A converted model, decoding. Needs CTranslate2 alone, so that its memory can be measured."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError


class CTranslate2Peer:
    """A converted model, loaded; answers as Dragoman's runtime does."""

    def __init__(self, translator: Any) -> None:
        self._translator = translator

    @classmethod
    def load(
        cls, directory: Path, threads: int, compute_type: str = "default", device: str = "cpu"
    ) -> CTranslate2Peer:
        """Load a directory that `convert` wrote.

        Args:
            threads: for the products within one batch; batches are not run side by side
            compute_type: one of `ctranslate2.get_supported_compute_types(device)`; "default" is
                the nearest to the stored weights that the device supports
            device: "cpu" or "cuda"

        Raises:
            DragomanError: CTranslate2 is missing, or cannot load the directory in that type.
        """
        package = library()
        try:
            translator = package.Translator(
                str(directory),
                device=device,
                compute_type=compute_type,
                inter_threads=1,
                intra_threads=threads,
            )
        except (RuntimeError, ValueError) as error:
            raise DragomanError(f"CTranslate2 cannot load {directory}: {error}") from error
        return cls(translator)

    @property
    def compute_type(self) -> str:
        """The type in use, which "default" and "auto" leave open."""
        return str(self._translator.compute_type)

    def generate(
        self, sources: list[list[int]], max_new_tokens: int, min_new_tokens: int = 0
    ) -> list[list[int]]:
        """Greedy output of all sources, decoded as one batch.

        Args:
            sources: token ids of each source, of any lengths, all in the vocabulary: CTranslate2
                takes others for padding without a word
            max_new_tokens: the most tokens to generate, the end token included
            min_new_tokens: the end token is not chosen before so many others

        Returns:
            generated ids of each source, without start and end token
        """
        results = self._translator.translate_batch(
            [source_names(source) for source in sources],
            max_batch_size=len(sources),
            max_input_length=0,
            beam_size=1,
            max_decoding_length=max_new_tokens,
            min_decoding_length=min_new_tokens,
        )
        return [target_ids(result.hypotheses[0]) for result in results]


def library() -> Any:
    """CTranslate2, which is optional and has no type stubs."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError as error:
        raise DragomanError(
            "expected CTranslate2, found none: pip install 'dragoman[peers]'"
        ) from error


def source_names(tokens: Iterable[int]) -> list[str]:
    """Unlike any target's: CTranslate2 leaves a source like "end token, any token" untranslated."""
    return [f"s{token}" for token in tokens]


def target_names(tokens: Iterable[int]) -> list[str]:
    return [f"t{token}" for token in tokens]


def target_ids(names: Iterable[str]) -> list[int]:
    return [int(name.removeprefix("t")) for name in names]
