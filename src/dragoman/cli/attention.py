"""`dragoman attention`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .lines import IDS_EXPECTED, token_ids
from .messages import tell
from .option_names import option_names
from .options import force_option, threads_option

if TYPE_CHECKING:
    from dragoman.runtime.format.manifest import Manifest


@click.command(short_help="Draw what a model attends to.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("text")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="A picture (.png, .svg, .pdf), or a page with a choice of layer and head (.html).",
)
@click.option(
    "--target", metavar="TEXT", help="What the model is to read as its output [what it makes]."
)
@click.option(
    "--which",
    type=click.Choice(["cross", "decoder", "encoder"]),
    help="Whose attention a picture shows [cross, or the only one there is].",
)
@click.option(
    "--layer", type=click.IntRange(min=0), help="Counted from 0 [the mean of all layers]."
)
@click.option("--head", type=click.IntRange(min=0), help="Counted from 0 [the mean of all heads].")
@click.option("--source-language", metavar="CODE", help="Language of the text [the bundle's].")
@click.option("--target-language", metavar="CODE", help="Language of the output [the bundle's].")
@force_option
@threads_option
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
    source_language: str | None,
    target_language: str | None,
    force: bool,
    threads: int | None,
) -> None:
    """Draw how much each token of TEXT, and of what BUNDLE makes of it, attends to each other one.
    A decoder alone just reads TEXT and the target, if there is one.

    BUNDLE must have been built with --with-attention. TEXT is the path of an audio file for a
    speech model, token ids for a bundle without tokenizers; a model that reads pairs of texts gets
    one with a tab between. Rows attend to columns.

    \b
    dragoman build g2p-en -o bundles/g2p-en --with-attention
    dragoman attention bundles/g2p-en transformer -o transformer.png
    dragoman attention bundles/g2p-en transformer -o transformer.html
    """
    from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
    from dragoman.pictures.attention import check_picture_name, choose, draw, heat_maps, write_page
    from dragoman.printable import printable
    from dragoman.runtime import load

    page = output.suffix.lower() == ".html"
    if page:
        _refuse_choices(output, {"--which": which, "--layer": layer, "--head": head})
    else:
        check_picture_name(output)
    refuse_existing(output, force)
    refuse_unwritable_file(output)
    with load(bundle, threads=threads) as model:
        manifest = model.manifest
        source = _source(manifest, text)
        given = target
        if target is not None and manifest.tokenizers is None:
            given = token_ids(target)  # type: ignore[assignment]
        if source is None or (given is None and target is not None):
            raise DragomanError(IDS_EXPECTED)
        with option_names(context.command):
            found = model.attention(
                source, given, source_language=source_language, target_language=target_language
            )

    if page:
        write_page(found, output, title=printable(f"{manifest.name}: {text}"))
    else:
        with option_names(context.command):
            missing = draw(choose(heat_maps(found), which), output, layer=layer, head=head)
        if missing:
            tell(
                f"{output}: the fonts of this machine lack {', '.join(missing[:5])}"
                f"{', ...' if len(missing) > 5 else ''}: boxes stand for them; a page (.html) "
                "uses the browser's fonts"
            )
    click.echo(f"Wrote {output}")


def _refuse_choices(output: Path, choices: dict[str, object]) -> None:
    """Refuse options that choose what a picture shows: a page has everything."""
    from dragoman.errors import DragomanError

    given = [name for name, value in choices.items() if value is not None]
    if given:
        raise DragomanError(
            f"{', '.join(given)}: expected a picture, found {output}: a page has everything"
        )


def _source(manifest: Manifest, text: str) -> Any:
    """What TEXT states; None: it is not what the bundle reads."""
    from dragoman.runtime.encoding.lines import source_of_line

    if manifest.speech is None and manifest.tokenizers is None:
        return token_ids(text)
    return text if manifest.head is None else source_of_line(text, manifest.head)
