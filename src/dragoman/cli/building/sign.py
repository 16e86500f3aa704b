"""The command `dragoman sign`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman import DragomanError, api

from ..shared.terminal import shown_progress


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    required=True,
    help="Private key, PEM: elliptic curve P-256, P-384 or P-521.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    help="File whose first line is the password of an encrypted key.",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    help="Certificate of the key, PEM, to store in the signature.",
)
@click.option(
    "--chain",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Intermediate certificate, PEM; repeatable.",
)
@click.option(
    "--signature",
    type=click.Path(path_type=Path),
    help="File to write [model.sig in the bundle].",
)
@click.option("--force", is_flag=True, help="Replace the signature if it exists.")
def sign(
    bundle: Path,
    key: Path,
    password_file: Path | None,
    certificate: Path | None,
    chain: tuple[Path, ...],
    signature: Path | None,
    force: bool,
) -> None:
    """Sign every file of BUNDLE with a private key, in the format of OpenSSF Model Signing.

    Nothing is sent over a network. With the public key or the certificate, `dragoman verify` finds
    out whether a file was changed, added or removed since.

    \b
    openssl ecparam -name prime256v1 -genkey -noout -out private.pem
    openssl ec -in private.pem -pubout -out public.pem
    dragoman sign bundles/g2p-en --key private.pem
    dragoman verify bundles/g2p-en --key public.pem
    """
    with shown_progress() as progress:
        written = api.sign(
            bundle,
            key,
            password=None if password_file is None else _first_line(password_file),
            certificate=certificate,
            chain=chain,
            signature=signature,
            overwrite=force,
            progress=progress,
        )
    click.echo(f"Signed {bundle}: {written}")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, ValueError) as error:
        raise DragomanError(f"{path}: expected a file with a password: {error}") from error
