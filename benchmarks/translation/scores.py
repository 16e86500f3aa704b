"""Scores of translations, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu import BLEU, CHRF

from dragoman.errors import DragomanError

from .sets import HeldOut


@dataclass(frozen=True)
class Scores:
    """From 0 to 100.

    Attributes:
        bleu, chrf: of texts; of a model of lower-cased tokens after these were joined, without
            regard to case
        bleu_of_tokens: of lower-cased tokens, as papers report it; None: the model's outputs are
            texts
        bleu_signature, chrf_signature: what sacrebleu computed them with
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    bleu_of_tokens: float | None = None


def scores(outputs: Sequence[str], test: HeldOut) -> Scores:
    """
    Args:
        outputs: one for each source, as the model gives them

    Raises:
        DragomanError: tokens are to be joined, and `sacremoses` is not installed.
    """
    texts, of_tokens = list(outputs), None
    if test.tokenized:
        plain = BLEU(tokenize="none", force=True)  # tokens are what it would warn of
        of_tokens = plain.corpus_score(texts, [list(test.tokenized)]).score
        texts = _joined(texts, test.language)
    bleu, chrf = BLEU(lowercase=bool(test.tokenized)), CHRF(lowercase=bool(test.tokenized))
    references = [list(test.references)]
    return Scores(
        bleu.corpus_score(texts, references).score,
        chrf.corpus_score(texts, references).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
        of_tokens,
    )


def _joined(texts: list[str], language: str) -> list[str]:
    """Texts of Moses's tokens, which others were trained on, as people write them."""
    try:
        from sacremoses import MosesDetokenizer
    except ImportError as error:
        raise DragomanError("joining Moses's tokens needs sacremoses: pip install it") from error
    detokenizer = MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(text.split()) for text in texts]
