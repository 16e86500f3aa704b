"""The hyper-parameters of a Transformer: encoder-decoder, encoder-only or decoder-only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.errors import shown
from dragoman.files.strict_json import parse_json

from .head_config import HeadConfig
from .settings import ConfigError, wrong_names, wrong_types

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
NormOrder = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
PositionKind = Literal["sinusoidal", "learned", "relative", "learned_and_relative"]
DecoderKind = Literal["self_attention", "ssru", "gru"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that determines the shape and the arithmetic of a model.

    The defaults are those of "Attention Is All You Need" (Vaswani et al. 2017), base model, except
    for the biases in attention. The paper has none (section 3.2.2), but most implementations and
    published weights do.

    A model without a decoder (`EncoderModel`, BERT) has 0 for its layers, vocabulary and positions,
    and a head; a model without an encoder (`LanguageModel`, GPT-2) has 0 for the encoder's. A model
    that classifies a source may have decoder layers, which read the source once more (Lewis et al.
    2020, section 3.1, BART).

    Raises:
        ConfigError: on construction, naming every field that is out of range.
    """

    source_vocab_size: int | None
    """None for a speech model, whose source is audio features; 0 without an encoder."""
    target_vocab_size: int
    """Size of the target vocabulary; 0 without a decoder."""
    feature_size: int | None = None
    """Mel bins in each source frame of a speech model (Radford et al. 2022); None for tokens."""

    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 512
    num_heads: int = 8
    d_head: int | None = None
    """Size of each head's queries and keys (d_k in the paper), and of its values unless `d_value`
    says otherwise; None: d_model / num_heads."""
    d_value: int | None = None
    """Size of each head's values (d_v in the paper); None: the same."""
    score_scale: float | None = None
    """The factor of attention scores; None: 1 / sqrt(d_k), section 3.2.1."""
    decoder_kind: DecoderKind = "self_attention"
    """What a layer of the decoder has before cross-attention. A recurrent unit, ssru (Kim et al.
    2019, section 4.1) or gru (Cho et al. 2014, section 2.3), has a state of d_model numbers,
    whatever the position."""
    bilinear_scores: bool = False
    """Whether the score of a query q and a key k is q^T W k, scaled, with a learned matrix W per
    head ("general" in Luong et al. 2015, section 3.1)."""
    additive_scores: bool = False
    """Whether the score of a query q and a key k in cross-attention is v^T tanh(q + k), with a
    learned vector v per head (Bahdanau et al. 2015, section A.1.2)."""
    d_ff: int = 2048
    activation: Activation = "relu"
    gated_feed_forward: bool = False
    """activation(x W_gate) * x W_1, then W_2 (Shazeer 2020; T5 1.1)."""

    norm_order: NormOrder = "post"
    """post: LayerNorm(x + Sublayer(x)), section 3.1. pre: x + Sublayer(LayerNorm(x)), with an
    additional LayerNorm after each stack (Xiong et al. 2020)."""
    norm: NormKind = "layer"
    """rms: RMSNorm, which scales without centring (Zhang & Sennrich 2019; T5)."""
    final_norm: bool | None = None
    """Whether a norm follows each stack; None: with pre-norm only. (torch.nn.Transformer has one
    with post-norm, too.)"""
    norm_gain: bool = True
    norm_bias: bool = True
    norm_epsilon: float = 1e-5
    embedding_norm: bool = False
    """LayerNorm after the sum of token and position embeddings (BART)."""

    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    attention_output_bias: bool = True
    feed_forward_bias: bool = True
    logits_bias: bool = False

    tie_source_target: bool = False
    """Encoder and decoder share one token embedding, which requires equal vocabularies."""
    tie_target_output: bool = True
    """The projection to logits shares the weight of the decoder's token embedding, section 3.4."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(d_model), section 3.4."""
    pad_has_position: bool = True
    """Whether the padding token has a position embedding. If not, positions count only the other
    tokens of a source (fairseq's sinusoidal positions; M2M100)."""

    positions: PositionKind = "sinusoidal"
    """relative: no position embedding; each self-attention head adds a learned bias to its scores,
    one for each bucket of distances between query and key (Raffel et al. 2020, section 2.1).
    learned_and_relative: such biases beside a learned table of positions (MPNet)."""
    relative_buckets: int = 32
    relative_max_distance: int = 128
    """The distance from which all distances share a bucket."""
    max_source_positions: int = 1024
    max_target_positions: int = 1024
    d_embedding: int | None = None
    """Size of an encoder-only model's embeddings, which a linear map takes to d_model (Lan et al.
    2019, section 3.1); None: d_model, without a map."""
    encoder_order: tuple[int, ...] | None = None
    """The layers that an encoder-only model applies, each the number of one of `encoder_layers`, so
    that several places share its weights (ALBERT); None: each layer once."""
    token_types: int = 0
    """Kinds of segments in a source, each with an embedding of its own (Devlin et al. 2018, section
    3); 0: none."""
    head: HeadConfig | None = None
    """The head of an encoder-only model; None for a model with a decoder."""

    dropout: float = 0.1
    """Of the outputs of embeddings and sub-layers, section 5.4."""
    attention_dropout: float = 0.0
    """Of attention weights."""
    feed_forward_dropout: float = 0.0
    """Of the inner layer of feed-forward networks, after the activation."""
    pad_token_id: int = 0
    start_token_id: int = 1
    """The decoder's first input token."""
    end_token_id: int = 2

    def __post_init__(self) -> None:
        wrong = wrong_types(self)
        problems = [*wrong.values(), *_out_of_range(self, frozenset(wrong))]
        if problems:
            raise ConfigError(problems)

    @property
    def applied_encoder_layers(self) -> tuple[int, ...]:
        """The number of the encoder's layer at each place."""
        return self.encoder_order or tuple(range(self.encoder_layers))

    @property
    def has_encoder(self) -> bool:
        """Whether the model has an encoder."""
        return self.source_vocab_size != 0

    @property
    def has_decoder(self) -> bool:
        """Whether the model generates a target."""
        return self.target_vocab_size != 0

    @property
    def rereads_source(self) -> bool:
        """Whether layers of a decoder read the source once more, before the head."""
        return not self.has_decoder and self.decoder_layers != 0

    @property
    def is_recurrent(self) -> bool:
        """Whether the layers of the decoder have a recurrent unit instead of self-attention."""
        return self.decoder_kind != "self_attention"

    @property
    def head_size(self) -> int:
        """The size d_k of each head's queries and keys."""
        return self.d_model // self.num_heads if self.d_head is None else self.d_head

    @property
    def value_size(self) -> int:
        """The size d_v of each head's values."""
        return self.head_size if self.d_value is None else self.d_value

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows each stack."""
        return self.norm_order == "pre" if self.final_norm is None else self.final_norm

    @property
    def takes_audio(self) -> bool:
        """Whether the source is audio features, not tokens."""
        return self.feature_size is not None

    @property
    def feature_frames(self) -> int:
        """The number of frames in a speech model's source; the second convolution halves it."""
        return 2 * self.max_source_positions

    def replace(self, **changes: Any) -> ModelConfig:
        """Return a checked copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, without those of rare models at their defaults."""
        values = dataclasses.asdict(self)
        unused = [name for name in DROPOUTS[1:] if not values[name]]
        unused += [] if self.is_recurrent else ["decoder_kind"]
        unused += [] if self.additive_scores else ["additive_scores"]
        return {name: value for name, value in values.items() if name not in unused}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Make a configuration from plain data.

        Raises:
            ConfigError: names every unknown, missing or invalid field.
        """
        problems = wrong_names(cls, values)
        names = {field.name for field in dataclasses.fields(cls)}
        known: dict[str, Any] = {n: value for n, value in values.items() if n in names}
        if any(problem.startswith("missing") for problem in problems):
            raise ConfigError(problems)
        try:
            if isinstance(known.get("encoder_order"), list):
                known["encoder_order"] = tuple(known["encoder_order"])
            if known.get("head") is not None:
                known["head"] = HeadConfig.from_dict(known["head"])
            config = cls(**known)
        except ConfigError as error:
            raise ConfigError(problems + error.problems) from error
        if problems:
            raise ConfigError(problems)
        return config

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Make a configuration from a JSON object.

        Raises:
            ConfigError: the text is not a JSON object; otherwise see `from_dict`.
        """
        try:
            values = parse_json(text)
        except ValueError as error:
            raise ConfigError([f"not JSON: {error}"]) from error
        if not isinstance(values, dict):
            raise ConfigError([f"expected a JSON object, found {type(values).__name__}"])
        return cls.from_dict(values)


DROPOUTS = ("dropout", "attention_dropout", "feed_forward_dropout")
"""The fields that matter in training only."""

NULLABLE_SIZES = ("d_head", "d_value", "d_embedding")

SIDES = {
    "encoder": ("source_vocab_size", "encoder_layers", "max_source_positions"),
    "decoder": ("target_vocab_size", "decoder_layers", "max_target_positions"),
}
"""The sizes of each side, which are 0 in a model without that side."""


def _out_of_range(config: ModelConfig, unusable: frozenset[str]) -> Iterator[str]:
    """Yield the values out of range; checks that read a field of the wrong type are skipped."""
    c = config

    def usable(*fields: str) -> bool:
        return unusable.isdisjoint(fields)

    for side, names in SIDES.items():
        for name in names:
            vocabulary, size = getattr(c, names[0]), getattr(c, name)
            if not usable(names[0], name) or (name == "decoder_layers" and c.head is not None):
                continue  # of a head, see `_problems_of_head`
            if vocabulary != 0 and size is not None and size < 1:
                yield f"{name} must be at least 1, found {size}"
            if vocabulary == 0 and size != 0:
                yield (
                    f"{name} must be 0 in a model without {side} ({names[0]} {vocabulary}), found "
                    f"{size}"
                )
    for name in ("d_model", "num_heads", "d_ff", "feature_size", *NULLABLE_SIZES):
        size = getattr(c, name)
        if usable(name) and size is not None and size < 1:
            least = "at least 1 or null" if name in NULLABLE_SIZES else "at least 1"
            yield f"{name} must be {least}, found {size}"
    if (
        usable("d_model", "num_heads", "d_head")
        and c.d_head is None
        and c.num_heads > 0
        and c.d_model % c.num_heads
    ):
        yield (
            f"d_model {c.d_model} is not a multiple of num_heads {c.num_heads}: choose another "
            "number or set d_head"
        )
    if usable("score_scale") and c.score_scale is not None and not 0 < c.score_scale < math.inf:
        yield f"score_scale must be positive and finite or null, found {c.score_scale}"
    if usable("d_model", "positions") and c.positions == "sinusoidal" and c.d_model % 2:
        yield f"sinusoidal positions need an even d_model, found {c.d_model}"
    for name in DROPOUTS:
        if usable(name) and not 0 <= getattr(c, name) < 1:
            yield f"{name} must be in [0, 1), found {getattr(c, name)}"
    if usable("norm_epsilon") and not 0 < c.norm_epsilon < math.inf:
        yield f"norm_epsilon must be positive and finite, found {c.norm_epsilon}"
    source, target, features = c.source_vocab_size, c.target_vocab_size, c.feature_size
    if usable("source_vocab_size", "feature_size") and (source is None) == (features is None):
        yield (
            "expected exactly one of source_vocab_size (tokens) and feature_size (speech), found "
            f"{source} and {features}"
        )
    if usable("feature_size", "positions") and features is not None and "relative" in c.positions:
        yield (
            f"a speech model (feature_size {features}) needs sinusoidal or learned positions, "
            f"found {c.positions}"
        )
    if (
        usable("decoder_kind", "source_vocab_size", "target_vocab_size", "positions")
        and c.is_recurrent
        and (not source or not target or "relative" in c.positions)
    ):
        yield (
            f"decoder_kind {c.decoder_kind} needs an encoder of tokens, a decoder, and "
            f"sinusoidal or learned positions, found source_vocab_size {source}, "
            f"target_vocab_size {target} and positions {c.positions}"
        )
    if (
        usable("additive_scores", "bilinear_scores", "score_scale")
        and c.additive_scores
        and (c.bilinear_scores or c.score_scale is not None or not source or not target)
    ):
        yield (
            "additive_scores need an encoder of tokens and a decoder, without bilinear_scores and "
            f"score_scale, found source_vocab_size {source}, target_vocab_size {target}, "
            f"bilinear_scores {c.bilinear_scores} and score_scale {c.score_scale}"
        )
    if usable("norm", "norm_bias") and c.norm == "rms" and c.norm_bias:
        yield f"norm {c.norm} has no bias: expected norm_bias false, found {c.norm_bias}"
    if usable("positions", "relative_buckets", "relative_max_distance"):
        buckets, distance = c.relative_buckets, c.relative_max_distance
        if "relative" in c.positions and (buckets < 4 or distance <= buckets // 2):
            yield (
                f"{c.positions} positions need relative_buckets of at least 4 and a "
                "relative_max_distance greater than half of relative_buckets, found "
                f"{buckets} and {distance}"
            )
    if usable("source_vocab_size", "target_vocab_size") and source == target == 0:
        yield (
            f"expected an encoder or a decoder, found source_vocab_size {source} and "
            f"target_vocab_size {target}"
        )
    if usable("target_vocab_size", "head") and (target == 0) != (c.head is not None):
        yield (
            f"a model has either a decoder or a head, found target_vocab_size {target} and head "
            f"{c.head}"
        )
    if usable("head", "feature_size") and c.head is not None and features is not None:
        yield f"a head is for sources of tokens, found {c.head} and feature_size {features}"
    if usable("token_types", "source_vocab_size") and (
        c.token_types < 0 or (c.token_types > 0 and not source)
    ):
        yield (
            "token_types must be at least 0, and 0 where the source is not tokens, found "
            f"{c.token_types}"
        )
    if usable("head"):
        yield from _problems_of_head(c, c.head, usable)
    if usable("encoder_layers", "encoder_order") and (order := c.encoder_order) is not None:
        layers = c.encoder_layers
        if (len({*order}), min(order), max(order)) != (layers, 0, layers - 1):
            yield (
                f"encoder_order must have each number below encoder_layers {layers}, found {order}"
            )
    if (
        usable("head", "d_model")
        and c.head is not None
        and c.head.truncate_dim > c.head.embedding_size(c.d_model)
    ):
        yield (
            f"head.truncate_dim must be at most the embedding's size, found {c.head.truncate_dim}"
        )
    if (
        usable("head", "source_vocab_size")
        and c.head is not None
        and source is not None
        and c.head.mask_token_id >= source
    ):
        yield (
            f"head.mask_token_id must be in the vocabulary of {source} tokens, found "
            f"{c.head.mask_token_id}"
        )
    if (
        usable("source_vocab_size", "target_vocab_size", "tie_source_target")
        and c.tie_source_target
        and 0 not in (source, target)
        and source != target
    ):
        yield (
            f"tie_source_target needs equal vocabularies, found {source} (source) and {target} "
            "(target)"
        )
    for name in ("start_token_id", "end_token_id"):
        vocabulary = "source_vocab_size" if c.rereads_source else "target_vocab_size"
        size, token = getattr(c, vocabulary), getattr(c, name)
        if usable(vocabulary, name) and size and not 0 <= token < size:
            yield f"{name} must be in the target vocabulary [0, {size}), found {token}"
    if usable("source_vocab_size", "target_vocab_size", "pad_token_id"):
        token = c.pad_token_id
        if not 0 <= token < min((size for size in (source, target) if size), default=token + 1):
            yield (
                f"pad_token_id must be in both vocabularies, of {source} and {target} tokens, "
                f"found {token}"
            )


def _problems_of_head(
    c: ModelConfig, head: HeadConfig | None, usable: Callable[..., bool]
) -> Iterator[str]:
    if head is not None and usable("d_model"):
        if head.task == "sequence-classification" and head.dense_size not in (0, c.d_model):
            yield (
                f"the dense layer of this head has d_model outputs: expected {c.d_model}, found "
                f"{head.dense_size}"
            )
        if (
            head.task == "masked-language-model"
            and usable("d_embedding")
            and (head.dense_size or c.d_model) != (c.d_embedding or c.d_model)
        ):
            yield (
                "the outputs of this head's dense layer are as many as those of the token "
                f"embedding: expected {c.d_model} (d_model) or {c.d_embedding} (d_embedding), "
                f"found {head.dense_size}"
            )
    order = c.encoder_order
    if usable("d_embedding", "encoder_order", "positions"):
        special = c.d_embedding is not None or order is not None
        if special and (head is None or c.positions == "sinusoidal"):
            yield (
                f"d_embedding {c.d_embedding} and encoder_order {order} are for encoder-only "
                f"models with learned positions, found head {head} and positions {c.positions}"
            )
    rereads = usable("decoder_layers", "d_embedding", "encoder_order") and c.decoder_layers != 0
    if head is not None and rereads:
        special = (c.d_embedding, order) != (None, None)
        if c.decoder_layers < 0 or head.task != "sequence-classification" or special:
            yield (
                f"decoder_layers {c.decoder_layers} before a head are for sequence-classification, "
                f"without d_embedding and encoder_order, found head {head}, d_embedding "
                f"{c.d_embedding} and encoder_order {order}"
            )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "max_source_positions": 128,
        "max_target_positions": 128,
    },
    "base": {},
    "big": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
    "student": {"decoder_layers": 2, "d_model": 256, "d_ff": 1536, "decoder_kind": "ssru"},
}
"""Base and big of the paper's table 3, a model small enough for tests, and one with a recurrent
decoder, which learns from the outputs of a larger model (Kim et al. 2019)."""


def preset(
    name: str, *, source_vocab_size: int, target_vocab_size: int, **changes: Any
) -> ModelConfig:
    """Make a preset's configuration for these vocabulary sizes; `changes` replace its fields.

    Raises:
        ConfigError: the preset is unknown (lists all presets), or the result is invalid.
    """
    if name not in PRESETS:
        raise ConfigError([f"unknown preset {shown(name)}, expected one of {', '.join(PRESETS)}"])
    return ModelConfig(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        **{**PRESETS[name], **changes},
    )
