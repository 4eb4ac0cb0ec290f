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
        word, more = WORDS[number % len(WORDS)], number % 20 < 10
        text = " ".join([word] * (3 if more else 1))
        person = "male" if more else "female"
        # Nothing tells the places apart.
        place = "north" if number // 20 % 2 else "south"
        document = {"id": f"d{number:03}", "title": "", "text": text}
        lines.append(json.dumps({**document, "gender": person, "place": place}))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def fairqr(fairqr: Callable[..., Any]) -> Fairqr:
    """Runs the command in a folder with documents, queries, a run, labels and judgements."""
    write_people(Path("people.jsonl"))
    Path("people.schema.yaml").write_text(SCHEMA)
    Path("queries.txt").write_text("".join(f"{word}\n" for word in WORDS))
    Path("log.csv").write_text(
        "id,query,asks\n" + "".join(f"{w},{w},{n + 1}\n" for n, w in enumerate(WORDS))
    )
    judged = "".join(f"{WORDS[number % 10]} 0 d{number:03} 1\n" for number in range(DOCUMENTS))
    Path("qrels").write_text(judged)
    Path("own.run").write_text(
        "".join(f"{q} Q0 {d} {r} {9 - r} own\n" for q in ("q1", "q2") for r, d in enumerate("abcd"))
    )
    Path("own.source.yaml").write_text(OWN)
    Path("labels.csv").write_text("id,gender\na,m\nb,m\nc,f\nd,f\ne,f\n")
    Path("run.qrels").write_text("q1 0 a 1\nq1 0 e 1\nq2 0 b 1\nq2 0 c 1\n")

    def call(*arguments: str, code: int = 0) -> tuple[str, str]:
        done = fairqr("audit", *arguments)
        assert done.code == code, done
        return done[1:]

    return call


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
    assert "Against female (gender): the ranking withholds 50.0 points" in stdout
    assert "10 queries for 'people-" in stderr
    assert "up to 11 requests" in stderr
    written = json.loads(Path("out/audit.json").read_text())
    assert "This audit aims at what the relevant documents have. A search aims at what" in stdout
    assert "--target uniform:1 gives both one target." in stdout
    assert "\nFound by words alone.\n" in stdout
    female, male = written["groups"]
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


def test_a_finished_audit_is_read_and_nothing_is_asked(fairqr: Fairqr) -> None:
    """The folder holds it alone, with the segments of its queries."""
    asked = (*JUDGED, "--segment", "asks", "-o", "out")
    first, _ = fairqr(*asked)
    kept = json.loads(Path("out/raw/queries.json").read_text())
    assert [query["segment"] for query in kept["queries"]] == [str(n) for n in range(1, 11)]
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    again, stderr = fairqr(*asked)
    assert again == first
    assert "requests" not in stderr
    _, stderr = fairqr(*asked, "--target", "uniform:1", code=2)
    assert "holds a run with another spec (target)" in stderr
    assert {path: path.read_bytes() for path in before} == before
    whole = Path("out/audit.json").read_text()
    Path("out/audit.json").write_text(whole.replace("0.5", "0.1"))
    printed, _ = fairqr(*asked, "--json")
    assert printed.strip() == whole.strip(), "figures follow from raw/ alone"


def test_an_audit_with_a_target_of_its_own_compares_it_with_nothing(fairqr: Fairqr) -> None:
    stdout, _ = fairqr(*JUDGED, "--attribute", "gender", "--target", "uniform:1", "-o", "out")
    assert "aims at" not in stdout


def test_conditions_end_with_code_3_after_all_is_written(fairqr: Fairqr) -> None:
    asked = (*JUDGED, "-o", "out", "--fail-if", "ranking_gap > 0.2", "--fail-if", "absent > 2")
    stdout, stderr = fairqr(*asked, code=3)
    assert "digest: " in stdout
    assert "'ranking_gap > 0.2' holds for gender=female (0.5" in stderr
    assert "absent" not in stderr
    _, stderr = fairqr(*JUDGED, "-o", "out", "--fail-if", "ranking_gap > 0.9")
    assert stderr == ""


def test_a_run_is_audited_by_its_labels(fairqr: Fairqr) -> None:
    """A judged document that the run lacks has one, too."""
    fairqr(*RUN, "--qrels", "run.qrels", "-k", "2", "-o", "out")
    first = json.loads(Path("out/raw/observations.jsonl").read_text().splitlines()[0])
    assert (first["ids"] + first["others"], first["relevance"]) == ([*"abcde"], [1, 0, 0, 0, 1])


def test_redacted_queries_are_nowhere(fairqr: Fairqr) -> None:
    fairqr(*JUDGED, "--redact", "-o", "out")
    for path in Path("out").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(word.encode() in content for word in WORDS), path
    assert "Not checked: What was asked and answered: " in fairqr("verify", "out")[0]


def test_two_audits_are_compared(fairqr: Fairqr) -> None:
    fairqr(*JUDGED, "--attribute", "gender", "-o", "may")
    judged = Path("qrels").read_text().splitlines(keepends=True)
    Path("qrels").write_text("".join(it for it in judged if "d00" not in it))
    fairqr(*JUDGED, "--attribute", "gender", "-o", "june")
    stdout, _ = fairqr("compare", "may", "june", "-o", "drift")
    assert stdout.splitlines()[0] == "Compared over 10 queries that both audits answered."
    assert "Settings differ: judgements (" in stdout
    assert sorted(os.listdir("drift")) == ["comparison.json", "report.html", "report.md"]
    stdout, _ = fairqr("compare", "may", "may", "--json")
    assert {it["change"]["value"] for it in json.loads(stdout)["changes"]} == {0.0}


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


def test_without_relevance_there_are_shares_and_no_gaps(fairqr: Fairqr) -> None:
    stdout, stderr = fairqr(*PLAIN)
    assert "Until then no gaps are measured" in stderr
    assert "No verdict: no relevant documents are known" in stdout
    groups = json.loads(Path("out/audit.json").read_text())["groups"]
    assert (groups[0]["exposure"]["value"], groups[0]["ranking_gap"]["value"]) == (0, None)
    _, stderr = fairqr(*PLAIN, "--fail-if", "ranking_gap > 0", code=4)
    assert "may hold for gender=female, gender=male, place=north" in stderr


def write_pairs(path: Path, versions: tuple[str, str] = ("man", "woman")) -> None:
    """For each word a document that has it three times, of a man, and one that has it once."""
    rows = [
        f"{w},{v},d{n + 10 * m:03}\n" for n, w in enumerate(WORDS) for m, v in enumerate(versions)
    ]
    path.write_text("query,version,document\n" + "".join(rows))


def test_pairs_by_the_engine_go_on_and_ask_only_what_is_missing(fairqr: Fairqr) -> None:
    write_pairs(Path("pairs.csv"))
    asked = (*JUDGED, "--pairs", "pairs.csv", "-o")
    stdout, stderr = fairqr(*asked, "out")
    assert "20 versions for 10 queries by 'people-" in stderr
    assert "scores the version 'man' of a document higher than the version 'woman'" in stdout
    # The texts of the queries of pairs are kept nowhere.
    raw = Path("out/raw/pairs.jsonl").read_text()
    assert json.loads(raw.splitlines()[0])["query"] == 1
    assert not any(word in raw for word in WORDS)
    fairqr(*asked, "half")
    # As a kill leaves it: some of the pairs are scored, and no figures are there.
    manifest = json.loads(Path("half/manifest.json").read_text())
    Path("half/manifest.json").write_text(json.dumps(manifest | {"finished": "", "files": {}}))
    for name, kept in (("observations", 10), ("pairs", 4)):
        path = Path(f"half/raw/{name}.jsonl")
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    _, stderr = fairqr(*asked, "half")
    assert "12 versions for 6 queries" in stderr
    assert Path("half/audit.json").read_bytes() == Path("out/audit.json").read_bytes()
    write_pairs(Path("pairs.csv"), ("he", "she"))
    _, stderr = fairqr(*asked, "out", code=2)
    assert "another inputs" in stderr


def test_a_preference_in_one_segment_is_found_there(fairqr: Fairqr) -> None:
    """By what reads texts, not by the engine."""
    rows = "".join(
        f"{w},1,care,f,A {w}: she cares.\n{w},1,care,m,He cares.\n"
        f"{w},2,pay,f,A {w} earns.\n{w},2,pay,m,A {w} works.\n"
        for w in WORDS
    )
    Path("texts.csv").write_text(f"query,pair,segment,version,text\n{rows}")
    asked = (*JUDGED, "--attribute", "gender", "--pairs", "texts.csv", "-o", "out")
    _, stderr = fairqr(*asked, code=2)
    assert "choose --pairs-by bm25, dense, rerank:URL, monot5 or monobert" in stderr
    stdout, stderr = fairqr(*asked, "--pairs-by", "bm25", "--redact")
    assert "40 versions for 10 queries by 'bm25'" in stderr
    found = json.loads(Path("out/audit.json").read_text())["pairs"]
    assert (found["scored_by"], found["tests"]["family"]) == ("bm25", 3)
    assert [it["segment"] for it in found["comparisons"]] == ["", "care", "pay"]
    _, care, pay = found["comparisons"]
    assert (care["higher"]["value"], care["difference"]["p"]) == (1, pytest.approx(3 * 2 / 1024))
    assert (pay["equal"]["value"], pay["difference"]["p"]) == (1, 1)
    said = " ".join(stdout.split())
    assert "In the segment 'care', 'bm25' scores the version 'f' of a document higher" in said
    assert "segment 'pay'" not in said
    assert "| care | f and m | 10 |" in Path("out/report.md").read_text()
    assert "\ncare,f,m,10," in Path("out/pairs.csv").read_text()
    assert "cares" not in Path("out/raw/pairs.jsonl").read_text()
    fairqr("verify", "out")
    _, stderr = fairqr(*JUDGED, "--pairs-by", "bm25", "-o", "other", code=2)
    assert "name their file with --pairs" in stderr
