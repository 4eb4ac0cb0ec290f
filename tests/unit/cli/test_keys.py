"""The commands ``fairqr keys …``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fairqr.base.errors import ConfigError, InputError
from fairqr.cli.main import app


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("FAIRQR_SERVICE_DATABASE", raising=False)
    return tmp_path


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments])


def test_a_key_is_printed_once_and_kept_nowhere(own_data: Path) -> None:
    made = keys("create", "the newsroom")
    secret = made.stdout.strip()
    assert secret.startswith("fqr_")
    assert "it is not shown again" in " ".join(made.stderr.split())
    listed = keys("list").stdout
    assert "the newsroom" in listed
    assert "read,run " in listed
    files = list((own_data / "service").iterdir())
    assert files
    for text in (
        listed.encode(),
        keys("list", "--json").stdout.encode(),
        *map(Path.read_bytes, files),
    ):
        assert secret[-43:].encode() not in text


def test_scripts_get_the_key_alone_or_an_object() -> None:
    quiet = keys("create", "a", "--quiet")
    assert quiet.stdout.startswith("fqr_")
    assert quiet.stdout.count("\n") == 1
    assert quiet.stderr == ""
    made = json.loads(keys("create", "b", "--scope", "read", "--scope", "admin", "--json").stdout)
    assert made["scopes"] == ["read", "run", "admin"]
    assert made["key"].startswith(f"fqr_{made['id']}_")
    listed = json.loads(keys("list", "--json").stdout)["keys"]
    assert [key["name"] for key in listed] == ["a", "b"]
    assert "sha256" not in listed[0]


def test_a_revoked_key_is_listed_as_such() -> None:
    id_ = json.loads(keys("create", "a", "--json").stdout)["id"]
    assert keys("revoke", id_).stdout == f"The key {id_} of a is revoked.\n"
    assert keys("list").stdout.splitlines()[1].split()[3].startswith("20")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["revoke", "0123"], InputError, "There is no access key '0123'; see 'fairqr keys list'."),
        (["create", "a", "--scope", "all"], InputError, "There is no scope 'all'"),
        (["create", "a\nb"], InputError, "one line of 1 to 100 characters"),
        (["list", "--database", "mysql://a:s3cret@b"], ConfigError, "write sqlite:///path"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    arguments: list[str], error: type[Exception], said: str
) -> None:
    result = keys(*arguments)
    assert isinstance(result.exception, error)
    assert said in str(result.exception)
