"""`dragoman sign`, and `dragoman verify` with a signature: alone, and before parity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.runtime import read_bundle

from ..signing_keys import Authority, key_pair

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Private and public."""
    return key_pair(tmp_path_factory.mktemp("keys"), "mine")


def error_of(outcome: Outcome) -> str:
    assert outcome.returncode == 2
    line = outcome.stderr.splitlines()[-1]
    assert line.startswith("Error: ") and "Traceback" not in outcome.stderr
    return line


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_signed_bundle_is_verified_without_a_checkpoint(
    dragoman: Dragoman, bundle_copy: Path, keys: tuple[Path, Path]
) -> None:
    outcome = dragoman("sign", bundle_copy, "--key", keys[0])
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == f"Signed {bundle_copy}: {bundle_copy / 'model.sig'}\n"
    outcome = dragoman("verify", bundle_copy, "--key", keys[1])
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == f"{bundle_copy}: every file is as it was signed\n"
    assert dragoman("run", bundle_copy, "dragoman").returncode == 0
    assert dragoman("inspect", bundle_copy).returncode == 0
    assert "already exists" in error_of(dragoman("sign", bundle_copy, "--key", keys[0]))
    assert dragoman("sign", bundle_copy, "--key", keys[0], "--force").returncode == 0


def test_a_tampered_bundle_is_refused_before_anything_else(
    dragoman: Dragoman,
    bundle_copy: Path,
    checkpoint: Path,
    keys: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signature = tmp_path / "beside.sig"
    assert dragoman("sign", bundle_copy, "--key", keys[0], "--signature", signature).returncode == 0
    assert not (bundle_copy / "model.sig").exists()
    flip(bundle_copy / "source_tokenizer.json")

    def reach(*arguments: object, **options: object) -> None:
        raise AssertionError("expected the signature to be checked first")

    monkeypatch.setattr("dragoman.api.verify", reach)
    arguments = ("--key", keys[1], "--signature", signature)
    for more in ((), (checkpoint,)):
        outcome = dragoman("verify", bundle_copy, *more, *arguments)
        assert "Hash mismatch for 'source_tokenizer.json'" in error_of(outcome)
        assert len(outcome.stderr.splitlines()) == 1 and outcome.stdout == ""


def test_figures_are_not_recorded_in_a_signed_bundle(
    dragoman: Dragoman, bundle_copy: Path, checkpoint: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    dragoman("sign", bundle_copy, "--key", keys[0])
    before = (bundle_copy / "manifest.json").read_bytes()
    with_key = ("--key", keys[1])
    for arguments in (with_key, ()):  # the second without looking at the signature
        outcome = dragoman("verify", bundle_copy, checkpoint, "--threads", 1, *arguments)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert "9 of 9 identical" in outcome.stdout
        assert (bundle_copy / "manifest.json").read_bytes() == before
        outcome = dragoman("verify", bundle_copy, checkpoint, "--record", *arguments)
        assert "signed" in error_of(outcome) and outcome.stdout == ""
        assert (bundle_copy / "manifest.json").read_bytes() == before
    (bundle_copy / "model.sig").rename(tmp_path / "beside.sig")
    beside = ("--signature", tmp_path / "beside.sig")
    outcome = dragoman("verify", bundle_copy, checkpoint, *beside, *with_key)
    assert outcome.returncode == 0
    assert (bundle_copy / "manifest.json").read_bytes() == before


@pytest.mark.usefixtures("copied_export")
def test_a_bundle_that_is_replaced_has_no_signature(
    dragoman: Dragoman, bundle_copy: Path, checkpoint: Path, keys: tuple[Path, Path]
) -> None:
    dragoman("sign", bundle_copy, "--key", keys[0])
    options = ("-o", bundle_copy, "--force", "--threads", 1)
    assert dragoman("build", checkpoint, *options).returncode == 0
    read_bundle(bundle_copy)
    assert "expected its signature" in error_of(dragoman("verify", bundle_copy, "--key", keys[1]))


def test_a_certificate(dragoman: Dragoman, bundle_copy: Path, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "root"), Authority(tmp_path, "stranger")
    key, certificate = authority.issue("signer")
    signed = dragoman("sign", bundle_copy, "--key", key, "--certificate", certificate)
    assert (signed.returncode, signed.stderr) == (0, "")
    assert dragoman("verify", bundle_copy, "--chain", authority.root).returncode == 0
    outcome = dragoman("verify", bundle_copy, "--chain", stranger.root)
    assert "unable to get local issuer certificate" in error_of(outcome)


def test_an_encrypted_key(dragoman: Dragoman, bundle_copy: Path, tmp_path: Path) -> None:
    key, public = key_pair(tmp_path, "secret", password="open sesame")  # noqa: S106
    assert "encrypted" in error_of(dragoman("sign", bundle_copy, "--key", key))
    (tmp_path / "password").write_text("open sesame\n")
    arguments = ("--key", key, "--password-file", tmp_path / "password")
    assert dragoman("sign", bundle_copy, *arguments).returncode == 0
    assert dragoman("verify", bundle_copy, "--key", public).returncode == 0
    missing = ("--key", key, "--password-file", tmp_path / "none")
    assert "expected a file with a password" in error_of(dragoman("sign", bundle_copy, *missing))
