"""Importing: the official shapes, what is left behind by failures, and bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import (
    CorpusError,
    FairqrError,
    InputError,
    TargetError,
)
from fairqr.evaluation.collections.finding import (
    find_collection,
    import_collection,
    list_collections,
)
from fairqr.evaluation.collections.labels import scan_corpus
from fairqr.evaluation.collections.query_targets import query_targets
from tests.golden.reports import check_text
from tests.patience import PATIENCE
from tests.unit.evaluation.collections.official import lines, write_2021, write_2022

SUBSET = Path(__file__).parents[5] / "shared" / "data" / "trec2022"


def fields_of(folder: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(folder / "documents.jsonl.gz", "rt") as stream:
        return {document["id"]: document for document in map(json.loads, stream)}


@pytest.mark.parametrize("year", ["2021", "2022"])
def test_the_official_files_are_read_as_recorded(tmp_path: Path, year: str) -> None:
    """Labels, topics and judgements are those of the files; what is odd in them is counted.

    In 2021 the metadata with genders are preferred, and the one wrong gender is dropped. In 2022
    all other genders are one group, and trans women are women.
    """
    raw = (write_2021 if year == "2021" else write_2022)(tmp_path / "raw")
    folder, told = import_collection(f"trec-fair-{year}", [raw], "fair", data=tmp_path)
    read = {split: find_collection("fair", split, data=tmp_path) for split in ("train", "eval")}
    assert read["train"].about.target == f"trec{year}"
    found = {
        "told": told,
        "documents": fields_of(folder),
        "topics": {split: list(map(asdict, it.topics)) for split, it in read.items()},
        "qrels": {split: it.qrels for split, it in read.items()},
    }
    check_text(f"fair_{year}.json", json.dumps(found, indent=1) + "\n")


def test_the_other_dimensions_of_2022(tmp_path: Path) -> None:
    """Occupation, alphabet, age, popularity and languages; the target keeps their shares."""
    raw = write_2022(tmp_path / "raw")
    import_collection("trec-fair-2022-all", [raw], "all", data=tmp_path)
    collection = find_collection("all", "train", data=tmp_path)
    others = list(collection.corpus.schema.attributes)[3:]
    assert others == ["occupation", "alphabet", "age", "popularity", "languages"]
    labels = scan_corpus(collection.corpus, ["12", "39", "307"])
    found = query_targets(collection, labels, "occupation")
    named = dict(zip(found.dimension.groups, found.targets["84"], strict=True))
    # Of the two pages of the topic one is a writer's and a juggler's, and one of nobody.
    assert {group: share for group, share in named.items() if share} == {
        "writer": 0.25,
        "unknown": 0.75,
    }
    languages = query_targets(collection, labels, "gender×languages")
    assert sum(languages.targets["84"]) == pytest.approx(1)
    assert len(languages.dimension.groups) == 4 * 4
    with pytest.raises(TargetError, match="no population for 'occupation'"):
        query_targets(collection, labels, "occupation", "relevance:0.5,population:0.5")


CORPUS = "trec_corpus_20220301_plain.json.gz"
METADATA = "trec_2022_articles_discrete.json.gz"
TOPICS = "trec_2022_train_reldocs.jsonl"
BAD: list[tuple[str, bytes, str]] = [
    (CORPUS, b'{"id": 1, "plain": "", "title": "x"}\n{', "line 2: Invalid JSON"),
    (CORPUS, b'{"id": "x", "plain": "", "title": "x"}', "line 1: its id: Input should be"),
    (CORPUS, b'{"id": 1, "plain": "", "title": ""}', "line 1: its title: "),
    (METADATA, b'{"page_id": 1, "source_subcont_regions": {"a": -1}}', "greater than or equal"),
    (TOPICS, b'{"id": 84, "title": "x", "rel_docs": "[a]"}', "line 1: "),
    (TOPICS, b'{"id": 84, "rel_docs": [1]}', "line 1: its title"),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD)
def test_a_bad_official_line_is_named_and_nothing_is_left(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    raw = write_2022(tmp_path / "raw")
    (raw / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(CorpusError) as caught:
        import_collection("trec-fair-2022", [raw], "x", data=tmp_path)
    assert f"{raw / name}, line " in str(caught.value)
    assert words in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "collections").iterdir()) == [".x.lock"]


def test_missing_and_mistaken_files_are_said(tmp_path: Path) -> None:
    raw = write_2022(tmp_path / "raw")
    with pytest.raises(CorpusError, match="have no metadata and no topics; files are told"):
        import_collection("trec-fair-2022", [raw / CORPUS], "x", data=tmp_path)
    with pytest.raises(CorpusError, match="is of 2022; import it with trec-fair-2022"):
        import_collection("trec-fair-2021", [raw], "x", data=tmp_path)
    for topics in raw.glob("*.jsonl"):
        topics.unlink()
    lines(raw / "eval-topics.jsonl", [{"id": 1, "title": "x", "keywords": []}])
    with pytest.raises(CorpusError, match="add the file with rel_docs"):
        import_collection("trec-fair-2022", [raw], "x", data=tmp_path)
    with pytest.raises(InputError, match=r"There is no loader 'trec'; there are trec-fair-2021,"):
        import_collection("trec", [raw], "x", data=tmp_path)


def write_own(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    lines(folder / "people.jsonl", [{"id": "a", "title": "Ada", "gender": "female"}] * 2)
    (folder / "people.yaml").write_text(
        "attributes: {gender: {field: gender, groups: [female, male]}}"
    )
    lines(folder / "my-topics.jsonl", [{"id": 1, "title": "x"}])
    (folder / "judged.txt").write_text("1 0 a 1\n1 0 z 1\n")
    return sorted(folder.iterdir())


def test_ones_own_files(tmp_path: Path) -> None:
    """Told apart by their names, checked, and found by the new name."""
    folder, told = import_collection("jsonl", write_own(tmp_path / "own"), "mine", data=tmp_path)
    assert told == [
        "1 documents",
        "1 left out, whose id had come before",
        "1 topics, 2 judgements",
        "1 judged documents are not among the documents; their judgements are kept",
    ]
    collection = find_collection("mine", data=tmp_path)
    assert collection.folder == folder
    assert "people.jsonl" in collection.about.source
    assert collection.about.loader == "jsonl"
    (listed,) = [entry for entry in list_collections(tmp_path) if entry["name"] == "mine"]
    assert (listed["kind"], listed["documents"], listed["problem"]) == ("jsonl", 1, "")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("people.jsonl", '{"id": "a", "title": "x", "gender": "f"}', "line 1: gender is 'f'"),
        ("people.jsonl", "", "are empty; there must be one at least"),
        ("more.txt", "", "judged.txt, more.txt all seem to be qrels; give one"),
    ],
)
def test_bad_files_of_ones_own(tmp_path: Path, name: str, content: str, words: str) -> None:
    """One sentence, and nothing is left behind."""
    write_own(tmp_path / "own")
    (tmp_path / "own" / name).write_text(content)
    with pytest.raises(FairqrError) as caught:
        import_collection("jsonl", sorted((tmp_path / "own").iterdir()), "mine", data=tmp_path)
    assert words in str(caught.value)
    assert not [p for p in (tmp_path / "collections").iterdir() if p.is_dir()]


def test_a_name_that_is_taken_is_replaced_only_if_asked(tmp_path: Path) -> None:
    """And where the new files are wrong, the old collection stays."""
    paths = write_own(tmp_path / "own")
    loader = "jsonl"
    import_collection(loader, paths, "mine", data=tmp_path)
    with pytest.raises(InputError, match="There is a collection 'mine' already"):
        import_collection(loader, paths, "mine", data=tmp_path)
    (tmp_path / "own" / "my-topics.jsonl").write_text('{"id": 1, "title": "y"}')
    import_collection(loader, paths, "mine", replace=True, data=tmp_path)
    assert find_collection("mine", data=tmp_path).topics[0].title == "y"
    (tmp_path / "own" / "judged.txt").write_text("broken")
    with pytest.raises(CorpusError):
        import_collection(loader, paths, "mine", replace=True, data=tmp_path)
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


def test_an_import_that_is_ended_leaves_no_collection(
    tmp_path: Path,
) -> None:
    """Not even killed; the next import of the name finds the place free."""
    raw = write_2022(tmp_path / "raw")
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK, raw, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "at work\n"
    child.kill()
    child.communicate(timeout=PATIENCE)
    found = sorted(path.name for path in (tmp_path / "collections").iterdir())
    assert [name[:8] for name in found] == [".x.build", ".x.lock"]
    assert [listed["name"] for listed in list_collections(tmp_path)] == ["notables"]
    import_collection("trec-fair-2022", [raw], "x", data=tmp_path)
    assert sorted(p.name for p in (tmp_path / "collections").iterdir()) == [".x.lock", "x"]


CHILD = """
import sys
from pathlib import Path
from fairqr.evaluation.collections.finding import find_collection, import_collection
from fairqr.evaluation.collections.statistics import describe_collection
raw, data = map(Path, sys.argv[1:])
import_collection("trec-fair-2022", [raw], "x", data=data)
assert describe_collection(find_collection("x", data=data))["documents"] > 0
# Not ru_maxrss, which a child has from its parent.
peak = next(line for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""


def _peak(folder: Path, documents: int) -> int:
    """Return the peak of memory, in MB, of importing and describing so many documents of 5 kB."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    text = "maize " * 800
    with (raw / "corpus.json").open("w") as corpus, (raw / "articles.json").open("w") as metadata:
        for page in range(documents):
            article = {"id": page, "title": f"{page}", "url": "u", "plain": f"{page} {text}"}
            corpus.write(json.dumps(article) + "\n")
            labels = {"page_id": page, "page_subcont_regions": [], "gender": []}
            metadata.write(json.dumps(labels) + "\n")
    lines(raw / "train_topics.json", [{"id": 1, "title": "x", "rel_docs": list(range(100))}])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, raw, folder],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc is absent")
def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    """Ninety megabytes more of text take less than twenty more of memory."""
    small, large = _peak(tmp_path / "small", 2_000), _peak(tmp_path / "large", 20_000)
    assert large - small < 20


@pytest.mark.skipif(not SUBSET.is_dir(), reason=f"{SUBSET} is absent")
def test_the_joined_subset_of_2022(tmp_path: Path) -> None:
    """The real folder, which lacks a schema: 23 topics."""
    collection = find_collection(SUBSET, data=tmp_path)
    assert find_collection(SUBSET, data=tmp_path) == collection
    assert list(collection.corpus.schema.attributes) == ["gender", "continent"]
    assert "subset" in collection.title
    assert len(collection.topics) == 23
    assert sum(map(len, collection.qrels.values())) == 13_371
    assert collection.topics[0].text(2) == "Agriculture cultivated agricultural"


def _ir_datasets(tmp_path: Path, dataset: str) -> subprocess.CompletedProcess[str]:
    """Import through the real ir_datasets, which finds small files where its downloads lie.

    In a process of its own: the library reads where its home is when it is imported.
    """
    command = [sys.executable, "-m", "fairqr", "dataset", "import", "ir-datasets", dataset]
    home = {"IR_DATASETS_HOME": f"{tmp_path}/home", "IR_DATASETS_TMP": f"{tmp_path}/tmp"}
    # Nothing is fetched, whatever this machine can reach.
    own = {"FAIRQR_DATA_DIR": str(tmp_path), "HTTPS_PROXY": "http://127.0.0.1:9", **home}
    return subprocess.run(
        [*command, "--name", "fair"],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_collections_through_ir_datasets(tmp_path: Path) -> None:
    """The files that lie where its downloads do are read as those that are named."""
    raw, home = write_2022(tmp_path / "raw"), tmp_path / "home" / "trec-fair" / "2022"
    home.mkdir(parents=True)
    paths = [raw / name for name in (CORPUS, METADATA, TOPICS)]
    for path in paths:
        (home / path.name).write_bytes(path.read_bytes())
    done = _ir_datasets(tmp_path, "trec-fair/2022")
    assert done.returncode == 0, done.stderr
    mine, told = import_collection("trec-fair-2022", paths, "mine", data=tmp_path)
    assert done.stdout.splitlines()[1:] == [f"  {line}" for line in told]
    theirs = tmp_path / "collections" / "fair"
    for path in mine.iterdir():
        if path.name != "collection.yaml":
            assert (theirs / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("msmarco-passage", "is neither trec-fair/2021 nor trec-fair/2022"),
        ("trec-fair/2021", "ir_datasets cannot give trec-fair/2021"),
    ],
)
def test_what_ir_datasets_cannot_give(tmp_path: Path, dataset: str, said: str) -> None:
    done = _ir_datasets(tmp_path, dataset)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert said in done.stderr
    assert not (tmp_path / "collections" / "fair").exists()
