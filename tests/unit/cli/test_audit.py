"""``fairqr audit``: what it prints and writes, its exit codes, and what it says of bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fairqr = Callable[..., tuple[str, str]]

SCHEMA = """attributes:
  gender: {field: gender, groups: [female, male]}
  place: {field: place, groups: [north, south]}
"""
WORDS = ["apple", "birch", "cedar", "daisy", "elder", "fennel", "grape", "hazel", "iris", "jasmine"]
DOCUMENTS = 200
SHOWN = ("-k", "5", "--depth", "40")


def write_people(path: Path) -> None:
    """Documents that the words find; those of men have each word more often, and come first."""
    lines = []
    for number in range(DOCUMENTS):
        word = WORDS[number % len(WORDS)]
        is_male = number % 20 < 10
        is_north = number // 20 % 2 == 1  # nothing tells the places apart
        document = {
            "id": f"d{number:03}",
            "title": "",
            "text": " ".join([word] * (3 if is_male else 1)),
            "gender": "male" if is_male else "female",
            "place": "north" if is_north else "south",
        }
        lines.append(json.dumps(document))
    path.write_text("\n".join(lines) + "\n")


def write_run(path: Path) -> None:
    """A run of two queries that rank four documents."""
    rows = []
    for query in ("q1", "q2"):
        for rank, document in enumerate("abcd"):
            rows.append(f"{query} Q0 {document} {rank} {9 - rank} own\n")
    path.write_text("".join(rows))


@pytest.fixture
def fairqr(fairqr: Callable[..., Any]) -> Fairqr:
    """Runs the command in a folder with documents, queries, a run, labels and judgements."""
    write_people(Path("people.jsonl"))
    Path("people.schema.yaml").write_text(SCHEMA)
    Path("queries.txt").write_text("".join(f"{word}\n" for word in WORDS))
    rows = [f"{word},{word},{asks}\n" for asks, word in enumerate(WORDS, start=1)]
    Path("log.csv").write_text("id,query,asks\n" + "".join(rows))
    judgements = [f"{WORDS[number % 10]} 0 d{number:03} 1\n" for number in range(DOCUMENTS)]
    Path("qrels").write_text("".join(judgements))
    write_run(Path("own.run"))
    Path("own.source.yaml").write_text(OWN)
    Path("labels.csv").write_text("id,gender\na,m\nb,m\nc,f\nd,f\ne,f\n")
    Path("run.qrels").write_text("q1 0 a 1\nq1 0 e 1\nq2 0 b 1\nq2 0 c 1\n")

    def call(*arguments: str, code: int = 0) -> tuple[str, str]:
        ended = fairqr("audit", *arguments)
        assert ended.code == code, ended
        return ended.stdout, ended.stderr

    return call


def files_of(folder: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


PEOPLE = ("--corpus", "people.jsonl", *SHOWN)
PLAIN = (*PEOPLE, "--queries", "queries.txt", "-o", "out")
RUN = ("--corpus", "own.source.yaml")
OWN = """name: own
engine: run
runs: own.run
attributes:
  gender: {labels: labels.csv}
"""
JUDGED = (*PEOPLE, "--queries", "log.csv", "--qrels", "qrels")


def test_a_planted_bias_is_found_and_the_audit_verifies(fairqr: Fairqr) -> None:
    stdout, stderr = fairqr(*JUDGED, "--attribute", "gender", "-o", "out")
    assert "10 queries for 'people-" in stderr
    assert "up to 11 requests" in stderr
    assert "Against female (gender): the ranking withholds 50.0 points" in stdout
    assert "This audit aims at what the relevant documents have. A search aims at what" in stdout
    assert "--target uniform:1 gives both one target." in stdout
    assert "\nFound by words alone.\n" in stdout

    female, male = json.loads(Path("out/audit.json").read_text())["groups"]
    assert (female["verdict"], male["verdict"]) == ("less", "more")
    assert female["ranking_gap"]["value"] == pytest.approx(0.5)

    digest = stdout.split("digest: ")[1].strip()
    stdout, _ = fairqr("verify", "out", "--digest", digest)
    assert "files match the manifest" in stdout
    assert "has the digest that you gave" in stdout

    results = Path("out/results.csv")
    results.write_bytes(results.read_bytes().replace(b"female", b"famale"))
    _, stderr = fairqr("verify", "out", code=3)

    assert "The file results.csv was changed." in stderr


@pytest.mark.promise("audit")
def test_a_finished_audit_is_read_and_nothing_is_asked(fairqr: Fairqr) -> None:
    """A finished audit is only read: the same command prints the same again and asks the engine
    nothing.
    """
    command = (*JUDGED, "-o", "out")
    first, _ = fairqr(*command)
    again, stderr = fairqr(*command)

    assert again == first
    assert "requests" not in stderr

    whole = Path("out/audit.json").read_text()
    Path("out/audit.json").write_text(whole.replace("0.5", "0.1"))
    printed, _ = fairqr(*command, "--json")

    assert printed.strip() == whole.strip(), "figures follow from raw/ alone"


@pytest.mark.promise("audit")
def test_a_folder_holds_one_audit(fairqr: Fairqr) -> None:
    """A folder holds one audit; another one is refused and changes no file of it."""
    fairqr(*JUDGED, "-o", "out")
    before = files_of("out")
    _, stderr = fairqr(*JUDGED, "-o", "out", "--target", "uniform:1", code=2)

    assert "holds a run with another spec (target)" in stderr
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.promise("audit")
def test_each_query_keeps_its_segment(fairqr: Fairqr) -> None:
    """An audit keeps the segment of each query, so results can be read by segment."""
    fairqr(*JUDGED, "--segment", "asks", "-o", "out")
    queries = json.loads(Path("out/raw/queries.json").read_text())["queries"]
    assert [query["segment"] for query in queries] == [str(asks) for asks in range(1, 11)]


def test_a_target_of_its_own_is_compared_with_nothing(fairqr: Fairqr) -> None:
    stdout, _ = fairqr(*JUDGED, "--attribute", "gender", "--target", "uniform:1", "-o", "out")
    assert "aims at" not in stdout


@pytest.mark.promise("command")
def test_conditions_end_with_code_3_after_all_is_written(fairqr: Fairqr) -> None:
    """A `--fail-if` condition that holds ends an audit with exit code 3, after all its files are
    written.
    """
    conditions = ("--fail-if", "ranking_gap > 0.2", "--fail-if", "absent > 2")
    stdout, stderr = fairqr(*JUDGED, "-o", "out", *conditions, code=3)
    assert "digest: " in stdout
    assert "'ranking_gap > 0.2' holds for gender=female (0.5" in stderr
    assert "absent" not in stderr

    _, stderr = fairqr(*JUDGED, "-o", "out", "--fail-if", "ranking_gap > 0.9")
    assert stderr == ""


def test_a_run_is_audited_by_its_labels(fairqr: Fairqr) -> None:
    """A judged document that the run lacks has one, too."""
    fairqr(*RUN, "--qrels", "run.qrels", "-k", "2", "-o", "out")
    first = json.loads(Path("out/raw/observations.jsonl").read_text().splitlines()[0])
    assert first["ids"] + first["others"] == [*"abcde"]
    assert first["relevance"] == [1, 0, 0, 0, 1]


@pytest.mark.promise("audit")
def test_redacted_queries_are_nowhere(fairqr: Fairqr) -> None:
    """A redacted audit holds no word of a query in any of its files, and `audit verify` says that
    queries were not checked.
    """
    fairqr(*JUDGED, "--redact", "-o", "out")
    for path, content in files_of("out").items():
        assert not any(word.encode() in content for word in WORDS), path
    assert "Not checked: What was asked and answered: " in fairqr("verify", "out")[0]


def test_two_audits_are_compared(fairqr: Fairqr) -> None:
    fairqr(*JUDGED, "--attribute", "gender", "-o", "may")
    judgements = Path("qrels").read_text().splitlines(keepends=True)
    Path("qrels").write_text("".join(line for line in judgements if "d00" not in line))
    fairqr(*JUDGED, "--attribute", "gender", "-o", "june")
    stdout, _ = fairqr("compare", "may", "june", "-o", "drift")

    assert stdout.splitlines()[0] == "Compared over 10 queries that both audits answered."
    assert "Settings differ: judgements (" in stdout
    assert sorted(os.listdir("drift")) == ["comparison.json", "report.html", "report.md"]

    stdout, _ = fairqr("compare", "may", "may", "--json")
    assert {row["change"]["value"] for row in json.loads(stdout)["changes"]} == {0.0}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*PEOPLE, "--queries", "queries.txt"), "An audit needs a folder"),
        ((*PEOPLE, "-o", "out"), "An audit needs queries; name their file with --queries."),
        ((*RUN, "--segment", "topic", "-o", "out"), "it has no 'topic'"),
        ((*JUDGED, "--fail-if", "size > 3", "-o", "out"), "There is no figure 'size'"),
        ((*JUDGED, "-o", "."), "is not empty and has no audit"),
        ((*PLAIN, "--target", "relevance:1"), "'fairqr models pull minilm', or give judgements."),
        (("--corpus", "one.source.yaml", "-o", "out"), "needs at least two"),
        (("verify", "nowhere"), "nowhere holds no audit"),
    ],
    ids=[
        "no folder",
        "no queries",
        "no segment",
        "no such figure",
        "another folder",
        "no relevance",
        "one query",
        "no audit",
    ],
)
def test_bad_input_is_one_sentence(
    fairqr: Fairqr, arguments: tuple[str, ...], sentence: str
) -> None:
    Path("one.csv").write_text("id,gender\na,f\nb,f\n")
    Path("one.source.yaml").write_text(OWN.replace("labels.csv", "one.csv"))
    stdout, stderr = fairqr(*arguments, code=2)

    assert sentence in stderr
    assert stdout == ""
    assert not Path("out").exists()


@pytest.mark.promise("audit")
def test_without_relevance_there_are_shares_and_no_gaps(fairqr: Fairqr) -> None:
    """An audit that knows no relevant documents has shares of exposure, no gaps and no verdict, and
    a `--fail-if` condition on a gap is said to be unchecked and ends with exit code 4.
    """
    stdout, stderr = fairqr(*PLAIN)
    assert "Until then no gaps are measured" in stderr
    assert "No verdict: no relevant documents are known" in stdout

    groups = json.loads(Path("out/audit.json").read_text())["groups"]
    assert (groups[0]["exposure"]["value"], groups[0]["ranking_gap"]["value"]) == (0, None)

    _, stderr = fairqr(*PLAIN, "--fail-if", "ranking_gap > 0", code=4)
    assert "may hold for gender=female, gender=male, place=north" in stderr


def write_pairs(path: Path, versions: tuple[str, str] = ("man", "woman")) -> None:
    """For each word a document that has it three times, of a man, and one that has it once."""
    rows = []
    for column, word in enumerate(WORDS):
        for row, version in enumerate(versions):
            rows.append(f"{word},{version},d{column + 10 * row:03}\n")
    path.write_text("query,version,document\n" + "".join(rows))


def keep_lines(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number]))


def test_pairs_go_on_and_only_what_is_missing_is_asked(fairqr: Fairqr) -> None:
    write_pairs(Path("pairs.csv"))
    command = (*JUDGED, "--pairs", "pairs.csv", "-o")
    stdout, stderr = fairqr(*command, "out")

    assert "20 versions for 10 queries by 'people-" in stderr
    assert "scores the version 'man' of a document higher than the version 'woman'" in stdout

    # The texts of the queries of pairs are kept nowhere.
    raw = Path("out/raw/pairs.jsonl").read_text()
    assert json.loads(raw.splitlines()[0])["query"] == 1
    assert not any(word in raw for word in WORDS)

    fairqr(*command, "half")
    # As a kill leaves it: some of the pairs are scored, and no figures are there.
    manifest = json.loads(Path("half/manifest.json").read_text())
    Path("half/manifest.json").write_text(json.dumps(manifest | {"finished": "", "files": {}}))
    keep_lines(Path("half/raw/observations.jsonl"), 10)
    keep_lines(Path("half/raw/pairs.jsonl"), 4)
    _, stderr = fairqr(*command, "half")

    assert "12 versions for 6 queries" in stderr
    assert Path("half/audit.json").read_bytes() == Path("out/audit.json").read_bytes()

    write_pairs(Path("pairs.csv"), ("he", "she"))
    _, stderr = fairqr(*command, "out", code=2)
    assert "another inputs" in stderr


def write_texts(path: Path) -> None:
    """For each word two pairs of texts; only in the segment 'care' one of them has the word."""
    rows = []
    for word in WORDS:
        rows += [
            f"{word},1,care,f,A {word}: she cares.\n",
            f"{word},1,care,m,He cares.\n",
            f"{word},2,pay,f,A {word} earns.\n",
            f"{word},2,pay,m,A {word} works.\n",
        ]
    path.write_text("query,pair,segment,version,text\n" + "".join(rows))


@pytest.mark.promise("audit")
def test_a_preference_in_one_segment_is_found_there(fairqr: Fairqr) -> None:
    """A difference between versions of documents is found in its size, only in the segment that has
    it, and no text of a pair is kept.

    By what reads texts, not by the engine.
    """
    write_texts(Path("texts.csv"))
    command = (*JUDGED, "--attribute", "gender", "--pairs", "texts.csv", "-o", "out")
    stdout, stderr = fairqr(*command, "--pairs-by", "bm25", "--redact")

    assert "40 versions for 10 queries by 'bm25'" in stderr

    pairs = json.loads(Path("out/audit.json").read_text())["pairs"]
    assert (pairs["scored_by"], pairs["tests"]["family"]) == ("bm25", 3)
    assert [comparison["segment"] for comparison in pairs["comparisons"]] == ["", "care", "pay"]

    _, care, pay = pairs["comparisons"]
    assert care["higher"]["value"] == 1
    assert care["difference"]["p"] == pytest.approx(3 * 2 / 1024)
    assert pay["equal"]["value"] == 1
    assert pay["difference"]["p"] == 1

    text = " ".join(stdout.split())
    assert "In the segment 'care', 'bm25' scores the version 'f' of a document higher" in text
    assert "segment 'pay'" not in text
    assert "| care | f and m | 10 |" in Path("out/report.md").read_text()
    assert "\ncare,f,m,10," in Path("out/pairs.csv").read_text()
    assert "cares" not in Path("out/raw/pairs.jsonl").read_text()

    fairqr("verify", "out")


def test_versions_with_texts_need_something_that_reads_texts(fairqr: Fairqr) -> None:
    write_texts(Path("texts.csv"))
    _, stderr = fairqr(*JUDGED, "--pairs", "texts.csv", "-o", "out", code=2)
    assert "choose --pairs-by bm25, dense, rerank:URL, monot5 or monobert" in stderr


def test_what_reads_texts_needs_pairs(fairqr: Fairqr) -> None:
    _, stderr = fairqr(*JUDGED, "--pairs-by", "bm25", "-o", "other", code=2)
    assert "name their file with --pairs" in stderr
