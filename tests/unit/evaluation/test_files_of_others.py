"""Files as BEIR, trec_eval's users and exports write them: read, or refused with what helps."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path

import pandas
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import read_topics
from fairqr.evaluation.inputs import as_qrels, as_run
from fairqr.evaluation.qrels import read_qrels
from fairqr.retrieval.sources.documents import read_documents
from fairqr.retrieval.sources.label_files import read_labels
from fairqr.retrieval.sources.query_files import query_rows, read_queries
from fairqr.retrieval.sources.runs import read_run
from fairqr.retrieval.sources.schema import Schema

SEXES = {"attributes": {"sex": {"field": "sex", "groups": ["F", "M"]}}}
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
        ",query-id,corpus-id,score\n0,q1,d1,1\n1,q1,d2,0\n",
        '"";"docid";"qid";"label"\r\n"1";"d1";"q1";"1.0"\r\n"2";"d2";"q1";"0.0"\r\n',
        'Unnamed: 0,relevance,Doc_ID,query_id,note\n0,1,d1,q1,"a, b"\n1,0,d2,q1,\n',
        "\tqid\tdocno\tlabel\titeration\n0\tq1\td1\t1\tQ0\n1\tq1\td2\t0\tQ0\n",
        "docno label qid\n# by hand\nd1 1 q1\nd2 0 q1\n",
        "\ufeffqid docid relevance\r\nq1 d1 1.\r\nq1 d2 0\r\n",
        "sep=;\nqid;docno;label\nq1;d1;1\nq1;d2;0\n",
        "\ufeffsep=,\r\nQID,DocNo,Label\r\nq1,d1,1\r\nq1,d2,0\r\n",
        '"sep=|"\nqid|docno|label|note\nq1|d1|1|a; b\nq1|d2|0|\n',
        "query-id\tcorpus-id\tscore\nq1 d1 1\nq1\td2\t0\n",
        "query-id,corpus-id,score\nq1 d1 1\nq1\td2\t0\n",
    ],
)
def test_judgements_are_read_in_their_forms(tmp_path: Path, text: str) -> None:
    assert read_qrels(written(tmp_path, "qrels.tsv", text)) == JUDGED


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("q1,d1,1\n", "tr ',' '\\t' < FILE makes tabs of commas"),
        (",a,b,c\n0,q1,d1,1\n", "name its columns query, document, grade in the first line"),
        (",qid,docno,label\n0,q1,d1\n", "line 2: it has 3 columns, and the first line names 4"),
        ("qid,docno,label\n0,q1,d1,1\n", "line 2: it has 4 columns, and the first line names 3"),
        ("qid,qid,docno,label\n0,q1,d1,1\n", "names the column 'qid' twice"),
        ("qid docno label\n0 q1 d1 1\n", "line 2: it has 4 columns, and the first line names 3"),
        ("q1 d1\n", "2 fields instead of the 4 in 'query 0 document grade' or the 3 in"),
        ("q1 0 d1 1\nq1 d2 0\n", "line 2: it has 3 fields instead of the 4 in 'query 0"),
        ("q1 d1 1\nq1 0 d2 0\n", "line 2: it has 4 fields instead of the 3 in 'query doc"),
        ("q1 d1 0.5\n", "its grade '0.5' is not a whole number"),
        ('{"q1": {"d1": 1}}\n', "it is JSON, but a line has the 4 in 'query 0 document grade'"),
        ('{\n "q1": {"d1": 1}\n}\n', "save it in TREC's format, as with kind='trec' in ranx"),
        ('[{"query_id": "q1"}]\n', "it is JSON"),
        ("q1 d1 1\nquery doc grade\n", "line 2: its grade 'grade'"),
    ],
)
def test_bad_judgements_are_refused_with_what_helps(
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
    "text",
    [
        ',qid,docid,docno,rank,score,query\n0,q1,12,d1,0,2.5,"a, b"\n1,q1,7,d2,1,1.0,"a, b"\n',
        "\tqid\tdocno\tscore\n0\tq1\td2\t1\n1\tq1\td1\t2.5\n",
        "score;doc_id;query_id\r\n1;d2;q1\r\n2.5;d1;q1\r\n",
        "query-id,corpus-id,score,run\nq1,d1,2.5,run\nq1,d2,1,run\n",
        "sep=\t\nQID\tDOCNO\tScore\nq1\td1\t2.5\nq1\td2\t1\n",
        "SEP=;;;\r\nqid;docno;score\r\nq1;d1;2.5\r\nq1;d2;1\r\n",
        "qid\tdocno\tscore\nq1 d1 2.5\nq1  d2  1\n",
    ],
)
def test_tables_of_runs_are_read_by_their_columns(tmp_path: Path, text: str) -> None:
    run = read_run(written(tmp_path, "run.csv", text))
    (ranking,) = run.rankings["q1"]
    assert (run.name, list(ranking.ids)) == ("run", ["d1", "d2"])
    assert list(ranking.scores) == [2.5, 1.0]


@pytest.mark.parametrize("query", ["query-id", "query_id", "qid"])
@pytest.mark.parametrize("document", ["corpus-id", "corpus_id", "docno", "doc-id"])
def test_data_frames_are_read_by_the_names_that_others_use(query: str, document: str) -> None:
    judged = pandas.DataFrame({query: ["q1", "q1"], document: ["d1", "d2"], "score": [1, 0]})
    assert as_qrels(judged) == JUDGED
    (ranking,) = as_run(judged.assign(docid=[12, 7])).rankings["q1"]
    assert list(ranking.ids) == ["d1", "d2"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("q1 d1 1\n", 'awk \'{print $1, "Q0", $2, $3, 1 / $3, "run"}\' FILE makes it of query'),
        ("q1,Q0,d1,1,2,s\n", "makes tabs of commas"),
        ('{"q1": {"d1": 0.5}}\n', "save it in TREC's format, as with kind='trec' in ranx"),
        ("q1 Q0 d1 1 2.5\n", "awk '{print $1, $2, $3, $4, $5, \"run\"}' FILE gives it the tag"),
        ("q1 Q0 d1 1 2.5 my system\n", "gives it the tag 'run'"),
        ("q1 Q0 d1 1.5 2 s\n", "its rank '1.5'"),
        ("q1 Q0 d1 x 2 s\n", "its rank 'x'"),
    ],
)
def test_bad_runs_are_refused_with_what_helps(tmp_path: Path, text: str, sentence: str) -> None:
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
        {"ID": "d1", "Title": "A", "Text": "b", "metadata": {"sex": "F"}},
        {"id": "d1", "title": float("nan"), "text": "b", "metadata": {"sex": "F"}},
        {"DOCNO": "d1", "TITLE": None, "Body": "b", "metadata": {"sex": "F"}},
        {"doc_id": "d1", "url": "u", "title": "A", "body": "b", "metadata": {"sex": "F"}},
        {"docid": "d1", "passage": "b", "metadata": {"sex": "F"}},
        {"_id": "d1", "_source": {"content": "b", "metadata": {"sex": "F"}}},
        {"doc_id": "d1", "text": "b", "metadata": {"sex": "F"}},
        {"_id": "d1", "title": None, "text": "A\nb", "metadata": {"sex": "F"}},
    ],
)
def test_documents_of_beir_are_documents(tmp_path: Path, record: dict[str, object]) -> None:
    (document,) = read_documents(written(tmp_path, "corpus.jsonl", json.dumps(record)))
    assert document.id == "d1"
    assert document.fields["metadata"] == {"sex": "F"}


IN_ANOTHER_FORM = [
    # The first lines of a file, what they are, and whether a shell makes documents of them.
    ('d1\tSays "so".\nd2\tb\n', "a table with tabs", True),
    ('id,title,text\nd1,A,"b, c"\nd2,B,c\n', "a table with commas", True),
    ("\ufeffid;title;text;sex\r\nd1;A;b, c;F\r\nd2;B;c;M\r\n", "a table with semicolons", True),
    ('id;text;"a, b"\nd1;"b; c";\nd2;"b\nc";\n', "a table with semicolons", True),
    ('\ufeff"id","text"\r\n"d1","b"\r\n"d2","c"\r\n', "a table with commas", True),
    ("\ufeffid\ttitle\ttext\nd1\tA\tb\nd2\tB\tc\n", "a table with tabs", True),
    ('[\n {"id": "d1", "text": "b"},\n {"id": "d2", "text": "c"}\n]\n', "a JSON list", True),
    ('[{"id": "d1", "text": "b"}, {"id": "d2", "text": "c"}]', "a JSON list", True),
    ('{\n "id": "d1",\n "text": "b"\n}\n{\n "id": "d2", "text": "c"\n}', "several lines", True),
    ('{"index": {"_id": "d1"}}\n{"text": "b"}\n{"create": {"_id": "d2"}}\n{}\n', "_bulk", True),
    ("sep=;\r\nID;Title;Text\r\nd1;A;b, c\r\nd2;B;c\r\n", "a table for Excel", True),
    ("sep=\t\nID\tText\nd1\tb\nd2\tc\n", "a table for Excel", True),
    ('\ufeff"sep=,"\nDocNo,Body\nd1,"b\nc"\nd2,c\n', "a table for Excel", True),
    ("ID;Title;Text\nd1;A;b\nd2;B;c\n", "a table with semicolons", True),
    ("<DOC>\n<DOCNO> d1 </DOCNO>\n</DOC>\n", "SGML, XML or HTML", False),
]


@pytest.mark.parametrize(("text", "form", "has_command"), IN_ANOTHER_FORM)
def test_other_documents_are_refused_with_the_command_to_run(
    tmp_path: Path, text: str, form: str, has_command: bool
) -> None:
    path = written(tmp_path, "collection.tsv", text)
    with pytest.raises(InputError) as refused:
        [*read_documents(path)]
    assert form in str(refused.value)
    if not has_command:
        return
    command = str(refused.value).partition("; ")[2].rpartition(" makes ")[0]
    shell = f"{command.replace('FILE', str(path))} > {tmp_path}/documents.jsonl"
    subprocess.run(["bash", "-c", shell], check=True)
    assert [it.id for it in read_documents(tmp_path / "documents.jsonl")] == ["d1", "d2"]


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"pid": "1", "text": "b"}, "it has no id, only 'pid', 'text'"),
        ({"id": "1", "summary": "b"}, "it has neither title nor text, only 'summary'"),
    ],
)
def test_a_document_without_its_members_says_what_is_there(
    tmp_path: Path, record: dict[str, object], sentence: str
) -> None:
    schema = Schema.model_validate(SEXES)
    with pytest.raises(InputError) as refused:
        [*read_documents(written(tmp_path, "corpus.jsonl", json.dumps(record)), schema)]
    assert sentence in str(refused.value)


DOCUMENTS = '{"id": "d1", "text": "é"}\r\n{"id": 2.0, "text": "b"}\r\n'


@pytest.mark.parametrize(
    "content",
    [
        DOCUMENTS.encode(),
        DOCUMENTS.encode("utf-8-sig"),
        DOCUMENTS.encode("utf-16"),  # as PowerShell redirects
        gzip.compress(DOCUMENTS.encode()),
        gzip.compress(DOCUMENTS.encode("utf-8-sig")),
    ],
    ids=["utf-8", "utf-8-mark", "utf-16", "gzip", "gzip-mark"],  # gzip's bytes hold the time
)
@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_what_a_file_is_says_its_content(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert [(it.id, it.text) for it in read_documents(path)] == [("d1", "é"), ("2", "b")]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PAR1\x15\xff\xfe", "is a Parquet file; python -c 'import pandas"),
        (b"PK\x03\x04\xff\xfe", "is a ZIP archive or a spreadsheet; unpack it, or save it as CSV"),
        (b"(\xb5/\xfd\xff\xfe", "is packed with zstd; unpack it"),
        ("Frau Müller".encode("latin-1"), "is not UTF-8 text; save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_text_says_what_it_is(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    for read in (read_documents, query_rows, read_run):
        with pytest.raises(InputError, match=re.escape(sentence)):
            [*read(path)]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "id,sex\nd1,F\nd2,M\n"),
        ("labels.csv", "\ufeffID;Sex\r\nd1;F\r\nd2;M\r\n"),
        ("labels.csv", "docno\tsex\nd1\tF\nd2\tM\n"),
        ("labels.tsv", "doc_id\tgroup\nd1\tF\nd2\tM\n"),
        ("labels.csv", "id , sex \nd1 , F \n d2, M\n"),
        ("labels.tsv", "id\tgroup \nd1 \t F\nd2\tM\t\n"),
        ("labels.csv", "sep=;\r\nID;Sex\r\nd1;F\r\nd2;M\r\n"),
        ("labels.csv", '\ufeff"sep=|"\nDocNo|Group|Note\nd1|F|"a\nb"\nd2|M|\n'),
        ("labels.jsonl", '{"_id": "d1", "sex": "F"}\n{"_id": "d2", "sex": "M"}\n'),
    ],
)
def test_labels_are_read_in_their_forms(tmp_path: Path, name: str, text: str) -> None:
    rows = [(row[1], row[2]) for row in read_labels(written(tmp_path, name, text), "sex")]
    assert rows == [("d1", "F"), ("d2", "M")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queries.csv", "qid;query\nq1;who\n"),
        ("queries.csv", "\ufeffqid\tquery\r\nq1\twho\r\n"),
        ("queries.csv", "sep=;\nQID;Query\nq1;who\n"),
        ("queries.csv", "sep=,\r\nID,Text\r\nq1,who\r\n"),
        ("queries.tsv", "sep=\t\nID\tText\nq1\twho\n"),
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


def test_only_the_first_line_of_queries_can_name_the_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "queries.txt"
    path.write_text("sep=;\nphysicist\nsep=;\nsep=,\n")
    assert [row.text for row in query_rows(path)] == ["physicist", "sep=;", "sep=,"]


@pytest.mark.parametrize(
    "record",
    [
        {"_id": 1, "text": "who won"},
        {"_id": 1, "title": "", "text": "who won", "metadata": {}},
        {"query_id": "1", "text": "who won"},
        {"qid": "1", "query": "who won"},
    ],
)
def test_topics_of_others_are_topics(tmp_path: Path, record: dict[str, object]) -> None:
    (topic,) = read_topics(written(tmp_path, "queries.jsonl", json.dumps(record)))
    assert (topic.id, topic.title, topic.keywords) == ("1", "who won", ())


def test_a_line_for_excel_counts_as_a_line_of_the_file(tmp_path: Path) -> None:
    labels = written(tmp_path, "labels.csv", "sep=;\nid;sex\nd1;F\nd2\n")
    with pytest.raises(InputError, match="line 4: it needs an 'id' and a 'group'"):
        [*read_labels(labels, "sex")]
    qrels = written(tmp_path, "qrels.csv", "sep=;\nqid;docno;label\nq1;d1;1\nq1;d2\n")
    with pytest.raises(InputError, match="line 4: it has 2 columns, and the first line names 3"):
        read_qrels(qrels)


def test_labels_below_a_head_with_tabs_say_how_to_separate_them(tmp_path: Path) -> None:
    """A label may have spaces, so they cannot be read as judgements are."""
    labels = written(tmp_path, "labels.tsv", "id\tgroup\nd1 North America\n")
    with pytest.raises(InputError, match=r"line 2: it needs .*, separated as in the first line"):
        [*read_labels(labels, "place")]
