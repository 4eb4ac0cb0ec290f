"""Hindi documents in an embedded index, whose words feedback learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr import FairSearch
from fairqr.retrieval.engines.engine import SearchEngine
from tests.unit.graph.corpora import write_corpus

SCIENTIST = "वैज्ञानिक"
SHE_IS = "महिला"
HE_IS = "पुरुष"
OPTIONS = {"attribute": "gender", "target": "gender=female:0.5,male:0.5", "k": 10, "seed": 0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty men and twenty women of science; the texts of women are longer, so they come late."""
    texts = [("male", f"{SCIENTIST} {HE_IS} भौतिकी")] * 40
    texts += [("female", f"{SCIENTIST} {SHE_IS} भौतिकी " + "विश्वविद्यालय " * 9)] * 20
    people = [{"text": text, "g": gender} for gender, text in texts]
    others = [{"text": "कविता नदी"}] * 100
    documents = [
        {"id": f"{number}", "title": f"व्यक्ति {number}", **document}
        for number, document in enumerate(people + others)
    ]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents)


async def test_feedback_learns_whole_words(engine: SearchEngine) -> None:
    result = await FairSearch(engine, "feedback").search(SCIENTIST, method="fair-qr", **OPTIONS)
    assert result.baseline.exposure["gender"]["female"] == 0

    (refinement, *_) = result.iterations[1].refinements
    assert refinement.group == "female"
    assert set(refinement.keywords) == {SHE_IS, "विश्वविद्यालय", "भौतिकी"}
    assert result.iterations[1].queries[0].split() == [SCIENTIST, *refinement.keywords]
    assert result.iterations[1].exposure["gender"]["female"] == 1
