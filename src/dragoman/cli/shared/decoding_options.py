"""Options of `run` and `run-file`, generated from the fields of `GenerationOptions`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import click

from dragoman import DragomanError
from dragoman.errors import shown
from dragoman.files.text_lines import token_ids
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.speech.plan import greedy_transcription, transcription_defaults
from dragoman.settings.fields import Bounds, Check, CommandOption, annotated, type_of
from dragoman.settings.generation import GenerationOptions

from .options import PATH, POSITIVE, combined, in_section

Function = TypeVar("Function", bound=Callable[..., Any])

SECTIONS = {
    "search": "Search [by default the bundle's]",
    "content": "Content, languages and speech",
    "languages": "Content, languages and speech",
    "output": "Output",
    "options": "Options",
}
"""The headings of the help, in order."""

output = in_section(SECTIONS["output"])


def batch_size(text: Any) -> int | None:
    """Parse a number, or "auto" for None."""
    return None if text == "auto" else int(POSITIVE.convert(text, None, None))


class EarlyStopping(click.Choice):  # type: ignore[type-arg]
    """true, false or never, converted to True, False or "never"."""

    def __init__(self) -> None:
        super().__init__(["true", "false", "never"])

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bool | str:
        """Parse the option."""
        word: str = super().convert(value, param, ctx)
        return word if word == "never" else word == "true"


def token_or_id(text: str) -> int | str:
    """Parse a token id, or a token as the vocabulary spells it."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


TYPES: dict[str, Any] = {
    "max_batch_size": batch_size,
    "early_stopping": EarlyStopping(),
    "end_token_id": token_or_id,
}
"""The types of options whose values are not written as Python has them."""


def _option(name: str, described: CommandOption, default: Any) -> Callable[[Any], Any]:
    hint = type_of(get_type_hints(GenerationOptions)[name])
    flags = described.names or f"--{name.replace('_', '-')}"
    attributes: dict[str, Any] = {
        "help": described.help,
        "default": default,
        "hidden": described.hidden,
    }
    bounds = annotated(GenerationOptions, Check)[name].bounds
    if described.sets is not None:
        attributes |= {"is_flag": True, "flag_value": described.sets}
    elif hint is bool:
        flags = flags if "/" in flags else f"{flags}/--no-{name.replace('_', '-')}"
    elif name in TYPES:
        attributes |= {"type": TYPES[name], "metavar": described.metavar}
        if name == "end_token_id":
            attributes |= {
                "multiple": True,
                "callback": lambda _context, _option, ends: ends or None,
            }
    elif described.choices:
        attributes["type"] = click.Choice(described.choices)
    elif hint in (int, float):
        attributes |= {"type": _number_type(hint, bounds), "metavar": "N" if hint is int else "X"}
    else:
        attributes |= {"metavar": "TEXT", "multiple": isinstance(default, tuple)}
    if described.metavar:
        attributes["metavar"] = described.metavar
    if isinstance(default, tuple):
        del attributes["default"]
    return in_section(SECTIONS[described.section])(flags, name, **attributes)


def _number_type(kind: type, bounds: Bounds | None) -> Any:
    if bounds is None:
        return click.INT if kind is int else click.FLOAT
    least, most = (None if abs(b) == float("inf") else b for b in (bounds.least, bounds.most))
    if kind is int:
        return click.IntRange(least if least is None else int(least))
    return click.FloatRange(least, most, min_open=bounds.above)


greedy_option = in_section(SECTIONS["languages"])(
    "--greedy", is_flag=True, help="Speech: decode once, without beams and --vad."
)


def decoding_options(function: Function) -> Function:
    """Add the options of all fields that have one to a command, section by section."""
    described = annotated(GenerationOptions, CommandOption)
    defaults = {field.name: field.default for field in dataclasses.fields(GenerationOptions)}
    options = [
        _option(name, one, defaults[name])
        for section in SECTIONS
        for name, one in described.items()
        if one.section == section
    ]
    decorated: Function = combined(*options, greedy_option)(function)
    return decorated


prefix_file_option = in_section(SECTIONS["content"])(
    "--prefix-file",
    metavar="FILE",
    type=PATH,
    help="Begin each output with its line of FILE; blank: with no prefix.",
)


def check_prefix_file(prefix_file: Path | None, given_options: dict[str, Any]) -> None:
    """Check that prefixes come from one place, and that the file is there."""
    if prefix_file is None:
        return
    if given_options["prefix"] is not None:
        raise click.UsageError("--prefix and --prefix-file exclude each other")
    if not prefix_file.exists() or prefix_file.is_dir():  # a pipe is a file of lines, too
        found = "a directory" if prefix_file.exists() else "none"
        raise click.UsageError(
            f"--prefix-file: expected a file of lines, found {found}: {prefix_file}"
        )


def for_bundle(
    options: GenerationOptions, manifest: Manifest, *, greedy: bool, rows: int | None = None
) -> GenerationOptions:
    """Return the options of a bundle.

    Speech is transcribed with `transcription_defaults`. Without tokenizers, texts are token ids.
    """
    if manifest.speech is not None:
        if greedy:
            return greedy_transcription(options, manifest)
        return transcription_defaults(options, manifest, rows)
    if greedy:
        raise DragomanError("greedy: for speech models; a text model takes beams 1")
    if manifest.tokenizers is not None:
        return options
    return options.replace(
        prefix=None if options.prefix is None else _ids("prefix", options.prefix),
        must_contain=[_ids("must_contain", phrase) for phrase in options.must_contain],
        must_not_contain=[_ids("must_not_contain", phrase) for phrase in options.must_not_contain],
    )


def _ids(option: str, phrase: Any) -> list[int]:
    ids = token_ids(phrase)
    if ids is None:
        raise DragomanError(
            f"{option}: expected token ids separated by spaces, found {shown(phrase)}: this bundle "
            "has no tokenizers"
        )
    return ids
