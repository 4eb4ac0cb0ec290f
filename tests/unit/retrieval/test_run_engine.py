"""Run files: what is read, in which order, and how they are searched as an engine."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import (
    FairqrError,
    InputError,
    QueryError,
    UnsupportedError,
)
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.run import RunEngine, check, open_run
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.runs import SystemRun, read_run
from fairqr.retrieval.sources.source import RunSource

RUN = """\
t1 Q0 a 1 2.5 bm25
t1 Q0 c 2 1.5 bm25
t1 Q0 b 3 1.5 bm25
t1 Q0 z 4 0.5 bm25
t2 Q0 b 1 7 bm25
"""
LABELS = "id,group\na,female\nb,male\nc,male\n"
DOCUMENTS = [
    {"id": "a", "title": "Ada", "text": "first", "person": {"sex": "F"}},
    {"id": "b", "title": "Bob", "text": "second", "person": {"sex": "M"}},
    {"id": "c", "title": "Cy", "text": "third", "person": {"sex": "x"}},
    {"id": "unranked", "title": "Nobody", "text": "", "person": {"sex": "F"}},
]
BY_FILE = {"gender": {"labels": "labels.csv", "groups": ["female", "male"]}}
BY_FIELD = {"gender": {"field": "person.sex", "groups": {"female": ["F"], "male": ["M"]}}}


async def opened(folder: Path, **changes: Any) -> RunEngine:
    """Write the files above, and open them as a source with these changes."""
    documents = "".join(json.dumps(document) + "\n" for document in DOCUMENTS)
    files = {"bm25.run": RUN, "labels.csv": LABELS, "documents.jsonl": documents}
    for name, content in files.items():
        if not (folder / name).exists():
            (folder / name).write_text(content)
    described = {"name": "exported", "runs": "bm25.run", "attributes": BY_FILE, **changes}
    source = RunSource.model_validate({**described, "folder": folder})
    labels = await LabelReader.open(source.attributes, folder, store=folder / "store")
    return await open_run(source, labels)


@pytest.mark.promise("engines")
async def test_a_query_by_id_gives_its_ranking(tmp_path: Path) -> None:
    """A run file answers a query by its id, with ties by document id.

    Several runs are one engine, and groups of known documents can be looked up.
    """
    (tmp_path / "more.run").write_text("t3 Q0 a 1 1 dense\n")
    engine: SearchEngine = await opened(tmp_path, runs=["bm25.run", "more.run"])
    known = Query("", 10, only=("b", "nowhere", "a"))
    first, second, third, given = await engine.search(
        [Query("t1", 10), Query("t2", 10), Query("t3", 5), known]
    )
    assert (first.ids, first.scores) == (["a", "b", "c", "z"], [2.5, 1.5, 1.5, 0.5])
    assert first.memberships["gender"].tolist() == [[1, 0], [0, 1], [0, 1], [0, 0]]
    assert (second.ids, third.ids, given.ids) == (["b"], ["a"], ["a", "b"])
    assert given.memberships["gender"].tolist() == [[1, 0], [0, 1]]
    assert (engine.retriever, engine.capabilities) == ("run:bm25+dense", frozenset())


@pytest.mark.promise("engines")
async def test_a_query_that_no_run_has_is_told_with_what_there_is(tmp_path: Path) -> None:
    """A run file answers its own queries and no others: the error says which there are."""
    said = r"'physicist'; ask by id \(name 'topics' to ask by text\) .* such as t1, t2\.$"
    with pytest.raises(QueryError, match=said):
        await (await opened(tmp_path)).search([Query("physicist", 10)])
    (tmp_path / "topics.tsv").write_text("t1\tTennis  player\nt2\tjudge\nt3\ttennis player\n")
    engine = await opened(tmp_path, topics="topics.tsv")
    (by_text,) = await engine.search([Query(" tennis PLAYER ", 10)])
    assert by_text.ids == ["a", "b", "c", "z"]
    (tmp_path / "topics.tsv").write_text("t1\tplayer\nt2\tPlayer\n")
    engine = await opened(tmp_path, topics="topics.tsv")
    with pytest.raises(QueryError, match="The queries t1, t2 of 'exported' have the same text"):
        await engine.search([Query("player", 10)])


async def test_a_run_cannot_be_searched_by_other_words(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    query = Query("t1", 10)
    for other in (
        replace(query, only=("a",)),
        replace(query, every_word=True),
    ):
        with pytest.raises(UnsupportedError, match="only answers its own queries"):
            await engine.search([other])
    with pytest.raises(UnsupportedError, match="count the documents of each group"):
        await engine.corpus_shares()
    with pytest.raises(UnsupportedError, match="engine that can search within a group"):
        await engine.search([replace(query, within=("gender", "female"))])


FIRST = b"1 Q0 a 1 1.0 sys\n"
PACKED = gzip.compress(FIRST + b"1 Q0 b 2 0 sys\n")


async def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    for said, content, changes in (
        (
            "file ranks documents again for the query 't2'",
            b"t2 Q0 a 1 1 x",
            {"runs": ["bm25.run", "file"]},
        ),
        ("no.run cannot be read", b"", {"runs": "no.run"}),
        ("no.tsv cannot be read", b"", {"topics": "no.tsv"}),
        ("file, line 1: it has no id", b"{}\n", {"documents": "file"}),
        ("file has the document 'a' twice", b'{"id": "a"}\n' * 2, {"documents": "file"}),
        ("line 2: it has 5 fields instead of the 6", FIRST + b"1 Q0 x 2 0.5", {}),
        ("line 2: its rank 'two' or its score '0.5' is", FIRST + b"1 Q0 x two 0.5 sys", {}),
        ("line 2: its rank '2' or its score '1e999' is", FIRST + b"1 Q0 x 2 1e999 sys", {}),
        ("line 2: the document 'a' comes twice", FIRST + b"1 Q0 a 2 0.5 sys", {}),
        ("line 2: its tag 'other' belongs to another run", FIRST + b"1 Q0 x 2 0.5 other", {}),
        ("is not UTF-8 text", FIRST + b"1 Q0 \xff 1 1 sys", {}),
        ("is empty", b"\n \n", {}),
        ("run.gz cannot be read", PACKED[:-9], {"runs": "run.gz"}),
    ):
        for name in ("file", "run.gz"):
            (tmp_path / name).write_bytes(content)
        with pytest.raises(FairqrError) as caught:
            await opened(tmp_path, **(changes or {"runs": "file"}))
        assert said in str(caught.value)


async def test_documents_have_titles_texts_and_labels(tmp_path: Path) -> None:
    await opened(tmp_path)  # writes the files
    packed = gzip.compress((tmp_path / "documents.jsonl").read_bytes())
    (tmp_path / "documents.jsonl.gz").write_bytes(packed)
    engine = await opened(tmp_path, documents="documents.jsonl.gz", attributes=BY_FIELD)
    (hits,) = await engine.search([Query("t1", 10)])
    assert hits.memberships["gender"].tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    found = await engine.documents(["c", "z", "nowhere", "a"])
    texts = [("c", "Cy", "third"), ("z", "", ""), ("a", "Ada", "first")]
    assert [(d.id, d.title, d.text) for d in found] == texts


async def test_the_fingerprint_follows_each_file_and_the_description(tmp_path: Path) -> None:
    async def fingerprint(**changes: Any) -> str:
        info = await (await opened(tmp_path, documents="documents.jsonl", **changes)).info()
        assert info.documents == 4
        return info.fingerprint

    seen = {await fingerprint(), await fingerprint(timeout=5)}
    for path in (tmp_path / "bm25.run", tmp_path / "documents.jsonl", tmp_path / "labels.csv"):
        os.utime(path, ns=(1, 1))
        assert await fingerprint() in seen, "an audit goes on with files that were copied"
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(await fingerprint())
    assert len(seen) == 5


async def test_the_check_counts_labels_and_shows_a_query(tmp_path: Path) -> None:
    (tmp_path / "topics.tsv").write_text("t1\ttennis player\n")
    attributes = {**BY_FIELD, "sex": BY_FILE["gender"]}
    parts = {"topics": "topics.tsv", "documents": "documents.jsonl", "attributes": attributes}
    report = await check(await opened(tmp_path, **parts))
    by_field, by_file = report.attributes
    values = {(v.value, v.documents, v.group) for v in by_field.values}
    assert values == {("F", 1, "female"), ("M", 1, "male"), ("x", 1, None)}
    assert [(v.group, v.documents) for v in by_file.values] == [("male", 2), ("female", 1)]
    assert report.sample[0].groups == {"gender": {"female": 1.0}, "sex": {"female": 1.0}}
    assert report.remarks[:-1] == [
        "Queries that have a ranking: 2.",
        f"Documents that are not in {tmp_path / 'documents.jsonl'}: 1.",
    ]


@pytest.mark.promise("engines")
@settings(max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from(["1", "2", "q3"]),
        st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-5, 5), min_size=1),
        min_size=1,
    ),
    st.integers(0, 9),
)
async def test_any_run_is_answered_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[str, dict[str, float]], n: int
) -> None:
    """A run file answers its queries as it was written."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "labels.csv").write_text(LABELS)
    lines = [f"{q} Q0 {id_} 0 {s!r} s" for q, own in scores.items() for id_, s in own.items()]
    (folder / "bm25.run").write_text("\n".join(lines))
    engine = await opened(folder)
    for query, hits in zip(
        scores, await engine.search([Query(query, n) for query in scores]), strict=True
    ):
        expected = sorted(scores[query].items(), key=lambda pair: (-pair[1], pair[0]))[:n]
        assert list(zip(hits.ids, hits.scores, strict=True)) == expected
        rows = {"a": [1, 0], "b": [0, 1], "c": [0, 1]}
        wanted = np.array([rows.get(id_, [0, 0]) for id_ in hits.ids]).reshape(len(hits), 2)
        assert np.array_equal(hits.memberships["gender"], wanted)
    assert set(read_run(folder / "bm25.run").rankings) == set(engine.rankings)


def test_scores_order_a_run_whatever_the_ranks_say(tmp_path: Path) -> None:
    """A byte order mark, blank lines, ids that are no ASCII, samples and a packed file are read."""
    lines = ["\ufeff", "q Q0 é 1 0.5 t#1", "  q\tQ0 b 2 1.5e0 t#1\r", "", "q Q0 b 1 1 t#2"]
    path = tmp_path / "x.run.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, "2 Q0 c 1 -1e3 t#1"]).encode()))
    samples = [Ranking(["b", "é"], [1.5, 0.5]), Ranking(["b"], [1.0])]
    rankings = {"q": samples, "2": [Ranking(["c"], [-1000.0])]}
    assert read_run(path) == SystemRun("t", rankings, 0, "the rank in the file")


@pytest.mark.promise("evaluation")
def test_ties_are_decided_or_refused_as_asked(tmp_path: Path) -> None:
    """Ties of a run are decided or refused as the user asks."""
    path = tmp_path / "tied.run"
    path.write_text("1 Q0 b 1 1 s\n1 Q0 c 2 1 s\n1 Q0 a 3 1 s\n1 Q0 z 4 2 s\n")
    for ties, order in (("rank", "zbca"), ("id", "zabc"), ("trec_eval", "zcba")):
        run = read_run(path, ties=ties)
        assert (run.rankings["1"][0].ids, run.tied) == (list(order), 2)
    with pytest.raises(InputError, match="cannot be ordered by 'coin'; choose rank, id"):
        read_run(path, ties="coin")
