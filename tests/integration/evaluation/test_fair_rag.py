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
from fairqr.evaluation.rag.labelling import why_dropped
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
    (clean_environment / "people.yaml").write_text("{title: Painters, metric: names}")
    return path


def write_experiment(questions: Path, **changes: Any) -> Path:
    values = {
        "kind": "fair_rag",
        "title": "Small",
        "collections": [str(questions)],
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
    for whole in (10, LABELS - 10 + 2):
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
    store = RagStore(questions.parent / "run")
    assert len(store.lines.read()) == 3 * 3

    model_server.does(first_title)
    done = here(*arguments, **server)
    assert done.code == 0, done
    assert not model_server.asked
    assert "nothing is left to ask" in done.stderr
    assert "rankings: " not in done.stderr, "nothing is opened to do nothing"

    model_server.does(first_title)
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
    assert "1 of 4 queries are left out" in run.stderr

    store = RagStore(questions.parent / "run")
    labels = store.all_labels()["people", "openai:fake"]
    assert [label.query for label in labels] == list(POOLS)
    for label in labels:
        assert label.without == 0.0
        useful = [gain == 1.0 for gain in label.gains.values()]
        assert useful == [place < USEFUL[label.query] for place in range(POOLS[label.query])]
        assert label.model_calls == 1 + POOLS[label.query]
        assert label.tokens == 110 * label.model_calls

    records = store.lines.read()
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
    """It refuses what begins with one document, and has nothing to say about another."""

    def moody(asked: Asked) -> Answer:
        shown = [line for line in asked.last_message.splitlines() if line.startswith("* ")]
        if len(shown) > 1 and shown[0].startswith("* Person q0 f"):
            return failure(400, "I do not like this one.")
        if len(shown) > 1 and shown[0].startswith("* Person q1 f"):
            return says(" \n ")
        return first_title(asked)

    model_server.does(moody)
    run = here(*run_arguments(questions), OPENAI_BASE_URL=model_server.base_url)
    assert run.code == 0, run
    fixed = {
        record.query: record.answers[0]
        for record in RagStore(questions.parent / "run").lines.read()
        if record.policy == "deterministic"
    }
    assert (fixed["q0"].status, fixed["q0"].utility) == ("invalid_request", None)
    assert fixed["q0"].used == ()
    assert (fixed["q1"].status, fixed["q1"].utility) == ("empty", 0.0)
    assert fixed["q1"].used == (None, None, None)
    assert (fixed["q2"].status, fixed["q2"].utility) == ("ok", 1.0)


def test_labels_whose_answers_fail(here: Here, questions: Path, model_server: ModelServer) -> None:
    """A document that failed has no gain; without the answer without documents there is none."""
    refused = failure(400, "No.")
    script = [first_title] * LABELS
    script[0] = lambda asked: refused  # q0 without documents: its documents are not asked about
    script[2] = lambda asked: refused  # the first of q1
    model_server.does(*script, first_title)
    run = here(*run_arguments(questions), OPENAI_BASE_URL=model_server.base_url)
    assert run.code == 0, run
    store = RagStore(questions.parent / "run").labels("people", "openai:fake")
    labels = {label.query: label for label in store.lines.read()}
    assert labels["q0"].without is None
    assert set(labels["q0"].gains.values()) == {None}
    assert labels["q0"].failures == {"invalid_request": 1}
    assert list(labels["q1"].gains.values()) == [None, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_labels_are_taken_where_they_fit(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    server = {"OPENAI_BASE_URL": model_server.base_url}
    model_server.does(first_title)
    folders = []
    for name, less in (("labels", "queries=3"), ("small", "pool=2")):
        assert here(*run_arguments(questions, name), "--set", less, **server).code == 0
        folders += (questions.parent / name / "labels").iterdir()
    folder, small = folders

    model_server.does(first_title)
    given = [*run_arguments(questions), "--labels", folder]
    run = here(*given, **server)
    assert run.code == 0, run
    # What was not labelled is labelled now.
    assert f"({1 + POOLS['q3']} of them for labels)" in run.stderr
    alone = [prompt for prompt in prompts_of(model_server) if prompt.count("* ") < 2]
    assert len(alone) == 1 + POOLS["q3"]

    another = [*run_arguments(questions, "another"), "--labels", folder]
    other = here(*another, "--model", "openai:other", **server)
    assert other.complaint().endswith(
        f"The labels in {folder} are of the generator openai:fake, not of openai:other; leave "
        "them out."
    )
    few = here(*run_arguments(questions, "few"), "--labels", small, **server)
    assert few.complaint() == (
        f"The labels in {small} have nothing about 4 documents of the query 'q0'; take labels of a "
        "run with a pool of 6 or more."
    )
    # Nothing was begun, so that the command with a smaller pool can have the folder.
    assert not (questions.parent / "few").exists()
    fewer = here(*run_arguments(questions, "few"), "--labels", small, "--set", "pool=2", **server)
    assert fewer.code == 0, fewer
    changed = questions.read_text().replace("painter", "sculptor")
    questions.write_text(changed)
    stale = here(*run_arguments(questions, "stale"), "--labels", folder, **server)
    assert f"The labels in {folder} are of other files than the collection 'people'" in stale.stderr
    assert (stale.code, stale.stdout) == (2, "")
    assert "have changed since the experiment was run" in (
        here("experiment", "report", questions.parent / "run").complaint()
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
    model_server.does(*[first_title] * LABELS, failure(401, "Who are you?"))
    arguments = run_arguments(questions, generated=20)
    server = {"OPENAI_BASE_URL": model_server.base_url}
    run = here(*arguments, **server)
    assert run.code == 2
    last = run.stderr.splitlines()[-1]
    assert last.startswith("fairqr: openai:fake did not answer any question, the last time with: ")
    assert last.endswith("; fix this and run again, the results so far are kept.")

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
        ({"alphas": [-1]}, "at alphas: α is -1; give numbers from 0 to 1000."),
        ({"alphas": [float("nan")]}, "at alphas: α is nan; give numbers from 0 to 1000"),
        ({"alphas": []}, "the list of alphas is empty; name at least one."),
        ({"retrievers": []}, "the list of retrievers is empty; name at least one."),
        ({"generators": []}, "the list of generators is empty; name at least one."),
        ({"samples": 0}, "at samples: Input should be greater than or equal to 1."),
        ({"k": 0}, "at k: Input should be greater than or equal to 1."),
        (
            {"generated": 21},
            "only 20 samples to answer from, not 21; lower 'generated', or",
        ),
        ({"retrievers": ["lucene"]}, "there is no retriever 'lucene'; write bm25, splade,"),
        ({"seeds": [1, 1]}, "one of the seeds is named twice; name each once."),
        ({"collections": []}, "The experiment names no collection; name one with --collection"),
        ({"collections": ["nowhere"]}, "There is no collection of questions 'nowhere'; name"),
        ({"attributor": "psychic"}, "There is no attributor 'psychic'; choose "),
        ({"generators": ["fake"]}, "The model 'fake' names no provider; write provider:model"),
        ({"prompts": {"answer": "v9"}}, "There is no prompt answer/v9; choose one of "),
        ({"prompts": {"lamp5": "v9"}}, "There is no prompt lamp5/v9; choose one of "),
        ({"k": True}, "at k: Input should be a valid integer."),
        ({"seeds": [True]}, "at seeds.0: Input should be a valid integer."),
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
    assert manifest.collections[0].prompt == "answer=v2"
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


def test_a_report_without_its_labels_warns(
    here: Here, questions: Path, model_server: ModelServer
) -> None:
    model_server.does(first_title)
    assert here(*run_arguments(questions), OPENAI_BASE_URL=model_server.base_url).code == 0
    folder = questions.parent / "run"
    (folder / "labels").rename(questions.parent / "away")
    report = here("experiment", "report", folder)
    assert report.code == 0
    assert "the labels of 3 of 3 queries that were ranked are gone" in report.stderr


def test_options_of_the_other_kind_are_refused(here: Here, questions: Path) -> None:
    rag = here(*run_arguments(questions), "--set", "attributes=gender").complaint()
    assert "There is no parameter 'attributes'" in rag
    search = here("experiment", "run", "prompts", "-o", "x", "--labels", "y")
    assert search.complaint() == "An experiment on searches takes no --labels; leave it out."


def test_a_folder_of_the_other_kind(here: Here, questions: Path) -> None:
    folder = questions.parent / "run"
    folder.mkdir()
    (folder / "experiment.json").write_text('{"experiment": {"kind": "fair_rag"}}')
    assert "is damaged or of another version" in (here("experiment", "report", folder).complaint())


@pytest.mark.model
def test_the_small_experiment_with_the_embedded_model(
    here: Here, model_cache: Path, tmp_path: Path
) -> None:
    """Two questions with small pools; whether any is kept is the model's matter."""
    folder = tmp_path / "run"
    small = ("--set", "queries=2", "--set", "pool=2")
    run = here("experiment", "run", "fair_rag", "--small", "-o", folder, *small)
    assert run.code == 0, run
    store = RagStore(folder)
    (entry,) = store.manifest().collections
    labels = store.all_labels()["notables", "local:smollm2-135m"]
    assert sorted(label.query for label in labels) == sorted(entry.queries)
    assert all(len(label.gains) == 2 and not label.failures for label in labels)
    kept = {label.query for label in labels if why_dropped(label, 2) is None}
    records = store.lines.read()
    assert len(records) == len(kept) * 6
    for record in records:
        assert {answer.status for answer in record.answers} <= {"ok", "empty"}
        assert sum(answer.times for answer in record.answers) == min(3, len(record.samples))
    again = here("experiment", "run", "fair_rag", "--small", "-o", folder, *small)
    assert "nothing is left to ask" in again.stderr
