"""Audits are signed by keys of SSH, and whoever has the public key can check who published one."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from fairqr.evaluation.audit.bundle import AuditManifest
from tests.integration.model_server import Main, clean_environment, quick

__all__ = ["clean_environment", "quick"]

SIGNATURE = Path("out/manifest.json.sig")


def make_key(name: str, passphrase: str = "") -> None:
    """Make a key in this folder, and the file of signers that allows it."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", name]
    subprocess.run(command, check=True)
    Path(f"{name}.signers").write_text(f"{name}@example.org {Path(f'{name}.pub').read_text()}")


@pytest.fixture
def asked(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The arguments of an audit of a run; two people have keys."""
    monkeypatch.chdir(clean_environment)
    Path("own.run").write_text("".join(f"q Q0 {d} {r} {9 - r} own\n" for r, d in enumerate("abcd")))
    Path("labels.csv").write_text("id,gender\na,m\nb,m\nc,f\nd,f\n")
    make_key("alice")
    make_key("mallory")
    run = ("--run", "own.run", "--labels", "labels.csv", "--attribute", "gender")
    return ("audit", *run, "--target", "uniform:1", "-k", "2", "-o", "out")


def checked(quick: Main, *arguments: str) -> tuple[int, str]:
    """Verify, and return the exit code and all that is said."""
    done = quick("audit", "verify", "out", *arguments)
    return done.code, done.stdout + done.stderr


def test_a_signature_says_who_published_an_audit(asked: tuple[str, ...], quick: Main) -> None:
    assert quick(*asked, "--sign", "alice").code == 0
    assert SIGNATURE.name not in json.loads(Path("out/manifest.json").read_text())["files"]
    code, said = checked(quick)
    assert code == 0
    assert "Not checked: The signature manifest.json.sig" in said
    code, said = checked(quick, "--signed-by", "alice.signers")
    assert code == 0
    assert "signed by: alice@example.org" in said
    assert "The signature" not in said
    assert checked(quick, "--signed-by", "mallory.signers")[0] == 3
    # What a key signed for another purpose is no signature of an audit.
    sign = ["ssh-keygen", "-q", "-Y", "sign", "-f", "alice", "-n", "file", "out/manifest.json"]
    SIGNATURE.unlink()
    subprocess.run(sign, check=True)
    assert checked(quick, "--signed-by", "alice.signers")[0] == 3
    SIGNATURE.unlink()
    code, said = checked(quick, "--signed-by", "alice.signers")
    assert code == 3
    assert "manifest.json.sig is missing" in said


def test_a_changed_manifest_shows_by_the_signature_and_by_the_digest_alone(
    asked: tuple[str, ...], quick: Main
) -> None:
    assert quick(*asked, "--sign", "alice").code == 0
    path = Path("out/manifest.json")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    whole = AuditManifest.model_validate_json(path.read_bytes())
    path.write_text(whole.model_copy(update={"command": ("fairqr", "another")}).text)
    assert checked(quick)[0] == 0
    assert checked(quick, "--signed-by", "alice.signers")[0] == 3
    assert checked(quick, "--digest", digest)[0] == 3


def test_a_finished_audit_is_signed_with_a_key_that_has_a_passphrase(
    asked: tuple[str, ...], quick: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quick(*asked).code == 0
    make_key("careful", "secret word")
    # In place of a terminal, a program answers what ssh-keygen asks.
    Path("answer").write_text("#!/bin/sh\necho secret word\n")
    Path("answer").chmod(0o700)
    monkeypatch.setenv("SSH_ASKPASS", str(Path("answer").resolve()))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    assert quick("audit", "sign", "out", "--key", "careful").code == 0
    code, said = checked(quick, "--signed-by", "careful.signers")
    assert code == 0
    assert "signed by: careful@example.org" in said
    # Signing again replaces the signature.
    assert quick("audit", "sign", "out", "--key", "alice").code == 0
    assert checked(quick, "--signed-by", "alice.signers")[0] == 0


def test_what_cannot_be_signed_or_checked_is_one_sentence(
    asked: tuple[str, ...], quick: Main
) -> None:
    assert "There is no SSH key nobody" in quick(*asked, "--sign", "nobody").complaint()
    assert "There is no SSH key labels.csv" in quick(*asked, "--sign", "labels.csv").complaint()
    assert "out holds no audit" in quick("audit", "sign", "out", "--key", "alice").complaint()
    assert not Path("out").exists()
    assert quick(*asked).code == 0
    verify = ("audit", "verify", "out", "--signed-by")
    assert "There is no file nobody" in quick(*verify, "nobody").complaint()
    for arguments in ((*asked, "--sign", "alice"), (*verify, "alice.signers")):
        complaint = quick(*arguments, PATH="nowhere").complaint()
        assert complaint.startswith("Signatures need ssh-keygen; install OpenSSH")
