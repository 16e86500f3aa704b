"""What stands on an encoder: told by the class that `config.json` names."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.reference_model import ConfigError, HeadConfig
from dragoman.reference_model.config import Activation
from dragoman.reference_model.head_config import Task

from ...formats.json_files import Values
from .family import EncoderFamily

CLASSES: Mapping[str, Task] = {
    "Model": "embedding",
    "ForMaskedLM": "masked-language-model",
    "ForPreTraining": "masked-language-model",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
"""Endings of the names of Hugging Face's classes."""

PAIRS: frozenset[Task] = frozenset({"sequence-classification", "question-answering"})
"""Tasks whose inputs may be pairs of texts."""

DEFAULT_LABELS = 2
MOST_LABELS = 1_000_000
"""That are numbered: nothing of this size is made from a number that a file states alone."""


def task_of(values: Values, family: EncoderFamily) -> Task:
    """
    Raises:
        ConfigError: the head is for another task; names those there are.
    """
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
    """The head for a task.

    Args:
        activation: of the encoder's feed-forward
        mask: the token that stands where one is to be found; None: unknown

    Raises:
        ConfigError: no `HeadConfig` can express it; all problems are listed.
    """
    if task == "embedding":
        return HeadConfig(task=task)
    names, known = family.heads[task], family.known(values)
    width = known[family.fields["d_model"]]
    labels: tuple[str, ...] = ()
    multi_label = False
    if task in ("sequence-classification", "token-classification"):
        labels = _labels(values)
    if task == "sequence-classification":
        kind = values.get("problem_type")
        multi_label = kind == "multi_label_classification"
        if kind == "regression" and len(labels) > 1:
            raise ConfigError([f"problem_type: regression of {len(labels)} numbers, expected one"])
    if task == "masked-language-model" and mask is None:
        raise ConfigError([f"expected a tokenizer with the token {family.mask}, found none"])
    return HeadConfig(
        task=task,
        dense_size=width if names.has_dense else 0,
        dense_activation=names.activation or activation,
        labels=labels,
        multi_label=multi_label,
        mask_token_id=mask or 0,
    )


def _labels(values: Values) -> tuple[str, ...]:
    """Labels in the order of their numbers."""
    stated = values.get("id2label")
    if stated is None:
        count = values.get("num_labels")
        count = DEFAULT_LABELS if count is None else count
        if type(count) is not int or not 1 <= count <= MOST_LABELS:
            expected = f"expected an integer from 1 to {MOST_LABELS}"
            raise ConfigError([f"num_labels: {expected}, found {count!r:.60}"])
        return tuple(f"LABEL_{number}" for number in range(count))
    try:
        by_number = {int(number): str(label) for number, label in stated.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError([f"id2label: expected labels by their numbers: {error}"]) from error
    if sorted(by_number) != list(range(len(by_number))):
        raise ConfigError([f"id2label: expected numbers from 0 on, found {sorted(by_number)}"])
    return tuple(by_number[number] for number in range(len(by_number)))
