"""The parity record of a manifest: the comparisons of `dragoman verify` and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dragoman.settings.fields import LEFT_OUT

NOT_FINITE = 1e300
"""The difference where exactly one of two values is finite: JSON has no infinity."""


@dataclass(frozen=True)
class TensorParity:
    """A teacher-forced tensor compared with the oracle's.

    Attributes:
        difference: largest absolute difference divided by max(1, largest absolute value of the
            oracle's tensor)
        tolerance: largest allowed difference; None: the tensor need only be finite
        positions: number of compared positions
        positions_beyond: number of positions that differ by more than the tolerance
    """

    name: str
    largest_absolute: float
    largest_relative: float
    difference: float
    tolerance: float | None
    passed: bool
    positions: int = 0
    positions_beyond: int = 0


@dataclass(frozen=True)
class Distance:
    """Distance of next-token distributions from the oracle's over several positions.

    Attributes:
        mean, median, percentile_99, largest: statistics of the Kullback-Leibler divergence in nats
        same_choice: share of positions with the same most probable token
    """

    mean: float
    median: float
    percentile_99: float
    largest: float
    same_choice: float


@dataclass(frozen=True)
class DistributionParity:
    """Next-token distributions compared with the oracle's along the oracle's outputs.

    Attributes:
        positions: number of predicted tokens; for an encoder-only model, number of predicted
            labels, tokens or ends of answers
        bundle: distance of the bundle
        rounded: distance of the oracle with weights and activations rounded to nearest; None at
            fp32
        allowed: largest allowed mean divergence of the bundle; None at fp32, where tensors and
            tokens decide
        ties: for an encoder-only model at fp32, number of other choices that the oracle rates
            equal
    """

    positions: int
    bundle: Distance
    rounded: Distance | None
    allowed: float | None
    passed: bool
    ties: Annotated[int, LEFT_OUT] = 0


@dataclass(frozen=True)
class Cosines:
    """Cosine similarities between the embeddings of bundle and oracle."""

    mean: float
    smallest: float


@dataclass(frozen=True)
class VectorParity:
    """The embeddings of an encoder-only model compared with the oracle's.

    Attributes:
        vectors: number of embeddings
        rounded: similarities of the oracle with weights and activations rounded to nearest; None
            at fp32
        allowed: smallest allowed mean
    """

    vectors: int
    bundle: Cosines
    rounded: Cosines | None
    allowed: float
    passed: bool


@dataclass(frozen=True)
class Ranks:
    """How well orders agree with the oracle's, as means over lists.

    Attributes:
        tau: Kendall's tau-b, 1 for the same order and -1 for the reverse
        ndcg: NDCG of the first ten, where the oracle's scores, from 0 for its last document to 1
            for its first, are the relevance
    """

    tau: float
    ndcg: float


@dataclass(frozen=True)
class RankParity:
    """The order in which documents are ranked, compared with the oracle's. It is not judged.

    Attributes:
        lists: number of orders: of the documents of a query by their score, or of all other texts
            by the cosines of embeddings
        documents: number of documents in all lists together
        rounded: those of the oracle with weights and activations rounded to nearest; None at fp32
    """

    lists: int
    documents: int
    bundle: Ranks
    rounded: Ranks | None


@dataclass(frozen=True)
class Divergence:
    """The first step at which a sequence differs from the oracle's.

    To keep manifests small, only the 50 divergences with the largest margins have texts, of at
    most 2,000 characters.

    Attributes:
        input: index of the input
        margin: the oracle's logit of its own choice minus its logit of the found token
        origin: origin of the input, such as "held_out.tsv, line 17"; "": not recorded
        source, expected, found: texts of the input, the oracle's output and the found output;
            None: not kept or not available, as for audio or without tokenizers
    """

    input: int
    step: int
    expected_token: int
    found_token: int
    margin: float
    origin: Annotated[str, LEFT_OUT] = ""
    source: Annotated[str | None, LEFT_OUT] = None
    expected: Annotated[str | None, LEFT_OUT] = None
    found: Annotated[str | None, LEFT_OUT] = None

    @property
    def named(self) -> str:
        """The input as people find it."""
        return self.origin or f"input {self.input}"

    @property
    def has_texts(self) -> bool:
        """Whether any text was kept."""
        return any(text is not None for text in (self.source, self.expected, self.found))


@dataclass(frozen=True)
class OtherChoice:
    """A generated token where the bundle's own scores prefer another token.

    Attributes:
        input: index of the input
        preferred_token: best token by the bundle's scores, computed in one pass along the output
        found_token: token that the bundle generated
        gap: score of the preferred token minus score of the found token
        origin: origin of the input; "": not recorded
    """

    input: int
    step: int
    preferred_token: int
    found_token: int
    gap: float
    origin: str = ""

    @property
    def named(self) -> str:
        """The input as people find it."""
        return self.origin or f"input {self.input}"


@dataclass(frozen=True)
class OnePassParity:
    """Free-running outputs compared with the bundle's own scores, computed in one pass along them.

    Each token must be the best by these scores and have the same log-probability.

    Attributes:
        sequences: number of compared outputs, including all that differ from the oracle's
        tokens: number of tokens of these outputs
        other_choices: number of tokens where the scores prefer another token by more than
            `allowed`
        gap: largest difference in score between a preferred token and the found token
        allowed: difference in logits that rounding explains; limits the gap and the differences of
            log-probabilities, and a tenth of it limits their mean difference
        worst: token with the largest gap, if it is more than `allowed`
        largest_difference: largest difference of a token's log-probability in nats; None for
            speech, which reports no log-probabilities of tokens
        mean_difference: mean difference of the log-probabilities, in nats per token
    """

    sequences: int
    tokens: int
    other_choices: int
    gap: float
    allowed: float
    worst: OtherChoice | None
    largest_difference: float | None
    mean_difference: float
    passed: bool


@dataclass(frozen=True)
class TokenParity:
    """Free-running greedy sequences compared with the oracle's.

    Attributes:
        one_pass: comparison of the bundle with itself; None: not recorded
        expected_identical: below fp32, number of identical sequences predicted by the
            distributions along the oracle's outputs; None at fp32, where all must be identical
        least_identical: below fp32, required number of identical sequences, given the sample size
        allowed_margin: below fp32, largest allowed margin of a divergence
    """

    sequences: int
    identical: int
    divergences: tuple[Divergence, ...]
    passed: bool
    one_pass: Annotated[OnePassParity | None, LEFT_OUT] = None
    expected_identical: Annotated[float | None, LEFT_OUT] = None
    least_identical: Annotated[int | None, LEFT_OUT] = None
    allowed_margin: Annotated[float | None, LEFT_OUT] = None

    @property
    def undecided(self) -> bool:
        """Whether rounding changes every output, so that identity cannot be tested."""
        return self.passed and self.sequences > 0 and not self.identical


@dataclass(frozen=True)
class BeamParity:
    """The best hypotheses of the bundle's default beam search compared with the oracle's.

    Attributes:
        sequences: number of compared hypotheses; they have a smaller token limit than the bundle
        ties: number of hypotheses with other tokens and the same score, or of a source for which
            the oracle's search kept one of two candidates whose scores differ by rounding only
        score_difference: largest difference in score of identical hypotheses, divided by max(1,
            the oracle's score)
        own_difference: difference between a hypothesis's reported score and its score from
            one-pass log-probabilities under the checkpoint's length penalty, for the hypothesis
            with the largest ratio to its allowed difference
        own_allowed: allowed difference for that hypothesis
    """

    beams: int
    sequences: int
    identical: int
    ties: int
    score_difference: float
    passed: bool
    own_difference: float
    own_allowed: float

    @property
    def undecided(self) -> bool:
        """Whether rounding changes every hypothesis, so that identity cannot be tested."""
        return self.passed and self.sequences > 0 and not self.identical + self.ties


@dataclass(frozen=True)
class ReferenceParity:
    """The probability of reference targets.

    Attributes:
        references: file of the references
        tokens: number of tokens of all targets, end tokens included
        oracle, bundle: negative log-likelihood in nats per token: the logarithm of the perplexity
        tolerance: largest allowed excess of the bundle's
    """

    references: str
    pairs: int
    tokens: int
    oracle: float
    bundle: float
    tolerance: float
    passed: bool


@dataclass(frozen=True)
class TaskParity:
    """A metric of the model's task, for oracle and bundle on the same references.

    Attributes:
        metric: name of the metric, such as "BLEU"
        oracle, bundle: points for BLEU, chrF and ROUGE-L; fractions for all other metrics
        higher_is_better: whether higher values are better
        allowed: largest allowed loss of the bundle; None: not recorded
        chance: p-value of the difference in a paired bootstrap over the inputs; None: not recorded
        pairs: number of scored texts; 0: not recorded
        signature: sacrebleu's signature of the metric's settings
        excess_chance: p-value in a paired bootstrap of a loss beyond `allowed`, if the true loss
            is `allowed`; None if the loss is not beyond it
        undecided: whether the loss is more than `allowed`, but not significantly; `passed` is True
            then
        more_inputs: estimated number of further texts for a decision; None: decided or unknown
    """

    metric: str
    oracle: float
    bundle: float
    passed: bool
    higher_is_better: bool = False
    allowed: float | None = None
    chance: float | None = None
    pairs: int = 0
    signature: str = ""
    excess_chance: Annotated[float | None, LEFT_OUT] = None
    undecided: Annotated[bool, LEFT_OUT] = False
    more_inputs: Annotated[int | None, LEFT_OUT] = None

    @property
    def loss(self) -> float:
        """The loss of the bundle; negative if the bundle is better."""
        difference = self.bundle - self.oracle
        return -difference if self.higher_is_better else difference


@dataclass(frozen=True)
class ShortlistParity:
    """What a shortlist costs: outputs with it, compared with those of the whole vocabulary.

    Attributes:
        sequences, identical: number of outputs, and of those that are the same
        allowed: mean number of tokens that a source allows
        tasks: results by metric, with `oracle` for the whole vocabulary and `bundle` for the
            shortlist; for information only
    """

    sequences: int
    identical: int
    allowed: float
    tasks: Annotated[tuple[TaskParity, ...], LEFT_OUT] = ()


@dataclass(frozen=True)
class Check:
    """One check of a bundle, with the numbers of compared and differing items.

    Attributes:
        name: name of the check, such as "weights"
        compared: number of compared items
        unit: kind of item, such as "weights" or "token ids"
        differing: number of items that differ by more than the tolerance
        worst: largest difference as a multiple of the tolerance; None if items are compared
            for equality
        problem: the first difference as a sentence; "" if there is none
        note: the reason why nothing was compared; "" if something was
    """

    name: str
    compared: int
    unit: str
    differing: int
    passed: bool
    worst: float | None = None
    problem: str = ""
    note: Annotated[str, LEFT_OUT] = ""


@dataclass(frozen=True)
class Coverage:
    """The coverage of the numerical comparisons with the oracle.

    Attributes:
        weights: number of weights compared with the checkpoint's; 0 for engines
        graphs: whether graphs were compared exactly; not possible for engines
        source_lengths, target_lengths: shortest and longest length in positions; empty if the
            model has no such side
        source_vocabulary, target_vocabulary: share of the vocabulary's tokens that were read
        positions: number of decoder positions
        cached_positions: number of decoder positions computed with the cache
        batch_sizes: compared batch sizes
    """

    weights: int
    graphs: bool
    source_lengths: tuple[int, ...]
    target_lengths: tuple[int, ...]
    source_vocabulary: float
    target_vocabulary: float
    positions: int
    cached_positions: int
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Parity:
    """The results of `dragoman verify`.

    Attributes:
        tokens: parity of generated sequences; empty for an encoder-only model
        tasks: results by metric, the most important first; empty without references
        vectors: parity of the embeddings of an encoder-only model
        ranks: order of documents by the scores or embeddings of an encoder-only model
        checks: checks of settings, tokenizers, weights, graphs, steps and batches, in this order
        coverage: coverage of the checks; None: not recorded
        shortlist: what the shortlist costs; None: the bundle has none
    """

    passed: bool
    oracle: str
    inputs: str
    backend: str
    tensors: tuple[TensorParity, ...]
    tokens: TokenParity
    tasks: Annotated[tuple[TaskParity, ...], LEFT_OUT] = ()
    references: Annotated[ReferenceParity | None, LEFT_OUT] = None
    beams: Annotated[BeamParity | None, LEFT_OUT] = None
    distributions: Annotated[DistributionParity | None, LEFT_OUT] = None
    vectors: Annotated[VectorParity | None, LEFT_OUT] = None
    ranks: Annotated[RankParity | None, LEFT_OUT] = None
    checks: Annotated[tuple[Check, ...], LEFT_OUT] = ()
    coverage: Annotated[Coverage | None, LEFT_OUT] = None
    shortlist: Annotated[ShortlistParity | None, LEFT_OUT] = None
