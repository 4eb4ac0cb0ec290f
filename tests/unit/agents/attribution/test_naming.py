"""The names of attributors, and opening them."""

from __future__ import annotations

import pytest

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.attribution.opening import ATTRIBUTORS, open_attributor
from fairqr.agents.models.chat import ChatModel
from fairqr.base.errors import InputError, ModelUnavailableError
from tests.integration.model_server import clean_environment

__all__ = ["clean_environment"]

pytestmark = pytest.mark.usefixtures("clean_environment")


class TestNames:
    @pytest.mark.parametrize(
        ("written", "parts"),
        [
            ("overlap", ("overlap", "", None, None)),
            ("transformers:a/b", ("transformers", "a/b", None, None)),
            ("transformers:./f?threshold=0.7", ("transformers", "./f", 0.7, None)),
            ("transformers:a/b?entailment=2&threshold=0.5", ("transformers", "a/b", 0.5, 2)),
            ("llm:local:smollm2-135m", ("llm", "local:smollm2-135m", None, None)),
        ],
    )
    def test_a_name_is_read_and_written(self, written: str, parts: tuple[object, ...]) -> None:
        """What is written is read again as the same."""
        name = AttributorName.parse(written)
        assert (name.kind, name.model, name.threshold, name.entailment) == parts
        assert str(name) == written

    @pytest.mark.parametrize(
        ("written", "words"),
        [
            ("overlap?limit=3", "wrong at limit: Extra inputs are not permitted"),
            ("overlap?threshold=half", "wrong at threshold: Input should be a valid number"),
            ("overlap?threshold=0", "wrong at threshold: Input should be greater than 0"),
            ("overlap?threshold=nan", "wrong at threshold"),
            ("transformers:a?entailment=1.5", "wrong at entailment: Input should be a valid int"),
        ],
    )
    def test_wrong_options_are_refused(self, written: str, words: str) -> None:
        """In one sentence."""
        with pytest.raises(InputError, match=words):
            AttributorName.parse(written)


class TestOpening:
    @pytest.mark.parametrize(
        ("written", "name"),
        [
            ("overlap", "overlap"),
            ("transformers", "transformers:FacebookAI/roberta-large-mnli"),
            ("transformers:org/m", "transformers:org/m"),
            ("llm", "llm:local:smollm2-135m"),
            ("llm:openai:gpt-4o", "llm:openai:gpt-4o"),
        ],
    )
    def test_each_kind_is_opened_by_its_name(self, written: str, name: str) -> None:
        """Its full name stands in results; nothing is loaded yet."""
        assert open_attributor(written).name == name
        assert open_attributor(written, threshold=0.25).name == f"{name}?threshold=0.25"
        both = open_attributor(f"{written}?threshold=0.9", threshold=0.25)
        assert both.name == f"{name}?threshold=0.25"

    def test_a_chat_model_that_is_there_is_used(self) -> None:
        """Unless another is named."""
        chat = ChatModel("openai:mine")
        assert open_attributor("llm", chat=chat).name == "llm:openai:mine"
        assert open_attributor("llm:openai:other", chat=chat).name == "llm:openai:other"

    @pytest.mark.parametrize("written", ["bert", "overlap:x", "", "nli:a/b", "LLM"])
    def test_unknown_names_are_refused_with_the_choices(self, written: str) -> None:
        """All of them."""
        with pytest.raises(InputError, match="There is no attributor") as refused:
            open_attributor(written)
        assert all(choice in str(refused.value) for choice in ATTRIBUTORS)

    def test_other_wrong_words_are_refused(self) -> None:
        """A threshold out of range, an option that does not belong, a chat model misnamed."""
        with pytest.raises(InputError, match="less than or equal to 1"):
            open_attributor("overlap", threshold=1.5)
        with pytest.raises(InputError, match="leave entailment= out"):
            open_attributor("overlap?entailment=1")
        with pytest.raises(ModelUnavailableError):
            open_attributor("llm:nonsense")
