"""Stops: texts that end an output, and are no part of it."""

from __future__ import annotations

from collections.abc import Sequence


class UntilStop:
    """An output up to a stop, told as it comes, but for what could be the beginning of a stop. Of
    several stops the one that is complete first counts.

    Attributes:
        text: what was added, up to the stop
        stopped: whether there was one; then nothing more is to be added

    Args:
        stops: none of them empty
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self.text, self.stopped = "", False
        self._told, self._begins = 0, list[int]()

    def add(self, piece: str) -> str:
        """Take what one more token adds to the text.

        Returns:
            What can be told now, after what was told before.
        """
        self._begins.append(len(self.text))
        self.text += piece
        found = [
            (begin + len(stop), begin)
            for stop in self._stops
            if (begin := self.text.find(stop, self._told)) >= 0
        ]
        if found:
            self.text, self.stopped = self.text[: min(found)[1]], True
        told, self._told = self._told, len(self.text) - self._held
        return self.text[told : self._told]

    def rest(self) -> str:
        """What is left to be told at the end."""
        return self.text[self._told :]

    @property
    def offsets(self) -> list[int]:
        """Where tokens begin in the text: those that begin before the stop, if there was one."""
        if not self.stopped:
            return self._begins
        return [begin for begin in self._begins if begin < len(self.text)]

    @property
    def _held(self) -> int:
        """How many of the last characters could be the beginning of a stop."""
        if self.stopped:
            return 0
        return max(
            (
                n
                for stop in self._stops
                for n in range(1, min(len(stop), len(self.text) + 1))
                if self.text.endswith(stop[:n])
            ),
            default=0,
        )
