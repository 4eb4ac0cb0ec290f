"""Prices: from the settings file alone, and stated only where they are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import ConfigError
from fairqr.base.prices import configured_prices, tokens_text

TABLE = """
[prices]
currency = "EUR"
"openai:gpt-5-mini" = { input = 0.25, output = 2 }
"openai:*" = { input = 1.0, output = 10.0 }
"local:*" = { input = 0, output = 0 }
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "fairqr.toml"
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))

    def written(text: str) -> None:
        file.write_text(text)

    return written


def test_no_prices_are_built_in(settings: Any) -> None:
    settings('model = "openai:gpt-5-mini"\n')
    assert configured_prices().models == {}
    assert tokens_text(1_000_000, 0, ["openai:gpt-5-mini"]) == "1000000 + 0 tokens"


@pytest.mark.parametrize(
    ("models", "money"),
    [
        (["openai:gpt-5-mini"], " (0.0045 EUR)"),
        (["openai:gpt-5-mini", None, "listwise(openai:gpt-5-mini, 20/10)"], " (0.0045 EUR)"),
        (["openai:x", "llm:openai:x?threshold=0.5"], " (0.022 EUR)"),
        (["feedback", "openai:x"], " (0.022 EUR)"),
        (["local:smollm2-135m"], " (0 EUR)"),
        (["openai:gpt-5-mini", "openai:x"], ""),
        (["openai:x", "anthropic:x"], ""),
        ([None], ""),
    ],
)
def test_money_is_stated_where_every_token_has_one_price(
    settings: Any, models: list[str | None], money: str
) -> None:
    settings(TABLE)
    assert tokens_text(2000, 2000, models) == f"2000 + 2000 tokens{money}"
    assert tokens_text(0, 0, models) == "0 + 0 tokens"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('"a:b" = { input = 1, output = 1 }', "needs a currency"),
        ('currency = 3\n"a:b" = { input = 1, output = 1 }', "needs a currency"),
        ('currency = "USD"\n"a:b" = 3', "'a:b' is wrong: "),
        ('currency = "USD"\n"a:b" = { input = 1 }', "'a:b.output' is wrong: "),
        ('currency = "USD"\n"a:b" = { input = -1, output = 1 }', "'a:b.input' is wrong: "),
        ('currency = "USD"\n"a:b" = { input = "1", output = 1 }', "'a:b.input' is wrong: "),
        ('currency = "USD"\n"a:b" = { input = 1, output = 1, per = 1 }', "'a:b.per' is wrong: "),
    ],
)
def test_a_wrong_table_is_one_sentence(settings: Any, table: str, words: str) -> None:
    settings(f"[prices]\n{table}\n")
    with pytest.raises(ConfigError) as caught:
        configured_prices()
    assert words in str(caught.value)
    assert "[prices]" in str(caught.value)
    assert "\n" not in str(caught.value)
