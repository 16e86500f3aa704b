"""The command `dragoman attention`."""

from pathlib import Path
from typing import Any, Literal

import click

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
from dragoman.files.text_lines import IDS_EXPECTED, printable, token_ids
from dragoman.pictures import check_picture_name, choose, draw, heat_maps, write_page
from dragoman.runtime import load
from dragoman.runtime.encoding.front_end import source_of_line
from dragoman.runtime.format.manifest import Manifest

from .shared.options import (
    PATH,
    bundle_argument,
    check_option,
    force_option,
    gathered,
    option_names,
    split_option,
    threads_option,
)
from .shared.terminal import notify


@click.command()
@bundle_argument
@click.argument("text")
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    help="Picture (.png, .svg, .pdf), or page on which layers and heads are selected (.html).",
)
@click.option(
    "--target", metavar="TEXT", help="Target that the decoder reads [the model's own output]."
)
@click.option(
    "--which",
    type=click.Choice(["cross", "decoder", "encoder"]),
    help="Attention that a picture shows [cross, if the model has it].",
)
@click.option(
    "--layer",
    type=click.IntRange(min=0),
    metavar="N",
    help="Layer, counted from 0 [the mean of all layers].",
)
@click.option(
    "--head",
    type=click.IntRange(min=0),
    metavar="N",
    help="Head, counted from 0 [the mean of all heads].",
)
@click.option("--source-language", metavar="CODE", help="Language of the text [the bundle's].")
@click.option("--target-language", metavar="CODE", help="Language of the output [the bundle's].")
@split_option
@force_option
@gathered("loading", check_option, threads_option)
@click.pass_context
def attention(
    context: click.Context,
    /,
    bundle: Path,
    text: str,
    output: Path,
    target: str | None,
    which: Literal["cross", "decoder", "encoder"] | None,
    layer: int | None,
    head: int | None,
    force: bool,
    loading: dict[str, Any],
    **reading: Any,
) -> None:
    """Draw the attention of BUNDLE between the tokens of TEXT and of its output.

    Rows attend to columns. BUNDLE must have been built with --with-attention. TEXT is the path of
    an audio file for a speech model, and token ids for a bundle without tokenizers. For a model
    that reads pairs, it is two texts separated by a tab. A decoder-only model generates nothing: it
    reads TEXT and --target.

    \b
    dragoman build g2p-en -o bundles/g2p-en --with-attention
    dragoman attention bundles/g2p-en transformer -o transformer.png
    dragoman attention bundles/g2p-en transformer -o transformer.html
    """
    page = output.suffix.lower() == ".html"
    if page:
        choices = {"--which": which, "--layer": layer, "--head": head}
        given_choices = [name for name, value in choices.items() if value is not None]
        if given_choices:
            raise DragomanError(
                f"{', '.join(given_choices)}: expected a picture, found {output}: a page has "
                "everything"
            )
    else:
        check_picture_name(output)
    refuse_existing(output, force)
    refuse_unwritable_file(output)
    with load(bundle, **loading) as model:
        manifest = model.manifest
        source = _source(manifest, text)
        given = target
        if target is not None and manifest.tokenizers is None:
            given = token_ids(target)  # type: ignore[assignment]
        if source is None or (given is None and target is not None):
            raise DragomanError(IDS_EXPECTED)
        with option_names(context.command):
            found = model.attention(source, given, **reading)

    if page:
        write_page(found, output, title=printable(f"{manifest.name}: {text}"))
    else:
        with option_names(context.command):
            missing = draw(choose(heat_maps(found), which), output, layer=layer, head=head)
        if missing:
            notify(
                f"{output}: the fonts of this machine lack {', '.join(missing[:5])}"
                f"{', ...' if len(missing) > 5 else ''}: boxes stand for them; a page (.html) "
                "uses the browser's fonts"
            )
    notify(f"Wrote {output}", err=False)


def _source(manifest: Manifest, text: str) -> Any:
    if manifest.speech is None and manifest.tokenizers is None:
        return token_ids(text)
    return text if manifest.head is None else source_of_line(text, manifest.head)
