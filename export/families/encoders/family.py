"""The record of a family of encoder-only Hugging Face models, and the choice of a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import shown
from dragoman.reference_model import ConfigError, HeadConfig
from dragoman.reference_model.config import Activation, PositionKind
from dragoman.reference_model.head_config import DenseActivation
from dragoman.settings.head import Task

from ...formats.json_files import Values
from ...tokenizers import TokenizerKind
from ..family import with_defaults
from ..generation import SettingsReader

NOT_INTEGERS = ("dropout", "norm_epsilon")
"""Fields of `ModelConfig` in `EncoderFamily.fields` that are not integers."""


@dataclass(frozen=True)
class HeadNames:
    """The head for a task, in one family."""

    parts: Mapping[str, str]
    """Names of the head's modules in `EncoderModel` and in the checkpoint."""
    activation: DenseActivation | None = None
    """Activation of the dense layer; None: that of the encoder's feed-forward."""


@dataclass(frozen=True)
class EncoderFamily:
    """A family of encoder-only checkpoints."""

    prefix: str
    """Prefix of the encoder's weights in a model with a head, as in `bert.embeddings`."""
    class_prefix: str
    """Prefix of class names, as in `BertForMaskedLM`."""
    fields: Mapping[str, str]
    """Fields of `ModelConfig`, with their names in `config.json`."""
    activation: str
    """The field that names the activation."""
    defaults: Mapping[str, Any]
    """Defaults of missing fields of `config.json`."""
    parts: Mapping[str, str]
    """Parts of a parameter's name in `EncoderModel`, with replacements in this order."""
    heads: Mapping[Task, HeadNames]
    """Names of heads by task; embeddings have no entry."""
    tokenizers: tuple[TokenizerKind, ...]
    """Kinds of tokenizers in the family's checkpoints."""
    mask: str
    """The text of the mask token of a masked language model."""
    positions: PositionKind = "learned"
    """Kind of the positions."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `config.json` with the only value that the library heeds."""
    positions_follow_padding: bool = False
    """Whether positions begin in the row after the padding token's id, as in fairseq."""
    projection: str = ""
    """Module that maps narrow embeddings to hidden states; "": they are refused."""
    shares_layers: bool = False
    """Whether places of the encoder share layers, in groups (ALBERT)."""

    @property
    def settings(self) -> frozenset[str]:
        """The fields of `config.json` that the family reads."""
        others = ("position_embedding_type", "is_decoder", "add_cross_attention")
        return frozenset({*self.fields.values(), *self.defaults, self.activation, *others})

    def known(self, values: Values) -> dict[str, Any]:
        """Return the fields of a `config.json`, with defaults for missing ones."""
        return with_defaults(values, self.defaults)

    def sizes(self, values: Values) -> dict[str, int]:
        """Return the fields that are sizes, by their names in `config.json`."""
        problems: list[str] = []
        read = SettingsReader(self.known(values), problems)
        names = [theirs for ours, theirs in self.fields.items() if ours not in NOT_INTEGERS]
        sizes = {name: read.number(name, 0) for name in (*names, "type_vocab_size")}
        if problems:
            raise ConfigError(problems)
        return sizes

    def embedding_size(self, values: Values) -> int | None:
        """Return the size of embeddings that a map takes to hidden states; None: no map does.

        ALBERT has the map for every size.
        """
        known = self.known(values)
        width, size = known[self.fields["d_model"]], known.get("embedding_size")
        if size is None or (size == width and not self.shares_layers):
            return None
        if not self.projection:
            raise ConfigError(
                [f"embedding_size: expected {shown(width)}, the hidden size, found {shown(size)}"]
            )
        if type(size) is not int or size < 1:
            raise ConfigError([f"embedding_size: expected at least 1, found {shown(size)}"])
        return size

    def layer_order(self, values: Values) -> tuple[int, ...] | None:
        """Return the number of the layer at each place of the encoder; None: each layer once.

        Places share the layers of a group, which apply in a row (Lan et al. 2019, section 3.1).
        """
        if not self.shares_layers:
            return None
        problems: list[str] = []
        read = SettingsReader(self.known(values), problems)
        names = ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
        places, groups, inner = (read.number(name, 1, least=1) for name in names)
        if not problems and places * inner > MOST_PLACES:
            problems.append(f"num_hidden_layers: expected at most {MOST_PLACES}, found {places}")
        if not problems and groups > places:
            problems.append(f"num_hidden_groups: expected at most {places}, found {groups}")
        if problems:
            raise ConfigError(problems)
        own = [int(place / (places / groups)) for place in range(places)]  # as the library rounds
        return tuple(group * inner + number for group in own for number in range(inner))

    def first_position(self, values: Values) -> int:
        """Return the first token's row in the table of positions."""
        return self.sizes(values)["pad_token_id"] + 1 if self.positions_follow_padding else 0


MOST_PLACES = 1000
"""The most places of an encoder whose layers are shared, so that no file of weights bounds them."""

CLASSES: Mapping[str, Task] = {
    "Model": "embedding",
    "ForMaskedLM": "masked-language-model",
    "ForPreTraining": "masked-language-model",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
"""Tasks by the ending of the name of Hugging Face's class."""

PAIRS: frozenset[Task] = frozenset({"sequence-classification", "question-answering"})
"""Tasks whose inputs may be pairs of texts."""

DEFAULT_LABELS = 2
MOST_LABELS = 1_000_000
"""Maximum number of labels that a file may state."""


def task_of(values: Values, family: EncoderFamily) -> Task:
    """Return the task that the class in `config.json` names."""
    stated = values.get("architectures") or [f"{family.class_prefix}Model"]
    name = stated[0] if isinstance(stated, list) and isinstance(stated[0], str) else repr(stated)
    task = CLASSES.get(name.removeprefix(family.class_prefix))
    if task is None:
        known = ", ".join(family.class_prefix + ending for ending in CLASSES)
        raise ConfigError([f"architectures: expected one of {known}, found {name}"])
    return task


def head_of(
    values: Values, family: EncoderFamily, task: Task, activation: Activation, mask: int | None
) -> HeadConfig:
    """Make the configuration of the head for a task.

    The activation is that of the encoder's feed-forward; the mask token may be unknown.
    """
    if task == "embedding":
        return HeadConfig(task=task)
    names, known = family.heads[task], family.known(values)
    width = known[family.fields["d_model"]]
    if task == "masked-language-model":
        width = family.embedding_size(values) or width
        if mask is None:
            raise ConfigError([f"expected a tokenizer with the token {family.mask}, found none"])
    dense_size = width if "dense.linear" in names.parts else 0
    dense_activation: DenseActivation = names.activation or activation
    if task == "sequence-classification":
        return classifier(values, dense_size, dense_activation)
    return HeadConfig(
        task=task,
        dense_size=dense_size,
        dense_activation=dense_activation,
        labels=_labels(values) if task == "token-classification" else (),
        mask_token_id=mask or 0,
    )


def classifier(values: Values, dense_size: int, activation: DenseActivation) -> HeadConfig:
    """Make the configuration of a head that classifies texts.

    Raises:
        ConfigError: the labels are not usable, or their scores are not probabilities or numbers.
    """
    labels, kind = _labels(values), values.get("problem_type")
    if kind == "regression" and len(labels) > 1:
        raise ConfigError([f"problem_type: regression of {len(labels)} numbers, expected one"])
    return HeadConfig(
        task="sequence-classification",
        dense_size=dense_size,
        dense_activation=activation,
        labels=labels,
        multi_label=_independent(values, labels, kind == "multi_label_classification"),
    )


def _independent(values: Values, labels: tuple[str, ...], multi_label: bool) -> bool:
    """Return whether each score is the sigmoid of its logit.

    Cross-encoders of sentence-transformers state an activation, by default the sigmoid for one
    label. Labels of one of several are probabilities here, where its scores are logits.
    """
    section = values.get("sentence_transformers")
    older = values.get("sbert_ce_default_activation_function")
    if not isinstance(section, dict) and older is None:
        return multi_label
    name = (section or {}).get("activation_fn", older) or older
    kind = "Sigmoid" if name is None and len(labels) == 1 else str(name or "Identity")
    package, _, kind = kind.rpartition(".")
    if kind not in ("Identity", "Sigmoid") or (
        name is not None and not package.startswith("torch.")
    ):
        raise ConfigError(
            [f"activation_fn: expected PyTorch's Identity or Sigmoid, found {shown(name)}"]
        )
    return kind == "Sigmoid" or (multi_label and len(labels) > 1)


def _labels(values: Values) -> tuple[str, ...]:
    stated = values.get("id2label")
    if stated is None:
        count = values.get("num_labels")
        count = DEFAULT_LABELS if count is None else count
        if type(count) is not int or not 1 <= count <= MOST_LABELS:
            expected = f"expected an integer from 1 to {MOST_LABELS}"
            raise ConfigError([f"num_labels: {expected}, found {shown(count)}"])
        return tuple(f"LABEL_{number}" for number in range(count))
    try:
        by_number = {int(number): str(label) for number, label in stated.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError([f"id2label: expected labels by their numbers: {error}"]) from error
    if sorted(by_number) != list(range(len(by_number))):
        raise ConfigError([f"id2label: expected numbers from 0 on, found {sorted(by_number)}"])
    return tuple(by_number[number] for number in range(len(by_number)))
