"""The `config.json` that the owner of a state dictionary writes beside the weights.

It states only what the weights do not show.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.reference_model import ConfigError

from ...formats.json_files import Values

FieldType = type | tuple[type, ...]


COMMON_FIELDS: Mapping[str, FieldType] = {
    "model_type": str,
    "weights": str,
    "state_dict": str,
    "num_heads": int,
    "pad_token_id": int,
    "start_token_id": int,
    "end_token_id": int,
}
"""Fields of all such files, and their types."""
REQUIRED = ("num_heads", "pad_token_id", "start_token_id", "end_token_id")

TYPE_NAMES: Mapping[type, str] = {
    int: "an integer",
    str: "a string",
    bool: "true or false",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def check_fields(values: Values, family_fields: Mapping[str, FieldType]) -> None:
    """Check that the required fields are present, and that all are known and of the right type.

    Args:
        family_fields: fields that the family adds to the common ones, and their types

    Raises:
        ConfigError: lists everything that is wrong.
    """
    known = {**COMMON_FIELDS, **family_fields}
    problems = [f"missing field {name!r}" for name in REQUIRED if name not in values]
    problems += [
        f"unknown field {name!r}, expected one of {', '.join(known)}"
        for name in values
        if name not in known
    ]
    for name, kind in known.items():
        value = values.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and value is True)):
            expected = TYPE_NAMES[kind if isinstance(kind, type) else kind[0]]
            problems.append(f"{name}: expected {expected}, found {value!r}")
    if problems:
        raise ConfigError(problems)
