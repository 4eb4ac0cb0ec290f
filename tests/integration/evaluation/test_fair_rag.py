"""Labelling and Fair RAG by the real command, with a real HTTP server as the generator.

What is killed runs in a process of its own; the rest calls the command's entry point in this one,
which saves the time that its imports take.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr.cli.main import main
from fairqr.evaluation.rag.store import PolicyRecord, RagStore
from tests.integration.model_server import (
    Answer,
    Asked,
    Command,
    ModelServer,
    Run,
    clean_environment,
    command,
    failure,
    model_server,
    says,
)
from tests.patience import PATIENCE

__all__ = ["clean_environment", "command", "model_server"]

PROMPT = {
    "id": "answer",
    "version": "v1",
    "description": "For tests: what is asked can be read off.",
    "messages": [{"role": "user", "content": "Question: {question}\n{documents}"}],
    "item": "* {title}: {text}",
    "input_variables": ["question", "documents"],
    "defaults": {"temperature": 0, "max_tokens": 16},
}
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


class Here:
    """Runs the entry point of ``fairqr`` in this process, in the environment of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str | Path, **environment: str) -> Run:
        with self._monkeypatch.context() as patch:
            patch.setattr("sys.argv", ["fairqr", *map(str, arguments)])
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        said = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Run(ended.value.code, said.out, said.err, 0.0)


@pytest.fixture
def here(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture
def questions(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four questions with pools, to be judged by names."""
    folder = clean_environment / "prompts" / "answer"
    folder.mkdir(parents=True)
    (folder / "v1.yaml").write_text(yaml.safe_dump(PROMPT))
    monkeypatch.setenv("FAIRQR_PROMPTS_DIR", str(folder.parent))
    path = clean_environment / "people.jsonl"
    lines = []
    for query in POOLS:
        pool = [
            {"id": f"{query}-{place}", "title": title, "text": f"{title} {'painter ' * place}"}
            for place, title in enumerate(names(query))
        ]
        golds = names(query)[: USEFUL[query]]
        lines.append(
            {"id": query, "question": f"Who is a painter of {query}?", "golds": golds, "pool": pool}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_experiment(questions: Path, **changes: Any) -> Path:
    values = {
        "kind": "fair_rag",
        "title": "Small",
        "collections": [str(questions)],
        "task": "names",
        "generators": ["openai:fake"],
        "attributor": "overlap",
        "alphas": [1, 8],
        "samples": 20,
        "generated": 4,
        "k": 3,
        **changes,
    }
    path = questions.parent / "small.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def run_arguments(questions: Path, folder: str = "run", **changes: Any) -> list[str | Path]:
    asked = write_experiment(questions, **changes)
    return ["experiment", "run", asked, "-o", questions.parent / folder, "--concurrency", "1"]


def prompts_of(server: ModelServer) -> list[str]:
    return [asked.last_message for asked in server.asked]


def records_of(folder: Path) -> dict[tuple[object, ...], PolicyRecord]:
    """The records by what they are of, without how long things took."""
    return {
        record.key: record.model_copy(update={"milliseconds": 0.0})
        for record in RagStore(folder).lines.read()
    }


def test_a_killed_run_goes_on_and_asks_nothing_twice(
    command: Command, here: Here, questions: Path, model_server: ModelServer
) -> None:
    """kill -9 first among the labels, then among the answers; both times it goes on from there."""
    server = {"OPENAI_BASE_URL": model_server.base_url}
    small = {"alphas": [1], "generated": 2}
    arguments = run_arguments(questions, **small)
    asked: list[str] = []
    for whole in (10, 8):
        model_server.does(*[first_title] * whole, Answer(never=True))
        child = command.start(*arguments, **server)
        model_server.wait_for(whole + 1)
        second = here(*arguments, **server)
        assert "Another process runs the experiment in" in second.stderr.splitlines()[-1]
        kill(child)
        # The last question was not answered, and has to be asked again.
        asked += prompts_of(model_server)[:whole]
    with (questions.parent / "run" / "records.jsonl").open("ab") as lines:
        lines.write(b'{"collection": "people", "gen')

    model_server.does(first_title)
    resumed = command(*arguments, **server)
    assert resumed.code == 0, resumed
    asked += prompts_of(model_server)
    assert len(set(asked)) == len(asked)
    assert len(records_of(questions.parent / "run")) == 4 + 3 * 3

    model_server.does(first_title)
    done = here(*arguments, **server)
    assert done.code == 0, done
    assert not model_server.asked
    assert "nothing is left to ask" in done.stderr
    assert "queries: " not in done.stderr, "nothing is opened to do nothing"

    whole_run = here(*run_arguments(questions, "whole", **small), **server)
    assert whole_run.code == 0, whole_run
    assert sorted(prompts_of(model_server)) == sorted(asked)
    assert records_of(questions.parent / "whole") == records_of(questions.parent / "run")


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=PATIENCE)


def test_what_a_run_keeps(here: Here, questions: Path, model_server: ModelServer) -> None:
    """Labels, dropped queries, pools smaller than k, and every distinct ranking answered once."""
    model_server.does(first_title)
    arguments = run_arguments(questions, seeds=[0, 1])
    run = here(*arguments, OPENAI_BASE_URL=model_server.base_url)
    assert run.code == 0, run
    # Per query and seed two α and the oracle, 4 answers each, and the deterministic one of both; 2
    # documents have 2 orders only.
    answers = 3 * (2 * 3 * 4 + 1) + 2
    pairs = 3 * 3 * (2 * 3 * 4 + 1) + 2 * 2
    assert f"at most {LABELS + answers} answers ({LABELS} of them for labels), " in run.stderr
    assert f"{pairs} attributions" in run.stderr
    assert "1 of 4 queries of 'people' have fewer than 3 documents" in run.stderr
    assert "Queries are left out: fewer than 2 useful documents." in run.stderr

    found = RagStore(questions.parent / "run").lines.read()
    labels = [record for record in found if record.policy == "labels"]
    assert [label.query for label in labels] == list(POOLS)
    for label in labels:
        assert label.useful == (*range(USEFUL[label.query]),)
        assert [answer.ranking for answer in label.answers] == [
            (),
            *((place,) for place in range(POOLS[label.query])),
        ]
        assert label.model_calls == 1 + POOLS[label.query]
        assert label.tokens == 110 * label.model_calls

    records = [record for record in found if record.policy != "labels"]
    assert len(records) == 3 * 2 * 4
    rankings = {(record.query, answer.ranking) for record in records for answer in record.answers}
    assert len(model_server.asked) == LABELS + len(rankings)
    assert sum(record.model_calls for record in records) == len(rankings)
    for record in records:
        assert len(record.samples) == (1 if record.policy == "deterministic" else 20)
        assert {len(ranking) for ranking in record.samples} == {min(3, POOLS[record.query])}
        first = Counter(record.samples[:4])
        assert {answer.ranking: answer.times for answer in record.answers} == first
        for answer in record.answers:
            named = names(record.query)[answer.ranking[0]]
            assert (answer.status, answer.text) == ("ok", named)
            assert answer.utility == (answer.ranking[0] < USEFUL[record.query])
            # Only the document whose name is the answer has all of its words.
            assert answer.used[0] is True
            assert len(answer.used) == len(answer.ranking)
    oracles = [record for record in records if record.policy == "oracle"]
    for record in oracles:
        best = min(3, USEFUL[record.query])
        assert all(set(ranking[:best]) <= set(record.useful) for ranking in record.samples)
    fixed = [record for record in records if record.policy == "deterministic"]
    assert {record.samples[0] for record in fixed} == {(5, 4, 3), (1, 0)}

    report = here("experiment", "report", questions.parent / "run")
    assert report.code == 0, report
    written = [Path(line.removeprefix("written: ")) for line in report.stdout.splitlines()]
    assert {path.name for path in written} >= {"report.md", "report.html", "measures.csv"}
    text = written[0].read_text()
    for said in ("# Small", "Disparity by α", "openai:fake", "fewer than 2 useful documents"):
        assert said in text


def test_what_a_generator_fails_at_is_counted_and_the_rest_goes_on(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    """It refuses a document alone and what begins with another, and has nothing to say on one."""

    def moody(asked: Asked) -> Answer:
        shown = [line for line in asked.last_message.splitlines() if line.startswith("* ")]
        if [*map(len, shown)] and shown[0].startswith("* Person q1 a") and len(shown) == 1:
            return failure(400, "I do not like this one.")
        if len(shown) > 1 and shown[0].startswith("* Person q0 f"):
            return failure(400, "I do not like this one.")
        if len(shown) > 1 and shown[0].startswith("* Person q2 b"):
            return says(" \n ")
        return first_title(asked)

    model_server.does(moody)
    run = here(*run_arguments(questions, min_useful=1), OPENAI_BASE_URL=model_server.base_url)
    assert run.code == 0, run
    records = RagStore(questions.parent / "run").lines.read()
    fixed = {it.query: it.answers[0] for it in records if it.policy == "deterministic"}
    assert (fixed["q0"].status, fixed["q0"].utility) == ("invalid_request", None)
    assert fixed["q0"].used == ()
    assert (fixed["q2"].status, fixed["q2"].utility) == ("empty", 0.0)
    assert fixed["q2"].used == (None, None)
    labels = {it.query: it for it in records if it.policy == "labels"}
    assert labels["q1"].useful == (1,)
    assert [it.utility for it in labels["q1"].answers] == [0.0, None, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_labels_are_taken_where_they_fit(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    """From another run, for the queries that it has, or from a table."""
    server = {"OPENAI_BASE_URL": model_server.base_url}
    model_server.does(first_title)
    first = questions.parent / "first"
    assert here(*run_arguments(questions, "first"), "--set", "queries=3", **server).code == 0

    def alone(folder: str, labels: Path) -> int:
        """Run with labels, and count what was asked with one document or none."""
        model_server.does(first_title)
        run = here(*run_arguments(questions, folder), "--labels", labels, **server)
        assert run.code == 0, run
        return sum(prompt.count("* ") < 2 for prompt in prompts_of(model_server))

    assert alone("second", first) == 1 + POOLS["q3"], "what was not labelled is labelled now"
    table = questions.parent / "labels.tsv"
    rows = [f"q1\tq1-{place}\t{int(place > 3)}" for place in range(6)]
    table.write_text("\n".join(["qid\tpid\trelevance_label", *rows]))
    assert alone("third", table) == 0
    records = RagStore(questions.parent / "third").lines.read()
    assert {(it.query, it.useful) for it in records if it.policy == "oracle"} == {("q1", (4, 5))}

    other = ("--model", "openai:other", "--labels", first)
    wrong = here(*run_arguments(questions, "wrong"), *other, **server)
    assert "are of another collection, generator or prompt" in wrong.complaint()
    assert not (questions.parent / "wrong").exists()
    questions.write_text(questions.read_text().replace("painter", "sculptor"))
    assert "have changed since the experiment was run" in (
        here("experiment", "report", first).complaint()
    )


def test_results_do_not_depend_on_concurrency(
    here: Here, questions: Path, model_server: ModelServer, minilm_cache: Path
) -> None:
    model_server.does(first_title)
    server = {"OPENAI_BASE_URL": model_server.base_url}
    for at_once in ("1", "8"):
        arguments = run_arguments(questions, f"run{at_once}", retrievers=["bm25", "dense"])
        assert here(*arguments, "--concurrency", at_once, **server).code == 0
    one, eight = (records_of(questions.parent / f"run{at_once}") for at_once in ("1", "8"))
    assert one == eight


def test_a_model_that_is_not_there_stops_the_run(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    """Rather than writing down hundreds of failures; it goes on when the model is back."""
    model_server.does(*[first_title] * (1 + POOLS["q0"]), failure(401, "Who are you?"))
    arguments = run_arguments(questions, generated=20)
    server = {"OPENAI_BASE_URL": model_server.base_url}
    run = here(*arguments, **server)
    assert run.code == 2
    last = run.stderr.splitlines()[-1]
    assert last.startswith("fairqr: openai:fake did not answer ")
    assert last.endswith("run again, the results so far are kept.")

    model_server.does(first_title)
    resumed = here(*arguments, **server)
    assert resumed.code == 0, resumed
    answers = [
        answer
        for record in RagStore(questions.parent / "run").lines.read()
        for answer in record.answers
    ]
    assert {answer.status for answer in answers} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"alphas": [-1]}, "at alphas.0: Input should be greater than or equal to 0."),
        ({"alphas": [float("nan")]}, "at alphas.0: Input should be less than or equal to 1000."),
        ({"alphas": []}, "the list of alphas is empty; name at least one."),
        ({"generators": []}, "the list of generators is empty; name at least one."),
        ({"samples": 0}, "at samples: Input should be greater than or equal to 1."),
        ({"retrievers": ["lucene"]}, "There is no retriever 'lucene' over pools; choose bm25, "),
        ({"seeds": [1, 1]}, "one of the seeds is named twice; name each once."),
        ({"collections": []}, "The experiment names no collection; name one with --collection"),
        ({"collections": ["nowhere"]}, "There is no collection of questions 'nowhere'; name"),
        ({"attributor": "psychic"}, "There is no attributor 'psychic'; choose "),
        ({"generators": ["fake"]}, "The model 'fake' names no provider; write provider:model"),
        ({"prompts": {"answer": "v9"}}, "There is no prompt answer/v9; choose one of "),
        ({"k": True}, "at k: Input should be a valid integer."),
        ({"alphas": [True]}, "at alphas.0: Input should be a valid number."),
        ({"kind": "poem"}, "has the unknown kind 'poem'; write one of search, fair_rag, "),
    ],
)
def test_bad_input_has_its_sentence(
    here: Here, questions: Path, changes: dict[str, Any], sentence: str
) -> None:
    run = here(*run_arguments(questions, **changes))
    assert (run.code, run.stdout) == (2, "")
    assert run.stderr.startswith("fairqr: ")
    assert sentence in run.stderr.splitlines()[-1]
    assert not (questions.parent / "run" / "experiment.json").exists()


def test_the_version_of_a_prompt_is_chosen_by_the_command(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    """For experiments and for labels; before what the file says, and beside it."""
    folder = questions.parent / "prompts" / "answer"
    asked = "Say who: {question}\n{documents}"
    changed = {**PROMPT, "version": "v2", "messages": [{"role": "user", "content": asked}]}
    (folder / "v2.yaml").write_text(yaml.safe_dump(changed))
    server = {"OPENAI_BASE_URL": model_server.base_url}
    model_server.does(first_title)
    files = {"prompts": {"answer": "v1", "lamp5": "v2"}}
    arguments = run_arguments(questions, **files)
    assert here(*arguments, "--set", "prompts.answer=v2", **server).code == 0
    assert all(prompt.startswith("Say who: ") for prompt in prompts_of(model_server))
    manifest = RagStore(questions.parent / "run").manifest()
    assert [*manifest.prompts] == ["answer=v2"]
    assert manifest.experiment.prompts == {"answer": "v2", "lamp5": "v2"}

    unused = here(*arguments, "--set", "prompts.lamp5=v1").complaint()
    assert unused == "The prompt 'lamp5' is not used; the prompts here are answer."


def test_a_folder_of_another_run_is_refused_before_its_cost_is_told(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    """Not after it was said that nothing is left to do."""
    server = {"OPENAI_BASE_URL": model_server.base_url}
    model_server.does(first_title)
    assert here(*run_arguments(questions), **server).code == 0
    other = here(*run_arguments(questions, title="Another"), **server)
    assert "holds a run with another experiment (title); choose another" in other.complaint()


def test_a_line_that_cannot_be_of_its_pool_is_damaged(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    """Each would have ended in a traceback, or in a wrong number, when it is measured."""
    model_server.does(first_title)
    arguments = run_arguments(questions, samples=4)
    assert here(*arguments, OPENAI_BASE_URL=model_server.base_url).code == 0
    lines = questions.parent / "run" / "records.jsonl"
    whole = lines.read_text()
    first = json.loads(whole.splitlines()[0])
    answer = first["answers"][0]
    for changed in (
        {"useful": [99]},
        {"useful": [-1]},
        {"useful": [0, 0]},
        {"samples": [[0, 1, 6]]},
        {"samples": [[0, 1]]},
        {"samples": [[0, 1, 1]]},
        {"answers": [{**answer, "ranking": [0, 1, 6]}]},
        {"answers": [{**answer, "used": [True]}]},
        {"answers": [{**answer, "times": 0}]},
        {"answers": [{**answer, "utility": float("nan")}]},
        {"k": 0},
    ):
        lines.write_text(json.dumps({**first, **changed}) + "\n" + whole)
        told = here("experiment", "report", lines.parent).complaint()
        assert told == f"{lines}, line 1, is damaged; remove the line, and that part is done again."


def test_options_of_the_other_kind_are_refused(here: Here, questions: Path) -> None:
    rag = here(*run_arguments(questions), "--set", "attributes=gender").complaint()
    assert "There is no parameter 'attributes'" in rag
    search = here("experiment", "run", "prompts", "-o", "x", "--labels", "y")
    assert search.complaint() == "An experiment on searches takes no --labels; leave it out."


@pytest.mark.model
def test_the_small_experiment_with_the_embedded_model(
    here: Here, model_cache: Path, tmp_path: Path
) -> None:
    """Two questions with small pools; whether any is kept is the model's matter."""
    folder = tmp_path / "run"
    small = ("--set", "queries=2", "--set", "pool=2")
    run = here("experiment", "run", "fair_rag", "--small", "-o", folder, *small)
    assert run.code == 0, run
    records = RagStore(folder).lines.read()
    labels = [record for record in records if record.policy == "labels"]
    kept = [label for label in labels if not label.why_dropped(2)]
    draws = RagStore(folder).manifest().experiment.draws
    assert (len(labels), len(records)) == (2, 2 + len(kept) * len(draws))
    for record in records:
        assert {answer.status for answer in record.answers} <= {"ok", "empty"}
        if record.policy != "labels":
            assert sum(answer.times for answer in record.answers) == min(3, len(record.samples))
    again = here("experiment", "run", "fair_rag", "--small", "-o", folder, *small)
    assert "nothing is left to ask" in again.stderr
