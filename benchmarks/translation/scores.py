"""Scores of translations: BLEU and chrF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError
from dragoman.metrics.sacrebleu_metrics import SacreBleu

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
    texts, of_tokens, lowercase = list(outputs), None, bool(test.tokenized)
    if test.tokenized:
        plain = SacreBleu("BLEU", tokenize="none")
        of_tokens = plain.figure(texts, [[text] for text in test.tokenized])
        texts = _joined(texts, test.language)
    references = [[text] for text in test.references]
    bleu, chrf = SacreBleu("BLEU", lowercase=lowercase), SacreBleu("chrF", lowercase=lowercase)
    return Scores(
        bleu.figure(texts, references),
        chrf.figure(texts, references),
        bleu.signature(),
        chrf.signature(),
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
