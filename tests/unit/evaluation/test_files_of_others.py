"""Files as BEIR, trec_eval's users and exports write them: read, or refused with what helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import read_topics
from fairqr.evaluation.qrels import read_qrels
from fairqr.retrieval.sources.documents import read_documents
from fairqr.retrieval.sources.query_files import query_rows, read_queries
from fairqr.retrieval.sources.runs import read_run

JUDGED = {"q1": {"d1": 1, "d2": 0}}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 d1 1\nq1 0 d2 0\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n",
        "q1 d1 1\nq1 d2 0\n",
        "# judged by hand\nq1 0 d1 1.0\n\n# none\nq1 0 d2 0.0\n",
        "topic iter docno rel\nq1 Q0 d1 +1\nq1 Q0 d2 00\n",
        "\ufeffqid docid relevance\r\nq1 d1 1.\r\nq1 d2 0\r\n",
    ],
)
def test_judgements_are_read_in_their_forms(tmp_path: Path, text: str) -> None:
    assert read_qrels(written(tmp_path, "qrels.tsv", text)) == JUDGED


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("q1,d1,1\n", "tr ',' '\\t' < FILE makes tabs of commas"),
        ("q1 d1\n", "2 fields instead of the 4 in 'query 0 document grade' or the 3 in"),
        ("q1 0 d1 1\nq1 d2 0\n", "line 2: it has 3 fields"),
        ("q1 d1 0.5\n", "its grade '0.5' is not a whole number"),
        ("q1 d1 1\nquery doc grade\n", "line 2: its grade 'grade'"),
    ],
)
def test_judgements_that_are_none_are_refused_with_what_helps(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        read_qrels(written(tmp_path, "qrels.txt", text))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "q1 Q0 d1 1 2.5 sys\nq1 Q0 d2 2 1 sys\n",
        "q1 Q0 d1 1.0 2.5 sys\nq1 Q0 d2 2.0 1.0 sys\n",
        "# bm25, k1 = 1.2\nq1 Q0 d1 1 2.5 sys\n#\nq1 Q0 d2 2 1e0 sys\n",
        "qid Q0 docno rank score tag\nq1 Q0 d1 1 2.5 sys\nq1 Q0 d2 2 1 sys\n",
    ],
)
def test_runs_are_read_in_their_forms(tmp_path: Path, text: str) -> None:
    run = read_run(written(tmp_path, "run.txt", text))
    assert run.name == "sys"
    (ranking,) = run.rankings["q1"]
    assert (list(ranking.ids), list(ranking.scores)) == (["d1", "d2"], [2.5, 1.0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("q1 d1 1\n", 'awk \'{print $1, "Q0", $2, $3, 1 / $3, "run"}\' FILE makes it of query'),
        ("q1,Q0,d1,1,2,s\n", "makes tabs of commas"),
        ('{"q1": {"d1": 0.5}}\n', "save it in TREC's format, as with kind='trec' in ranx"),
        ("q1 Q0 d1 1.5 2 s\n", "its rank '1.5'"),
        ("q1 Q0 d1 x 2 s\n", "its rank 'x'"),
    ],
)
def test_runs_that_are_none_are_refused_with_what_helps(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        read_run(written(tmp_path, "run.txt", text))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "record",
    [
        {"_id": "d1", "title": "A", "text": "b", "metadata": {"sex": "F"}},
        {"id": "d1", "title": "A", "text": "b", "metadata": {"sex": "F"}, "_id": "other"},
        {"_index": "i", "_id": "d1", "_source": {"text": "b", "metadata": {"sex": "F"}}},
        {"docid": "d1", "contents": "b", "metadata": {"sex": "F"}},
        {"doc_id": "d1", "text": "b", "metadata": {"sex": "F"}},
        {"_id": "d1", "title": None, "text": "A\nb", "metadata": {"sex": "F"}},
    ],
)
def test_documents_of_beir_are_documents(tmp_path: Path, record: dict[str, object]) -> None:
    (document,) = read_documents(written(tmp_path, "corpus.jsonl", json.dumps(record)))
    assert document.id == "d1"
    assert document.fields["metadata"] == {"sex": "F"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queries.jsonl", '{"_id": "q1", "text": "who", "metadata": {}}\n'),
        ("queries.jsonl", '{"query_id": "q1", "query": "who"}\n'),
        ("queries.tsv", "qid\tquery\nq1\twho\n"),
        ("queries.csv", "_id,text\nq1,who\n"),
        ("queries.tsv", "q1\twho\n"),
    ],
)
def test_queries_are_read_by_their_ids(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, name, text)
    assert read_queries(path) == {"q1": "who"}
    assert [(row.id, row.text) for row in query_rows(path)] == [("q1", "who")]


def test_topics_of_beir_are_topics(tmp_path: Path) -> None:
    (topic,) = read_topics(written(tmp_path, "queries.jsonl", '{"_id": 1, "text": "who won"}'))
    assert (topic.id, topic.title, topic.keywords) == ("1", "who won", ())
