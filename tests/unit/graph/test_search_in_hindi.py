"""Hindi documents in an embedded index: the loop with keywords of feedback and of a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr import FairSearch
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.refiner import FeedbackRefiner, LLMRefiner
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.documents import Document
from tests.integration.model_server import ModelServer, clean_environment, model_server, says
from tests.unit.retrieval.embedded import built

__all__ = ["clean_environment", "model_server"]

SCIENTIST, SHE_IS, HE_IS = "वैज्ञानिक", "महिला", "पुरुष"
OPTIONS = {"attribute": "gender", "target": "gender=female:0.5,male:0.5", "k": 10, "seed": 0}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    """Forty men and twenty women of science; the texts of women are longer, so they come late."""
    men = [
        Document(f"m{i:02}", f"व्यक्ति {i}", f"{SCIENTIST} {HE_IS} भौतिकी", {"gender": "male"})
        for i in range(40)
    ]
    women = [
        Document(
            f"w{i:02}",
            f"व्यक्ति {i}",
            f"{SCIENTIST} {SHE_IS} भौतिकी " + "विश्वविद्यालय " * 9,
            {"gender": "female"},
        )
        for i in range(20)
    ]
    others = [Document(f"x{i}", "", "कविता नदी") for i in range(100)]
    engine = built(tmp_path / "index", [*men, *women, *others])
    yield engine
    await engine.aclose()


async def test_feedback_learns_whole_words(engine: SearchEngine) -> None:
    search = FairSearch(engine, FeedbackRefiner(engine))
    result = await search.search(SCIENTIST, method="fair-qr", **OPTIONS)
    assert result.baseline.exposure["gender"]["female"] == 0
    (refinement, *_) = result.iterations[1].refinements
    assert refinement.group == "female"
    assert set(refinement.keywords) == {SHE_IS, "विश्वविद्यालय", "भौतिकी"}
    assert result.iterations[1].queries[0].split() == [SCIENTIST, *refinement.keywords]
    assert result.iterations[1].exposure["gender"]["female"] == 1


async def test_a_models_keywords_are_kept_shown_and_weighed_whole(
    engine: SearchEngine, model_server: ModelServer
) -> None:
    reply = {"reason": "", "topic": ["भौतिकी"], "keywords": [SCIENTIST, SHE_IS], "drop": []}
    model_server.does(says(reply))
    model = ChatModel("openai:fake", base_url=model_server.base_url, timeout=10)
    search = FairSearch(engine, LLMRefiner(model, PromptLibrary().get("refine", "v1")))
    result = await search.search(SCIENTIST, ask="always", **OPTIONS)
    kept = [r for r in result.iterations[1].refinements if r.group == "female"]
    assert [list(refinement.keywords) for refinement in kept] == [["भौतिकी", SHE_IS]]
    assert any(SHE_IS in query.split() for query in result.iterations[1].queries)
    assert result.exposure["gender"]["female"] == pytest.approx(0.5, abs=0.07)
