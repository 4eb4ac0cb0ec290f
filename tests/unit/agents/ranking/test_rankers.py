"""Opening models that rank, and rankers, by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import open_language_model
from fairqr.agents.ranking.causal import CausalModel
from fairqr.agents.ranking.listwise import ListwiseRanker
from fairqr.agents.ranking.pairwise_ranker import PairwiseRanker
from fairqr.agents.ranking.pointwise import MonoBertRanker, MonoT5Ranker
from fairqr.agents.ranking.rankers import RANKERS, RankerOptions, open_ranker
from fairqr.base.errors import InputError, ModelUnavailableError, PromptError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path))


def test_models_by_their_names() -> None:
    """Nothing is loaded, and no server is asked."""
    causal = open_language_model("causal:org/model:v2")
    assert isinstance(causal, CausalModel)
    assert causal.name == "causal:org/model:v2"
    chat = open_language_model("openai:some-model", cache=False, timeout=3)
    assert isinstance(chat, ChatModel)
    assert chat.name == "openai:some-model"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("causal:", "write it like causal:smollm2-135m"),
        ("causal", "write it like causal:smollm2-135m"),
        ("feedback", "Relevance feedback refines queries; it neither ranks nor writes"),
        ("gpt", "names no provider"),
    ],
)
def test_names_that_are_none(name: str, sentence: str) -> None:
    with pytest.raises(ModelUnavailableError, match=sentence):
        open_language_model(name)


def test_rankers_by_their_names() -> None:
    model = open_language_model("openai:some-model", cache=False)
    kinds = {
        "listwise": ListwiseRanker,
        "pairwise": PairwiseRanker,
        "monot5": MonoT5Ranker,
        "monobert": MonoBertRanker,
    }
    assert set(kinds) == set(RANKERS)
    for name, kind in kinds.items():
        ranker = open_ranker(name, model)
        assert isinstance(ranker, kind)
        assert ranker.name.startswith(f"{name}(")
    named = open_ranker("monobert", options=RankerOptions(weights="org/model"))
    assert named.name == "monobert(org/model)"


def test_what_a_user_can_mend_is_one_sentence() -> None:
    model = open_language_model("openai:some-model", cache=False)
    with pytest.raises(InputError, match="There is no ranker 'bm25'; choose listwise, pairwise"):
        open_ranker("bm25", model)
    with pytest.raises(ModelUnavailableError, match="The ranker listwise asks a language model"):
        open_ranker("listwise")
    with pytest.raises(PromptError, match="pairwise"):
        open_ranker("pairwise", model, options=RankerOptions(versions={"pairwise": "v99"}))
    with pytest.raises(InputError):
        open_ranker("listwise", model, options=RankerOptions(window=1))
