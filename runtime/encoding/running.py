"""Runs the encoder on tokenized texts, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.head import Head

from ..arguments import StopCheck
from ..backends.interface import Backend, BackendError
from ..backends.rows import padded_length
from ..decoding.request import MAX_LOGITS, as_batch, batches, pad, run_or_split
from ..decoding.results import RejectedError
from ..format.contract import Role
from ..format.manifest import Manifest
from .tokenizer import Tokenized

Made = TypeVar("Made")

MAX_BATCH_SIZE = 64
MAX_BATCH_TOKENS = 4096
"""Maximum number of tokens in a batch, including padding."""
PER_TOKEN: frozenset[Role] = frozenset({"hidden", "token_logits"})
LOGITS_PER_TOKEN = frozenset(
    {"token-classification", "masked-language-model", "question-answering"}
)
"""Tasks with logits for every token."""


class Outputs:
    """The graph's outputs for one text of a batch.

    Reading an output copies it, so that the batch's memory can be reused.

    Args:
        found: outputs of the whole batch
        row: row of the text
        length: number of tokens of the text, without padding
    """

    def __init__(self, found: Mapping[Role, NDArray[Any]], row: int, length: int) -> None:
        self._found, self._row, self._length = found, row, length

    def read(self, role: Role, token: int | None = None) -> NDArray[np.float32]:
        """Copy an output: a vector, or a row for each token.

        Args:
            token: index of the token whose row is read; None: all tokens

        Raises:
            BackendError: a value is not a finite number.
        """
        values = self._found[role][self._row]
        if role in PER_TOKEN:
            values = values[: self._length]
        own: NDArray[np.float32] = (values if token is None else values[token]).astype(np.float32)
        if not np.isfinite(own).all():
            raise BackendError("the model's outputs are not finite numbers")
        return own


def run(
    backend: Backend,
    manifest: Manifest,
    head: Head,
    texts: Sequence[Tokenized],
    make: Callable[[int, Outputs], Made],
    check: StopCheck,
) -> Iterator[tuple[int, Made | RejectedError]]:
    """Run the graph on all texts and yield the index of each with the result of `make`.

    A batch that fails, for example out of memory, is halved; a text that fails in a batch of
    its own is rejected.

    Args:
        make: called with the index of a text and its outputs, before the next batch is computed
        check: called before each batch

    Raises:
        StoppedError: `check` stopped the call.
    """

    def made(indices: list[int]) -> list[Made | RejectedError]:
        check()
        found = _run(backend, manifest, head, [texts[i] for i in indices])
        return [make(i, outputs) for i, outputs in zip(indices, found, strict=True)]

    multiple, most = backend.limits.source_multiple, manifest.model.max_source_positions
    lengths = [padded_length(len(text.ids), multiple, most) for text in texts]
    rows = min(MAX_BATCH_SIZE, backend.limits.rows or MAX_BATCH_SIZE)
    tokens = min(tokens_of_batch(head), backend.limits.encoded or MAX_BATCH_TOKENS)
    for batch in batches(lengths, max_batch_size=rows, max_batch_tokens=tokens):
        yield from zip(batch, run_or_split(made, batch, RejectedError), strict=True)


def tokens_of_batch(head: Head) -> int:
    """Return the maximum number of tokens in a batch, including padding, that fit into memory."""
    logits = head.outputs if head.task in LOGITS_PER_TOKEN else 1
    return min(MAX_BATCH_TOKENS, MAX_LOGITS // logits)


def _run(
    backend: Backend, manifest: Manifest, head: Head, texts: Sequence[Tokenized]
) -> list[Outputs]:
    model = manifest.model
    source, mask = as_batch([text.ids for text in texts], model, backend.limits.source_multiple)
    types = None
    if head.token_types:
        types, _ = pad([text.types for text in texts], 0, source.shape[1])
    encoded = backend.encode(source, mask, types)
    found: dict[Role, NDArray[Any]] = {
        tensor.role: encoded[tensor.name] for tensor in manifest.graphs["encoder"].outputs
    }
    return [Outputs(found, row, len(text.ids)) for row, text in enumerate(texts)]
