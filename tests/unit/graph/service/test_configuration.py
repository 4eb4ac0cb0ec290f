"""How the service is set up: arguments over variables over the file over defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import ConfigError
from fairqr.base.settings import ValueSource
from fairqr.graph.service.configuration import (
    Caps,
    ServiceSettings,
    gather,
    service_settings,
    service_variables,
)
from fairqr.graph.service.sources import names_of


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FAIRQR_") and name != "FAIRQR_CONFIG":
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file, which a test writes once."""
    named = tmp_path / "fairqr.toml"
    monkeypatch.setenv("FAIRQR_CONFIG", str(named))
    return named


class TestWhatWins:
    def test_nothing_is_configured(self) -> None:
        assert service_settings(host=None, caps=None) == ServiceSettings()

    def test_arguments_over_variables_over_the_file(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file.write_text("[service]\nport = 1\nhost = 'a'\ngrace = 3\ncaps = {k = 1, depth = 1}")
        monkeypatch.setenv("FAIRQR_SERVICE_PORT", "2")
        monkeypatch.setenv("FAIRQR_SERVICE_HOST", "b")
        monkeypatch.setenv("FAIRQR_SERVICE_CAPS_K", "2")
        settings, sources = gather(port=3, caps={"pairs": 3, "tokens": None})
        assert (settings.port, settings.host, settings.grace) == (3, "b", 3.0)
        assert settings.caps == Caps(k=2, depth=1, pairs=3)
        assert sources["port"] == ValueSource("argument")
        assert sources["host"] == ValueSource("variable", "FAIRQR_SERVICE_HOST")
        assert sources["grace"] == ValueSource("file", str(file))
        assert "lease" not in sources

    def test_every_setting_has_a_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a variable says reaches the setting of its name."""
        texts = {
            **{"host": "h", "database": "sqlite:///x", "models": "a:b, feedback", "traces": "t"},
            **{"replies": "r", "audits": "a"},
            **{"prompts": "refine=v2,answer=*", "base_urls": "http://a,https://b/v1"},
            **{"limits.rate": "5/second", "require_keys": "true", "port": "0", "work": "true"},
        }
        names = dict(names_of(ServiceSettings))
        for variable, name in zip(service_variables(), names, strict=True):
            monkeypatch.setenv(variable, texts.get(name, "7"))
        dumped = service_settings().model_dump()
        for name in names:
            section, _, key = name.rpartition(".")
            value = (dumped[section] if section else dumped)[key]
            if isinstance(value, dict):
                assert list(value) == ["a:b", "feedback"]
            elif isinstance(value, tuple):
                assert tuple(map(str, value)) == tuple(texts.get(name, "7").split(","))
            elif isinstance(value, float | int):
                assert float(value) == {"require_keys": 1, "work": 1, "port": 0}.get(name, 7)
            else:
                assert str(value) == texts[name]

    def test_an_empty_variable_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAIRQR_SERVICE_PORT", "")
        assert service_settings().port == 8080

    def test_paths_of_the_file_are_beside_it(self, file: Path) -> None:
        file.write_text("[service]\ntraces = 'runs'\nsources = ['a.source.yaml', '/b.yaml']")
        assert service_settings().traces == file.parent / "runs"
        assert service_settings().sources == (file.parent / "a.source.yaml", Path("/b.yaml"))


class TestModels:
    FILE = """[service.models."openai:gpt-4.1"]
base_url = "https://one/v1"
api_key_env = "OUR_KEY"
timeout = 5
[service.models.feedback]
"""

    def test_entries_and_their_keys(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUR_KEY", "sk-hidden")
        file.write_text(self.FILE)
        settings, sources = gather()
        entry = settings.models["openai:gpt-4.1"]
        assert (entry.base_url, entry.timeout) == ("https://one/v1", 5)
        assert entry.api_key is not None
        assert entry.api_key.get_secret_value() == "sk-hidden"
        assert "sk-hidden" not in repr(settings)
        assert sources["models.openai:gpt-4.1.api_key"] == ValueSource("variable", "OUR_KEY")

    def test_a_variable_names_those_that_are_allowed(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the file says of those that it names still counts."""
        monkeypatch.setenv("OUR_KEY", "sk-hidden")
        monkeypatch.setenv("FAIRQR_SERVICE_MODELS", "openai:gpt-4.1,local:smollm2-135m")
        file.write_text(self.FILE)
        models = service_settings().models
        assert list(models) == ["openai:gpt-4.1", "local:smollm2-135m"]
        assert models["openai:gpt-4.1"].timeout == 5

    @pytest.mark.parametrize(
        ("entry", "words"),
        [
            ("api_key_env = 'NO_SUCH_VARIABLE'", "names a variable that is not set"),
            ("api_key_env = 3", "names a variable that is not set"),
            ("api_key_env = {a = 1}", "names a variable that is not set"),
            ("api_key_env = 'HOME'\napi_key = 'sk-hidden'", "stands beside an api_key"),
            ("base_url = 'sk-hidden'", "base_url is wrong: write it like http"),
            ("api_key = ['sk-hidden']", "api_key is wrong"),
        ],
    )
    def test_what_is_wrong_is_told_without_keys(self, entry: str, words: str, file: Path) -> None:
        file.write_text(f"[service.models.a]\n{entry}\n")
        with pytest.raises(ConfigError, match=words) as caught:
            service_settings()
        assert str(file) in str(caught.value)
        assert "sk-hidden" not in str(caught.value)


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("port = '8080'", "service.port is wrong: Input should be a valid integer; mend it."),
            ("port = 65536", "service.port is wrong"),
            ("host = ''", "service.host is wrong"),
            ("require_keys = 'yes'", "service.require_keys is wrong"),
            ("caps = 3", "service.caps is wrong"),
            ("caps.k = true", "service.caps.k is wrong"),
            ("caps.kk = 1", "service.caps.kk is wrong: there is no such setting"),
            ("grace = nan", "service.grace is wrong"),
            ("lease = 0.5", "service.lease is wrong"),
            ("sources = [3]", r"service\.sources\.0 is wrong"),
            ("grace = 1979-05-27", "service.grace is wrong"),
            ("models = ['a']", "service.models is wrong"),
            ("prompts = ['refine']", "write each as id=version"),
            ("limits.rate = 'fast'", "write a number and a time, such as 600/minute"),
            ("base_urls = ['file:///etc/passwd']", "write it like http"),
        ],
    )
    def test_in_the_file(self, line: str, words: str, file: Path) -> None:
        file.write_text(f"[service]\n{line}\n")
        with pytest.raises(ConfigError, match=words) as caught:
            service_settings()
        assert str(caught.value).startswith(f"In the settings file {file}, ")

    @pytest.mark.parametrize(
        ("name", "value"), [("PORT", "x"), ("CAPS_K", "0"), ("REQUIRE_KEYS", "?"), ("LEASE", "inf")]
    )
    def test_in_a_variable(self, name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(f"FAIRQR_SERVICE_{name}", value)
        with pytest.raises(ConfigError, match=rf"^FAIRQR_SERVICE_{name}: service\..* is wrong"):
            service_settings()

    @pytest.mark.parametrize("given", [{"port": -1}, {"nope": 1}, {"caps": {"k": 0}}])
    def test_in_an_argument(self, given: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=r"^service\..* is wrong"):
            service_settings(**given)
