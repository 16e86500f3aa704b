"""The `config.json` that the owner of a state dictionary adds to the weights.

It states only settings that the weights do not show.
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
"""Fields of all state dictionary configurations, with their types."""
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
    """Check that required fields are present, and that all fields are known and well-typed.

    Args:
        family_fields: additional fields of the family, with their types

    Raises:
        ConfigError: a field is missing, unknown or of the wrong type; lists all problems.
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
