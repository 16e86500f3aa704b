"""Rules of a tokenizer file that each lengthen a text, and together explode it."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from typing import Any

from tokenizers import Regex, normalizers

LONGEST_CONTENT = 256
"""Characters that one replacement may put in the place of a match."""
MOST_GROWTH = 16
"""How much longer all replacements together may make their own texts."""


def growth_problem(component: Any) -> str | None:
    """What is wrong with the replacements of a normalizer or a decoder: None if nothing is.

    They are applied one by one to the texts that they state themselves, which is what they would
    find again and again; the library would only stop when memory is used up.
    """
    if component is None:
        return None
    rules = list(_replacements(json.loads(component.__getstate__())))
    longest = max((len(rule["content"]) for rule in rules), default=0)
    if longest > LONGEST_CONTENT:
        return (
            f"expected replacements of at most {LONGEST_CONTENT} characters, found one of {longest}"
        )
    if sum(map(_may_lengthen, rules)) < 2:
        return None
    text = string.printable + "".join(_pattern(rule)[1] + rule["content"] for rule in rules)
    most = MOST_GROWTH * len(text)
    for rule in rules:
        kind, pattern = _pattern(rule)
        replace = normalizers.Replace(
            Regex(pattern) if kind == "Regex" else pattern, rule["content"]
        )
        text = replace.normalize_str(text)
        if len(text) > most:
            return f"its replacements make a text more than {MOST_GROWTH} times as long"
    return None


def _replacements(component: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The replacements of a component, in the order in which they are applied."""
    if component["type"] == "Replace":
        yield component
    for part in component.get("normalizers") or component.get("decoders") or ():
        yield from _replacements(part)


def _pattern(rule: dict[str, Any]) -> tuple[str, str]:
    """The kind of a rule's pattern, String or Regex, and the pattern."""
    [(kind, pattern)] = rule["pattern"].items()
    return kind, pattern


def _may_lengthen(rule: dict[str, Any]) -> bool:
    kind, pattern = _pattern(rule)
    return len(rule["content"]) > (len(pattern) if kind == "String" else 0)
