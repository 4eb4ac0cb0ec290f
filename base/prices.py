"""What models cost in money, by the section ``[prices]`` of the settings file.

.. code-block:: toml

    [prices]
    currency = "USD"
    "openai:gpt-5-mini" = { input = 0.25, output = 2.00 }
    "openai:*" = { input = 1.25, output = 10.00 }

Prices are per million tokens. The first pattern that matches a model's name counts. No prices are
built in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from pydantic import BaseModel, Field, ValidationError

from fairqr.base.errors import ConfigError, first_problem, one_line
from fairqr.base.settings import PRICES, file_section

_MODEL = re.compile(r"[\w.-]+:[^\s,()?]+")


class Price(BaseModel, frozen=True, extra="forbid", strict=True, allow_inf_nan=False):
    """What a million tokens of a model cost."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """Return the cost of some tokens."""
        return (input_tokens * self.input + output_tokens * self.output) / 1_000_000


class Prices(BaseModel, frozen=True, strict=True, str_strip_whitespace=True):
    """The price table of the settings file; empty if the file has none."""

    currency: str = Field(min_length=1)
    models: dict[str, Price]

    def price_of(self, model: str) -> Price | None:
        """Return the price of a model, such as ``openai:gpt-5-mini``, or None if it has none."""
        return next((it for name, it in self.models.items() if fnmatchcase(model, name)), None)

    def text_of(self, cost: float) -> str:
        """Return a cost as text, with the currency."""
        return f"{cost:.4g} {self.currency}"


def configured_prices() -> Prices:
    """Return the prices that the settings file gives.

    Raises:
        ConfigError: The section is wrong.
    """
    section, file = file_section(PRICES)
    if not section:
        return Prices.model_construct(currency="", models={})
    models = {name: value for name, value in section.items() if name != "currency"}
    try:
        return Prices.model_validate({"currency": section.get("currency"), "models": models})
    except ValidationError as error:
        place, reason = first_problem(error)
        raise ConfigError(
            f"In the settings file {file}, [{PRICES}] is wrong at {one_line(place, 60)}: {reason}; "
            'write currency = "USD", and { input = 0.25, output = 2.0 } for each model, per '
            "million tokens."
        ) from None


def tokens_text(input_tokens: int, output_tokens: int, models: Iterable[str | None]) -> str:
    """Return what a run cost, as text: ``1200 + 90 tokens (0.0024 USD)``.

    A result does not say which model used which tokens. So money is only stated if every model
    that may have been asked has the same price.

    Args:
        input_tokens: The total over all models.
        output_tokens: The total over all models.
        models: The names of the models, as in results; None stands for a model that was not asked.
    """
    text = f"{input_tokens} + {output_tokens} tokens"
    prices, asked = configured_prices(), [it.removeprefix("llm:") for it in models if it]
    found = {prices.price_of(name) for model in asked for name in _MODEL.findall(model)}
    if len(found) != 1 or (price := found.pop()) is None or not input_tokens + output_tokens:
        return text
    return f"{text} ({prices.text_of(price.of(input_tokens, output_tokens))})"
