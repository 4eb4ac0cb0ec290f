"""Audits are signed by keys of SSH, and whoever has the public key can check who published one."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers.model_server import Main

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="install openssh-client")
MANIFEST, SIGNATURE = Path("out/manifest.json"), Path("out/manifest.json.sig")


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
    Path("own.source.yaml").write_text(
        "{name: own, engine: run, runs: own.run, attributes: {gender: {labels: labels.csv}}}"
    )
    return ("audit", "--corpus", "own.source.yaml", "--target", "uniform:1", "-k", "2", "-o", "out")


def checked(quick: Main, *arguments: str, code: int = 0) -> str:
    """Verify, and return all that is said."""
    done = quick("audit", "verify", "out", *arguments)
    assert done.code == code
    return done.stdout + done.stderr


@pytest.mark.promise("audit")
def test_a_signature_says_who_published_an_audit(asked: tuple[str, ...], quick: Main) -> None:
    """A signature says who published an audit and shows a changed manifest, and one that was not
    checked is named.
    """
    by_alice = ("--signed-by", "alice.signers")
    assert quick(*asked, "--sign", "alice").code == 0
    whole = MANIFEST.read_bytes()
    assert SIGNATURE.name not in json.loads(whole)["files"]
    assert "Not checked: The signature manifest.json.sig" in checked(quick)
    said = checked(quick, *by_alice)
    assert "signed by: alice@example.org" in said
    assert "The signature" not in said
    checked(quick, "--signed-by", "mallory.signers", code=3)
    # A changed manifest shows by the signature, and by the digest alone.
    MANIFEST.write_bytes(whole.replace(b'"uniform:1"', b'"uniform:9"'))
    checked(quick)
    for how in (by_alice, ("--digest", hashlib.sha256(whole).hexdigest())):
        checked(quick, *how, code=3)
    MANIFEST.write_bytes(whole)
    # What a key signed for another purpose is no signature of an audit.
    SIGNATURE.unlink()
    sign = ["ssh-keygen", "-q", "-Y", "sign", "-f", "alice", "-n", "file", str(MANIFEST)]
    subprocess.run(sign, check=True)
    checked(quick, *by_alice, code=3)
    SIGNATURE.unlink()
    assert "There is no manifest.json.sig" in checked(quick, *by_alice, code=3)


@pytest.mark.promise("audit")
def test_a_finished_audit_is_signed_with_a_passphrase(
    asked: tuple[str, ...], quick: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished audit can be signed with a key that has a passphrase."""
    assert quick(*asked).code == 0
    make_key("careful", "secret word")
    # In place of a terminal, a program answers what ssh-keygen asks.
    Path("answer").write_text("#!/bin/sh\necho secret word\n")
    Path("answer").chmod(0o700)
    monkeypatch.setenv("SSH_ASKPASS", str(Path("answer").resolve()))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    for key in ("careful", "alice"):  # Signing again replaces the signature.
        assert quick("audit", "-o", "out", "--sign", key).code == 0  # no engine is asked for
        assert f"signed by: {key}@example.org" in checked(quick, "--signed-by", f"{key}.signers")


@pytest.mark.promise("audit")
def test_what_cannot_be_signed_or_checked_is_one_sentence(
    asked: tuple[str, ...], quick: Main
) -> None:
    """What cannot be signed or checked is explained in one sentence."""
    failed = quick(*asked, "--sign", "nobody")
    assert (failed.code, SIGNATURE.exists()) == (2, False)
    assert "ssh-keygen could not sign with nobody" in failed.stderr
    verify = ("audit", "verify", "out", "--signed-by")
    assert "by a signer in nobody" in checked(quick, "--signed-by", "nobody", code=3)
    for arguments in (("audit", "-o", "out", "--sign", "alice"), (*verify, "alice.signers")):
        complaint = quick(*arguments, PATH="nowhere").complaint()
        assert complaint.startswith("ssh-keygen: No such file")
