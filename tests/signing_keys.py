"""Keys and certificates for signatures, made anew: as OpenSSL would, and as PEM files."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

PrivateKey = ec.EllipticCurvePrivateKey


def key_pair(
    directory: Path,
    name: str,
    curve: ec.EllipticCurve | None = None,
    *,
    password: str | None = None,
) -> tuple[Path, Path]:
    """The files of a new private key and of its public key."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    return _write_private(directory / f"{name}.pem", key, password), _write_public(
        directory / f"{name}.pub.pem", key
    )


class Authority:
    """A root, and what it issues: files in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP384R1())
        self.root = directory / f"{name}.crt"
        certificate = self._certificate(name, self._key, self._name, self._key, authority=True)
        self.root.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *, for_signing: bool = True) -> tuple[Path, Path]:
        """The files of a new private key and of its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(
            name, key, self._name, self._key, authority=False, for_signing=for_signing
        )
        path = self._directory / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(Encoding.PEM))
        return _write_private(self._directory / f"{name}.pem", key, None), path

    @staticmethod
    def _certificate(
        name: str,
        key: PrivateKey,
        issuer: str,
        issuer_key: PrivateKey,
        *,
        authority: bool,
        for_signing: bool = True,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        usage = x509.KeyUsage(
            digital_signature=for_signing and not authority,
            key_cert_sign=authority,
            crl_sign=authority,
            content_commitment=False,
            key_encipherment=not for_signing,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        oids = ExtendedKeyUsageOID
        purpose = oids.CODE_SIGNING if for_signing else oids.SERVER_AUTH
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _write_private(path: Path, key: PrivateKey, password: str | None) -> Path:
    encryption: KeySerializationEncryption = NoEncryption()
    if password is not None:
        encryption = BestAvailableEncryption(password.encode())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return path


def _write_public(path: Path, key: PrivateKey) -> Path:
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(pem)
    return path
