"""What `dragoman run` asks of decoding. Parameters have the names of the library's options."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dragoman import DragomanError

from ..lines import token_ids
from ..sections import SectionedOption

if TYPE_CHECKING:
    from dragoman.runtime import GenerationOptions, Manifest

Function = TypeVar("Function", bound=Callable[..., Any])


class BatchSize(click.ParamType):  # type: ignore[type-arg]
    """A number, or auto: None."""

    name = "number|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value == "auto":
            return None
        number: int = click.IntRange(min=1).convert(value, param, ctx)
        return number


class EarlyStopping(click.Choice):  # type: ignore[type-arg]
    """true, false or never, as Python has them."""

    def __init__(self) -> None:
        super().__init__(["true", "false", "never"])

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bool | str:
        word: str = super().convert(value, param, ctx)
        return word if word == "never" else word == "true"


search = partial(click.option, cls=SectionedOption, section="Search [by default the bundle's]")
content = partial(click.option, cls=SectionedOption, section="Content and length")
language = partial(click.option, cls=SectionedOption, section="Languages and speech")
output = partial(click.option, cls=SectionedOption, section="Output")
running = partial(click.option, cls=SectionedOption, section="Options")

DECODING = (
    search(
        "--beams",
        "num_beams",
        metavar="N",
        type=click.IntRange(min=1),
        help="Beam search with N beams; 1: greedy search, or sampling.",
    ),
    search(
        "--length-penalty",
        metavar="X",
        type=click.FLOAT,
        help="Beams: rank by log-probability / length ** X.",
    ),
    search(
        "--early-stopping",
        metavar="WHEN",
        type=EarlyStopping(),
        help="Beams: stop at N outputs (true), or search on (false, never).",
    ),
    search(
        "--sample/--no-sample",
        "do_sample",
        default=None,
        help="Draw tokens at random; the next five say how.",
    ),
    search(
        "--temperature",
        metavar="X",
        type=click.FloatRange(min=0, min_open=True),
        help="Divide logits by X; below 1: nearer to greedy.",
    ),
    search(
        "--top-k",
        metavar="N",
        type=click.IntRange(min=0),
        help="Draw from the N likeliest; 0: all.",
    ),
    search(
        "--top-p",
        metavar="X",
        type=click.FloatRange(min=0, max=1, min_open=True),
        help="Draw from the likeliest of together probability X.",
    ),
    search(
        "--min-p",
        metavar="X",
        type=click.FloatRange(min=0, max=1),
        help="Draw from those X times as likely as the likeliest.",
    ),
    search(
        "--seed",
        metavar="N",
        type=click.INT,
        help="The same seed gives a line the same output, in any company.",
    ),
    content("--prefix", metavar="TEXT", help="Every output begins with it."),
    content(
        "--must-contain",
        metavar="TEXT",
        multiple=True,
        help="Beams: every output contains it. May be repeated.",
    ),
    content(
        "--must-not-contain",
        metavar="TEXT",
        multiple=True,
        help="No output contains it. May be repeated.",
    ),
    content(
        "--max-new-tokens",
        metavar="N",
        type=click.IntRange(min=1),
        help="At most N tokens for a line [the bundle's].",
    ),
    content(
        "--max-new-tokens-per-source-token",
        metavar="X",
        type=click.FloatRange(min=0, min_open=True),
        default=math.inf,
        help="At most X a source token; the lower limit holds.",
    ),
    content(
        "--min-new-tokens",
        metavar="N",
        type=click.IntRange(min=0),
        help="No end before N tokens [the bundle's].",
    ),
    language("--source-language", metavar="CODE", help="Language of the texts [the bundle's]."),
    language("--target-language", metavar="CODE", help="Language to translate to [the bundle's]."),
    language(
        "--language", metavar="CODE", help="Speech: spoken language, as de or german [detected]."
    ),
    language(
        "--task",
        type=click.Choice(["transcribe", "translate"]),
        help="Speech: translate is to English [the bundle's].",
    ),
    language(
        "--timestamps/--no-timestamps",
        default=None,
        help="Speech: a line for each segment, with times [the bundle's].",
    ),
    output(
        "--n-best",
        "num_return_sequences",
        metavar="N",
        type=click.IntRange(min=1),
        default=1,
        help="N lines for each: the best of the beams, or N samples.",
    ),
    output(
        "--alternatives",
        metavar="K",
        type=click.IntRange(min=0),
        default=0,
        help="In JSON, the K likeliest tokens at each step.",
    ),
    running(
        "--batch-size",
        "max_batch_size",
        metavar="N|auto",
        type=BatchSize(),
        default="64",
        help="Sequences (lines x beams) at once [64]; auto: what a GPU holds.",
    ),
)
"""Options whose parameters are those of `GenerationOptions`."""


def decoding_options(function: Function) -> Function:
    """Give a command the options of `DECODING`."""
    for option in reversed(DECODING):
        function = option(function)
    return function


def for_bundle(options: GenerationOptions, manifest: Manifest) -> GenerationOptions:
    """The same, with token ids in place of texts if the bundle has no tokenizers.

    Raises:
        DragomanError: a text does not consist of token ids.
    """
    if manifest.tokenizers is not None or manifest.speech is not None:
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
            f"{option}: expected token ids separated by spaces, found {phrase!r}: this bundle has "
            "no tokenizers"
        )
    return ids
