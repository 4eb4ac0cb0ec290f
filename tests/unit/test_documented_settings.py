"""The documentation of settings names all of them, and the defaults that hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fairqr.base.errors import ConfigError
from fairqr.base.settings import SETTINGS, find
from fairqr.graph.service.configuration import ServiceSettings, service_settings
from fairqr.graph.service.sources import names_of
from fairqr.retrieval.credentials import credentials_for, named_credentials
from fairqr.retrieval.source import load_source

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"


def documented() -> dict[str, str]:
    """Return the default of each setting as the tables have it."""
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.*?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {name: default.strip().strip("`") for name, default in rows}


def told(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value in (None, {}) else str(value)


def test_every_setting_is_documented_with_its_default() -> None:
    expected = {setting.name: told(setting.default) for setting in SETTINGS}
    for name, _ in names_of(ServiceSettings):
        section, _, key = name.rpartition(".")
        settings = ServiceSettings()
        expected[name] = told(getattr(getattr(settings, section) if section else settings, key))
    found = documented()
    for name in ("data_dir", "cache_dir"):
        assert found[name].startswith("the platform's"), name
        found[name] = ""
    assert found == expected


def test_the_example_is_a_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "fairqr.toml"
    file.write_text(example)
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    assert find("model").value == tomllib.loads(example)["model"]
    models = service_settings().models
    assert [entry.api_key is not None for entry in models.values()] == [True, False]


def test_the_source_of_the_readme_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "people.source.yaml"
    file.write_text(example)
    source = load_source(file)
    assert source.name == "people"
    assert source.attributes["gender"].group_of("F") == "female"
    assert source.attributes["era"].group_of(1985) == "younger"


def test_credentials_are_documented_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```\n(\[credentials.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "fairqr.toml"
    file.write_text(example)
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    assert list(named_credentials()) == ["production", "web"]
    key = credentials_for("production", "https://people.example.org:9243").api_key
    assert key is not None
    with pytest.raises(ConfigError, match="may not go to"):
        credentials_for("production", "https://people.example.org:9244")
