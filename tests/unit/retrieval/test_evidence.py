"""What an index says for keywords."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.dimension import Dimension, dimensions_of
from fairqr.retrieval.evidence import gather_evidence
from fairqr.retrieval.index import Index


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[Index]:
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
    index = await Catalog(tmp_path / "data").resolve(str(path))
    yield index
    await index.close()


async def test_worked_lifts(index: Index) -> None:
    results = (await index.search("physicist", 50)).ids
    gender = Dimension.named(index.schema, "gender")
    words = ["atom", "she", "canvas", "person", "nowhere"]
    found = dict(
        zip(
            words,
            await gather_evidence(index, "physicist", results, words, gender, "female"),
            strict=True,
        )
    )
    # All ten results have it, and ten documents of a hundred: ten times as often.
    assert found["atom"].topic_lift == pytest.approx(10)
    assert found["atom"].group_odds == pytest.approx(1)
    # A fifth of the results and of the corpus; all of its documents are of the group.
    assert found["she"].topic_lift == pytest.approx(1)
    assert found["she"].group_odds == math.inf
    assert found["canvas"].topic_lift == 0
    assert found["person"].topic_lift == pytest.approx(1)
    assert found["nowhere"].documents == 0
    assert [w for w in words if found[w].is_of_the_topic()] == ["atom"]
    assert [w for w in words if found[w].is_of_the_group()] == ["she"]


async def test_a_product_of_attributes_is_compared_with_independent_shares(index: Index) -> None:
    (both,) = dimensions_of(index.schema, ["gender", "place"], intersect=True)
    shares = dict(zip(both.groups, await both.independent_shares(index), strict=True))
    assert shares["female × north"] == pytest.approx(0.2 * 0.5)
    results = (await index.search("physicist", 50)).ids
    (she,) = await gather_evidence(index, "physicist", results, ["she"], both, "female × north")
    assert she.group_odds == pytest.approx((0.5 / 0.5) / (0.1 / 0.9))


async def test_boosting_words_never_make_a_document_a_result(index: Index) -> None:
    plain = await index.search("physicist", 100)
    boosted = await index.search("physicist", 100, boost="she canvas")
    assert set(boosted.ids) == set(plain.ids)
    assert boosted.ids[:2] == ["d00", "d05"]
    assert boosted.scores[0] > plain.scores[0]


async def test_a_keyword_of_several_words_is_of_the_topic_only_if_each_of_them_is(
    index: Index,
) -> None:
    """And the words of the query itself vouch for nothing."""
    results = (await index.search("physicist", 50)).ids
    gender = Dimension.named(index.schema, "gender")
    keywords = ["atom canvas", "atom person", "physicist-canvas", "physicist atom", "physicist"]
    found = await gather_evidence(index, "physicist", results, keywords, gender, "female")
    assert [evidence.is_of_the_topic() for evidence in found] == [False, False, False, True, False]
    assert [evidence.documents for evidence in found] == [0, 10, 0, 10, 10]


async def test_words_of_a_large_group_are_known_too(index: Index) -> None:
    """Four in five are men, so that no word's documents could be 1.5 times as often of men."""
    results = (await index.search("physicist", 50)).ids
    gender = Dimension.named(index.schema, "gender")
    he, person = await gather_evidence(
        index, "physicist", results, ["he", "person"], gender, "male"
    )
    assert he.is_of_the_group()
    assert person.group_odds == pytest.approx(1)
    assert not person.is_of_the_group()
