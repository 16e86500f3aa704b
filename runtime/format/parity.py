"""The record of parity in a manifest: what `dragoman verify` compared, and the figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dragoman.settings.fields import LEFT_OUT


@dataclass(frozen=True)
class TensorParity:
    """A teacher-forced tensor compared with the oracle's.

    Attributes:
        difference: the largest absolute difference divided by max(1, the largest absolute value of
            the oracle's tensor)
        tolerance: the largest difference that is allowed; None: the tensor need only be finite
        positions: that were compared
        positions_beyond: of these, those that differ by more than the tolerance
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
    """How far distributions of the next token are from the oracle's, over several positions.

    Attributes:
        mean, median, percentile_99, largest: of the Kullback-Leibler divergences, in nats
        same_choice: the share of positions with the same most probable token
    """

    mean: float
    median: float
    percentile_99: float
    largest: float
    same_choice: float


@dataclass(frozen=True)
class DistributionParity:
    """Distributions of the next token compared with the oracle's, along the oracle's own outputs.

    Attributes:
        positions: tokens that were predicted; of an encoder-only model, its choices of labels,
            tokens or ends of answers
        bundle: the bundle's distance
        rounded: that of the oracle itself with weights and activations rounded to nearest; None at
            fp32
        allowed: the largest mean divergence of the bundle; None at fp32, where tensors and tokens
            decide
        ties: of an encoder-only model at fp32, other choices that the oracle holds to be as good
    """

    positions: int
    bundle: Distance
    rounded: Distance | None
    allowed: float | None
    passed: bool
    ties: Annotated[int, LEFT_OUT] = 0


@dataclass(frozen=True)
class Cosines:
    """Cosine similarities of embeddings to the oracle's."""

    mean: float
    smallest: float


@dataclass(frozen=True)
class VectorParity:
    """The embeddings of an encoder-only model compared with the oracle's.

    Attributes:
        vectors: the number of embeddings
        rounded: those of the oracle itself with weights and activations rounded to nearest; None at
            fp32
        allowed: the smallest mean
    """

    vectors: int
    bundle: Cosines
    rounded: Cosines | None
    allowed: float
    passed: bool


@dataclass(frozen=True)
class Divergence:
    """The first step at which a sequence differs from the oracle's.

    Texts are kept of the 50 divergences with the largest margins, and the first 2,000 characters of
    each, so that manifests stay small.

    Attributes:
        input: its index among the inputs
        margin: the oracle's logit of its own choice minus that of the token found
        origin: where the input is from, such as "held_out.tsv, line 17"; "": not recorded
        source, expected, found: the texts of the input, of the oracle's output and of the one
            found; None: not kept, or there is no such text, as of audio or without tokenizers
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
        """Whether any text of the input was kept."""
        return any(text is not None for text in (self.source, self.expected, self.found))


@dataclass(frozen=True)
class OtherChoice:
    """A token of an output in whose place the bundle's own scores prefer another one.

    Attributes:
        input: its index among the inputs
        preferred_token: the choice of the bundle's scores, computed in one pass along the output
        found_token: the token that the bundle has generated
        gap: how much higher the preferred token's score is
        origin: where the input is from; "": not recorded
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

    Each token must be the choice of the scores, and its log-probability theirs.

    Attributes:
        sequences: outputs that were compared, all that differ from the oracle's among them
        tokens: of these outputs
        other_choices: tokens in whose place the scores prefer another one by more than `allowed`
        gap: the largest difference in score between a preferred token and the one found
        allowed: what rounding explains, in logits: the largest gap, and the largest difference of a
            log-probability; a tenth of it is their largest mean difference
        worst: the token with the largest gap, if it is more than `allowed`
        largest_difference: of a token's log-probability, in nats; None for speech, whose tokens
            have none of their own
        mean_difference: of the log-probabilities, in nats per token
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
        one_pass: the bundle compared with itself; None: not recorded
        expected_identical: below fp32, how many sequences the distributions measured along the
            oracle's outputs predict to be identical; None at fp32, where all must be
        least_identical: below fp32, how many must be, given how few outputs were measured
        allowed_margin: below fp32, the largest margin of a divergence that is allowed
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
        """Whether rounding leaves no output as it is, so that identity can show nothing."""
        return self.passed and self.sequences > 0 and not self.identical


@dataclass(frozen=True)
class BeamParity:
    """The best hypotheses of the bundle's default beam search compared with the oracle's.

    Attributes:
        sequences: compared, with fewer tokens at most than the bundle's limit
        ties: other tokens with the same score
        score_difference: the largest of identical hypotheses, divided by max(1, the oracle's score)
        own_difference: of the bundle's hypotheses, the difference between the score it reports and
            the one that its own log-probabilities in one pass give under the checkpoint's length
            penalty; of the hypothesis that has the largest difference for what is allowed
        own_allowed: how large that difference may be
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
        """Whether rounding leaves no hypothesis as it is, so that identity can show nothing."""
        return self.passed and self.sequences > 0 and not self.identical + self.ties


@dataclass(frozen=True)
class ReferenceParity:
    """The probability of given references.

    Attributes:
        references: the file of the references
        tokens: of all targets, end tokens included
        oracle, bundle: negative log-likelihood per token, in nats: the logarithm of the perplexity
        tolerance: how much higher the bundle's may be
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
    """A metric of the model's task, for the oracle and the bundle, on the same references.

    Attributes:
        metric: as it is written, such as "BLEU"
        oracle, bundle: points for BLEU, chrF and ROUGE-L; shares, of 1, for all others
        higher_is_better: the direction of the metric
        allowed: how much worse the bundle's may be; None: not recorded
        chance: the p-value of a paired bootstrap: the probability that a difference as large is
            due to the choice of the inputs; None: not recorded
        pairs: texts that were scored; 0: not recorded
        signature: what the figures were computed with, as sacrebleu writes it
        excess_chance: of a loss that is more than `allowed`, the p-value of a paired bootstrap: the
            probability of such a figure if the true loss were no more than that; None otherwise
        undecided: whether the loss is more than `allowed`, but not significantly: neither passed
            nor failed, `passed` is True
        more_inputs: about how many more texts would decide; None: decided, or it cannot be told
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
        """How much worse the bundle's figure is; below 0 where it is better."""
        difference = self.bundle - self.oracle
        return -difference if self.higher_is_better else difference


@dataclass(frozen=True)
class Check:
    """One check of a bundle: how much was compared, and how much of it differs.

    Attributes:
        name: of the check, such as "weights"
        compared: how many things were compared
        unit: what they are, such as "weights" or "token ids"
        differing: how many of them differ by more than is allowed
        worst: the largest difference as a multiple of what is allowed; None where things are
            either equal or not
        problem: the first difference as a sentence; "" if there is none
    """

    name: str
    compared: int
    unit: str
    differing: int
    passed: bool
    worst: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Coverage:
    """What the checks that compare numbers with the oracle reached.

    Attributes:
        weights: numbers of weights that were compared with the checkpoint's; 0 of engines
        graphs: whether graphs were compared in exact form; engines do not show theirs
        source_lengths, target_lengths: the shortest and the longest, in positions; none where the
            model has no such side
        source_vocabulary, target_vocabulary: the share of tokens that were read
        positions: of the decoder
        cached_positions: of these, those that were reached through the cache
        batch_sizes: that were compared
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
    """The outcome of `dragoman verify`: what was compared with what, and the figures.

    Attributes:
        tokens: none of an encoder-only model
        tasks: a record for each metric, the one that counts most first; none without references
        vectors: of an encoder-only model that gives embeddings
        checks: of settings, tokenizers, weights, graphs, steps and batches, in this order
        coverage: what the checks reached; None: not recorded
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
    checks: Annotated[tuple[Check, ...], LEFT_OUT] = ()
    coverage: Annotated[Coverage | None, LEFT_OUT] = None
