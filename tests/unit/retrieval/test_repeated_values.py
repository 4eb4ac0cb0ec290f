"""A value that a label repeats counts once, at every door: engines keep distinct values only."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from langchain_core.documents import Document as Passage
from langchain_core.vectorstores import InMemoryVectorStore

import fairqr
from fairqr.graph.integrations.order import Given, fair_list
from fairqr.retrieval.engines.langchain import from_langchain
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.label_files import open_label_store
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Attribute, Schema
from tests.unit.engines import hits_of
from tests.unit.retrieval.embedded import built
from tests.unit.retrieval.vector_encoders import generated

GENDER = Attribute.model_validate(
    {"name": "gender", "field": "sex", "groups": {"female": ["F", "f", "1"], "male": ["M", "0"]}}
)
SCHEMA = Schema(attributes={"gender": GENDER})
HALVES = [0.5, 0.5]
REPEATED: list[Any] = [
    ["F", "F", "M"],
    [["F"], ["F", "M"]],
    ("M", "F", "M", "M"),
    np.array(["F", "F", "M"]),
    [1, 1.0, "1", 0],
    [{"F": 1}, {"F": 1}, {"M": 1}],
    pandas.Series(["F", "M", "F"]),
]


@pytest.mark.parametrize("label", REPEATED)
async def test_a_repeated_value_counts_once(tmp_path: Path, label: Any) -> None:
    assert GENDER.membership(label) == (0.5, 0.5)
    fields = await LabelReader.open({"gender": GENDER}, tmp_path, store=tmp_path / "kept")
    assert fields.memberships("a", {"gender": [label]})["gender"].tolist() == [HALVES]


def test_two_values_of_one_group_count_as_two() -> None:
    """As in an engine, which keeps the values and does not know the groups."""
    assert GENDER.membership(["F", "f", "M"]) == pytest.approx((2 / 3, 1 / 3))
    assert GENDER.membership({"F": 2, "M": 1}) == pytest.approx((2 / 3, 1 / 3))
    assert GENDER.membership(["F", "F", "x", "x"], strict=False) == (0.5, 0)


def test_in_a_file_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps({"id": "a", "gender": ["F", "F", "M"]}))
    attribute = GENDER.model_copy(update={"field": "", "labels": str(path)})
    store = open_label_store(path, attribute, tmp_path / "kept", None, threading.Event())
    assert store.memberships(["a"]).tolist() == [HALVES]


async def test_in_an_index_of_our_own(tmp_path: Path) -> None:
    repeated = Document("a", "tennis", "tennis", {"gender": ["female", "female", "male"]})
    engine = built(tmp_path / "v1", [*generated(5), repeated])
    hits = await hits_of(engine, "tennis", 1)
    assert hits.ids == ["a"]
    assert hits.memberships["gender"].tolist() == [HALVES]


async def test_in_the_metadata_of_a_vector_store() -> None:
    from langchain_core.embeddings import DeterministicFakeEmbedding

    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Passage(id="a", page_content="tennis", metadata={"sex": ["F", "F", "M"]})])
    engine = from_langchain(store, schema=SCHEMA)
    assert (await hits_of(engine, "tennis", 1)).memberships["gender"].tolist() == [HALVES]


async def test_in_a_list_to_re_rank(tmp_path: Path) -> None:
    engine = built(tmp_path / "v1", generated(5))
    labels: list[Any] = [["female", "female", "male"], "male"]
    listed = [
        Given(place, "", "tennis", "", lambda _, label=label: label)  # type: ignore[misc]
        for place, label in enumerate(labels)
    ]
    context = fairqr.Context(k=2, attributes=("gender",))
    _, hits, _ = await fair_list(engine, context, "tennis", listed, None)

    assert hits.memberships["gender"].tolist() == [HALVES, [0, 1]]


def test_in_the_groups_of_an_evaluation() -> None:
    run = {"q": {"a": 2.0, "b": 1.0}}
    shares = [
        fairqr.evaluate(
            run,
            {"q": {"a": 1}},
            "AWRF@2",
            groups={"a": label, "b": "M"},
            target="relevance:0.5,uniform:0.5",
        ).by_group
        for label in (["F", "F", "M"], ["F", "M"])
    ]

    assert shares[0] == shares[1]
