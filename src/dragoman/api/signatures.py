"""Signs bundles and checks signatures, in the format of OpenSSF Model Signing.

Keys and certificates are files; no network is used.
https://github.com/sigstore/model-transparency
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable
from dragoman.files.regular_files import FileError
from dragoman.files.strict_json import read_json
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import read_bundle
from dragoman.runtime.format.manifest import SIGNATURE_FILE

if TYPE_CHECKING:
    from model_signing.hashing import Config as HashingConfig

_KEY, _CERTIFICATE = "publicKey", "x509CertificateChain"
_LONGEST_REASON = 400


class SignatureError(DragomanError):
    """A bundle cannot be signed, was changed after signing, or was signed by another signer."""


def sign(
    bundle: str | Path,
    key: str | Path,
    *,
    password: str | None = None,
    certificate: str | Path | None = None,
    chain: Sequence[str | Path] = (),
    signature: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Sign every file of a bundle, so that `verify_signature` detects changes.

    Args:
        key: private key in PEM: elliptic curve P-256, P-384 or P-521
        password: of an encrypted key; not with a certificate
        certificate: certificate of the key in PEM, which `verify_signature` checks with `chain`;
            None: verification uses the public key
        chain: intermediate certificates in PEM
        signature: file to write, which is returned; None: `SIGNATURE_FILE` in the bundle
        overwrite: whether to replace an existing signature

    Raises:
        BundleError: the bundle is damaged.
        SignatureError: the key or a certificate is not usable, or a file of the bundle is a link.
        DragomanError: a path or an argument is wrong, or the signature cannot be written.
    """
    progress, directory = progress or Silent(), Path(bundle)
    path = _signature_path(directory, signature)
    if certificate is None and chain:
        raise DragomanError("chain: expected none without a certificate")
    if certificate is not None and password is not None:
        raise DragomanError("password: expected none: with a certificate, the key is not encrypted")
    _check_files(key, *([] if certificate is None else [certificate]), *chain)
    refuse_existing(path, overwrite)
    progress.stage("reading the bundle")
    read_bundle(directory)
    refuse_unwritable(path)

    from model_signing.signing import Config

    config = Config()
    if certificate is None:
        # The library is typed for str, but needs bytes.
        secret: Any = None if password is None else password.encode()
        with _refusing(f"{key}: expected a private key of an elliptic curve"):
            config.use_elliptic_key_signer(private_key=key, password=secret)
    else:
        with _refusing(f"{certificate}: expected the certificate of the private key {key}"):
            config.use_certificate_signer(
                private_key=key,
                signing_certificate=certificate,
                certificate_chain=chain or [certificate],  # the library cannot read an empty one
            )
    progress.stage("signing")
    config.set_hashing_config(_hashing(directory, path))
    partial = path.with_name(path.name + ".partial")
    try:
        with _refusing(f"{directory} cannot be signed"):
            partial.unlink(missing_ok=True)  # left by a killed process
            config.sign(directory.resolve(), partial)
            partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return path


def verify_signature(
    bundle: str | Path,
    *,
    key: str | Path | None = None,
    chain: Sequence[str | Path] = (),
    signature: str | Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Check that the files of a bundle match its signature.

    Args:
        key: public key of the signer in PEM
        chain: root certificate, and intermediate certificates missing from the signature, in PEM;
            replaces `key` for a signature with a certificate. Expiry is not checked
        signature: file of the signature; None: `SIGNATURE_FILE` in the bundle

    Raises:
        SignatureError: a file was changed, added or removed, the signer is another, or the
            signature, key or a certificate is not usable.
        DragomanError: a path or an argument is wrong.
    """
    progress, directory = progress or Silent(), Path(bundle)
    path = _signature_path(directory, signature)
    if (key is None) == (not chain):
        raise DragomanError(
            "expected the signer's public key, or the certificates that the signer's was issued "
            f"by, found {'neither' if key is None else 'both'}"
        )
    if not directory.is_dir():
        raise DragomanError(f"{directory}: expected a bundle, found no such directory")
    if not path.is_file():
        raise SignatureError(f"{directory}: expected its signature, found none at {path}")
    _check_files(*(chain if key is None else [key]))
    _check_kind(path, _CERTIFICATE if key is None else _KEY)

    from cryptography.exceptions import InvalidSignature
    from model_signing.verifying import Config

    config = Config().set_hashing_config(_hashing(directory, path))
    if key is not None:
        with _refusing(f"{key}: expected a public key of an elliptic curve"):
            config.use_elliptic_key_verifier(public_key=key)
    else:
        with _refusing(f"{', '.join(map(str, chain))}: expected certificates"):
            config.use_certificate_verifier(certificate_chain=chain)
    progress.stage("checking the signature")
    with _refusing(f"{directory} is not what {path} is a signature of"):
        try:
            config.verify(directory.resolve(), path)
        except InvalidSignature as error:
            raise SignatureError(
                f"{path}: expected a signature by {key or 'the certificate in it'}, found another"
            ) from error


def is_signed(bundle: str | Path) -> bool:
    """Return whether the bundle has a signature, without checking it."""
    return (Path(bundle) / SIGNATURE_FILE).exists()


def _signature_path(directory: Path, signature: str | Path | None) -> Path:
    return directory / SIGNATURE_FILE if signature is None else Path(signature)


def _check_files(*paths: str | Path) -> None:
    for path in paths:
        if not Path(path).is_file():
            raise DragomanError(f"expected a file in PEM, found none at {path}")


def _check_kind(path: Path, expected: str) -> None:
    names = {_KEY: "a public key", _CERTIFICATE: "a chain of certificates"}
    found = None
    expectation = f"{path}: expected a signature of OpenSSF Model Signing"
    with _refusing(expectation):
        try:
            material = read_json(path)["verificationMaterial"]
        except FileError as error:
            raise SignatureError(f"{expectation}: {error.problem}") from error
        found = next(name for name in names if name in material)
    if found != expected:
        raise SignatureError(
            f"{path}: expected a signature that {names[expected]} checks, found one for "
            f"{names[found]}"
        )


def _hashing(directory: Path, signature: Path) -> HashingConfig:
    from model_signing.hashing import Config

    inside, root = signature.parent.resolve() / signature.name, directory.resolve()
    ignored = [inside.relative_to(root)] if inside.is_relative_to(root) else []
    return Config().set_ignored_paths(paths=ignored, ignore_git_paths=False)


@contextlib.contextmanager
def _refusing(expectation: str) -> Iterator[None]:
    try:
        yield
    except DragomanError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise SignatureError(f"{expectation}: {error.strerror or error}{where}") from error
    except AttributeError as error:  # the key has no curve
        raise SignatureError(f"{expectation}, found another kind of key") from error
    except Exception as error:
        reason = " ".join(_reason(error).split()) or type(error).__name__
        if len(reason) > _LONGEST_REASON:
            reason = reason[:_LONGEST_REASON] + "..."
        raise SignatureError(f"{expectation}: {reason}") from error


def _reason(error: Exception) -> str:
    kind, _, differences = str(error).partition("Signature mismatch: ")
    if kind or not differences:
        return str(error).partition(" This behavior can be changed")[0]
    return "; ".join(text.partition(": Expected '")[0] for text in ast.literal_eval(differences))
