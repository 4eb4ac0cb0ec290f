"""How the service is set up: arguments over variables over the file over defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import ConfigError
from fairqr.base.settings import ValueSource
from fairqr.graph.service.configuration import (
    FIRST_PARTS,
    ModelEntry,
    ServiceLimits,
    ServiceSettings,
    service_settings,
    service_variables,
    setting_names,
    source_of,
)
from tests.servers.model_server import clean_environment

__all__ = ["clean_environment"]

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def arguments(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a file, of variables and of arguments, which are returned."""
    settings_file.write_text(
        "[service]\nport = 1\nhost = 'a'\ngrace = 3\nlimits = {k = 1, depth = 1}\n"
        "traces = 'runs'\nsources = ['a.source.yaml', '/b.yaml']"
    )
    monkeypatch.setenv("FAIRQR_SERVICE_PORT", "2")
    monkeypatch.setenv("FAIRQR_SERVICE_HOST", "b")
    monkeypatch.setenv("FAIRQR_SERVICE_LIMITS_K", "2")
    return {"port": 3, "limits": {"pairs": 3}}


def test_arguments_win_over_variables_over_the_file(arguments: dict[str, Any]) -> None:
    settings = service_settings(**arguments)
    assert (settings.port, settings.host, settings.grace) == (3, "b", 3.0)
    assert settings.limits == ServiceLimits(k=2, depth=1, pairs=3)


def test_paths_of_the_file_are_relative_to_its_folder(
    arguments: dict[str, Any], settings_file: Path
) -> None:
    settings = service_settings(**arguments)
    assert settings.traces == settings_file.parent / "runs"
    assert settings.sources == (settings_file.parent / "a.source.yaml", Path("/b.yaml"))


def test_each_setting_names_its_source(arguments: dict[str, Any], settings_file: Path) -> None:
    assert source_of("port", arguments) == ValueSource("argument")
    assert source_of("host", arguments) == ValueSource("variable", "FAIRQR_SERVICE_HOST")
    assert source_of("grace", arguments) == ValueSource("file", str(settings_file))
    assert source_of("lease", arguments) == ValueSource()


SETTING_TEXTS: dict[str, str] = {
    "host": "h",
    "database": "sqlite:///x",
    "models": "a:b, feedback",
    "traces": "t",
    "replies": "r",
    "audits": "a",
    "require_keys": "true",
    "port": "0",
    "work": "true",
    "traffic.rate": "5/second",
    "traffic.share": "0.5",
    "log": "json",
    "cors_origins": "https://a.example, *",
    "root_path": "/a",
}
"""What the variable of each setting says; all others say 7."""

SETTING_NUMBERS = {"require_keys": 1, "work": 1, "port": 0, "traffic.share": 0.5}


@pytest.mark.promise("base")
def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting of the service can be set by a variable of its own, and what the variable says
    reaches the setting of its name.
    """
    names = [*setting_names()]
    for variable, name in zip(service_variables(), names, strict=True):
        monkeypatch.setenv(variable, SETTING_TEXTS.get(name, "7"))
    settings = service_settings().model_dump()

    for name in names:
        section, _, key = name.rpartition(".")
        value = (settings[section] if section else settings)[key]
        if isinstance(value, dict | tuple):
            parts = SETTING_TEXTS.get(name, "7").replace(" ", "").split(",")
            assert [*map(str, value)] == parts
        elif isinstance(value, float | int):
            assert float(value) == SETTING_NUMBERS.get(name, 7)
        else:
            assert str(value) == SETTING_TEXTS[name]


@pytest.fixture
def models_in_file(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file that offers two models, one with a key, which a variable holds."""
    monkeypatch.setenv("OUR_KEY", "sk-hidden")
    settings_file.write_text(
        '[service.models."openai:gpt-4.1"]\nbase_url = "https://one/v1"\ntimeout = 5\n'
        'api_key_env = "OUR_KEY"\nextra_body = {chat_template_kwargs = {a = false}}\n'
        "[service.models.feedback]\n"
    )
    return settings_file


def test_the_file_describes_models_and_names_their_keys(models_in_file: Path) -> None:
    settings = service_settings()
    entry = settings.models["openai:gpt-4.1"]
    assert (entry.base_url, entry.timeout) == ("https://one/v1", 5)
    assert entry.extra_body == {"chat_template_kwargs": {"a": False}}
    assert entry.key is not None
    assert entry.key.get_secret_value() == "sk-hidden"
    assert "sk-hidden" not in repr(settings)

    file = ValueSource("file", str(models_in_file))
    assert source_of("models.openai:gpt-4.1.timeout", {}) == file


def test_a_variable_names_models_that_the_file_describes(
    models_in_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = service_settings().models["openai:gpt-4.1"]
    monkeypatch.setenv("FAIRQR_SERVICE_MODELS", "openai:gpt-4.1,local:smollm2-135m")
    models = service_settings().models

    assert list(models) == ["openai:gpt-4.1", "local:smollm2-135m"]
    assert models["openai:gpt-4.1"] == described

    file = ValueSource("file", str(models_in_file))
    variable = ValueSource("variable", "FAIRQR_SERVICE_MODELS")
    assert source_of("models.openai:gpt-4.1.timeout", {}) == file, "where the key is readable"
    assert source_of("models.local:smollm2-135m.timeout", {}) == variable
    assert source_of("models", {}) == variable


def test_a_key_of_the_file_never_goes_to_the_server_of_an_argument(settings_file: Path) -> None:
    """A model that is given replaces the file's entry as a whole, in its place; others stay."""
    settings_file.write_text(
        '[service.models.a]\nbase_url = "http://one/v1"\napi_key = "sk-hidden"\n'
        "[service.models.b]\ntimeout = 5\n"
    )
    models = service_settings(models={"a": {"base_url": "http://other/v1"}}).models

    assert models == {"a": ModelEntry(base_url="http://other/v1"), "b": ModelEntry(timeout=5)}
    assert [*models] == ["a", "b"], "the first one may be the default"
    assert service_settings(models={"a": {}}).models["a"] == ModelEntry()


def test_the_file_takes_the_texts_that_variables_take(settings_file: Path) -> None:
    settings_file.write_text("[service]\nmodels = 'a:b, feedback'\nsources = 'a.yaml, b.yaml'\n")
    folder = settings_file.parent
    settings = service_settings()

    assert settings.models == {"a:b": ModelEntry(), "feedback": ModelEntry()}
    assert settings.sources == (folder / "a.yaml", folder / "b.yaml")


def test_only_variables_of_settings_have_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that holds the key of a model, whatever it is called."""
    for name in ("MODELS_KEY", "CORPORA_X", "LIMITS", "port"):
        monkeypatch.setenv(f"FAIRQR_SERVICE_{name}", "7")
    monkeypatch.setenv("fairqr_service_port", "7")
    monkeypatch.setenv("FAIRQR_SERVICE_PORT", "")

    assert service_settings(host=None, limits=None) == ServiceSettings(port=8080)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("port = 'x'", "service.port is wrong: Input should be a valid integer"),
        ("limits.kk = 1", "service.limits.kk is wrong: there is no such setting"),
        ("sources = [3]", r"service\.sources\.0 is wrong"),
        ("models = ['a']", "service.models is wrong"),
        ("traffic.rate = '0/minute'", "write a number and a time, such as 600/minute"),
        ("models.a.api_key_env = 'sk-hidden'", "write the name of a variable that is set"),
        ("models.a.base_url = 'sk-hidden'", "base_url is wrong: write it like http"),
        ("models.a.extra_body = 3", "extra_body is wrong: write a JSON object such as"),
        ("models.a.extra_body = {stream = true}", "leave out stream, which fairqr sets itself"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_without_secrets(
    line: str, words: str, settings_file: Path
) -> None:
    settings_file.write_text(f"[service]\n{line}\n")
    with pytest.raises(ConfigError, match=words) as refused:
        service_settings()
    assert str(refused.value).startswith(f"In the settings file {settings_file}, ")
    assert "sk-hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("configured", "sent"),
    [
        ("https://example.com:443", "https://example.com"),
        ("http://example.com:80", "http://example.com"),
        ("http://example.com:443", "http://example.com:443"),
        ("HTTPS://Example.COM:8443", "https://example.com:8443"),
        ("http://[::1]:80", "http://[::1]"),
        ("*", "*"),
    ],
)
def test_an_origin_is_one_as_browsers_send_it(configured: str, sent: str) -> None:
    assert service_settings(cors_origins=(configured,)).cors_origins == (sent,)


@pytest.mark.parametrize(
    "origin",
    [
        "https://a.example/",
        "https://a.example/x",
        "https://a.example?x",
        "https://a.example#x",
        "https://*.example",
        "https://me@a.example",
        "https://é.example",
        "https://a b",
        "null",
        "a.example",
        "ftp://a.example",
        "https://",
        "https://a.example:",
        "https://a:99999",
    ],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"service\.cors_origins.* write \* or an origin"):
        service_settings(cors_origins=(origin,))


@pytest.mark.parametrize(
    "path",
    ["/..", "/.", "/a/../b", "/a/..", "//x", "/a//b", "/a/", "/", "a", "/a b", "/%2e%2e"],
)
def test_what_is_no_root_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"service\.root_path is wrong: .* such as /fair"):
        service_settings(root_path=path)


@pytest.mark.parametrize("path", [*(f"/{part}" for part in FIRST_PARTS), "/v1/x", "/page/a"])
def test_a_root_path_that_hides_our_own_paths_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"service\.root_path is wrong: .* such as /fair"):
        service_settings(root_path=path)


@pytest.mark.parametrize("path", ["", "/fair", "/a/v1", "/v1.0", "/a.b/...", "/~me/fair_1"])
def test_other_root_paths_are_taken(path: str) -> None:
    assert service_settings(root_path=path).root_path == path


@pytest.mark.parametrize(
    "arguments", [{"port": -1}, {"nope": 1}, {"limits": {"k": 0}}], ids=["port", "unknown", "limit"]
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^service\..* is wrong"):
        service_settings(**arguments)


@pytest.mark.parametrize(
    ("variable", "fault"), [("LIMITS_K", "is wrong"), ("TRAFFIC_LIFE", "no such setting")]
)
def test_a_wrong_or_misspelled_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, fault: str
) -> None:
    """Whoever misspells a limit thinks that it holds."""
    monkeypatch.setenv(f"FAIRQR_SERVICE_{variable}", "0")
    with pytest.raises(ConfigError, match=f"^FAIRQR_SERVICE_{variable}: .*{fault}"):
        service_settings()
