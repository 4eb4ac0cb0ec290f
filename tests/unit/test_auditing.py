"""``fairqr.audit``: every form of queries, what it returns, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fairqr
from fairqr.auditing import audit_spec
from fairqr.base.errors import InputError, TargetError
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from tests.patience import PATIENCE
from tests.unit.retrieval.embedded import built

WORDS = ("apple", "birch", "cedar", "daisy", "elder", "fennel", "grape", "hazel")
ROWS = [{"query": word, "id": word, "asks": n} for n, word in enumerate(WORDS, start=1)]
OPTIONS: dict[str, Any] = {"attribute": "gender", "k": 4, "depth": 30, "target": "uniform:1"}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> TantivyEngine:
    documents = [
        Document(f"{word}{number:02}", "", " ".join([word] * (2 + (number < 10))), {"gender": who})
        for word in WORDS
        for number, who in enumerate(["male"] * 10 + ["female"] * 10)
    ]
    return built(tmp_path_factory.mktemp("people") / "v1", documents)


@pytest.fixture
def engine(people: TantivyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TantivyEngine:
    """For each word, ten documents of women behind ten of men; nothing reads texts."""
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    return people


async def test_every_form_of_queries_gives_the_same_figures(engine: TantivyEngine) -> None:
    by_rows = await fairqr.audit(engine, ROWS, **OPTIONS)
    by_table = await fairqr.audit(engine, pd.DataFrame(ROWS), **OPTIONS)
    by_texts = await fairqr.audit(engine, WORDS, **OPTIONS)

    assert by_rows.figures.counts.answered == len(WORDS)
    frame = by_rows.to_frame()
    pd.testing.assert_frame_equal(by_table.to_frame(), frame)
    assert by_texts.to_frame()["exposure"].tolist() == frame["exposure"].tolist() == [0, 1]
    assert frame["verdict"].tolist() == ["less", "more"]


async def test_a_column_has_the_weights_of_queries(engine: TantivyEngine) -> None:
    audit = await fairqr.audit(engine, ROWS, weight="asks", **OPTIONS)

    assert [query.weight for query in audit.queries.queries] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["attribute", "attributes"])
def test_one_attribute_needs_no_list(name: str) -> None:
    assert audit_spec({name: "gender"}) == AuditSpec(attributes=("gender",))


def clicked_searches() -> list[dict[str, Any]]:
    """Searches and their clicks: on the first rank by all, on the second by half of the users.

    Each list is turned around.
    """
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    for number in range(400):
        ids = ["a", "b"] if number // 40 % 2 else ["b", "a"]
        search = {"query_id": f"{number}", "user_query": f"q{number % 40}"}
        rows.append({**search, "query_response_hit_ids": ids})
        rows.append({"query_id": f"{number}", "document": ids[0]})
        if rng.random() < 0.5:
            rows.append({"query_id": f"{number}", "document": ids[1]})
    return rows


@pytest.mark.promise("service")
async def test_clicks_give_the_discount(engine: TantivyEngine, tmp_path: Path) -> None:
    """Clicks of users give the discount of an audit, in Python."""
    rows = clicked_searches()
    audit = await fairqr.audit(engine, WORDS, clicks=rows, folder=tmp_path / "out", **OPTIONS)

    examined = audit.clicks.examination if audit.clicks else None
    assert examined is not None
    assert examined.values == pytest.approx((1, 0.5), abs=0.1)
    assert str(audit.spec.discount) == f"weights(1, {examined.values[1]})"
    assert (audit.spec.k, examined.by) == (2, "regression")  # clicks say nothing of rank 3
    sentence = f"Attention by rank is not log2, but what {examined.clicks} clicks of 400 searches"
    assert f"{sentence} show" in "\n".join(audit.findings)
    assert f"| 2 | {examined.values[1]:.2f} | " in (tmp_path / "out" / "report.md").read_text()
    figures = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert figures["clicks"]["examination"]["low"][1] < 0.5 < examined.high[1]
    with pytest.raises(InputError, match="clicks"):
        await fairqr.audit(engine, WORDS, clicks=rows[:-9], folder=tmp_path / "out", **OPTIONS)


async def test_a_click_without_a_search_is_refused(engine: TantivyEngine) -> None:
    with pytest.raises(InputError, match="Row 1 of the clicks is no search"):
        await fairqr.audit(engine, WORDS, clicks=[{"id": 3}], **OPTIONS)


TOPICS = [
    {"query": "apple", "topic": "a  b"},
    {"query": "birch", "topic": 7},
    {"query": "cedar", "topic": None},
]


@pytest.mark.parametrize(
    ("queries", "segments"),
    [
        (TOPICS, ["a b", "7", ""]),
        (pd.DataFrame([TOPICS[0], TOPICS[2]]).astype("string"), ["a b", ""]),
    ],
    ids=["rows", "table"],
)
async def test_segments_are_a_column(
    engine: TantivyEngine, queries: Any, segments: list[str]
) -> None:
    audit = await fairqr.audit(engine, queries, segment="topic", **OPTIONS)

    assert [query.segment for query in audit.queries.queries] == segments


async def test_an_audit_has_findings_pictures_and_files(
    engine: TantivyEngine, tmp_path: Path
) -> None:
    audit = await fairqr.audit(engine, WORDS, **OPTIONS)

    assert isinstance(audit, fairqr.Audit)
    assert "female" in audit.findings[0]
    assert audit.plot().svg.startswith("<?xml")
    names = {path.name for path in audit.write(tmp_path / "copied").iterdir()}
    assert {"audit.json", "report.html", "manifest.json", "raw"} <= names


async def test_files_of_an_audit_go_with_it(engine: TantivyEngine) -> None:
    audit = await fairqr.audit(engine, WORDS, **OPTIONS)
    folder = audit.folder
    assert folder.is_dir()

    del audit
    # The loop and its threads let go of what they returned last.
    async with asyncio.timeout(PATIENCE):
        while folder.exists():
            await asyncio.sleep(0.01)
            gc.collect()


async def test_a_folder_of_an_audit_is_read_and_not_overwritten(
    engine: TantivyEngine, tmp_path: Path
) -> None:
    audit = await fairqr.audit(engine, WORDS, folder=tmp_path / "out", **OPTIONS)

    with pytest.raises(InputError, match="is not empty"):
        audit.write(tmp_path / "out")
    again = await fairqr.audit(engine, WORDS, folder=tmp_path / "out", **OPTIONS)
    assert again.digest == audit.digest
    assert again.to_frame().equals(audit.to_frame())


async def test_judgements_are_the_target(engine: TantivyEngine) -> None:
    qrels = {word: {f"{word}00": 1, f"{word}15": 1, f"{word}16": 0} for word in WORDS}
    audit = await fairqr.audit(engine, ROWS, attribute="gender", k=4, qrels=qrels)
    female, _ = audit.figures.groups
    assert (female.target.value, female.ranking_gap.value) == (0.5, 0.5)


APPLE = ["apple"]


@pytest.mark.parametrize(
    ("queries", "options", "complaint"),
    [
        ([], {}, "are empty"),
        ("apple", {}, "a single text"),
        ([3], {}, "Query 1 is int"),
        ([{"words": "apple"}], {}, "Query 1: it has no 'query' or"),
        ([{"query": "apple", "n": -1}], {"weight": "n"}, "Query 1: its weight must"),
        ([{"query": "apple"}], {"segment": "topic"}, "Query 1: it has no 'topic', only"),
        ([{"query": "apple", "t": {}}], {"segment": "t"}, "Query 1: its segment is neither text"),
        (APPLE, {"k": 0}, "k"),
        (APPLE, {"size": 3}, "size"),
        (APPLE, {"layout": "gdpr"}, "no layout 'gdpr'"),
        (APPLE, {"rate": 0.0}, "The rate"),
        (APPLE, {"concurrency": 0}, "at least 1"),
        (APPLE, {"attribute": "age"}, "no attribute 'age'"),
        (APPLE, {"spec": AuditSpec()}, "'attribute' is given beside a spec"),
        (APPLE, {"retriever": "dense"}, "An open engine has its own retriever"),
        (APPLE, {"target": "relevance:1"}, "models pull minilm"),
    ],
)
async def test_bad_input_is_one_sentence(
    engine: TantivyEngine, queries: Any, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises((InputError, TargetError), match=complaint):
        await fairqr.audit(engine, queries, **{**OPTIONS, **options})


async def test_pairs_are_scored_by_the_engine(engine: TantivyEngine, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    rows = "".join(f"{word},m,{word}00\n{word},f,{word}10\n" for word in WORDS)
    pairs.write_text(f"query,version,document\n{rows}")
    audit = await fairqr.audit(engine, WORDS, pairs=pairs, **OPTIONS)
    frame = audit.frames["pairs"]

    assert frame[["segment", "second", "higher"]].to_numpy().tolist() == [["", "m", 0]]
