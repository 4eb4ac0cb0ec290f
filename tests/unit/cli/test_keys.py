"""The commands ``fairqr keys …``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fairqr = Callable[..., Any]


@pytest.mark.promise("service")
def test_a_key_is_printed_once_and_kept_nowhere(fairqr: Fairqr) -> None:
    """An access key is printed once, when it is made, and is kept in no file and in no list."""
    code, stdout, stderr = fairqr("keys", "create", "the newsroom")
    secret = stdout.strip()
    assert (code, stdout[:4], stdout.count("\n")) == (0, "fqr_", 1)
    assert "it is not shown again" in " ".join(stderr.split())

    listed = fairqr("keys", "list").stdout
    assert "the newsroom" in listed
    assert "read,run " in listed

    listed_as_json = fairqr("keys", "list", "--json").stdout
    assert secret[-43:] not in listed + listed_as_json

    files = list(Path("data/service").iterdir())
    assert files
    assert not any(secret[-43:].encode() in file.read_bytes() for file in files)


def test_keys_are_objects_for_scripts(fairqr: Fairqr) -> None:
    fairqr("keys", "create", "a")
    made = json.loads(fairqr("keys", "create", "b", "--scope", "admin", "--json").stdout)
    assert made["scopes"] == ["read", "run", "admin"]

    listed = json.loads(fairqr("keys", "list", "--json").stdout)["keys"]
    assert [key["name"] for key in listed] == ["a", "b"]
    assert "sha256" not in listed[0]


def test_a_key_can_be_revoked(fairqr: Fairqr) -> None:
    fairqr("keys", "create", "a")
    made = json.loads(fairqr("keys", "create", "b", "--json").stdout)
    revoked = fairqr("keys", "revoke", made["id"])

    assert revoked.stdout == f"The key {made['id']} of b is revoked.\n"
    assert fairqr("keys", "list").stdout.splitlines()[2].split()[3].startswith("20")
