"""The records in a manifest: where the bundle comes from, its parity, and the passes that made its
graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """A model of the Hugging Face Hub.

    Attributes:
        model: its id, `owner/model`
        commit: of the files that were read
    """

    model: str
    commit: str


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
        positions: tokens that were predicted; of an encoder alone, its choices of labels, tokens
            or ends of answers
        bundle: the bundle's distance
        rounded: that of the oracle itself with weights and activations rounded to nearest; None at
            fp32
        allowed: the largest mean divergence of the bundle; None at fp32, where tensors and tokens
            decide
        ties: of an encoder alone at fp32, other choices that the oracle holds to be as good
    """

    positions: int
    bundle: Distance
    rounded: Distance | None
    allowed: float | None
    passed: bool
    ties: int = 0


@dataclass(frozen=True)
class Cosines:
    """Cosines of the angle between vectors and the oracle's."""

    mean: float
    smallest: float


@dataclass(frozen=True)
class VectorParity:
    """The vectors of an encoder alone compared with the oracle's.

    Attributes:
        vectors: how many
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
    origin: str = ""
    source: str | None = None
    expected: str | None = None
    found: str | None = None

    @property
    def named(self) -> str:
        """The input as people find it."""
        return self.origin or f"input {self.input}"

    @property
    def has_texts(self) -> bool:
        return any(text is not None for text in (self.source, self.expected, self.found))


@dataclass(frozen=True)
class TokenParity:
    """Free-running greedy sequences compared with the oracle's."""

    sequences: int
    identical: int
    divergences: tuple[Divergence, ...]
    passed: bool


@dataclass(frozen=True)
class BeamParity:
    """The best hypotheses of the bundle's default beam search compared with the oracle's.

    Attributes:
        sequences: compared, with fewer tokens at most than the bundle's limit
        ties: other tokens with the same score
        score_difference: the largest of identical hypotheses, divided by max(1, the oracle's score)
    """

    beams: int
    sequences: int
    identical: int
    ties: int
    score_difference: float
    passed: bool


@dataclass(frozen=True)
class ReferenceParity:
    """How probable given references are.

    Attributes:
        references: where they are from
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
        metric: as people write it, such as "BLEU"
        oracle, bundle: points for BLEU, chrF and ROUGE-L; shares, of 1, for all others
        higher_is_better: the direction of the metric
        allowed: how much worse the bundle's may be; None: not recorded
        chance: the p-value of a paired bootstrap: the probability that a difference as large is
            due to the choice of the inputs; None: not recorded
        pairs: texts that were scored; 0: not recorded
        signature: what the figures were computed with, as sacrebleu writes it
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
class Parity:
    """The outcome of `dragoman verify`: what was compared with what, and the figures.

    Attributes:
        tokens: of an encoder alone, no sequences
        tasks: a record for each metric, the one that counts most first; none without references
        vectors: of an encoder alone that gives vectors
        checks: of settings, tokenizers, weights, graphs, steps and batches, in this order
    """

    passed: bool
    oracle: str
    inputs: str
    backend: str
    tensors: tuple[TensorParity, ...]
    tokens: TokenParity
    tasks: tuple[TaskParity, ...] = ()
    references: ReferenceParity | None = None
    beams: BeamParity | None = None
    distributions: DistributionParity | None = None
    vectors: VectorParity | None = None
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A node that a pass is meant to replace but left unchanged, and why.

    `matched`: whether a whole pattern matched and its check failed; otherwise no pattern matched.
    """

    node: str
    operator: str
    reason: str
    matched: bool = True


@dataclass(frozen=True)
class Choice:
    """Of several ways to replace a node, the one that a pass took.

    Attributes:
        chosen: such as "fixed scale"
        reason: what was measured
    """

    node: str
    operator: str
    chosen: str
    reason: str


@dataclass(frozen=True)
class PassRecord:
    """What one pass did to one graph.

    Attributes:
        graph: "encoder" or "decoder"; the file's name for a single ONNX file
        matches: number of changes
        nodes_before, nodes_after: number of nodes in the graph
        difference: the largest difference that it caused in an output, divided by max(1, the
            output's largest absolute value), measured with ONNX Runtime's own optimizations off;
            None: not measured
        tolerance: the largest difference that is allowed
        choices: what was taken where there were several ways
    """

    name: str
    graph: str
    matches: int
    refusals: tuple[Refusal, ...]
    nodes_before: int
    nodes_after: int
    difference: float | None
    tolerance: float
    choices: tuple[Choice, ...] = ()
