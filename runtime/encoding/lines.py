"""What a line of text states for an encoder alone."""

from __future__ import annotations

from ..decoding.rejection import RejectedError
from ..format.head import Head

LineSource = str | tuple[str, str]
"""A text, or a pair of texts."""


def source_of_line(line: str, head: Head) -> LineSource:
    """A text; or a pair with a tab between, of models that read some: what they classify may be
    one, question and context must be.

    Raises:
        RejectedError: a pair is needed and there is no tab.
    """
    first, tab, second = line.partition("\t")
    if head.task == "question-answering":
        if not tab:
            raise RejectedError("expected a question, a tab and a context, found no tab")
        return first, second
    return (first, second) if head.task == "sequence-classification" and tab else line
