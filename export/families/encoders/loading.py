"""A directory of Hugging Face -> an encoder with its head, and its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dragoman.errors import shown
from dragoman.reference_model import ConfigError, EncoderModel, HeadConfig, ModelConfig
from dragoman.reference_model.checkpoint import check_positions

from ...formats.adapter_config import AdapterConfig, with_own
from ...formats.adapters import BaseLayout, merge_adapters
from ...formats.contents import CONFIG, check_config
from ...formats.detection import CONFIG_FILE
from ...formats.json_files import Values
from ...formats.tensor_files import Weights, read_weights
from ...tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind, choose_kind
from ..checkpoint import Checkpoint, build
from ..family import activation, make_config, merge_tied, renamed
from .family import PAIRS, EncoderFamily, head_of, task_of

MEAN_POOLING = (
    "there is no modules.json that says how hidden states become a vector: it is their mean, as in "
    "sentence-transformers"
)
MASK_FIELD = "mask"
LAYER = re.compile(r"^encoder\.layers\.(\d+)\.")


def read_encoder(
    directory: Path,
    values: Values,
    family: EncoderFamily,
    all_kinds: tuple[TokenizerKind, ...],
    *,
    head: HeadConfig | None = None,
    longest: int | None = None,
    head_weights: Weights | None = None,
    adapters: Sequence[AdapterConfig] = (),
) -> Checkpoint:
    """Read an encoder, its head and its tokenizer.

    Args:
        all_kinds: kinds of tokenizers of all families, since a model may use another family's
        head: the head; None: that of `config.json`
        longest: maximum number of tokens of a text, if less than the number of positions
        head_weights: weights of `head`, by the names of `EncoderModel`
        adapters: are merged into the weights, in this order
    """
    problems = check_config(values, family.settings)
    if problems:
        raise ConfigError([f"{CONFIG_FILE}: {problem}" for problem in problems])
    notes = CONFIG.notes(CONFIG_FILE, values, family.settings)
    vocabulary = family.sizes(values)[family.fields["source_vocab_size"]]
    checkpoint = TokenizerCheckpoint(directory, values, vocabulary, vocabulary)
    tokenizers = choose_kind(checkpoint, family.tokenizers, all_kinds).read(checkpoint)
    act = activation(family.known(values), family.activation, "gelu", problems)
    if head is None:
        task = task_of(values, family)
        mask = _token(tokenizers, checkpoint.special(MASK_FIELD, family.mask))
        head = head_of(values, family, task, act, mask)
        if task == "embedding":
            notes.append(MEAN_POOLING)
    config = config_of(values, family, head, longest, problems, activation=act)
    check_positions(config)
    weights, origin = read_weights(directory)
    layout = _base_layout(family)
    weights = {layout.name_of(name): weight for name, weight in weights.items()}
    if merge_adapters(with_own(directory, adapters), weights, layout, notes):
        values = {**values, "tie_word_embeddings": False}
    problems = _convert_weights(weights, values, family, config, notes)
    weights |= head_weights or {}
    model = build(
        config,
        partial(EncoderModel, config),
        weights,
        weight_name(family, head, values),
        origin,
        problems,
        notes=notes,
    )
    return Checkpoint(model, tokenizers, tuple(notes))


def config_of(
    values: Values,
    family: EncoderFamily,
    head: HeadConfig,
    longest: int | None,
    problems: list[str],
    **fields: Any,
) -> ModelConfig:
    """Make the configuration that a `config.json` describes."""
    known = family.known(values)
    if not isinstance(known.get("tie_word_embeddings", True), bool):
        found = known["tie_word_embeddings"]
        problems.append(f"tie_word_embeddings: expected true or false, found {shown(found)}")
    neutrals = {"position_embedding_type": "absolute", "is_decoder": False, **family.constants}
    for name, neutral in neutrals.items():
        if known.get(name, neutral) != neutral:
            problems.append(f"{name}: expected {neutral}, found {shown(known[name])}")
    order = family.layer_order(values)
    stated = {ours: known[theirs] for ours, theirs in family.fields.items()}
    types = family.sizes(values)["type_vocab_size"]
    if head.task not in PAIRS or types < 2:
        # There is one embedding for all tokens. `_convert_weights` adds it to the positions where
        # each token has one.
        has_types = family.positions_follow_padding and family.defaults["type_vocab_size"]
        types = 1 if has_types else 0
    positions = stated["max_source_positions"] - family.first_position(values)
    return make_config(
        problems,
        **stated
        | {
            "max_source_positions": positions if longest is None else min(longest, positions),
            "target_vocab_size": 0,
            "decoder_layers": 0,
            "max_target_positions": 0,
            "positions": family.positions,
            "pad_has_position": not family.positions_follow_padding,
            "embedding_norm": True,
            "scale_embedding": False,
            "token_types": types,
            "head": head,
            "d_embedding": family.embedding_size(values),
            "encoder_order": order,
        }
        | ({} if order is None else {"encoder_layers": max(order) + 1})
        | fields,
    )


def weight_name(
    family: EncoderFamily, head: HeadConfig, values: Values | None = None
) -> Callable[[str], str]:
    """Return the function from a parameter of `EncoderModel` to its name, without the prefix."""
    inner = family.known(values or {}).get("inner_group_num", 1)
    of_head = family.heads[head.task].parts if head.task in family.heads else {}

    def grouped(found: re.Match[str]) -> str:
        group, number = divmod(int(found[1]), inner)
        return f"encoder.albert_layer_groups.{group}.albert_layers.{number}."

    def name_of(name: str) -> str:
        part = name.removeprefix("head.")
        if part == name:
            if family.shares_layers:
                name = LAYER.sub(grouped, name)
            return renamed(name, family.parts)
        for ours, theirs in of_head.items():
            if part == ours or part.startswith(f"{ours}."):
                return (theirs + part[len(ours) :]).replace(".gain", ".weight")
        return name

    return name_of


def _base_layout(family: EncoderFamily) -> BaseLayout:
    def name_of(name: str) -> str:
        # Checkpoints from before PyTorch's LayerNorm name its weights gamma and beta.
        name = name.removeprefix(family.prefix).replace("LayerNorm.gamma", "LayerNorm.weight")
        return name.replace("LayerNorm.beta", "LayerNorm.bias")

    output = family.heads["masked-language-model"].parts["weight"]
    return BaseLayout(name_of, (family.parts["encoder.embedding.tokens"] + ".weight", output))


def _convert_weights(
    weights: Weights, values: Values, family: EncoderFamily, config: ModelConfig, notes: list[str]
) -> list[str]:
    weights.pop("embeddings.position_ids", None)
    masked = config.head is not None and config.head.task == "masked-language-model"
    positions = family.parts["encoder.embedding.positions.table"]
    types = "embeddings.token_type_embeddings.weight"
    table, segments = weights.get(positions), weights.get(types)
    if table is not None and table.dim() == 2:
        first = family.first_position(values)
        if first and table[first - 1 : first].any():
            tokens = family.parts["encoder.embedding.tokens"] + ".weight"
            if masked:
                notes.append(
                    f"{positions}: row {first - 1}, of the padding token, is not zero and is left "
                    "out: a padding token written in a text is embedded without it"
                )
            elif tokens in weights and weights[tokens].shape[1:] == table.shape[1:]:
                weights[tokens] = weights[tokens].clone()
                weights[tokens][first - 1 : first] += table[first - 1].to(weights[tokens].dtype)
        table = table[first : first + config.max_source_positions]
        if segments is not None and segments.dim() == 2:
            if config.token_types == 1:
                weights[types] = segments[:1]
            elif not config.token_types:
                del weights[types]
                if segments.shape[1:] == table.shape[1:] and len(segments):
                    table = table + segments[0].to(table.dtype)
        weights[positions] = table
    if not masked:
        return []
    return _tie_output(weights, family, tied=family.known(values).get("tie_word_embeddings", True))


def _tie_output(weights: Weights, family: EncoderFamily, *, tied: bool) -> list[str]:
    """Keep one token table and one bias of a masked language model; return problems."""
    parts = family.heads["masked-language-model"].parts
    tokens = family.parts["encoder.embedding.tokens"] + ".weight"
    output, bias, second_bias = parts["weight"], parts["bias"], parts.get("second_bias")
    if tied:
        problems = merge_tied(weights, [tokens, output])
        return problems + (merge_tied(weights, [bias, second_bias]) if second_bias else [])
    if second_bias and second_bias in weights:  # Hugging Face adds this bias if the two differ
        weights[bias] = weights.pop(second_bias)
    found = weights.pop(output, None)
    if found is not None and tokens in weights and found.equal(weights[tokens]):
        return []
    problem = "missing" if found is None else f"other than {tokens}"
    return [
        f"tie_word_embeddings is false, and {output} is {problem}: a masked language model with an "
        "output of its own is not supported"
    ]


def _token(tokenizers: TokenizerFiles | None, text: str) -> int | None:
    source = None if tokenizers is None else tokenizers.source
    if isinstance(source, Path):
        source = Tokenizer.from_file(str(source))
    return source.token_to_id(text) if isinstance(source, Tokenizer) else None
