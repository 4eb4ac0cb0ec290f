"""What identifies a model at its provider."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.provider import options_as_data, variables_of


def test_options_are_data_without_keys() -> None:
    options = {
        "reasoning_effort": "low",
        "logit_bias": {7: -1},
        "stop": ("a", "b"),
        "api_key": SecretStr("hidden"),
        "anthropic_api_key": "hidden",
        "timeout": 3,
        "callbacks": [object()],
    }
    data = options_as_data(options)
    assert data == {"reasoning_effort": "low", "logit_bias": {"7": -1}, "stop": ["a", "b"]}
    assert "hidden" not in json.dumps(data)


def test_an_option_that_is_not_data_equals_no_other() -> None:
    """Such as an HTTP client, which may lead anywhere; a secret is not shown."""
    client = object()
    one, two = options_as_data({"http_client": client}), options_as_data({"http_client": client})
    assert one != two
    assert "hidden" not in json.dumps(options_as_data({"token": SecretStr("hidden")}))


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("anthropic", "ANTHROPIC_BASE_URL"),
        ("ollama", "OLLAMA_HOST"),
        ("mistralai", "MISTRAL_BASE_URL"),
        ("azure_openai", "AZURE_OPENAI_ENDPOINT"),
        ("azure_openai", "OPENAI_API_VERSION"),
    ],
)
def test_the_address_in_the_environment_counts(
    provider: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider's client takes it from there; keys stay out."""
    monkeypatch.setenv(variable, "http://one")
    monkeypatch.setenv(variable.split("_")[0] + "_API_KEY", "hidden")
    found = variables_of(provider)
    assert found[variable] == "http://one"
    assert "hidden" not in found.values()
    assert variables_of("local") == {}


def test_of_openai_only_the_address_that_is_used_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was given or comes from the environment."""
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(variable, raising=False)

    def identity(base_url: str | None) -> object:
        return ChatModel("openai:x", base_url=base_url).fingerprint

    given = identity("http://one/v1")
    assert given != identity(None)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one/v1")
    assert identity(None) == given
    assert identity("http://two/v1") != given
