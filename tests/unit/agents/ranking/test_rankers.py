"""Opening models that rank, and rankers, by their names."""

from __future__ import annotations

import pytest

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.in_process import CausalModel
from fairqr.agents.models.opening import open_generator, open_language_model
from fairqr.agents.ranking.rankers import RANKERS, RankerOptions, open_ranker
from fairqr.base.errors import InputError, ModelUnavailableError, PromptError

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_models_are_opened_by_their_names() -> None:
    """Nothing is loaded, and no server is asked."""
    causal = open_language_model("causal:org/model:v2")
    assert isinstance(causal, CausalModel)
    assert causal.name == "causal:org/model:v2"
    chat = open_language_model("openai:some-model", cache=False, timeout=3)
    assert isinstance(chat, ChatModel)


def test_a_generator_is_the_local_model_or_the_configured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert open_generator(cache=False).name == "local:smollm2-135m"

    monkeypatch.setenv("FAIRQR_MODEL", "openai:mine")

    assert open_generator(cache=False).name == "openai:mine"


def test_rankers_are_opened_by_their_names() -> None:
    """The weights are the authors' own, unless others are named."""
    chat = open_language_model("openai:some-model", cache=False, timeout=3)
    options = RankerOptions(window=8, step=4)
    assert [open_ranker(name, chat, options=options).name for name in RANKERS] == [
        "listwise(openai:some-model, 8/4)",
        "pairwise(openai:some-model, sorting)",
        "monot5(castorini/monot5-base-msmarco)",
        "monobert(castorini/monobert-large-msmarco)",
    ]
    named = open_ranker("monobert", options=RankerOptions(weights="org/model"))
    assert named.name == "monobert(org/model)"


@pytest.mark.parametrize("name", ["causal:", "causal"])
def test_a_name_without_a_model_is_refused(name: str) -> None:
    with pytest.raises(ModelUnavailableError, match="write it like causal:smollm2-135m"):
        open_language_model(name)


def test_what_a_user_can_correct_is_one_sentence() -> None:
    model = open_language_model("openai:some-model", cache=False)
    with pytest.raises(InputError, match="There is no ranker 'bm25'; choose listwise, pairwise"):
        open_ranker("bm25", model)
    with pytest.raises(ModelUnavailableError, match="The ranker listwise asks a language model"):
        open_ranker("listwise")
    with pytest.raises(PromptError, match="pairwise"):
        open_ranker("pairwise", model, options=RankerOptions(versions={"pairwise": "v99"}))
