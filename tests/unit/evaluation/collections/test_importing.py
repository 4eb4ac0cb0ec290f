"""Importing: the official shapes, what is left behind by failures, and bounded memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from dataclasses import asdict
from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError, FairqrError, InputError
from fairqr.evaluation.collections.finding import (
    find_collection,
    import_collection,
    list_collections,
)
from tests.golden.reports import check_text
from tests.patience import PATIENCE
from tests.unit.evaluation.collections.official import lines, write_2022

TREC = "trec-fair-2022"


def test_the_official_files_are_read_as_recorded(tmp_path: Path) -> None:
    """Labels, topics and judgements are those of the files; what is odd in them is counted.

    All other genders are one group, and trans women are women.
    """
    folder, told = import_collection(TREC, [write_2022(tmp_path / "raw")], "fair", data=tmp_path)
    read = {split: find_collection("fair", split, data=tmp_path) for split in ("train", "eval")}
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


CORPUS = "trec_corpus_20220301_plain.json.gz"
METADATA = "trec_2022_articles_discrete.json.gz"
TOPICS = "trec_2022_train_reldocs.jsonl"


def write_own(folder: Path) -> Path:
    lines(folder / "people.jsonl", [{"id": "a", "title": "Ada", "gender": "female"}])
    schema = "attributes: {gender: {field: gender, groups: [female, male]}}"
    (folder / "people.yaml").write_text(schema)
    lines(folder / "my-topics.jsonl", [{"id": 1, "title": "x"}])
    (folder / "judged.txt").write_text("1 0 a 1\n1 0 z 1\n")
    return folder


BAD = [
    (TREC, CORPUS, '{"id": 1, "plain": "", "title": "x"}\n{', "line 2: Invalid JSON"),
    (TREC, CORPUS, '{"id": 1, "plain": "", "title": ""}', "line 1: its title: "),
    (TREC, METADATA, '{"page_id": 1, "source_subcont_regions": {"a": -1}}', "greater than or eq"),
    (TREC, TOPICS, '{"id": 84, "title": "x", "rel_docs": "[a]"}', "line 1: "),
    ("jsonl", "people.jsonl", '{"id": "a", "title": "x", "gender": "f"}', "line 1: gender is"),
    ("jsonl", "people.jsonl", "", "are empty; there must be one at least"),
    ("jsonl", "more.txt", "", "judged.txt, more.txt all seem to be qrels; give one"),
]


@pytest.mark.parametrize(("loader", "name", "content", "words"), BAD)
def test_a_bad_file_is_one_sentence_and_nothing_is_left(
    tmp_path: Path, loader: str, name: str, content: str, words: str
) -> None:
    raw = (write_2022 if loader == TREC else write_own)(tmp_path / "raw")
    data = content.encode()
    (raw / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(FairqrError) as caught:
        import_collection(loader, [raw], "x", data=tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "collections").iterdir()) == [".x.lock"]


def test_topics_without_judgements_are_no_collection(tmp_path: Path) -> None:
    raw = write_2022(tmp_path / "raw")
    for topics in raw.glob("*.jsonl"):
        topics.unlink()
    lines(raw / "eval-topics.jsonl", [{"id": 1, "title": "x", "keywords": []}])
    with pytest.raises(CorpusError, match="add the file with rel_docs"):
        import_collection(TREC, [raw], "x", data=tmp_path)


def test_a_name_that_is_taken_is_replaced_only_if_asked(tmp_path: Path) -> None:
    """And where the new files are wrong, the old collection stays."""
    own = write_own(tmp_path / "own")

    def title(**options: bool) -> str:
        import_collection("jsonl", [own], "mine", data=tmp_path, **options)
        return find_collection("mine", data=tmp_path).topics[0].title

    assert title() == "x"
    with pytest.raises(InputError, match="There is a collection 'mine' already"):
        title()
    lines(own / "my-topics.jsonl", [{"id": 1, "title": "y"}])
    assert title(replace=True) == "y"
    (own / "judged.txt").write_text("broken")
    with pytest.raises(CorpusError):
        title(replace=True)
    assert find_collection("mine", data=tmp_path).topics[0].title == "y"
    assert sorted(p.name for p in (tmp_path / "collections").iterdir()) == [".mine.lock", "mine"]


STUCK = """
import sys
from pathlib import Path
from fairqr.evaluation.collections.finding import import_collection

def wait(count):
    print("at work", flush=True)
    sys.stdin.read()

paths, data = [Path(sys.argv[1])], Path(sys.argv[2])
import_collection("trec-fair-2022", paths, "x", data=data, progress=wait)
"""


def test_an_import_that_is_ended_leaves_no_collection(tmp_path: Path) -> None:
    """Not even killed; the next import of the name finds the place free."""
    raw = write_2022(tmp_path / "raw")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([sys.executable, "-c", STUCK, raw, tmp_path], text=True, **pipes)  # type: ignore[call-overload]
    assert child.stdout.readline() == "at work\n"
    child.kill()
    child.communicate(timeout=PATIENCE)
    found = sorted(path.name for path in (tmp_path / "collections").iterdir())
    assert [name[:8] for name in found] == [".x.build", ".x.lock"]
    assert [listed["name"] for listed in list_collections(tmp_path)] == ["notables"]
    import_collection(TREC, [raw], "x", data=tmp_path)
    assert sorted(p.name for p in (tmp_path / "collections").iterdir()) == [".x.lock", "x"]


def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    """Of 20 MB of articles, less than 2 MB are held; their ids and metadata stand on disk."""
    text, pages = "maize " * 800, range(4_000)
    lines(tmp_path / "corpus.json", ({"id": it, "title": f"{it}", "plain": text} for it in pages))
    lines(tmp_path / "articles.json", ({"page_id": it, "gender": []} for it in pages))
    lines(tmp_path / "train_topics.json", [{"id": 1, "title": "x", "rel_docs": [1]}])
    tracemalloc.start()
    _, told = import_collection(TREC, [tmp_path], "x", data=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told[0] == "4,000 documents"
    assert peak < 2_000_000
