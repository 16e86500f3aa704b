"""Signatures: whatever changes in a signed bundle is refused, and so is whoever else signed it."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from model_signing import verifying

from dragoman import DragomanError, api
from dragoman.runtime import BundleError, load, read_bundle
from dragoman.runtime.format.writing import write_manifest

from ..bundle_files import record_files
from ..signing_keys import Authority, key_pair
from ..small_bundle import small_bundle

SIGNATURE = "model.sig"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("expected no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Private and public."""
    return key_pair(tmp_path_factory.mktemp("keys"), "mine")


@pytest.fixture(scope="module")
def signed_once(keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = small_bundle(tmp_path_factory.mktemp("small"), positions=9)
    assert api.sign(directory, keys[0]) == directory / SIGNATURE
    return directory


@pytest.fixture
def signed(signed_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed_once, tmp_path / "signed"))


def refusal(bundle: Path, key: Path, signature: Path | None = None) -> str:
    with pytest.raises(api.SignatureError) as caught:
        api.verify_signature(bundle, key=key, signature=signature)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    return message


def test_a_signed_bundle_passes_and_runs(signed: Path, keys: tuple[Path, Path]) -> None:
    api.verify_signature(signed, key=keys[1])
    with load(signed, threads=1) as model:
        (result,) = model.generate([[3, 4, 5]])
    assert result.tokens
    api.verify_signature(str(signed), key=str(keys[1]), signature=str(signed / SIGNATURE))


def test_the_signature_is_one_that_other_tools_check(signed: Path, keys: tuple[Path, Path]) -> None:
    """The library's own defaults, as its command has them."""
    from model_signing.hashing import Config

    hashing = Config().set_ignored_paths(paths=[SIGNATURE])
    config = verifying.Config().use_elliptic_key_verifier(public_key=keys[1])
    config.set_hashing_config(hashing).verify(signed, signed / SIGNATURE)
    assert json.loads((signed / SIGNATURE).read_text())["mediaType"].startswith(
        "application/vnd.dev.sigstore.bundle"
    )


@pytest.mark.parametrize("name", ["manifest.json", "encoder.onnx", "decoder.onnx", "weights.bin"])
def test_a_changed_byte_of_any_file(signed: Path, keys: tuple[Path, Path], name: str) -> None:
    path = signed / name
    data = path.read_bytes()
    drawn = random.Random(name).sample(range(len(data)), 24)
    for index in (0, len(data) - 1, *drawn):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 8
        path.write_bytes(changed)
        message = refusal(signed, keys[1])
        assert message.endswith(f": Hash mismatch for '{name}'"), index
    path.write_bytes(data)
    api.verify_signature(signed, key=keys[1])


def test_a_changed_byte_of_the_signature(signed: Path, keys: tuple[Path, Path]) -> None:
    """No longer a signature, or not of this bundle. White space in JSON and the like may pass."""
    path = signed / SIGNATURE
    data = path.read_bytes()
    passed = []
    for index in range(0, len(data), 7):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 8
        path.write_bytes(changed)
        try:
            api.verify_signature(signed, key=keys[1])
        except api.SignatureError as error:
            assert "\n" not in str(error)
        else:
            passed.append(index)
    assert len(passed) < len(data) // 70


def add_a_file(bundle: Path) -> None:
    (bundle / "more.bin").write_bytes(b"")


def add_a_git_file(bundle: Path) -> None:
    """Which other tools leave out of a signature."""
    (bundle / ".gitattributes").write_bytes(b"x")


def add_a_nested_file(bundle: Path) -> None:
    (bundle / "below").mkdir()
    (bundle / "below" / "more.bin").write_bytes(b"x")


def link_to_an_equal_file(bundle: Path) -> None:
    (bundle / "weights.bin").rename(bundle.parent / "weights.bin")
    (bundle / "weights.bin").symlink_to(bundle.parent / "weights.bin")


def change_consistently(bundle: Path) -> None:
    """With a manifest whose hashes are right: `read_bundle` finds nothing."""
    manifest = read_bundle(bundle).manifest
    weights = bytearray((bundle / "weights.bin").read_bytes())
    weights[100] ^= 64
    (bundle / "weights.bin").write_bytes(weights)
    files = tuple(file for file in record_files(bundle) if file.path != SIGNATURE)
    write_manifest(dataclasses.replace(manifest, files=files), bundle)
    read_bundle(bundle)


TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is added": (add_a_file, "Extra files found in model 'signed': more.bin"),
    "a file of git is added": (add_a_git_file, "Extra files found in model 'signed': .gitattr"),
    "a file below is added": (add_a_nested_file, "below/more.bin"),
    "a file is removed": (lambda b: (b / "weights.bin").unlink(), "Missing files in model"),
    "a file is renamed": (
        lambda b: (b / "encoder.onnx").rename(b / "Encoder.onnx"),
        "Missing files in model",
    ),
    "two files are exchanged": (
        lambda b: (
            (b / "encoder.onnx").rename(b / "x"),
            (b / "decoder.onnx").rename(b / "encoder.onnx"),
            (b / "x").rename(b / "decoder.onnx"),
        ),
        "Hash mismatch for 'decoder.onnx'",
    ),
    "a file is grown": (
        lambda b: (b / "weights.bin").write_bytes((b / "weights.bin").read_bytes() + b"\0"),
        "Hash mismatch for 'weights.bin'",
    ),
    "a link to an equal file": (link_to_an_equal_file, "weights.bin' because it is a symlink"),
    "weights and manifest together": (change_consistently, "Hash mismatch for 'manifest.json'"),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering(signed: Path, keys: tuple[Path, Path], name: str) -> None:
    tamper, expected = TAMPERING[name]
    tamper(signed)
    message = refusal(signed, keys[1])
    assert message.startswith(f"{signed} is not what {signed / SIGNATURE} is a signature of: ")
    assert expected in message


def test_another_key(signed: Path, tmp_path: Path) -> None:
    _, other = key_pair(tmp_path, "other")
    assert "Key mismatch" in refusal(signed, other)


def test_a_signature_of_another_key_that_claims_to_be_of_this_one(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """The name of the key in a signature is not part of what is signed."""
    other, _ = key_pair(tmp_path, "other")
    forged = api.sign(signed, other, signature=tmp_path / "forged.sig")
    hint = json.loads((signed / SIGNATURE).read_text())["verificationMaterial"]
    data = json.loads(forged.read_text()) | {"verificationMaterial": hint}
    forged.write_text(json.dumps(data))
    message = refusal(signed, keys[1], forged)
    assert message == f"{forged}: expected a signature by {keys[1]}, found another"


def test_the_signature_of_another_bundle(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(signed, tmp_path / "other"))
    change_consistently(other)
    api.sign(other, keys[0], overwrite=True)
    api.verify_signature(other, key=keys[1])
    shutil.copy(other / SIGNATURE, signed)
    message = refusal(signed, keys[1])
    assert "Hash mismatch for 'manifest.json'; Hash mismatch for 'weights.bin'" in message


def test_a_signature_outside_the_bundle_leaves_it_unchanged(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    (signed / SIGNATURE).unlink()
    before = {path.name: path.read_bytes() for path in signed.iterdir()}
    outside = api.sign(signed, keys[0], signature=tmp_path / "outside.sig")
    assert {path.name: path.read_bytes() for path in signed.iterdir()} == before
    api.verify_signature(signed, key=keys[1], signature=outside)
    shutil.copy(outside, signed / SIGNATURE)  # it does not matter where it is
    api.verify_signature(signed, key=keys[1])
    assert "Extra files" in refusal(signed, keys[1], outside)


def test_a_bundle_that_is_reached_by_a_link(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "current").symlink_to(signed)
    api.verify_signature(tmp_path / "current", key=keys[1])
    api.sign(tmp_path / "current", keys[0], overwrite=True)
    api.verify_signature(signed, key=keys[1])


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: str(c.name))
def test_other_curves(signed: Path, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    private, public = key_pair(tmp_path, "other", curve)
    api.sign(signed, private, overwrite=True)
    api.verify_signature(signed, key=public)


def test_an_encrypted_key(signed: Path, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "secret", password="a password")  # noqa: S106
    for wrong in (None, "another"):
        with pytest.raises(
            api.SignatureError, match=r"expected a private key of an elliptic curve: .*[Pp]assword"
        ):
            api.sign(signed, private, password=wrong, overwrite=True)
    api.sign(signed, private, password="a password", overwrite=True)  # noqa: S106
    api.verify_signature(signed, key=public)


def test_certificates(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "root"), Authority(tmp_path, "stranger")
    key, certificate = authority.issue("signer")
    api.sign(signed, key, certificate=certificate, overwrite=True)
    api.verify_signature(signed, chain=[authority.root])
    with pytest.raises(api.SignatureError, match="unable to get local issuer certificate"):
        api.verify_signature(signed, chain=[stranger.root])
    message = refusal(signed, keys[1])
    assert message.endswith(
        "expected a signature that a public key checks, found one for a chain of certificates"
    )
    (signed / "more.bin").touch()
    with pytest.raises(api.SignatureError, match="Extra files"):
        api.verify_signature(signed, chain=[authority.root])
    with pytest.raises(api.SignatureError, match="expected the certificate of the private key"):
        api.sign(signed, keys[0], certificate=certificate, overwrite=True)
    key, certificate = authority.issue("server", for_signing=False)
    api.sign(signed, key, certificate=certificate, overwrite=True)
    with pytest.raises(api.SignatureError, match="cannot be used for signing"):
        api.verify_signature(signed, chain=[authority.root])


def test_a_damaged_bundle_is_not_signed(signed: Path, keys: tuple[Path, Path]) -> None:
    (signed / "weights.bin").write_bytes(b"")
    (signed / SIGNATURE).unlink()
    with pytest.raises(BundleError, match=r"weights\.bin"):
        api.sign(signed, keys[0])
    assert not (signed / SIGNATURE).exists()


def test_an_existing_signature_is_kept(signed: Path, keys: tuple[Path, Path]) -> None:
    before = (signed / SIGNATURE).read_bytes()
    (signed / f"{SIGNATURE}.partial").touch()  # left by a process that was killed
    api.sign(signed, keys[0], signature=signed / "model.sig", overwrite=True)
    api.verify_signature(signed, key=keys[1])
    (signed / SIGNATURE).write_bytes(before)
    with pytest.raises(DragomanError, match="already exists"):
        api.sign(signed, keys[0])
    with pytest.raises(api.SignatureError, match="expected a private key"):
        api.sign(signed, keys[1], overwrite=True)  # the public one
    assert (signed / SIGNATURE).read_bytes() == before
    assert sorted(path.name for path in signed.iterdir()) == [
        *("candidates.onnx", "decoder.onnx", "encoder.onnx"),
        *("manifest.json", SIGNATURE, "weights.bin"),
    ]


def test_what_is_no_key_or_no_signature(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    for text in ("", "[]", "{}", '{"verificationMaterial": {}}', "\ud800", "null", "[" * 10**5):
        (tmp_path / "bad.sig").write_bytes(text.encode("utf-8", "surrogatepass"))
        message = refusal(signed, keys[1], tmp_path / "bad.sig")
        assert f"{tmp_path / 'bad.sig'}: expected a signature of OpenSSF Model Signing" in message
    with (tmp_path / "bad.sig").open("wb") as file:
        file.truncate(1 << 40)
    assert "expected a file of at most" in refusal(signed, keys[1], tmp_path / "bad.sig")
    (tmp_path / "bad.sig").write_text('{"verificationMaterial": {"publicKey": {}}}')
    assert "is not what" in refusal(signed, keys[1], tmp_path / "bad.sig")
    assert f"{keys[0]}: expected a public key" in refusal(signed, keys[0])
    other = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    (tmp_path / "rsa.pem").write_bytes(other)
    with pytest.raises(api.SignatureError) as caught:
        api.sign(signed, tmp_path / "rsa.pem", overwrite=True)
    assert str(caught.value) == (
        f"{tmp_path / 'rsa.pem'}: expected a private key of an elliptic curve, found another kind "
        "of key"
    )
    with pytest.raises(DragomanError, match="found neither"):
        api.verify_signature(signed)
    with pytest.raises(DragomanError, match="found both"):
        api.verify_signature(signed, key=keys[1], chain=[keys[1]])
    with pytest.raises(DragomanError, match="chain: expected none without a certificate"):
        api.sign(signed, keys[0], chain=[keys[1]])
    with pytest.raises(DragomanError, match="expected a bundle, found no such directory"):
        api.verify_signature(tmp_path / "none", key=keys[1])
