"""Searches that a recorded model refines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairqr import AnswerContext, Context, FairSearch, open_model
from fairqr.base.errors import ModelUnavailableError
from fairqr.graph.search.context import Method
from fairqr.retrieval.engines.engine import SearchEngine

CONTEXT = Context(
    attributes=("gender",), k=10, target="population:1", ask="always", max_iterations=1
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    groups = {
        "gender=female": {"keywords": ["scholar"], "names": ["Woman 3"]},
        "gender=male": {"keywords": ["filler"], "names": []},
    }
    path = tmp_path / "replies.json"
    path.write_text(json.dumps({"science": {"topic": ["filler"], "groups": groups}}))
    return f"recorded:{path}"


@pytest.mark.parametrize("opened", [False, True], ids=["name", "object"])
async def test_recorded_words_bring_documents_and_cost_nothing(
    engine: SearchEngine, model: str, opened: bool
) -> None:
    """The result names the file."""
    search = FairSearch(engine, open_model(model) if opened else model)
    result = await search.search("science filler", CONTEXT)

    assert (result.model, result.warnings) == ("recorded:replies.json", [])
    words = [refinement.keywords for refinement in result.iterations[1].refinements]
    assert ["scholar"] in words
    assert result.usage.model_calls == result.usage.prompt_tokens == 0
    assert result.usage.cached_calls == len(words) + 1, "one question about the topic"


async def test_a_query_without_replies_is_a_failure(engine: SearchEngine, model: str) -> None:
    result = await FairSearch(engine, model).search("scholar", CONTEXT)
    assert result.stop_reason == "model_failed"
    missing = "The file replies.json has no replies for the query 'scholar'"
    assert any(warning.startswith(missing) for warning in result.warnings)


@pytest.mark.parametrize("method", ["fairqr", "fair-qr"])
async def test_names_alone_are_searched_for_but_by_the_papers_loop(
    engine: SearchEngine,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
) -> None:
    """It adds words to its query, and a name is no word of it."""
    folder = tmp_path / "prompts" / "refine"
    folder.mkdir(parents=True)
    (folder / "names.yaml").write_text(
        "id: refine\nversion: names\ndescription: Names.\ninput_variables: [query, group]\n"
        "output: [names]\nmessages: [{role: user, content: '{query} {group}'}]\n"
    )
    monkeypatch.setenv("FAIRQR_PROMPTS_DIR", str(tmp_path / "prompts"))
    changes = {"prompts": {"refine": "names"}, "groups": "most", "method": method}
    context = CONTEXT.model_copy(update=changes)
    result = await FairSearch(engine, model).search("science", context)
    if method == "fairqr":
        assert result.iterations[1].queries == ["science filler", "Woman 3"]
        assert result.warnings == []
    else:
        assert result.warnings == [
            "The model proposed no single words, and this search adds nothing else."
        ]


async def test_a_recorded_model_answers_nothing(engine: SearchEngine, model: str) -> None:
    with pytest.raises(ModelUnavailableError, match="so it only refines queries; name a chat"):
        await FairSearch(engine, model).answer("science", AnswerContext(attributes=("gender",)))
