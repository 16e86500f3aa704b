"""Unknown tokens are replaced by the words that they attend to, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dragoman.runtime import CancelError
from dragoman.runtime.arguments import never_stopped, stop_check
from dragoman.runtime.attention.reader import AttentionReader
from dragoman.runtime.scoring.interface import ScoringOptions
from dragoman.runtime.scoring.teacher_forcing import ForcedPair

from ..conftest import SetAfter

TEXT = "Anna met Zoltan Quynh"
SOURCE = ("Anna", " met", " Zoltan", " Quy", "nh", "")
"""Five words' tokens and the end token: the fourth word is of two tokens."""
TARGET = ("", " traf", " und", "s", ".", "Zo")
UNKNOWN, TRAF, UND, S, DOT = range(5)
START = 9


class Words:
    """Decodes as most libraries do: special tokens are left out, and a text begins without the
    space of its first token."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces, self.begun = pieces, False

    def step(self, token: int) -> str:
        piece = self.pieces[token]
        made = piece if self.begun else piece.lstrip()
        self.begun = self.begun or bool(piece)
        return made

    def rest(self) -> str:
        return ""


def reader(attended: Sequence[int]) -> AttentionReader:
    """Of a model whose target tokens attend to one source token each.

    Args:
        attended: the source token of each target token
    """
    cross = np.full((1, 2, 1, len(attended), len(SOURCE)), 0.02, np.float32)
    for row, column in enumerate(attended):
        cross[0, :, 0, row, column] = 0.9
    model = SimpleNamespace(
        has_encoder=True,
        takes_audio=False,
        max_source_positions=16,
        pad_token_id=0,
        end_token_id=8,
        target_vocab_size=len(TARGET),
    )
    codec = SimpleNamespace(
        unknown_target=UNKNOWN,
        stream=lambda *, skip_special_tokens=True: Words(TARGET),
        source_stream=lambda: Words(SOURCE),
        template_tokens=lambda language: [],
        source_words=lambda text, *, most, split_special_tokens, each_token: (
            ([*map(str.strip, SOURCE)], [0, 1, 2, 3, 4, None])
            if each_token
            else (text.split(), [0, 1, 2, 3, 3, None])
        ),
        source_piece=str,
        target_piece=str,
    )

    def prepare(pairs: Sequence[tuple[Any, Any]], options: ScoringOptions) -> list[ForcedPair]:
        return [ForcedPair(list(range(len(SOURCE))), (START,), tuple(t)) for _, t in pairs]

    return AttentionReader(
        cast(
            "Any",
            SimpleNamespace(
                model=model, audio=None, generation=SimpleNamespace(heads_that_align=())
            ),
        ),
        cast("Any", SimpleNamespace(attention=lambda inputs: {"cross_attention": cross})),
        cast("Any", SimpleNamespace(prepare=prepare)),
        cast("Any", SimpleNamespace()),
        cast("Any", codec),
    )


@pytest.mark.parametrize(
    ("tokens", "attended", "text", "pairs"),
    [
        ((UNKNOWN, TRAF, UNKNOWN), (0, 1, 2), "Anna traf Zoltan", "0-0 1-1 2-2"),
        ((UNKNOWN, UND, UNKNOWN, DOT), (0, 1, 4, 5), "Anna und Quynh.", "0-0 1-1 3-2"),
        ((TRAF, UNKNOWN, S), (1, 2, 2), "traf Zoltans", "1-0 2-1"),
        ((UNKNOWN, UNKNOWN), (2, 3), "Zoltan Quynh", "2-0 3-1"),
    ],
)
def test_words_stand_where_unknown_tokens_stood(
    tokens: tuple[int, ...], attended: tuple[int, ...], text: str, pairs: str
) -> None:
    subject = reader(attended)
    options = ScoringOptions()
    for source in (TEXT, range(len(SOURCE))):
        assert subject.with_unknown_replaced(source, tokens, options) == text
        alignment = subject.alignment((source, tokens), options, unknown_replaced=True)
        assert str(alignment) == pairs
    assert len(alignment.target) == len(text.split())


def test_tokens_of_the_source_stand_there_on_request() -> None:
    subject, tokens = reader((0, 1, 4, 5)), (UNKNOWN, UND, UNKNOWN, DOT)
    for source in (TEXT, range(len(SOURCE))):
        found = subject.with_unknown_replaced(source, tokens, ScoringOptions(), by="token")
        assert found == "Anna und nh."


def test_without_unknown_tokens_nothing_is_read_again() -> None:
    assert reader((1, 2)).with_unknown_replaced(TEXT, (TRAF, UND), ScoringOptions()) is None


def test_otherwise_alignments_are_of_the_text_as_it_is() -> None:
    alignment = reader((0, 1, 2)).alignment((TEXT, (UNKNOWN, TRAF, UNKNOWN)), ScoringOptions())
    assert alignment.target == ("traf",)
    assert str(alignment) == "1-0"


def test_a_stopped_call_runs_no_graph_and_keeps_finished_alignments() -> None:
    """`check` is what `timeout` and `cancel` of a call become."""
    subject, tokens = reader((0, 1, 2)), (UNKNOWN, TRAF, UNKNOWN)
    pairs, options = [(TEXT, tokens)] * 4, ScoringOptions()
    whole = subject.alignments(pairs, options, never_stopped)
    with pytest.raises(CancelError, match="the call was cancelled") as stopped:
        subject.alignments(pairs, options, stop_check(None, SetAfter(3)))
    assert stopped.value.finished == dict(enumerate(whole[:3]))
    at_once = stop_check(None, SetAfter(0))
    with pytest.raises(CancelError):
        subject.with_unknown_replaced(TEXT, tokens, options, check=at_once)
    with pytest.raises(CancelError):
        subject.attention(TEXT, tokens, options, at_once)
