"""The commands `dragoman verify` and `dragoman sign`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError, api

from ..shared.options import (
    PATH,
    backend_option,
    bundle_argument,
    checkpoint_options,
    comparison_options,
    device_option,
    gathered,
    option_names,
    threads_option,
)
from ..shared.tables import print_answers, print_parity
from ..shared.terminal import notify, shown_progress


class VerificationFailedError(click.ClickException):
    """Parity does not hold; the exit status is 1."""

    exit_code = 1


@click.command()
@bundle_argument
@click.argument("checkpoint", required=False)
@checkpoint_options
@comparison_options
@gathered("running", backend_option, device_option, threads_option)
@click.option(
    "--record/--no-record",
    default=None,
    help="Write the figures into the manifest [yes, but not with --limit or if the bundle is "
    "signed].",
)
@click.option(
    "--signature",
    type=PATH,
    help="Signature to check first [with --key or --chain: the bundle's model.sig].",
)
@click.option("--key", type=PATH, help="Public key of the signer, PEM.")
@click.option(
    "--chain",
    type=PATH,
    multiple=True,
    help="Root certificate of the signer's certificate, PEM; repeatable.",
)
@click.pass_context
def verify(
    context: click.Context,
    /,
    bundle: Path,
    checkpoint: str | None,
    running: dict[str, Any],
    record: bool | None,
    signature: Path | None,
    key: Path | None,
    chain: tuple[Path, ...],
    **comparing: Any,
) -> None:
    """Check that BUNDLE computes what the PyTorch model of CHECKPOINT computes.

    CHECKPOINT is as for `dragoman build`. At fp32, every greedy token must be the same, and so must
    every best hypothesis if the bundle decodes with beams. Below fp32, distributions of the next
    token must be as close as the precision allows. If a check fails, the exit status is 1. With a
    signature, all files are first compared with those signed; CHECKPOINT may then be left out.
    Without both, outputs on this machine are compared with the bundle's known answers, and on a GPU
    with the outputs of the PyTorch model that the bundle stores.

    \b
    dragoman verify bundles/g2p-en
    dragoman verify bundles/g2p-en g2p-en
    dragoman verify bundles/g2p-en --signature model.sig --key public.pem
    """
    signed = signature is not None or key is not None or bool(chain)
    if checkpoint is None:
        options = [*comparing.values(), record, *(running.values() if signed else ())]
        if any(option not in (None, ()) for option in options):
            raise click.UsageError("expected a CHECKPOINT to compare with")
        if not signed:
            verification = api.verify_known_answers(bundle, **running)
            print_answers(verification)
            if verification.parity is not None:
                print_parity(verification.parity)
            if verification.problem is not None:
                raise VerificationFailedError(verification.problem)
            return
    if signed:
        if record:
            raise click.UsageError("--record would change the manifest, which is signed")
        with shown_progress() as progress:
            api.verify_signature(
                bundle, key=key, chain=chain, signature=signature, progress=progress
            )
        notify(f"{bundle}: every file is as it was signed", err=False)
        record = False
    if checkpoint is None:
        return
    with option_names(context.command), shown_progress() as progress:
        compared = api.verify(
            bundle, checkpoint, record=record, progress=progress, **comparing, **running
        )
    print_parity(compared.parity)
    if compared.problem is not None:
        if compared.not_recorded is not None:
            notify(f"Warning: {compared.not_recorded}")
        raise VerificationFailedError(compared.problem)
    if compared.not_recorded is not None:
        raise DragomanError(compared.not_recorded)


@click.command()
@bundle_argument
@click.option(
    "--key",
    type=PATH,
    required=True,
    help="Private key, PEM: elliptic curve P-256, P-384 or P-521.",
)
@click.option(
    "--password-file", type=PATH, help="File whose first line is the password of an encrypted key."
)
@click.option(
    "--certificate", type=PATH, help="Certificate of the key, PEM, to store in the signature."
)
@click.option(
    "--chain", type=PATH, multiple=True, help="Intermediate certificate, PEM; repeatable."
)
@click.option("--signature", type=PATH, help="File to write [model.sig in the bundle].")
@click.option("--force", is_flag=True, help="Replace the signature if it exists.")
def sign(bundle: Path, key: Path, password_file: Path | None, force: bool, **given: Any) -> None:
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
            overwrite=force,
            progress=progress,
            **given,
        )
    notify(f"Signed {bundle}: {written}", err=False)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, ValueError) as error:
        raise DragomanError(f"{path}: expected a file with a password: {error}") from error
