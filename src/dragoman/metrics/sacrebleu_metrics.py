"""BLEU and chrF, computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown

from .metric import RESAMPLES, References, check_pairs, resampled

if TYPE_CHECKING:
    from sacrebleu import BLEU, CHRF

MOST_NUMBERS = 2**27
"""The maximum number of statistics in memory. sacrebleu holds those of all segments of all
resamples at once, so a very large test set has fewer resamples."""
STATISTICS = 18  # of a segment; BLEU has 10

FEWEST_RESAMPLES = 100


@dataclass(frozen=True)
class SacreBleu:
    """A metric of sacrebleu."""

    name: str
    """The name "chrF", "BLEU", or "BLEU (zh)" for one with a tokenizer that the user chose."""
    tokenize: str = "13a"
    """How BLEU splits texts into words, see `tokenization`; "none" splits at spaces."""
    lowercase: bool = False
    higher_is_better: bool = True
    whole: float = 100
    library: str = "sacrebleu"

    def shown(self, figure: float) -> str:
        """Format a figure."""
        return f"{figure:.2f}"

    def figure(self, hypotheses: Sequence[str], references: References) -> float:
        """Compute the figure."""
        check_pairs(hypotheses, references)
        return float(self._metric().corpus_score(hypotheses, streams(references)).score)

    def chance(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the p-value of a difference."""
        from sacrebleu.significance import PairedTest, Result

        check_pairs(oracle, references)
        if len(oracle) == 1 or list(oracle) == list(bundle):
            return 1.0
        resamples = min(RESAMPLES, MOST_NUMBERS // (STATISTICS * len(oracle)))
        test = PairedTest(
            [("oracle", oracle), ("bundle", bundle)],
            {self.name: self._metric()},
            streams(references),
            test_type="bs",
            n_samples=max(FEWEST_RESAMPLES, resamples),
        )
        _, results = test()
        before, after = next(pair for name, pair in results.items() if name != "System")
        assert isinstance(before, Result) and isinstance(after, Result)
        if before.score == after.score:  # sacrebleu would report a p-value below 1
            return 1.0
        assert after.p_value is not None
        return float(after.p_value)

    def spread(self, oracle: Sequence[str], bundle: Sequence[str], references: References) -> float:
        """Compute the standard error of a difference."""
        check_pairs(oracle, references)
        metric = self._metric()
        # sacrebleu has no public function that returns the figures of resamples.
        before, after = (
            np.array(metric._extract_corpus_statistics(texts, streams(references)), np.float64)
            for texts in (oracle, bundle)
        )

        def figure(sums: NDArray[np.float64]) -> float:
            return metric._compute_score_from_stats(sums.tolist()).score

        return float(resampled(before, after, figure).std())

    def signature(self, references: References = ()) -> str:
        """Describe how the figure was computed, as sacrebleu does."""
        metric = self._metric()
        metric.corpus_score([""] * (len(references) or 1), streams(references or [[""]]))
        return str(metric.get_signature())

    def _metric(self) -> BLEU | CHRF:
        from sacrebleu import BLEU, CHRF

        if self.name == "chrF":
            return CHRF(lowercase=self.lowercase)
        # force: the model may generate texts that look tokenized.
        return BLEU(tokenize=self.tokenize, lowercase=self.lowercase, force=True)


BLEU_TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "flores200")
"""The tokenizers of sacrebleu that users may choose."""


def bleu_with(tokenizer: str) -> SacreBleu:
    """Return BLEU with a tokenizer that the user chose."""
    from sacrebleu import BLEU

    if tokenizer not in BLEU_TOKENIZERS:
        raise DragomanError(
            f"metric bleu: expected a tokenizer of {', '.join(BLEU_TOKENIZERS)}, found "
            f"{shown(tokenizer)}"
        )
    try:
        BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError, OSError) as error:  # a library, or a file to download
        reason = " ".join(str(error).split())
        raise DragomanError(
            f"metric bleu:{tokenizer}: sacrebleu cannot use it: {reason}"
        ) from error
    return SacreBleu("BLEU" if tokenizer == "13a" else f"BLEU ({tokenizer})", tokenize=tokenizer)


def streams(references: References) -> list[Sequence[str]]:
    """Group the first references of all texts, the second ones, and so on, as sacrebleu does.

    Missing references are None, as sacrebleu's documentation allows.
    """
    return cast(list[Sequence[str]], list(zip_longest(*references)))


def tokenization(language: str | None) -> str:
    """Choose BLEU's tokenizer: "zh" for Chinese, characters for languages without spaces.

    Args:
        language: a code such as "zh", "zh_CN" or "zho_Hans"; None: unknown
    """
    code = (language or "").replace("-", "_").split("_")[0].lower()
    if code in ("zh", "zho", "cmn", "yue"):
        return "zh"
    without_spaces = ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya")
    return "char" if code in without_spaces else "13a"
