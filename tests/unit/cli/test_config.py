"""``fairqr config``: what is effective, where it is from, and no secret."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.settings import SETTINGS
from fairqr.graph.service.configuration import setting_names

Show = Callable[..., Any]
SECRETS = ("hidden1", "hidden2", "hidden3", "hidden4", "hidden5", "hidden6", "hidden7", "hidden8")
FILE = """
model = "openai:mine"
base_url = "https://me:hidden1@server/v1?key=hidden2"
[elasticsearch]
url = "https://elastic:hidden3@host:9200"
api_key = "hidden4"
[credentials.production]
urls = ["https://me:hidden7@host:9243"]
bearer = "hidden7"
headers = {X-Key = "hidden8"}
[service]
database = "postgresql://me:hid/@den5@host/db?password=hidden5"
[service.models."openai:gpt-4.1"]
base_url = "https://hidden6@a/v1"
api_key = "hidden6"
[service.limits]
k = 7
"""


@pytest.fixture(autouse=True)
def file(settings_file: Path) -> Path:
    settings_file.write_text(FILE)
    settings_file.chmod(0o600)
    return settings_file


@pytest.fixture
def show(fairqr: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Show:
    """Runs ``fairqr config show`` in a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    return partial(fairqr, "config", "show")


def show_object(show: Show) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    settings = json.loads(show("--json").stdout)
    assert isinstance(settings, dict)
    return settings


def setting_names_of_file() -> set[str]:
    """Return the names of all settings that there are with :data:`FILE`."""
    names = {setting.name for setting in SETTINGS}
    names |= {f"service.{name}" for name in setting_names() if name != "models"}
    names |= {f"credentials.production.{name}" for name in ("urls", "bearer", "headers.X-Key")}
    entry = ("base_url", "api_key", "api_key_env", "timeout", "reasoning_tokens", "extra_body")
    names |= {f"service.models.openai:gpt-4.1.{name}" for name in entry}
    return names


@pytest.mark.promise("command")
def test_every_setting_is_shown_with_its_source(
    show: Show, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`config show` shows every setting with its value and where the value is from: the file, a
    variable or the default.
    """
    monkeypatch.setenv("FAIRQR_SERVICE_PORT", "9")
    settings = show_object(show)["settings"]
    assert set(settings) == setting_names_of_file()
    assert settings["model"] == {"value": "openai:mine", "source": "file", "place": str(file)}

    port = {"value": 9, "source": "variable", "place": "FAIRQR_SERVICE_PORT"}
    assert settings["service.port"] == port
    assert settings["service.limits.k"]["value"] == 7
    assert settings["service.limits.depth"] == {"value": 1000, "source": "default", "place": None}

    lines = [line.split() for line in show().stdout.splitlines()]
    assert ["service.limits.k", "7", "file"] in lines


@pytest.mark.promise("command")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_no_secret_is_shown(show: Show, options: list[str]) -> None:
    """`config show` shows no secret, neither as text nor with `--json`."""
    ended = show(*options)
    printed = ended.stdout + ended.stderr
    assert [secret for secret in (*SECRETS, "hid/", "den5") if secret in printed] == []


def test_urls_are_shown_without_their_secrets(show: Show) -> None:
    text = show().stdout
    urls = ("https://…@server/v1?…", "https://…@host:9200", "postgresql://…@host/db?…")
    assert [url for url in urls if url not in text] == []
    assert re.search(r"^elasticsearch.api_key +\(hidden\)", text, re.MULTILINE)


def test_an_address_in_words_is_hidden(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL takes such addresses, too."""
    monkeypatch.setenv("FAIRQR_SERVICE_DATABASE", "host=db password=hidden1")
    assert show_object(show)["settings"]["service.database"]["value"] == "(hidden)"
    assert "hidden1" not in "".join(show()[1:])


def test_a_misspelt_variable_is_warned_of(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_SERVICE_PROT", "secret")
    monkeypatch.setenv("FAIRQR_\x1b[31m", "secret")
    odd, misspelt = show_object(show)["warnings"]

    assert misspelt.partition("did you mean 'FAIRQR_SERVICE_PORT'")[1]
    assert odd.isprintable()
    assert "secret" not in odd + misspelt
    assert misspelt in show().stderr


@pytest.mark.skipif(os.name != "posix", reason="other systems have other rights")
def test_a_file_that_others_can_read_or_change_is_warned_of(
    show: Show, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert show_object(show)["warnings"] == []

    file.chmod(0o664)
    change, read = show_object(show)["warnings"]
    assert change.startswith("Other users can change")
    assert "holds secrets" in read

    plain = file.with_name("plain.toml")
    plain.write_text('model = "openai:mine"\n')
    plain.chmod(0o644)
    monkeypatch.setenv("FAIRQR_CONFIG", str(plain))

    assert show_object(show)["warnings"] == []
