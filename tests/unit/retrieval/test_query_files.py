"""Files of queries in all their forms, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError, SourceError
from fairqr.evaluation.audit.queries import collect_queries
from fairqr.retrieval.sources.query_files import QueryColumns, QueryRow, query_rows, read_queries


def rows(path: Path, content: str | bytes, columns: QueryColumns | None = None) -> list[QueryRow]:
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return list(query_rows(path, columns))


COUNT = QueryColumns(weight="count")
TOPIC = QueryColumns(segment="topic")
NAMED = QueryColumns("Top q", "id2")
AS_LINES = [QueryRow(1, None, "red shoes"), QueryRow(3, None, "blue hat")]
RED = QueryRow(2, None, "red shoes")
SEVEN, EIGHT = QueryRow(1, "7", "red shoes"), QueryRow(2, "8", "blue hat")
WEIGHTED = [RED._replace(weight=12.0), QueryRow(3, None, "blue hat", 0.5)]
TOPICS = """{"query": "a", "topic": ""}
{"query": "a", "Topic": "arts  and crafts"}
{"query": "a", "topic": 7}
{"query": "a", "topic": null}
"""
ITS_TOPICS = enumerate(["", "arts and crafts", "7", ""], 1)
SEGMENTED = [QueryRow(line, None, "a", 1.0, topic) for line, topic in ITS_TOPICS]


def test_the_forms_of_files(tmp_path: Path) -> None:
    for name, content, columns, wanted in (
        ("q.txt", " red  shoes\n\nblue\u00a0hat", None, AS_LINES),
        ("q.txt", "\ufeffred shoes\r\n \r\nblue hat\r\n", None, AS_LINES),
        ("t.tsv", "7\tred shoes\n\n8\tblue hat\n", None, [SEVEN, EIGHT._replace(line=3)]),
        ("log.csv", "Count,Query\r\n 12 ,red shoes\r\n5e-1,blue hat\r\n", COUNT, WEIGHTED),
        ("log.csv.gz", "a,query,count,,\n1,red shoes,12,,\n2,blue hat,.5,,\n", COUNT, WEIGHTED),
        ("q.csv", 'query\n"red\nshoes"\n \n', None, [RED]),
        ("q.csv", "query,n\nred shoes,1\n,2\n", None, [RED, QueryRow(3, None, "")]),
        ("q.csv", "Top q,id2\nred shoes,7\n", NAMED, [RED._replace(id="7")]),
        ("q.csv", "title,text,query\na,b,red shoes\n", None, [RED]),
        ("q.jsonl", '{"id": 7, "query": "red shoes"}\n', None, [SEVEN]),
        ("q.jsonl", '{"id": "7", "title": "red shoes"}', None, [SEVEN]),
        ("q.tsv", "topic\tquery\n\ta\n", TOPIC, [QueryRow(2, None, "a")]),
        ("q.jsonl", TOPICS, TOPIC, SEGMENTED),
        ("empty.csv", "", None, []),
    ):
        assert rows(tmp_path / name, content, columns) == wanted


def test_what_is_no_query_is_named(tmp_path: Path) -> None:
    for name, content, columns, words in (
        ("q.txt", "red shoes\n", COUNT, "line 1: it has no columns, so none is called 'count'"),
        ("q.txt", "<top>\n<num> 301\n", None, "line 1: it is SGML or XML; write each topic"),
        ("q.tsv", "7\tred\n8\n", None, "line 2: it lacks the two columns, id and text"),
        ("q.tsv", "keyword\tclicks\nred\t12\n", None, "line 2: it is not an id and a text;"),
        ("q.csv", "keyword,clicks\nred,12\n", None, "only 'keyword', 'clicks'; say which columns"),
        ("q.jsonl", '{"query": "a", "topic": []}\n', TOPIC, "its segment is neither text nor a"),
        ("q.csv", "query,Query\nred,12\n", None, "line 1: it names the column 'query' twice"),
        ("q.csv", "query\nred\nred, green\n", None, "line 3: it has more columns than"),
        ("q.csv", "query,count\nred,nan\n", COUNT, "line 2: its weight must be a number of 0 or"),
        ("q.csv", 'query\nred\n"blue\nhat\n', None, "line 3: it is not CSV (unexpected end of"),
        ("q.json", '[\n{"query": "red"}\n]', None, "line 1: it is a JSON list; jq -c '.[]' FILE"),
        ("q.jsonl", '{"query": 12}\n', None, "line 1: its text is not text"),
    ):
        with pytest.raises(SourceError) as caught:
            rows(tmp_path / name, content, columns)
        told = str(caught.value)
        assert words in told
        assert told.startswith(f"The queries {tmp_path / name}, line ")
        assert told.endswith(".")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cut = gzip.compress(b"red shoes\n" * 1000)[:-12]
    for name, content in (("cut.txt.gz", cut), ("q.txt", b"red\nbl\xfce\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=r"cannot be read|is not UTF-8"):
            list(query_rows(tmp_path / name))


def test_where_ids_are_needed_a_table_may_lack_names(tmp_path: Path) -> None:
    path = tmp_path / "topics.csv"
    path.write_text('t1,"tennis player"\nt2,1984\nt3,query\n')
    assert read_queries(path) == {"t1": "tennis player", "t2": "1984", "t3": "query"}
    path.write_text("query\ntennis\n")
    with pytest.raises(SourceError, match="line 1: it lacks the two columns, id and text"):
        read_queries(path)
    (tmp_path / "topics.jsonl").write_text('{"query": "tennis"}\n')
    with pytest.raises(SourceError, match="line 1: it has no id or no text"):
        read_queries(tmp_path / "topics.jsonl")


@pytest.mark.promise("command")
def test_user_behavior_insights_weigh_queries_by_use(tmp_path: Path) -> None:
    """Searches that User Behavior Insights recorded are queries of an audit with their weights.

    As the index ubi_queries has them, or an export with each in its hit.
    """
    search = {"query_id": "a1", "client_id": "x", "application": "shop", "timestamp": "2026-12-01"}
    searches = [{**search, "query_id": f"a{n}", "user_query": "red  shoes"} for n in range(3)]
    hits = [{"_index": "ubi_queries", "_id": "h", "_source": it} for it in searches]
    for written in (searches, hits):
        found = rows(tmp_path / "ubi.jsonl", "\n".join(map(json.dumps, written)))
        assert found == [QueryRow(line, None, "red shoes") for line in (1, 2, 3)]
        (query,) = collect_queries(found).queries
        assert (query.text, query.weight) == ("red shoes", 3.0)
    own = rows(tmp_path / "own.jsonl", '{"id": 7, "query": "red shoes", "_source": {"x": 1}}')
    assert own == [SEVEN]
