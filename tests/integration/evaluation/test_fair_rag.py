"""Fair RAG by the real command, with a real HTTP server as the generator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr.evaluation.rag.store import RagStore
from tests.servers.model_server import Answer, Asked, Main, ModelServer, says
from tests.unit.agents.ranking.tiny_models import save_bert, save_t5

POOLS = {"q0": 6, "q1": 6, "q2": 2, "q3": 6}
USEFUL = {"q0": 3, "q1": 2, "q2": 2, "q3": 1}
"""The first so many documents are useful; q2 has fewer than k, and q3 too few useful ones."""

LABELS = sum(1 + size for size in POOLS.values())


def names(query: str) -> list[str]:
    """The titles of a query's documents; a letter for each, so that none is part of another."""
    return [f"Person {query} {letter}" for letter in "abcdef"[: POOLS[query]]]


def first_title(asked: Asked) -> Answer:
    """Answer with the title of the first document that is shown."""
    shown = [line for line in asked.last_message.splitlines() if line.startswith("* ")]
    return says(shown[0][2:].split(":")[0] if shown else "nobody")


@pytest.fixture
def questions(
    clean_environment: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Four questions with pools, to be judged by names; the server answers by the first title."""
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    model_server.does(first_title)
    folder = clean_environment / "prompts" / "answer"
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("answer.yaml"), folder / "v1.yaml")
    monkeypatch.setenv("FAIRQR_PROMPTS_DIR", str(folder.parent))
    path = clean_environment / "people.jsonl"
    lines = []
    for query in POOLS:
        pool = [
            {"id": f"{query}-{place}", "title": title, "text": f"{title} {'painter ' * place}"}
            for place, title in enumerate(names(query))
        ]
        line = {"id": query, "question": f"Who is a painter of {query}?", "pool": pool}
        lines.append(json.dumps(line | {"golds": names(query)[: USEFUL[query]]}) + "\n")
    path.write_text("".join(lines))
    return path


def run_arguments(questions: Path, folder: str = "run", **changes: Any) -> list[str | Path]:
    """The arguments that run a small experiment, whose file is written."""
    values = {"kind": "fair_rag", "title": "Small", "collections": [str(questions)]}
    values |= {"task": "names", "generators": ["openai:fake"], "attributor": "overlap"}
    values |= {"alphas": [1, 8], "samples": 20, "generated": 4, "k": 3, **changes}
    path = questions.parent / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    return ["experiment", "run", path, "-o", questions.parent / folder, "--concurrency", "1"]


def prompts_of(server: ModelServer) -> list[str]:
    return [asked.last_message for asked in server.asked]


def test_what_a_run_keeps_and_reports(
    quick: Main, questions: Path, model_server: ModelServer
) -> None:
    """Labels, a dropped query, a pool smaller than k, and every distinct ranking answered once."""
    folder = questions.parent / "run"
    run = quick(*run_arguments(questions, seeds=[0, 1]), "--report")
    assert run.code == 0, run
    # Per query and seed two α and the oracle, 4 answers each, and the deterministic one; 2
    # documents have 2 orders only.
    answers, pairs = 3 * 2 * (3 * 4 + 1) + 2, 3 * 3 * 2 * (3 * 4 + 1) + 2 * 2
    cost = f"{LABELS + answers} answers ({LABELS} of them for labels), {pairs} attributions"
    assert f"at most {cost}" in run.stderr
    found = RagStore(folder).lines.read()
    labels = {record.query: len(record.useful) for record in found if record.policy == "labels"}
    assert labels == USEFUL
    records = [record for record in found if record.policy != "labels"]
    rankings = {(record.query, answer.ranking) for record in records for answer in record.answers}
    assert len(model_server.asked) == LABELS + len(rankings)
    for record in records:
        for answer in record.answers:
            assert answer.text == names(record.query)[answer.ranking[0]]
            assert answer.utility == (answer.ranking[0] < USEFUL[record.query])
            # Only the document whose name is the answer has all of its words.
            assert answer.used[0] is True
    fixed = [record for record in records if record.policy == "deterministic"]
    assert {record.samples[0] for record in fixed} == {(5, 4, 3), (1, 0)}
    assert "fewer than 2 useful documents" in (folder / "report.md").read_text()
    # Another run takes the replies with it, and asks for what is new alone.
    asked = {*prompts_of(model_server)}
    (questions.parent / "other").mkdir()
    shutil.copy(folder / "replies.sqlite", questions.parent / "other")
    model_server.does(first_title)
    assert quick(*run_arguments(questions, "other", alphas=[0], generated=10)).code == 0
    assert len(model_server.asked) > 0
    assert not asked & {*prompts_of(model_server)}

    table = questions.parent / "labels.tsv"
    table.write_text("qid\tpid\trelevance_label\nq0\tq0-0\t1\n")
    imported = quick(*run_arguments(questions, seeds=[0, 1]), "--labels", table)
    assert "holds a run with another labels; choose another" in imported.complaint()
    questions.write_text(questions.read_text().replace("painter", "sculptor"))
    stale = quick("experiment", "report", folder)
    assert "have changed since the experiment was run" in stale.complaint()


def test_models_of_the_paper_answer_and_retrieve(
    quick: Main, questions: Path, tmp_path: Path
) -> None:
    """T5, SPLADE and Contriever, as the whole tables ask for them, on labels; these are tiny."""
    t5 = save_t5(tmp_path / "t5", limit=None)
    bert = save_bert(tmp_path / "bert", "BertForMaskedLM")
    models = {"generators": [f"seq2seq:{t5}"], "attributor": "none"}
    models |= {"retrievers": [f"splade:{bert}", f"contriever:{bert}"]}
    table = tmp_path / "labels.tsv"
    rows = [f"q{number}\tq{number}-{place}\t1\n" for number in (0, 1) for place in (0, 1)]
    table.write_text("qid\tpid\trelevance_label\n" + "".join(rows))
    asked = run_arguments(questions, **models, samples=3, generated=1)
    run = quick(*asked, "--labels", table, "--report")
    assert run.code == 0, run
    found = RagStore(questions.parent / "run").lines.read()
    assert {it.retriever for it in found} == {"", *models["retrievers"]}
    assert {answer.status for it in found for answer in it.answers} <= {"given", "ok", "empty"}
