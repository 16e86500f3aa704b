"""The answer to one of Triton's requests: in one piece, or token by token."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from dragoman.errors import DragomanError

from ...backends.errors import BackendError, DeviceLostError
from ..apis.tensors import Tensor
from ..engine.line import ClosedError, OverloadedError
from ..engine.ticket import DeadlineError

Made = Callable[[], Sequence[Sequence[Tensor]]]
"""Makes the tensors of each response."""


class Answer:
    """
    Args:
        sender: the request's `pb_utils.InferenceResponseSender`
        utils: the module `triton_python_backend_utils`
        executor: of one thread, which sends: what decodes must not wait for that
        ended: is told that nothing more will be sent
    """

    def __init__(
        self, sender: Any, utils: Any, executor: Executor, ended: Callable[[Answer], None]
    ) -> None:
        self._sender, self._utils, self._executor = sender, utils, executor
        self._told_ended, self._ended = ended, False
        self._futures: Sequence[Future[Any]] = ()
        self._lock = threading.Lock()

    def tell(self, made: Made) -> None:
        """Send responses after which others follow."""
        self._executor.submit(self._send, made, last=False)

    def end(self, made: Made) -> None:
        """Send the last ones."""
        self._executor.submit(self._send, made, last=True)

    def fail(self, error: Exception) -> None:
        def made() -> Sequence[Sequence[Tensor]]:
            raise error

        self.end(made)

    def follow(self, futures: Sequence[Future[Any]], made: Made) -> None:
        """End once all futures are done; if one fails, the others are not wanted any more.

        Args:
            made: called if none has failed
        """
        self._futures, left = futures, len(futures)

        def checked() -> Sequence[Sequence[Tensor]]:
            for future in futures:
                if not future.cancelled():
                    future.result()
            return made()

        def done(future: Future[Any]) -> None:
            nonlocal left
            if future.cancelled() or future.exception() is not None:
                self.cancel()
            with self._lock:
                left -= 1
                last = not left
            if last:
                self.end(checked)

        if not futures:
            self.end(checked)
        for future in futures:
            future.add_done_callback(done)

    def cancel(self) -> None:
        """What is decoded for it is left at the next step."""
        futures, self._futures = self._futures, ()  # each that is cancelled calls this again
        for future in futures:
            future.cancel()

    def cancel_if_unwanted(self) -> None:
        """To be called on the thread that sends."""
        if not self._ended and self._sender.is_cancelled():
            self.cancel()

    def _send(self, made: Made, *, last: bool) -> None:
        if self._ended:
            return
        try:
            responses = [self._response(tensors) for tensors in made()]
        except Exception as error:
            responses, last = [self._utils.InferenceResponse(error=self._error(error))], True
        try:
            for number, response in enumerate(responses, 1):
                final = last and number == len(responses)
                flags = self._utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
                self._sender.send(response, flags)
        except Exception as error:  # of the server: nobody can be told
            self._utils.Logger.log_error(f"an answer could not be sent: {error}")
            last = True
        if last:
            self._ended = True
            self.cancel()
            self._told_ended(self)

    def _response(self, tensors: Sequence[Tensor]) -> Any:
        return self._utils.InferenceResponse(
            [self._utils.Tensor(tensor.name, tensor.values) for tensor in tensors]
        )

    def _error(self, error: Exception) -> Any:
        """What a client is told; of a defect, nothing but that there was one."""
        kinds = self._utils.TritonError
        if isinstance(error, CancelledError):
            return kinds("the request was cancelled", kinds.CANCELLED)
        if isinstance(error, OverloadedError | ClosedError | DeadlineError):
            return kinds(str(error), kinds.UNAVAILABLE)
        of_backend = isinstance(error, BackendError | DeviceLostError)
        if isinstance(error, DragomanError) and not of_backend:
            return kinds(str(error), kinds.INVALID_ARG)
        self._utils.Logger.log_error("".join(traceback.format_exception(error)))
        told = str(error) if of_backend else "the server failed; see its log"
        return kinds(told, kinds.INTERNAL)
