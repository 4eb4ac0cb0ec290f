"""What a search says of how relevant its documents are, also where nothing fits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairqr import FairSearch
from fairqr.cli.render import result_lines
from fairqr.graph.search.explanation import fit_of
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.answerable import Answerability
from fairqr.retrieval.fairness.relevance import CALIBRATED, Calibrations
from tests.unit.graph.corpora import KnownRefiner, indexed
from tests.unit.retrieval.vector_encoders import CountingEncoder

CERTAIN = Answerability(intercept=50.0)
DOUBTFUL = Answerability(intercept=-3.0)
CHANCE = DOUBTFUL.probability(0, 0)


def people() -> list[dict[str, str]]:
    """Thirty men and ten women in science, and two hundred women in music."""
    kinds = (
        ("m{:02}", "science physics atom", "male", 30),
        ("w{:02}", "science physics atom g{}", "female", 10),
        ("s{:03}", "opera voice h{} stage", "female", 200),
    )
    return [
        {"id": id_.format(i), "title": f"Person {i}", "text": text.format(i), "g": gender}
        for id_, text, gender, count in kinds
        for i in range(count)
    ]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[HybridEngine]:
    words = await indexed(tmp_path, people())
    assert isinstance(words, TantivyEngine)
    engine = await HybridEngine.open(words, CountingEncoder(dimensions=64))
    yield engine
    await engine.aclose()


async def search(engine: HybridEngine, answerable: Answerability, **context: Any) -> SearchResult:
    """Search as if a query were as likely to be answerable as this says."""
    fits = [replace(fit, answerable=answerable) for fit in CALIBRATED]
    engine.calibrations = Calibrations(*fits)
    search_ = FairSearch(engine, KnownRefiner(["opera"]))
    options = {"attribute": "gender", "k": 10, "method": "fairqr", **context}
    return await search_.search("science physics atom", **options)


def estimates(result: SearchResult) -> list[float]:
    return [place.relevance or 0.0 for place in result.ranking]


@pytest.mark.parametrize(
    "context",
    [
        {"ask": "never"},
        {"ask": "never", "order": "engine"},
        {"ask": "always"},
        {"ask": "always", "word_weights": {"topic": 1, "group": 1}},
        {"ask": "never", "target": "gender=female:0.5,male:0.5"},
    ],
    ids=str,
)
async def test_a_doubtful_query_only_lowers_probabilities(
    engine: HybridEngine, context: dict[str, Any]
) -> None:
    sure = await search(engine, CERTAIN, **context)
    doubtful = await search(engine, DOUBTFUL, **context)
    assert [place.id for place in doubtful.ranking] == [place.id for place in sure.ranking]
    assert doubtful.objective == sure.objective
    assert doubtful.baseline.objective == sure.baseline.objective
    assert doubtful.stop_reason == sure.stop_reason
    expected = [CHANCE * probability for probability in estimates(sure)]
    assert estimates(doubtful) == pytest.approx(expected)
    assert doubtful.relevance == pytest.approx(CHANCE * (sure.relevance or 0))
    for place, other in zip(doubtful.ranking, sure.ranking, strict=True):
        by_query = {kind: CHANCE * value for kind, value in other.evidence.items()}
        assert place.evidence == pytest.approx(by_query)


async def test_what_is_not_likely_to_be_relevant_is_not_attainable(engine: HybridEngine) -> None:
    sure = await search(engine, CERTAIN, ask="never")
    doubtful = await search(engine, DOUBTFUL, ask="never")
    assert sure.attainable is not None
    assert doubtful.attainable is not None
    assert sure.attainable["gender"]["female"] > 0
    assert not any(doubtful.attainable["gender"].values())


async def test_the_first_sentence_says_how_relevant_the_documents_are(
    engine: HybridEngine,
) -> None:
    doubtful = await search(engine, DOUBTFUL, ask="never")
    best = max(estimates(doubtful))
    none = f"None of these is likely to fit: the best has a probability of {best:.0%}."
    assert (doubtful.explanation[0], fit_of(doubtful)) == (none, none)
    assert shown(doubtful)[0] == none
    sure = await search(engine, CERTAIN, ask="never")
    some = f"Of these 10, about {round(sum(estimates(sure)))} are likely to be relevant."
    assert (sure.explanation[0], shown(sure)[0]) == (some, some)
    # Nor does it stand there twice.
    assert shown(sure, verbose=True).count(some) == 1
    one = sure.model_copy(update={"ranking": sure.ranking[:1]})
    chance = f"{estimates(sure)[0]:.0%}"
    assert fit_of(one) == f"This document has a probability of {chance} to be relevant."
    unknown = [place.model_copy(update={"relevance": None}) for place in sure.ranking]
    assert fit_of(sure.model_copy(update={"ranking": unknown})) == ""


def shown(result: SearchResult, *, verbose: bool = False) -> list[str]:
    """Return the lines of the command."""
    console = Console(file=StringIO(), width=200)
    for line in result_lines(result, {}, verbose=verbose):
        console.print(line)
    stream = console.file
    assert isinstance(stream, StringIO)
    return stream.getvalue().splitlines()
