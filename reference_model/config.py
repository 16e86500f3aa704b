"""The hyper-parameters of a Transformer: an encoder and a decoder, or one of them alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.strict_json import parse_json

from .config_checks import out_of_range, wrong_types
from .errors import ConfigError
from .head_config import HeadConfig

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
NormOrder = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
PositionKind = Literal["sinusoidal", "learned", "relative"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that determines the shape and the arithmetic of a model.

    The defaults are those of "Attention Is All You Need" (Vaswani et al. 2017), base model, with
    one difference: the paper has no biases in attention (section 3.2.2 projects by matrices alone),
    most implementations and published weights do. `query_bias`, `key_bias`, `value_bias` and
    `attention_output_bias` switch them off.

    A model without a decoder (`EncoderModel`, BERT) has 0 for its layers, vocabulary and positions,
    and a head; a model without an encoder (`LanguageModel`, GPT-2) has 0 for the encoder's.

    Raises:
        ConfigError: on construction, naming every field that is out of range.
    """

    source_vocab_size: int | None
    """None for a speech model, whose source is features instead of tokens; 0: no encoder."""
    target_vocab_size: int
    """0: no decoder."""
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
    """What scores are multiplied by; None: 1 / sqrt(d_k), section 3.2.1. 1: not scaled."""
    bilinear_scores: bool = False
    """Each head's score of a query q and a key k is q^T W k with a learned matrix W ("general" in
    Luong et al. 2015, section 3.1), scaled likewise."""
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
    """False: the padding token has no position embedding wherever it stands, and the tokens of a
    source are numbered without it (fairseq's sinusoidal positions; M2M100)."""

    positions: PositionKind = "sinusoidal"
    """relative: no position embedding; each self-attention head adds a learned bias to its scores,
    one for each bucket of distances between query and key (Raffel et al. 2020, section 2.1)."""
    relative_buckets: int = 32
    relative_max_distance: int = 128
    """All distances from this one on share a bucket."""
    max_source_positions: int = 1024
    max_target_positions: int = 1024
    token_types: int = 0
    """Kinds of segments in a source, each with an embedding of its own (Devlin et al. 2018, section
    3); 0: none."""
    head: HeadConfig | None = None
    """What stands on an encoder alone; None: there is a decoder."""

    dropout: float = 0.1
    pad_token_id: int = 0
    start_token_id: int = 1
    """The decoder's first input token."""
    end_token_id: int = 2

    def __post_init__(self) -> None:
        wrong = wrong_types(self)
        problems = [*wrong.values(), *out_of_range(self, frozenset(wrong))]
        if problems:
            raise ConfigError(problems)

    @property
    def has_encoder(self) -> bool:
        return self.source_vocab_size != 0

    @property
    def has_decoder(self) -> bool:
        return self.target_vocab_size != 0

    @property
    def head_size(self) -> int:
        """d_k: the size of each head's queries and keys."""
        return self.d_model // self.num_heads if self.d_head is None else self.d_head

    @property
    def value_size(self) -> int:
        """d_v: the size of each head's values."""
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
        """Frames in a speech model's source: the second convolution halves their number."""
        return 2 * self.max_source_positions

    def replace(self, **changes: Any) -> ModelConfig:
        """A validated copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from plain data.

        Raises:
            ConfigError: names every unknown, missing or invalid field.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        problems = [f"unknown field {name!r}" for name in values if name not in fields]
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
        try:
            values = parse_json(text)
        except ValueError as error:
            raise ConfigError([f"not JSON: {error}"]) from error
        if not isinstance(values, dict):
            raise ConfigError([f"expected a JSON object, found {type(values).__name__}"])
        return cls.from_dict(values)
