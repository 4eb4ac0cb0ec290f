"""Labels and targets of whole collections: from the corpus, from an engine, and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import TargetError, UnknownAttributeError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection, import_collection
from fairqr.evaluation.collections.labels import (
    scan_corpus,
)
from fairqr.evaluation.collections.query_targets import query_targets
from fairqr.evaluation.collections.statistics import describe_collection
from tests.unit.evaluation.collections.official import write_2021, write_2022


@pytest.fixture
def fair22(tmp_path: Path) -> Collection:
    import_collection("trec-fair-2022", [write_2022(tmp_path / "raw")], "fair22", data=tmp_path)
    return find_collection("fair22", "train", data=tmp_path)


@pytest.fixture
def fair21(tmp_path: Path) -> Collection:
    import_collection("trec-fair-2021", [write_2021(tmp_path / "raw")], "fair21", data=tmp_path)
    return find_collection("fair21", "train", data=tmp_path)


def test_a_scan_keeps_what_was_asked_for(fair22: Collection) -> None:
    """The unknown is explicit, labels are shared out, and what is not there is all zeros."""
    told: list[int] = []
    scan = scan_corpus(fair22.corpus, ["39", "12", "999"], progress=told.append)
    assert (scan.documents, told) == (4, [4])
    assert scan.known(["39", "999"]) == ["39"]
    gender = scan.memberships("gender", ["39", "999", "12"], "group")
    np.testing.assert_allclose(gender, [[0.5, 0.5, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert scan.memberships("gender", ["39"]).shape == (1, 3)
    source = scan.memberships("source_geography", ["39"], "group")[0]
    assert source[-1] == 0.25
    # Of four documents one is a woman, one half a woman and half a man, one neither, one unknown.
    np.testing.assert_allclose(scan.shares["gender"], [1.5 / 4, 0.5 / 4, 1 / 4, 1 / 4])
    with pytest.raises(UnknownAttributeError):
        scan.memberships("age", ["12"])
    assert scan_corpus(fair22.corpus, []).memberships("gender", ["12"]).tolist() == [[0] * 3]


def test_the_tracks_targets(fair22: Collection) -> None:
    """Topic 84 has a woman, a person of another gender, and a page that is not there."""
    labels = scan_corpus(fair22.corpus, fair22.relevant_documents())
    found = query_targets(fair22, labels, "gender")
    assert found.dimension.groups == ("female", "male", "non-binary", "unknown")
    np.testing.assert_allclose(found.targets["84"], [0.4975, 0.2475, 0.255, 0])
    # Topic 265: one page half woman, half man, and one of which nothing is known.
    np.testing.assert_allclose(
        found.targets["265"], [0.125 + 0.12375, 0.125 + 0.12375, 0.0025, 0.5]
    )


def test_targets_of_a_product_name_their_cells(fair22: Collection) -> None:
    """The partly unknown are cells of their own, in the order of the dimension's groups."""
    labels = scan_corpus(fair22.corpus, fair22.relevant_documents())
    found = query_targets(fair22, labels, "gender×geography")
    named = dict(zip(found.dimension.groups, found.targets["265"], strict=True))
    assert sum(named.values()) == pytest.approx(1)
    assert named["unknown × unknown"] == pytest.approx(0.5)
    # Half of the known half by the page, Oceania two thirds of it; half by the populations.
    oceania = 0.0053481371
    assert named["female × Oceania"] == pytest.approx(0.25 / 3 + 0.25 * 0.495 * oceania, rel=1e-6)
    # Of the two pages of topic 84 one has no region, and no other gender: a block of its own.
    other = dict(zip(found.dimension.groups, found.targets["84"], strict=True))
    assert other["non-binary × unknown"] == pytest.approx(0.25 + 0.25 * 0.01)
    assert other["male × unknown"] == pytest.approx(0.25 * 0.495)
    # And the exposure is measured in the same cells.
    members = labels.in_dimension(found.dimension, ["307", "999"])
    assert members.shape == (2, len(found.dimension.groups))
    assert members[0, found.dimension.groups.index("non-binary × unknown")] == 1
    assert not members[1].any()


def test_the_target_of_2021_leaves_the_unknown_out(fair21: Collection) -> None:
    """One page of Africa and Europe, one of nowhere: the second does not count."""
    labels = scan_corpus(fair21.corpus, fair21.relevant_documents())
    found = query_targets(fair21, labels, "geography")
    assert "unknown" not in found.dimension.groups
    target = dict(zip(found.dimension.groups, found.targets["1"], strict=True))
    assert target["Africa"] == pytest.approx(0.25 + 0.155070563 / 2, abs=1e-8)
    assert target["Asia"] == pytest.approx(0.600202585 / 2, abs=1e-8)
    product = query_targets(fair21, labels, "gender×geography")
    cells = dict(zip(product.dimension.groups, product.targets["1"], strict=True))
    assert cells["unknown × unknown"] == 0
    assert sum(cells.values()) == pytest.approx(1)


def test_a_target_that_needs_a_population_says_so(tmp_path: Path) -> None:
    """Where the schema gives none."""
    for name, content in {
        "documents.jsonl": '{"id": 1, "title": "x", "a": "b"}',
        "schema.yaml": "attributes: {a: {field: a, groups: [b, c]}}",
        "topics.jsonl": '{"id": 1, "title": "x"}',
        "qrels.txt": "1 0 1 1",
    }.items():
        (tmp_path / name).write_text(content)
    collection = find_collection(tmp_path)
    labels = scan_corpus(collection.corpus, ["1"])
    # The track's own target keeps the relevant documents' shares of such an attribute.
    assert query_targets(collection, labels, "a", "trec2022").targets["1"].tolist() == [1, 0, 0]
    with pytest.raises(TargetError, match="no population for 'a'"):
        query_targets(collection, labels, "a")
    with pytest.raises(UnknownAttributeError):
        query_targets(collection, labels, "a×d")
    statistics = describe_collection(collection)["attributes"]["a"]
    assert statistics["target"] is None
    assert "no population for 'a'" in statistics["no_target"]


def test_what_a_collection_holds(fair22: Collection) -> None:
    """Counted by hand over the small files."""
    found = describe_collection(fair22)
    assert (found["documents"], found["topics"], found["judgements"]) == (4, 2, 5)
    assert found["relevant"] == (2, 2.5, 3)
    assert (found["relevant_documents"], found["missing_documents"]) == (4, 1)
    gender = found["attributes"]["gender"]
    assert gender["labelled"] == 3
    assert sum(gender["corpus"].values()) == pytest.approx(1)
    assert gender["relevant"] == pytest.approx(
        {"female": 0.375, "male": 0.125, "non-binary": 0.25, "unknown": 0.25}
    )
    assert gender["target_topics"] == 2
    assert gender["target"] is not None
    assert gender["target"]["unknown"] == pytest.approx(0.25)
