"""What an engine says for keywords."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.texts.evidence import Evidence, Proposal, gather_evidence


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    """Ten physicists and ninety others; one person in five is a woman."""
    (tmp_path / "schema.yaml").write_text(
        "attributes:\n"
        "  gender: {field: g, groups: [female, male]}\n"
        "  place: {field: p, groups: [north, south]}\n"
    )
    lines = []
    for i in range(100):
        topic = "physicist atom" if i < 10 else "painter canvas"
        gender = "female" if i % 5 == 0 else "male"
        text = f"{topic} {'she' if gender == 'female' else 'he'} person"
        lines.append(
            {"id": f"d{i:02}", "text": text, "g": gender, "p": "north" if i % 2 else "south"}
        )
    path = tmp_path / "people.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    engine = await Catalog(tmp_path / "data").resolve(str(path))
    yield engine
    await engine.aclose()


async def searched(engine: SearchEngine, query: str, boost: str = "") -> Hits:
    (hits,) = await engine.search([Query(query, 100, boost=boost)])
    return hits


async def evidence(
    engine: SearchEngine, keywords: list[str], dimension: Dimension, group: str
) -> list[Evidence]:
    """The evidence for keywords beside the query "physicist"."""
    results = (await searched(engine, "physicist")).ids[:50]
    shares = await engine.corpus_shares()
    proposals = [Proposal(dimension, group, keywords)]
    (found,) = await gather_evidence(engine, "physicist", results, proposals, shares)
    return found


async def test_worked_lifts(engine: SearchEngine) -> None:
    gender = Dimension.named(engine.schema, "gender")
    words = ["atom", "she", "canvas", "person", "nowhere"]
    found = dict(zip(words, await evidence(engine, words, gender, "female"), strict=True))
    # All ten results have it, and ten documents of a hundred: ten times as often.
    assert found["atom"].topic_lift == pytest.approx(10)
    assert found["atom"].group_odds == pytest.approx(1)
    # A fifth of the results and of the corpus; all of its documents are of the group.
    assert found["she"].topic_lift == pytest.approx(1)
    assert found["she"].group_odds == math.inf
    assert found["canvas"].topic_lift == 0
    assert found["person"].topic_lift == pytest.approx(1)
    assert found["nowhere"].documents == 0
    assert [w for w in words if found[w].is_of_the_topic] == ["atom"]
    assert [w for w in words if found[w].is_of_the_group] == ["she"]


async def test_a_product_of_attributes_is_compared_with_independent_shares(
    engine: SearchEngine,
) -> None:
    (both,) = dimensions_of(engine.schema, ["gender", "place"], intersect=True)
    shares = dict(
        zip(both.groups, both.independent_shares(await engine.corpus_shares()), strict=True)
    )
    assert shares["female × north"] == pytest.approx(0.2 * 0.5)
    (she,) = await evidence(engine, ["she"], both, "female × north")
    assert she.group_odds == pytest.approx((0.5 / 0.5) / (0.1 / 0.9))


async def test_boosting_words_never_make_a_document_a_result(engine: SearchEngine) -> None:
    plain = await searched(engine, "physicist")
    boosted = await searched(engine, "physicist", "she canvas")
    assert set(boosted.ids) == set(plain.ids)
    assert boosted.ids[:2] == ["d00", "d05"]
    assert boosted.scores[0] > plain.scores[0]


async def test_a_keyword_of_several_words_is_of_the_topic_only_if_each_of_them_is(
    engine: SearchEngine,
) -> None:
    """And the words of the query itself vouch for nothing."""
    gender = Dimension.named(engine.schema, "gender")
    keywords = ["atom canvas", "atom person", "physicist-canvas", "physicist atom", "physicist"]
    found = await evidence(engine, keywords, gender, "female")
    assert [one.is_of_the_topic for one in found] == [False, False, False, True, False]
    assert [one.documents for one in found] == [0, 10, 0, 10, 10]


async def test_words_of_a_large_group_are_known_too(engine: SearchEngine) -> None:
    """Four in five are men, so that no word's documents could be 1.5 times as often of men."""
    gender = Dimension.named(engine.schema, "gender")
    he, person = await evidence(engine, ["he", "person"], gender, "male")
    assert he.is_of_the_group
    assert person.group_odds == pytest.approx(1)
    assert not person.is_of_the_group


async def test_the_keywords_of_several_groups_are_asked_about_at_once(
    engine: SearchEngine,
) -> None:
    asked: list[int] = []

    class Counting:
        capabilities = engine.capabilities
        schema = engine.schema

        async def search(self, queries: list[Query]) -> list[Hits]:
            asked.append(len(queries))
            return await engine.search(queries)

    gender = Dimension.named(engine.schema, "gender")
    proposals = [Proposal(gender, "female", ["she", "atom"]), Proposal(gender, "male", ["he"])]
    results = (await searched(engine, "physicist")).ids
    found = await gather_evidence(
        Counting(),  # type: ignore[arg-type]
        "physicist",
        results,
        proposals,
        await engine.corpus_shares(),
    )
    assert [len(of_group) for of_group in found] == [2, 1]
    assert len(asked) == 1
