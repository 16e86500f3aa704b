"""One output, token by token as it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from dragoman.errors import DragomanError

from ..backends.interface import Backend
from ..format.model_spec import ModelSpec
from .loop import DecodingLoop, Job, Key
from .search import Draft, Strategy


@dataclass(frozen=True)
class Choice:
    """A token chosen for an output; the end token, too."""

    token: int
    log_probability: float


def only_strategy(strategies: Sequence[Strategy]) -> Strategy:
    """The strategy of an output that can be streamed.

    Raises:
        DragomanError: there are several outputs, or tokens are final only at the end.
    """
    strategy, *others = strategies
    if others:
        raise DragomanError(f"num_return_sequences: expected 1 to stream, found {len(strategies)}")
    if strategy.width > 1:
        raise DragomanError(
            f"num_beams: expected 1 to stream, found {strategy.width}: what beams have in common "
            "may change until the end"
        )
    return strategy


def choices(backend: Backend, model: ModelSpec, job: Job[Key]) -> Iterator[Choice]:
    """Decode one job of width 1, yielding every new token as soon as it is known.

    Raises:
        BackendError, MemoryError: the backend failed, as for lack of memory.
    """
    loop: DecodingLoop[Key] = DecodingLoop(backend, model, width=1, capacity=job.request.capacity)
    with closing(loop):
        ended = loop.admit([job])
        draft: Draft = (ended or loop.running)[0].search.draft
        yielded = 0
        while True:
            for token, log_probability in zip(
                draft.row.tokens[draft.begin + yielded :],
                draft.log_probabilities[yielded:],
                strict=True,
            ):
                yielded += 1
                yield Choice(token, log_probability)
            if ended:
                return
            ended = loop.step()
