"""Collections: the standard layout, importing it and the official shapes, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import tracemalloc
from dataclasses import asdict
from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError, FairqrError, InputError
from fairqr.evaluation.collections.collection import About, Topic
from fairqr.evaluation.collections.finding import (
    find_collection,
    import_collection,
    list_collections,
)
from fairqr.retrieval.sources.corpus import check_corpus, find_corpus
from tests.golden.reports import check_text
from tests.patience import PATIENCE
from tests.unit.evaluation.collections.official import lines, write_2022, write_official


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of three documents and two topics."""
    folder = tmp_path / "people"
    genders = {"1": "female", "2": "male", "3": None}
    documents = ({"id": id_, "title": id_, "gender": it} for id_, it in genders.items())
    lines(folder / "documents.jsonl", documents)
    schema = "attributes: {gender: {field: gender, groups: [female, male]}}"
    (folder / "schema.yaml").write_text(schema)
    (folder / "topics.jsonl").write_text(
        '{"id": 7, "title": " mathematician ", "keywords": ["logic", " algebra", " "]}\n'
        '{"id": "t2", "title": "boxer", "keywords": null, "description": "is not read"}\n'
    )
    (folder / "qrels.txt").write_text("7 0 1 2\n7 0 2 0\n7 0 99 1\nx 0 1 1\n")
    return folder


def test_a_folder_is_a_collection(folder: Path) -> None:
    """Topics in order, judgements by topic, and the conventions on what does not fit."""
    collection = find_collection(folder)
    assert (collection.name, collection.title, collection.split) == ("people", "people", None)
    first, second = collection.topics
    assert (first, second) == (
        Topic("7", "mathematician", ("logic", "algebra")),
        Topic("t2", "boxer"),
    )
    assert [first.text(), first.text(1), first.text(0)] == [
        "mathematician logic algebra",
        "mathematician logic",
        "mathematician",
    ]
    # Document 99 is not in the corpus, and stays; topic x is no topic, and does not.
    assert collection.qrels == {"7": {"1": 2, "2": 0, "99": 1}}
    assert collection.relevant("7") == collection.relevant_documents() == ["1", "99"]
    assert [d.id for d in collection.corpus.documents()] == ["1", "2", "3"]
    about = About(title="People", target="trec2022", documents=3)
    about.write(folder)
    assert (collection.about, find_collection(folder).about) == (About(), about)


def test_a_part_has_what_is_judged_and_others_by_chance(folder: Path) -> None:
    (folder / "genders.csv").write_text("id,group\n1,m\n2,f\n3,f\n")
    (folder / "schema.yaml").write_text("attributes: {gender: {labels: genders.csv}}")
    collection = find_collection(folder)
    for most, count in (1, 2), (2, 2), (3, 3):
        part = find_corpus(Path(collection.part(["7"], most, print)))
        ids = [document.id for document in part.documents()]
        assert ids == ["1", "2", "3"][:count], "both of topic 7; 99 is in no file"
        assert collection.part(["7"], most, print) == str(part.path)
        report = asyncio.run(check_corpus(part))
        assert report.shares["gender"]["m"] == 1 / count, "the labels are found from there"
    assert part.path == collection.corpus.path


def test_several_sets_of_judgements(folder: Path) -> None:
    """Each has a name, and with one file of topics it has the topics that it judges."""
    (folder / "qrels.txt").rename(folder / "qrels-train.txt")
    assert find_collection(folder).split == "train"
    (folder / "qrels-eval.txt").write_text("t2 0 2 1\n")

    def titles(split: str | None) -> list[str]:
        return [topic.title for topic in find_collection(folder, split).topics]

    assert (titles("train"), titles("eval")) == (["mathematician"], ["boxer"])
    own = [{"id": "t2", "title": "own"}, {"id": 9, "title": "n"}]
    lines(folder / "topics-eval.jsonl", own)
    assert titles("eval") == ["own", "n"]
    for split, words in ((None, "several sets of judgements"), ("test", "no judgements 'test'")):
        with pytest.raises(CorpusError, match=f"{words}; there are eval, train"):
            find_collection(folder, split)


BAD = [
    ("topics.jsonl", "{", "line 1: Invalid JSON"),
    ("topics.jsonl", '{"id": "a b", "title": "x"}', "line 1: its id: String should match"),
    ("topics.jsonl", '{"id": 7, "title": "x"}\n' * 2, "two topics with the id '7'"),
    ("topics.jsonl", "\n\n", "topics.jsonl are empty; each line is a topic"),
    ("qrels.txt", "7 0 1 1\n7 0 1\n", "qrels.txt, line 2: it has 3 fields instead of the 4"),
    ("qrels.txt", "7 0 1 x\n", "qrels.txt, line 1: its grade 'x' is not a whole number"),
    ("qrels.txt", "7 0 1 1\n7 0 1 0\n", "line 2: the document '1' is judged twice"),
    ("qrels.txt", "7 0 1 0\nx 0 1 1\n", "has no relevant document for any topic"),
    ("qrels.txt", None, "it lacks qrels.txt; docs/how-to/bring"),
    ("collection.yaml", "titel: People\n", "collection.yaml is wrong at titel: there is no such"),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD)
def test_a_bad_file_is_one_sentence(
    folder: Path, name: str, content: str | None, words: str
) -> None:
    (folder / name).write_text(content or "")
    if content is None:
        (folder / name).unlink()
    with pytest.raises(FairqrError) as caught:
        find_collection(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere", "", "a\0b", "x" * 5000])
def test_an_unknown_name_says_what_there_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(FairqrError, match=r"There is no collection '.*'; there are notables\."):
        find_collection(name)


def test_a_path_is_a_folder_also_where_a_collection_has_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is a text that begins with a dot; the built-in collection has all its topics judged."""
    monkeypatch.chdir(folder.parent)
    folder.rename("notables")
    collection = find_collection("notables")
    assert len(collection.topics) == len(collection.qrels) == 57
    assert all(collection.relevant(topic.id) for topic in collection.topics)
    for name in ("./notables", Path("notables")):
        assert len(find_collection(name).topics) == 2


TREC = "trec-fair-2022"


def test_the_official_files_are_read_as_recorded(tmp_path: Path) -> None:
    """Labels, topics and judgements are those of the files; what is odd in them is counted.

    All other genders are one group, and trans women are women.
    """
    folder, told = import_collection(TREC, [write_2022(tmp_path / "raw")], "fair")
    read = {split: find_collection("fair", split) for split in ("train", "eval")}
    assert read["train"].about.target == "trec2022"
    with gzip.open(folder / "documents.jsonl.gz", "rt") as stream:
        documents = {document["id"]: document for document in map(json.loads, stream)}
    found = {
        "told": told,
        "documents": documents,
        "topics": {split: list(map(asdict, it.topics)) for split, it in read.items()},
        "qrels": {split: it.qrels for split, it in read.items()},
    }
    check_text("fair_2022.json", json.dumps(found, indent=1) + "\n")


def test_the_files_of_2021_have_continents_and_only_true_genders(tmp_path: Path) -> None:
    """The metadata with genders are preferred; files of another year are refused."""
    raw = write_official(tmp_path / "raw", "2021")
    folder, _ = import_collection("trec-fair-2021", [raw], "fair")
    with gzip.open(folder / "documents.jsonl.gz", "rt") as stream:
        documents = {document["id"]: document for document in map(json.loads, stream)}
    places = {id_: it["geographic_locations"] for id_, it in documents.items()}
    assert places == {
        "11": ["Africa", "Europe"],
        "12": ["Europe"],
        "13": ["Asia"],
        "14": ["Oceania"],
    }
    genders = {id_: it["gender"] for id_, it in documents.items()}
    assert genders == {"11": ["female"], "12": None, "13": ["male"], "14": ["male"]}
    train, evaluation = (find_collection("fair", split) for split in ("train", "eval"))
    assert {topic.title: topic.keywords for topic in train.topics} == {
        "Farming": ("farming", "crops"),
        "Crafts": ("smith",),
    }
    assert evaluation.qrels == {"101": {"13": 1}}
    attribute = train.corpus.schema.attribute("geography")
    assert sum(attribute.population.values()) == pytest.approx(1, abs=1e-8)
    with pytest.raises(CorpusError, match="is of 2021; import it with trec-fair-2021"):
        import_collection(TREC, [raw], "x")


CORPUS = "trec_corpus_20220301_plain.json.gz"
METADATA = "trec_2022_articles_discrete.json.gz"
TOPICS = "trec_2022_train_reldocs.jsonl"


BAD_TO_IMPORT = [
    (TREC, CORPUS, '{"id": 1, "plain": "", "title": "x"}\n{', "line 2: Invalid JSON"),
    (TREC, CORPUS, '{"id": 1, "plain": "", "title": ""}', "line 1: its title: "),
    (TREC, METADATA, '{"page_id": 1, "source_subcont_regions": {"a": -1}}', "greater than or eq"),
    (TREC, TOPICS, '{"id": 84, "title": "x", "rel_docs": "[a]"}', "line 1: "),
    ("jsonl", "documents.jsonl", '{"id": "a", "title": "x", "gender": "f"}', "line 1: gender is"),
    ("jsonl", "documents.jsonl", "", "are empty; there must be one at least"),
    ("jsonl", "more.txt", "", "more.txt, qrels.txt all seem to be qrels; give one"),
]


@pytest.mark.parametrize(("loader", "name", "content", "words"), BAD_TO_IMPORT)
def test_a_bad_file_is_one_sentence_and_nothing_is_left(
    folder: Path, tmp_path: Path, loader: str, name: str, content: str, words: str
) -> None:
    raw = write_2022(tmp_path / "raw") if loader == TREC else folder
    data = content.encode()
    (raw / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(FairqrError) as caught:
        import_collection(loader, [raw], "x")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "collections").iterdir()) == [".x.lock"]


def test_topics_without_judgements_are_no_collection(tmp_path: Path) -> None:
    raw = write_2022(tmp_path / "raw")
    for topics in raw.glob("*.jsonl"):
        topics.unlink()
    lines(raw / "eval-topics.jsonl", [{"id": 1, "title": "x", "keywords": []}])
    with pytest.raises(CorpusError, match="add the file with rel_docs"):
        import_collection(TREC, [raw], "x")


def test_a_name_that_is_taken_is_replaced_only_if_asked(folder: Path, tmp_path: Path) -> None:
    """And where the new files are wrong, the old collection stays."""

    def title(**options: bool) -> str:
        import_collection("jsonl", [folder], "mine", **options)
        return find_collection("mine").topics[0].title

    assert title() == "mathematician"
    with pytest.raises(InputError, match="There is a collection 'mine' already"):
        title()
    lines(folder / "topics.jsonl", [{"id": 7, "title": "logician"}])
    assert title(replace=True) == "logician"
    (folder / "qrels.txt").write_text("broken")
    with pytest.raises(CorpusError):
        title(replace=True)
    assert find_collection("mine").topics[0].title == "logician"
    assert sorted(p.name for p in (tmp_path / "collections").iterdir()) == [".mine.lock", "mine"]


STUCK = """
import sys
from pathlib import Path
from fairqr.evaluation.collections.finding import import_collection

def wait(count):
    print("at work", flush=True)
    sys.stdin.read()

import_collection("trec-fair-2022", [Path(sys.argv[1])], "x", progress=wait)
"""


@pytest.mark.promise("evaluation")
def test_an_import_that_is_ended_leaves_no_collection(tmp_path: Path) -> None:
    """An import of a collection appears whole or not at all.

    Not even killed; the next import of the name finds the place free.
    """
    raw = write_2022(tmp_path / "raw")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([sys.executable, "-c", STUCK, raw], text=True, **pipes)  # type: ignore[call-overload]
    assert child.stdout.readline() == "at work\n"
    child.kill()
    child.communicate(timeout=PATIENCE)
    found = sorted(path.name for path in (tmp_path / "collections").iterdir())
    assert [name[:8] for name in found] == [".x.build", ".x.lock"]
    assert [listed["name"] for listed in list_collections()] == ["notables"]
    import_collection(TREC, [raw], "x")
    assert sorted(p.name for p in (tmp_path / "collections").iterdir()) == [".x.lock", "x"]


def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    """Of 20 MB of articles, less than 2 MB are held; their ids and metadata stand on disk."""
    text, pages = "maize " * 800, range(4_000)
    lines(tmp_path / "corpus.json", ({"id": it, "title": f"{it}", "plain": text} for it in pages))
    lines(tmp_path / "articles.json", ({"page_id": it, "gender": []} for it in pages))
    lines(tmp_path / "train_topics.json", [{"id": 1, "title": "x", "rel_docs": [1]}])
    tracemalloc.start()
    _, told = import_collection(TREC, [tmp_path], "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told[0] == "4,000 documents"
    assert peak < 2_000_000
