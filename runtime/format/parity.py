"""The parity record of a manifest: the comparisons of `dragoman verify` and their results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from dragoman.settings.fields import LEFT_OUT

NOT_FINITE = 1e300
"""The difference where exactly one of two values is finite: JSON has no infinity."""


@dataclass(frozen=True)
class TensorParity:
    """A teacher-forced tensor compared with the oracle's."""

    name: str
    largest_absolute: float
    largest_relative: float
    difference: float
    """Largest absolute difference divided by max(1, largest absolute value of the oracle's
    tensor)."""
    tolerance: float | None
    """Largest allowed difference; None: the tensor need only be finite."""
    passed: bool
    positions: int = 0
    """Number of compared positions."""
    positions_beyond: int = 0
    """Number of positions that differ by more than the tolerance."""


@dataclass(frozen=True)
class Distance:
    """Distance of next-token distributions from the oracle's over several positions."""

    mean: float
    median: float
    percentile_99: float
    largest: float
    """`mean`, `median`, `percentile_99` and `largest`: statistics of the Kullback-Leibler
    divergence in nats."""
    same_choice: float
    """Share of positions with the same most probable token."""


@dataclass(frozen=True)
class DistributionParity:
    """Next-token distributions compared with the oracle's along the oracle's outputs."""

    positions: int
    """Number of predicted tokens; for an encoder-only model, number of predicted labels, tokens or
    ends of answers."""
    bundle: Distance
    """Distance of the bundle."""
    rounded: Distance | None
    """Distance of the oracle with weights and activations rounded to nearest; None at fp32."""
    allowed: float | None
    """Largest allowed mean divergence of the bundle; None at fp32, where tensors and tokens
    decide."""
    passed: bool
    ties: Annotated[int, LEFT_OUT] = 0
    """For an encoder-only model at fp32, number of other choices that the oracle rates equal."""


@dataclass(frozen=True)
class Cosines:
    """Cosine similarities between the embeddings of bundle and oracle."""

    mean: float
    smallest: float


@dataclass(frozen=True)
class VectorParity:
    """The embeddings of an encoder-only model compared with the oracle's."""

    vectors: int
    """Number of embeddings."""
    bundle: Cosines
    rounded: Cosines | None
    """Similarities of the oracle with weights and activations rounded to nearest; None at fp32."""
    allowed: float
    """Smallest allowed mean."""
    passed: bool


@dataclass(frozen=True)
class Ranks:
    """How well orders agree with the oracle's, as means over lists."""

    tau: float
    """Kendall's tau-b, 1 for the same order and -1 for the reverse."""
    ndcg: float
    """NDCG of the first ten, where the oracle's scores, from 0 for its last document to 1 for its
    first, are the relevance."""


@dataclass(frozen=True)
class RankParity:
    """The order in which documents are ranked, compared with the oracle's. It is not judged."""

    lists: int
    """Number of orders: of the documents of a query by their score, or of all other texts by the
    cosines of embeddings."""
    documents: int
    """Number of documents in all lists together."""
    bundle: Ranks
    rounded: Ranks | None
    """Those of the oracle with weights and activations rounded to nearest; None at fp32."""


@dataclass(frozen=True)
class Divergence:
    """The first step at which a sequence differs from the oracle's.

    To keep manifests small, only the 50 divergences with the largest margins have texts, of at
    most 2,000 characters.
    """

    input: int
    """Index of the input."""
    step: int
    expected_token: int
    found_token: int
    margin: float
    """The oracle's logit of its own choice minus its logit of the found token."""
    origin: Annotated[str, LEFT_OUT] = ""
    """Origin of the input, such as "held_out.tsv, line 17"; "": not recorded."""
    source: Annotated[str | None, LEFT_OUT] = None
    expected: Annotated[str | None, LEFT_OUT] = None
    found: Annotated[str | None, LEFT_OUT] = None
    """`source`, `expected` and `found`: texts of the input, the oracle's output and the found
    output; None: not kept or not available, as for audio or without tokenizers."""

    @property
    def named(self) -> str:
        """The input as people find it."""
        return self.origin or f"input {self.input}"


@dataclass(frozen=True)
class OtherChoice:
    """A generated token where the bundle's own scores prefer another token."""

    input: int
    """Index of the input."""
    step: int
    preferred_token: int
    """Best token by the bundle's scores, computed in one pass along the output."""
    found_token: int
    """Token that the bundle generated."""
    gap: float
    """Score of the preferred token minus score of the found token."""
    origin: str = ""
    """Origin of the input; "": not recorded."""

    @property
    def named(self) -> str:
        """The input as people find it."""
        return self.origin or f"input {self.input}"


@dataclass(frozen=True)
class OnePassParity:
    """Free-running outputs compared with the bundle's own scores, computed in one pass along them.

    Each token must be the best by these scores and have the same log-probability.
    """

    sequences: int
    """Number of compared outputs, including all that differ from the oracle's."""
    tokens: int
    """Number of tokens of these outputs."""
    other_choices: int
    """Number of tokens where the scores prefer another token by more than `allowed`."""
    gap: float
    """Largest difference in score between a preferred token and the found token."""
    allowed: float
    """Difference in logits that rounding explains; limits the gap and the differences of
    log-probabilities, and a tenth of it limits their mean difference."""
    worst: OtherChoice | None
    """Token with the largest gap, if it is more than `allowed`."""
    largest_difference: float | None
    """Largest difference of a token's log-probability in nats; None for speech, which reports no
    log-probabilities of tokens."""
    mean_difference: float
    """Mean difference of the log-probabilities, in nats per token."""
    passed: bool


@dataclass(frozen=True)
class TokenParity:
    """Free-running greedy sequences compared with the oracle's."""

    sequences: int
    identical: int
    divergences: tuple[Divergence, ...]
    passed: bool
    one_pass: Annotated[OnePassParity | None, LEFT_OUT] = None
    """Comparison of the bundle with itself; None: not recorded."""
    expected_identical: Annotated[float | None, LEFT_OUT] = None
    """Below fp32, number of identical sequences predicted by the distributions along the oracle's
    outputs; None at fp32, where all must be identical."""
    least_identical: Annotated[int | None, LEFT_OUT] = None
    """Below fp32, required number of identical sequences, given the sample size."""
    allowed_margin: Annotated[float | None, LEFT_OUT] = None
    """Below fp32, largest allowed margin of a divergence."""

    @property
    def undecided(self) -> bool:
        """Whether rounding changes every output, so that identity cannot be tested."""
        return self.passed and self.sequences > 0 and not self.identical


@dataclass(frozen=True)
class BeamParity:
    """The best hypotheses of the bundle's default beam search compared with the oracle's."""

    beams: int
    sequences: int
    """Number of compared hypotheses; they have a smaller token limit than the bundle."""
    identical: int
    ties: int
    """Number of hypotheses with other tokens and the same score, or of a source for which the
    oracle's search kept one of two candidates whose scores differ by rounding only."""
    score_difference: float
    """Largest difference in score of identical hypotheses, divided by max(1, the oracle's
    score)."""
    passed: bool
    own_difference: float
    """Difference between a hypothesis's reported score and its score from one-pass
    log-probabilities under the checkpoint's length penalty, for the hypothesis with the largest
    ratio to its allowed difference."""
    own_allowed: float
    """Allowed difference for that hypothesis."""

    @property
    def undecided(self) -> bool:
        """Whether rounding changes every hypothesis, so that identity cannot be tested."""
        return self.passed and self.sequences > 0 and not self.identical + self.ties


@dataclass(frozen=True)
class ReferenceParity:
    """The probability of reference targets."""

    references: str
    """File of the references."""
    pairs: int
    tokens: int
    """Number of tokens of all targets, end tokens included."""
    oracle: float
    bundle: float
    """`oracle` and `bundle`: negative log-likelihood in nats per token: the logarithm of the
    perplexity."""
    tolerance: float
    """Largest allowed excess of the bundle's."""
    passed: bool


@dataclass(frozen=True)
class TaskParity:
    """A metric of the model's task, for oracle and bundle on the same references."""

    metric: str
    """Name of the metric, such as "BLEU"."""
    oracle: float
    bundle: float
    """`oracle` and `bundle`: points for BLEU, chrF and ROUGE-L; fractions for all other metrics."""
    passed: bool
    higher_is_better: bool = False
    """Whether higher values are better."""
    allowed: float | None = None
    """Largest allowed loss of the bundle; None: not recorded."""
    chance: float | None = None
    """P-value of the difference in a paired bootstrap over the inputs; None: not recorded."""
    pairs: int = 0
    """Number of scored texts; 0: not recorded."""
    signature: str = ""
    """Sacrebleu's signature of the metric's settings."""
    excess_chance: Annotated[float | None, LEFT_OUT] = None
    """P-value in a paired bootstrap of a loss beyond `allowed`, if the true loss is `allowed`; None
    if the loss is not beyond it."""
    undecided: Annotated[bool, LEFT_OUT] = False
    """Whether the loss is more than `allowed`, but not significantly; `passed` is True then."""
    more_inputs: Annotated[int | None, LEFT_OUT] = None
    """Estimated number of further texts for a decision; None: decided or unknown."""

    @property
    def loss(self) -> float:
        """The loss of the bundle; negative if the bundle is better."""
        difference = self.bundle - self.oracle
        return -difference if self.higher_is_better else difference


@dataclass(frozen=True)
class ShortlistParity:
    """What a shortlist costs: outputs with it, compared with those of the whole vocabulary."""

    sequences: int
    identical: int
    """`sequences` and `identical`: number of outputs, and of those that are the same."""
    allowed: float
    """Mean number of tokens that a source allows."""
    tasks: Annotated[tuple[TaskParity, ...], LEFT_OUT] = ()
    """Results by metric, with `oracle` for the whole vocabulary and `bundle` for the shortlist; for
    information only."""


@dataclass(frozen=True)
class Check:
    """One check of a bundle, with the numbers of compared and differing items."""

    name: str
    """Name of the check, such as "weights"."""
    compared: int
    """Number of compared items."""
    unit: str
    """Kind of item, such as "weights" or "token ids"."""
    differing: int
    """Number of items that differ by more than the tolerance."""
    passed: bool
    worst: float | None = None
    """Largest difference as a multiple of the tolerance; None if items are compared for
    equality."""
    problem: str = ""
    """The first difference as a sentence; "" if there is none."""
    note: Annotated[str, LEFT_OUT] = ""
    """The reason why nothing was compared; "" if something was."""


@dataclass(frozen=True)
class Coverage:
    """The coverage of the numerical comparisons with the oracle."""

    weights: int
    """Number of weights compared with the checkpoint's; 0 for engines."""
    graphs: bool
    """Whether graphs were compared exactly; not possible for engines."""
    source_lengths: tuple[int, ...]
    target_lengths: tuple[int, ...]
    """`source_lengths` and `target_lengths`: shortest and longest length in positions; empty if the
    model has no such side."""
    source_vocabulary: float
    target_vocabulary: float
    """`source_vocabulary` and `target_vocabulary`: share of the vocabulary's tokens that were read.
    """
    positions: int
    """Number of decoder positions."""
    cached_positions: int
    """Number of decoder positions computed with the cache."""
    batch_sizes: tuple[int, ...]
    """Compared batch sizes."""


_OWN_INPUTS = re.compile(
    r"\d+ ((random sources|windows of random sound) \(seed \d+\)|beginnings of a sentence)"
)


def describe_random(count: int, seed: int, *, audio: bool) -> str:
    """Describe random token ids, or windows of random sound."""
    return f"{count} {'windows of random sound' if audio else 'random sources'} (seed {seed})"


def describe_sentence(count: int) -> str:
    """Describe beginnings of the sentence that comes with Dragoman."""
    return f"{count} beginnings of a sentence"


def are_own(description: str) -> bool:
    """Whether a description is one of random inputs or of the sentence, not the name of a file."""
    return _OWN_INPUTS.fullmatch(description) is not None


@dataclass(frozen=True)
class Parity:
    """The results of `dragoman verify`."""

    passed: bool
    oracle: str
    inputs: str
    backend: str
    tensors: tuple[TensorParity, ...]
    tokens: TokenParity
    """Parity of generated sequences; empty for an encoder-only model."""
    tasks: Annotated[tuple[TaskParity, ...], LEFT_OUT] = ()
    """Results by metric, the most important first; empty without references."""
    references: Annotated[ReferenceParity | None, LEFT_OUT] = None
    beams: Annotated[BeamParity | None, LEFT_OUT] = None
    distributions: Annotated[DistributionParity | None, LEFT_OUT] = None
    vectors: Annotated[VectorParity | None, LEFT_OUT] = None
    """Parity of the embeddings of an encoder-only model."""
    ranks: Annotated[RankParity | None, LEFT_OUT] = None
    """Order of documents by the scores or embeddings of an encoder-only model."""
    checks: Annotated[tuple[Check, ...], LEFT_OUT] = ()
    """Checks of settings, tokenizers, weights, graphs, steps and batches, in this order."""
    coverage: Annotated[Coverage | None, LEFT_OUT] = None
    """Coverage of the checks; None: not recorded."""
    shortlist: Annotated[ShortlistParity | None, LEFT_OUT] = None
    """What the shortlist costs; None: the bundle has none."""
