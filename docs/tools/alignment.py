"""Finds the layer and head of a pronunciation model that aligns phonemes with letters.

    dragoman build g2p-en -o bundles/g2p-en --with-attention --limit 50
    python -m docs.tools.alignment bundles/g2p-en held_out.tsv

prints for each cross-attention the share of phonemes that attend most to their letter. A separate
alignment model defines that letter: a monotonic hidden Markov model (Vogel et al. 1996), fitted to
the same pairs by expectation maximization.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import read_examples
from dragoman.runtime import Model, load

Pair = tuple[Sequence[str], Sequence[str]]
"""Letters, and the phonemes that they make."""

ITERATIONS = 6
NEVER_SEEN = 1e-6


class Aligner:
    """A hidden Markov model that aligns phonemes with letters.

    Args:
        pairs: training pairs, none empty
    """

    def __init__(self, pairs: Sequence[Pair], *, iterations: int = ITERATIONS) -> None:
        letters = sorted({letter for word, _ in pairs for letter in word})
        phonemes = sorted({phoneme for _, sounds in pairs for phoneme in sounds})
        self._row = {phoneme: row for row, phoneme in enumerate(phonemes)}
        self._column = {letter: column for column, letter in enumerate(letters)}
        self._makes = np.full((len(phonemes), len(letters)), 1 / len(phonemes))
        for _ in range(iterations):
            counts = np.full_like(self._makes, NEVER_SEEN)
            for pair in pairs:
                np.add.at(counts, self._places(pair), self.posterior(pair))
            self._makes = counts / counts.sum(0)

    def posterior(self, pair: Pair) -> NDArray[np.float64]:
        """Return the posterior alignment probabilities [phonemes, letters] of a pair."""
        makes = self._makes[self._places(pair)]
        forward, backward = np.empty_like(makes), np.ones_like(makes)
        forward[0] = makes[0]
        for n in range(1, len(makes)):
            forward[n] = makes[n] * forward[n - 1].cumsum()
        for n in reversed(range(len(makes) - 1)):
            backward[n] = (makes[n + 1] * backward[n + 1])[::-1].cumsum()[::-1]
        both = forward * backward
        return np.asarray(both / both.sum(1, keepdims=True))

    def _places(self, pair: Pair) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        letters, phonemes = pair
        rows, columns = [self._row[p] for p in phonemes], [self._column[n] for n in letters]
        return np.ix_(rows, columns)  # type: ignore[return-value]


def agreement(model: Model, aligner: Aligner, pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """Return the share of phonemes that attend most to their letter: [layers, heads + 1].

    The last column is the mean of a layer's heads.
    """
    hits, count = np.zeros((1, 1)), 0
    for letters, phonemes in pairs:
        found = model.attention("".join(letters), " ".join(phonemes), end_token=False).cross
        assert found is not None
        weights = found[:, :, : len(phonemes), : len(letters)]
        with_mean = np.concatenate([weights, weights.mean(1, keepdims=True)], axis=1)
        own = aligner.posterior((letters, phonemes)).argmax(1)
        hits = hits + (with_mean.argmax(-1) == own).sum(-1)
        count += len(phonemes)
    return np.asarray(hits / count)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("pairs", type=click.Path(path_type=Path))
@click.option("--every", type=click.IntRange(min=1), default=20, show_default=True)
def main(bundle: Path, pairs: Path, every: int) -> None:
    """Compare the attention of BUNDLE with an alignment of PAIRS, words and pronunciations."""
    try:
        examples = [
            (list(example.source), example.references[0].split())
            for example in read_examples(pairs)
        ]
        with load(bundle, threads=1) as model:
            model.check_attention()
            shares = agreement(model, Aligner(examples), list(islice(examples, 0, None, every)))
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    table = Table(title=f"phonemes of {len(examples[::every])} words that attend to their letter")
    for heading in ("layer", *(f"head {n}" for n in range(shares.shape[1] - 1)), "mean of heads"):
        table.add_column(heading, justify="right")
    for layer, row in enumerate(shares):
        table.add_row(str(layer), *(f"{share:.1%}" for share in row))
    Console().print(table)


if __name__ == "__main__":
    main()
