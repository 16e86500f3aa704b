"""The hyper-parameters of a Transformer: encoder-decoder, encoder-only or decoder-only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.errors import shown
from dragoman.files.strict_json import parse_json

from .head_config import HeadConfig
from .settings import ConfigError, wrong_types

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
NormOrder = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
PositionKind = Literal["sinusoidal", "learned", "relative", "learned_and_relative"]
DecoderKind = Literal["self_attention", "ssru"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that determines the shape and the arithmetic of a model.

    The defaults are those of "Attention Is All You Need" (Vaswani et al. 2017), base model, except
    for the biases in attention. The paper has none (section 3.2.2), but most implementations and
    published weights do. `query_bias`, `key_bias`, `value_bias` and `attention_output_bias` switch
    them off.

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
    """What a layer of the decoder has before cross-attention. ssru: a recurrent unit, whose state
    is a vector of d_model numbers, whatever the position (Kim et al. 2019, section 4.1)."""
    bilinear_scores: bool = False
    """Whether the score of a query q and a key k is q^T W k, scaled, with a learned matrix W per
    head ("general" in Luong et al. 2015, section 3.1)."""
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
        """Return the fields as plain data.

        Attention and feed-forward dropout are among them only if not 0, and the kind of the decoder
        only if it has no self-attention.
        """
        values = dataclasses.asdict(self)
        unused = [name for name in DROPOUTS[1:] if not values[name]]
        unused += [] if self.is_recurrent else ["decoder_kind"]
        return {name: value for name, value in values.items() if name not in unused}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Make a configuration from plain data.

        Raises:
            ConfigError: names every unknown, missing or invalid field.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        problems = [f"unknown field {shown(name)}" for name in values if name not in fields]
        missing = [
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and name not in values
        ]
        problems += [f"missing field {name!r}" for name in missing]
        known: dict[str, Any] = {n: value for n, value in values.items() if n in fields}
        if missing:
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

SIDES = {
    "encoder": ("source_vocab_size", "encoder_layers", "max_source_positions"),
    "decoder": ("target_vocab_size", "decoder_layers", "max_target_positions"),
}
"""The sizes of each side, which are 0 in a model without that side."""


def _out_of_range(config: ModelConfig, unusable: frozenset[str]) -> list[str]:
    """Return the values out of range; checks that read a field of the wrong type are skipped."""
    checks = _Checks(config, unusable)
    for side, names in SIDES.items():
        _check_side(checks, side, names)
    for name in ("d_model", "num_heads", "d_ff", "feature_size"):
        checks.add(
            [name],
            lambda value: value is not None and value < 1,
            f"{name} must be at least 1, found {{}}",
        )
    for name in ("d_head", "d_value", "d_embedding"):
        checks.add(
            [name],
            lambda size: size is not None and size < 1,
            f"{name} must be at least 1 or null, found {{}}",
        )
    checks.add(
        ["d_model", "num_heads", "d_head"],
        lambda width, heads, size: size is None and heads > 0 and width % heads,
        "d_model {} is not a multiple of num_heads {}: choose another number or set d_head",
    )
    checks.add(
        ["score_scale"],
        lambda scale: scale is not None and not 0 < scale < math.inf,
        "score_scale must be positive and finite or null, found {}",
    )
    checks.add(
        ["d_model", "positions"],
        lambda width, kind: kind == "sinusoidal" and width % 2,
        "sinusoidal positions need an even d_model, found {}",
    )
    for name in DROPOUTS:
        checks.add([name], lambda p: not 0 <= p < 1, f"{name} must be in [0, 1), found {{}}")
    checks.add(
        ["norm_epsilon"],
        lambda epsilon: not 0 < epsilon < math.inf,
        "norm_epsilon must be positive and finite, found {}",
    )
    checks.add(
        ["source_vocab_size", "feature_size"],
        lambda vocabulary, features: (vocabulary is None) == (features is None),
        "expected exactly one of source_vocab_size (tokens) and feature_size (speech), found "
        "{} and {}",
    )
    checks.add(
        ["feature_size", "positions"],
        lambda features, kind: features is not None and "relative" in kind,
        "a speech model (feature_size {}) needs sinusoidal or learned positions, found {}",
    )
    checks.add(
        ["decoder_kind", "source_vocab_size", "target_vocab_size", "positions"],
        lambda kind, source, target, positions: (
            kind != "self_attention" and (not source or not target or "relative" in positions)
        ),
        "decoder_kind {} needs an encoder of tokens, a decoder, and sinusoidal or learned "
        "positions, found source_vocab_size {}, target_vocab_size {} and positions {}",
    )
    checks.add(
        ["norm", "norm_bias"],
        lambda kind, bias: kind == "rms" and bias,
        "norm {} has no bias: expected norm_bias false, found {}",
    )
    checks.add(
        ["positions", "relative_buckets", "relative_max_distance"],
        lambda kind, buckets, distance: (
            "relative" in kind and (buckets < 4 or distance <= buckets // 2)
        ),
        "{} positions need relative_buckets of at least 4 and a relative_max_distance greater "
        "than half of relative_buckets, found {} and {}",
    )
    _check_head(checks)
    _check_tokens(checks)
    return checks.problems


class _Checks:
    """Collects problems; checks that read a field of the wrong type are skipped."""

    def __init__(self, config: ModelConfig, unusable: frozenset[str]) -> None:
        self.config = config
        self.unusable = unusable
        self.problems: list[str] = []

    def add(self, fields: list[str], wrong: Callable[..., object], problem: str) -> None:
        """Record the problem, formatted with the fields' values, if `wrong` holds for them."""
        if self.unusable.isdisjoint(fields):
            values = [getattr(self.config, field) for field in fields]
            if wrong(*values):
                self.problems.append(problem.format(*values))


def _check_side(checks: _Checks, side: str, names: tuple[str, ...]) -> None:
    """Check that the sizes of a side are all at least 1 or, without that side, all 0."""
    vocabulary = names[0]
    for name in names:
        if name == "decoder_layers" and checks.config.head is not None:
            continue  # see `_check_head`
        checks.add(
            [vocabulary, name],
            lambda vocabulary, size: vocabulary != 0 and size is not None and size < 1,
            f"{name} must be at least 1, found {{1}}",
        )
        checks.add(
            [vocabulary, name],
            lambda vocabulary, size: vocabulary == 0 and size != 0,
            f"{name} must be 0 in a model without {side} ({vocabulary} {{}}), found {{}}",
        )


def _check_head(checks: _Checks) -> None:
    checks.add(
        ["source_vocab_size", "target_vocab_size"],
        lambda source, target: source == target == 0,
        "expected an encoder or a decoder, found source_vocab_size {} and target_vocab_size {}",
    )
    checks.add(
        ["target_vocab_size", "head"],
        lambda target, head: (target == 0) != (head is not None),
        "a model has either a decoder or a head, found target_vocab_size {} and head {}",
    )
    checks.add(
        ["head", "feature_size"],
        lambda head, features: head is not None and features is not None,
        "a head is for sources of tokens, found {} and feature_size {}",
    )
    checks.add(
        ["token_types", "source_vocab_size"],
        lambda types, source: types < 0 or (types > 0 and not source),
        "token_types must be at least 0, and 0 where the source is not tokens, found {}",
    )
    checks.add(
        ["head", "d_model"],
        lambda head, width: (
            head is not None
            and head.task == "sequence-classification"
            and head.dense_size not in (0, width)
        ),
        "the dense layer of this head has d_model outputs: expected {1}, found {0.dense_size}",
    )
    checks.add(
        ["head", "d_model", "d_embedding"],
        lambda head, width, embedding: (
            head is not None
            and head.task == "masked-language-model"
            and (head.dense_size or width) != (embedding or width)
        ),
        "the outputs of this head's dense layer are as many as those of the token embedding: "
        "expected {1} (d_model) or {2} (d_embedding), found {0.dense_size}",
    )
    checks.add(
        ["head", "d_embedding", "encoder_order", "positions"],
        lambda head, embedding, order, positions: (
            (embedding is not None or order is not None)
            and (head is None or positions == "sinusoidal")
        ),
        "d_embedding {1} and encoder_order {2} are for encoder-only models with learned positions, "
        "found head {0} and positions {3}",
    )
    checks.add(
        ["encoder_layers", "encoder_order"],
        lambda layers, order: (
            order is not None and (len({*order}), min(order), max(order)) != (layers, 0, layers - 1)
        ),
        "encoder_order must have each number below encoder_layers {}, found {}",
    )
    checks.add(
        ["head", "d_model"],
        lambda head, width: head is not None and head.truncate_dim > head.embedding_size(width),
        "head.truncate_dim must be at most the embedding's size, found {0.truncate_dim}",
    )
    checks.add(
        ["head", "source_vocab_size"],
        lambda head, size: head is not None and size is not None and head.mask_token_id >= size,
        "head.mask_token_id must be in the vocabulary of {1} tokens, found {0.mask_token_id}",
    )
    checks.add(
        ["head", "decoder_layers", "d_embedding", "encoder_order"],
        lambda head, layers, embedding, order: (
            head is not None
            and layers != 0
            and (
                layers < 0
                or head.task != "sequence-classification"
                or (embedding, order) != (None, None)
            )
        ),
        "decoder_layers {1} before a head are for sequence-classification, without d_embedding and "
        "encoder_order, found head {0}, d_embedding {2} and encoder_order {3}",
    )


def _check_tokens(checks: _Checks) -> None:
    checks.add(
        ["source_vocab_size", "target_vocab_size", "tie_source_target"],
        lambda source, target, tie: tie and 0 not in (source, target) and source != target,
        "tie_source_target needs equal vocabularies, found {} (source) and {} (target)",
    )
    for name in ("start_token_id", "end_token_id"):
        vocabulary = "target_vocab_size"
        if checks.config.rereads_source:
            vocabulary = "source_vocab_size"
        checks.add(
            [vocabulary, name],
            lambda size, token: size != 0 and not 0 <= token < size,
            f"{name} must be in the target vocabulary [0, {{}}), found {{}}",
        )
    checks.add(
        ["source_vocab_size", "target_vocab_size", "pad_token_id"],
        lambda source, target, token: (
            not (0 <= token < min((size for size in (source, target) if size), default=token + 1))
        ),
        "pad_token_id must be in both vocabularies, of {} and {} tokens, found {}",
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
    """Make a preset's configuration for these vocabulary sizes.

    Args:
        changes: fields that replace the preset's

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
