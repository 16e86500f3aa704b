"""The responses to a request of Triton: one, or one per token."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from dragoman.errors import DragomanError

from ..apis.open_inference import Tensor

MakeResponses = Callable[[], Sequence[Sequence[Tensor]]]
"""Makes the tensors of each response."""


class ResponseStream:
    """Sends the responses to a request.

    Args:
        sender: `pb_utils.InferenceResponseSender` of the request
        utils: module `triton_python_backend_utils`
        executor: executor with one thread, which sends responses while decoding continues
        on_end: called after the last response
    """

    def __init__(
        self, sender: Any, utils: Any, executor: Executor, on_end: Callable[[ResponseStream], None]
    ) -> None:
        self._sender, self._utils, self._executor = sender, utils, executor
        self._on_end, self._ended = on_end, False
        self._futures: Sequence[Future[Any]] = ()
        self._lock = threading.Lock()

    def send(self, make: MakeResponses) -> None:
        """Send responses that are not the last."""
        self._executor.submit(self._send, make, last=False)

    def end(self, make: MakeResponses) -> None:
        """Send the last responses."""
        self._executor.submit(self._send, make, last=True)

    def fail(self, error: Exception) -> None:
        """Send an error as the last response."""

        def make() -> Sequence[Sequence[Tensor]]:
            raise error

        self.end(make)

    def end_after(self, futures: Sequence[Future[Any]], make: MakeResponses) -> None:
        """Send the last responses once all futures are done.

        If one of them fails, the others are cancelled.

        Args:
            make: called if no future failed
        """
        self._futures, left = futures, len(futures)

        def checked() -> Sequence[Sequence[Tensor]]:
            for future in futures:
                if not future.cancelled():
                    future.result()
            return make()

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
        """Cancel the request. Its rows are freed at the next step."""
        futures, self._futures = self._futures, ()  # each cancelled future calls this again
        for future in futures:
            future.cancel()

    def cancel_if_requested(self) -> bool:
        """Cancel the request if the client has; call only on the executor's thread.

        Returns:
            whether the client has cancelled it
        """
        if self._ended or not self._sender.is_cancelled():
            return False
        self.cancel()
        return True

    def _send(self, make: MakeResponses, *, last: bool) -> None:
        if self._ended:
            return
        try:
            responses = [self._response(tensors) for tensors in make()]
        except Exception as error:
            responses, last = [self._utils.InferenceResponse(error=self._error(error))], True
        try:
            for number, response in enumerate(responses, 1):
                final = last and number == len(responses)
                flags = self._utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
                self._sender.send(response, flags)
        except Exception as error:  # the server failed; no response is possible
            self._utils.Logger.log_error(f"a response could not be sent: {error}")
            last = True
        if last:
            self._ended = True
            self.cancel()
            self._on_end(self)

    def _response(self, tensors: Sequence[Tensor]) -> Any:
        return self._utils.InferenceResponse(
            [self._utils.Tensor(tensor.name, tensor.values) for tensor in tensors]
        )

    def _error(self, error: Exception) -> Any:
        """Return the error to report to the client; defects are reported without details."""
        make = self._utils.TritonError
        if isinstance(error, CancelledError):
            return make("the request was cancelled", make.CANCELLED)
        if isinstance(error, DragomanError) and error.status in (429, 503, 504):
            return make(str(error), make.UNAVAILABLE)
        if isinstance(error, DragomanError) and error.status < 500:
            return make(str(error), make.INVALID_ARG)
        self._utils.Logger.log_error("".join(traceback.format_exception(error)))
        known = isinstance(error, DragomanError)
        return make(str(error) if known else "the server failed; see its log", make.INTERNAL)
