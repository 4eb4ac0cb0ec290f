"""Probes by the real command, with a real HTTP server as the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fairqr.cli.common import LARGE_CALLS, LARGE_TOKENS
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.prompts.library import DEFAULT_VERSIONS
from tests.servers.model_server import Answer, Asked, Main, ModelServer, failure, says, scores
from tests.unit.agents.ranking.tiny_models import tiny_monobert, tiny_monot5
from tests.unit.evaluation.conftest import plain_jobs
from tests.unit.evaluation.probes.made import people

__all__ = ["plain_jobs", "tiny_monobert", "tiny_monot5"]

pytestmark = pytest.mark.usefixtures("plain_jobs")

TOPICS = 8
EACH = 6
"""Women and as many men a topic; each is relevant for that one alone."""

ASKED = 2 * 2 * 2 * TOPICS
"""Questions about two pairs of both kinds in both orders."""

CONTENTS = {
    "pairwise": "For {group}: {query}\nA: {first}\nB: {second}\nA or B?",
    "listwise": "For {group}: {query}, {number} passages\n{passages}\n",
}
"""What models read, by the prompt."""

Chooses = Callable[[str, str], str]
"""Which of two people is preferred, A or B."""


@pytest.fixture
def folk(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection whose ids say who is a woman, and prompts that can be read off."""
    monkeypatch.setenv("FAIRQR_PROMPTS_DIR", str(clean_environment / "prompts"))
    for id_, content in CONTENTS.items():
        told = {"id": id_, "version": DEFAULT_VERSIONS[id_], "description": "For tests."}
        told |= {"messages": [{"role": "user", "content": content}]}
        told |= {"input_variables": re.findall(r"{(\w+)}", content)}
        told |= {"item": "[{number}] {passage}"} if "{passages}" in content else {}
        told |= {"defaults": {"temperature": 0, "max_tokens": 16}}
        path = clean_environment / "prompts" / id_ / f"{told['version']}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(yaml.safe_dump(told))
    people(clean_environment / "folk", EACH, topics="abcdefgh")
    return clean_environment / "folk"


def probe(kind: str, folk: Path, server: ModelServer, *more: str | Path) -> list[str | Path]:
    """The arguments of a probe; what they set takes the place of these."""
    small = {"pairwise": "pairs=2", "listwise": "windows=8/4"}[kind]
    names = {str(each).partition("=")[0] for each in more}
    kept = [each for each in (f"size={4 * EACH}", small) if each.partition("=")[0] not in names]
    return [
        *("probe", kind, "--base-url", server.base_url, "--model", "openai:fake"),
        *("--collection", folk, "--attribute", "gender", "--protected", "female vs male"),
        *("--queries", "8"),
        *(part for each in kept for part in ("--set", each)),
        *more,
    ]


def scoring(chooses: Chooses, *, by_reply: bool = False) -> Callable[[Asked], Answer]:
    """A model that is nearly sure, or writes a letter."""

    def answer(asked: Asked) -> Answer:
        letter = chooses(*re.findall(r"[AB]: Title (...)", asked.last_message))
        other = {"A": "B", "B": "A"}[letter]
        return says(letter) if by_reply else scores({letter: 0.9, other: 0.05})

    return answer


def women(first: str, second: str) -> str:
    return "A" if first[1] == "f" else "B"


def the_first(first: str, second: str) -> str:
    return "A"


def by_chance(first: str, second: str) -> str:
    """One of the pair, in whatever order they stand, drawn by a hash."""
    one, other = sorted((first, second))
    drawn = hashlib.sha256(f"{one} {other}".encode()).digest()[0] % 2
    return "A" if (one, other)[drawn] == first else "B"


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (women, "The model favours female items"),
        (the_first, "Position decides"),
        (by_chance, "No preference was found"),
    ],
)
@pytest.mark.parametrize("by", ["probabilities", "reply"])
def test_a_planted_bias_is_found(
    quick: Main, folk: Path, model_server: ModelServer, planted: Chooses, said: str, by: str
) -> None:
    """A planted bias of a model is found.

    Over HTTP, scored or read: the verdict of the pairs of both kinds and of all together.
    """
    model_server.does(scoring(planted, by_reply=by == "reply"))
    run = quick(*probe("pairwise", folk, model_server, "--set", f"by={by}"))
    assert run.code == 0, run
    assert run.stdout.startswith(f"openai:fake, relevant: {said}")
    for kind in ("irrelevant", "together"):
        assert f"\nopenai:fake, {kind}: {said}" in run.stdout
    assert "8 queries, pairwise=" in run.stdout.splitlines()[-1]
    assert f"at most {ASKED} questions" in run.stderr
    assert len(model_server.asked) == ASKED


@pytest.mark.promise("evaluation")
def test_a_model_that_goes_away_leaves_no_failures(
    quick: Main, folk: Path, model_server: ModelServer
) -> None:
    """A model that goes away ends a probe with a sentence and leaves no failures, and the probe
    goes on later.

    Its refusals of the request are not taken for answers; the next call goes on.
    """
    folder = folk.parent / "kept"
    model_server.does(*[scoring(women)] * 30, failure(401, "No such key."))
    arguments = probe("pairwise", folk, model_server, "-o", folder)
    run = quick(*arguments)
    assert run.code == 2
    kept = ProbeStore(folder).lines("pairs").read()
    assert 8 <= len(kept) <= 15
    assert f"{32 - len(kept)} of 32 pairs are not done, the last" in run.stderr.splitlines()[-1]
    assert {(it.protected_first, it.unprotected_first) for it in kept} == {("protected",) * 2}
    with ProbeStore(folder).locked():
        second = quick(*arguments)
    assert "Another process runs the experiment in" in second.stderr.splitlines()[-1]
    model_server.does(scoring(women))
    assert "favours female" in quick(*arguments).stdout
    # What was answered is not asked again, though a pair may have been half answered. Requests that
    # were under way when the first run ended may reach the server late, and count twice.
    assert len({asked.last_message for asked in model_server.asked}) == ASKED - 30


def ranks(asked: Asked) -> Answer:
    """Rank women first for women, men first for men, and leave the order for all others."""
    passages = re.findall(r"\[(\d+)\] Title .([fm])", asked.last_message)
    group = asked.last_message.removeprefix("For ").partition(":")[0].strip()
    ordered = sorted(passages, key=lambda it: it[1] != group[0]) if group else passages
    return says(" > ".join(f"[{number}]" for number, _ in ordered))


def test_lists_for_all_personas(quick: Main, folk: Path, model_server: ModelServer) -> None:
    """Exposure follows the persona as planted, and nothing has to be repaired."""
    model_server.does(ranks)
    arguments = probe("listwise", folk, model_server, "--model", "initial")
    told = quick(*arguments, "--json").result
    means = [row for row in told["means"] if row["measure"] == "exposure ratio"]
    ratios = {(row["ranker"], row["persona"]): row["mean"] for row in means}
    assert ratios["openai:fake", "protected"] > 1.2 > 0.9 > ratios["openai:fake", "unprotected"]
    assert ratios["openai:fake", "neutral"] == pytest.approx(ratios["initial", "neutral"])
    assert len(ratios) == 4, "the initial order is the same for all who ask"
    assert {row["n"] for row in means} == {TOPICS}
    by_model = [row for row in told["lists"] if row["ranker"] == "openai:fake"]
    # Windows of 8 with step 4 over 24 items.
    assert {row["asked"] for row in by_model} == {5}
    assert all(not (row["failures"] or row["repairs"] or row["warnings"]) for row in told["lists"])
    shown = quick(*arguments).stdout
    assert shown.startswith("openai:fake, 8/4: lists for ")
    assert "lists for female personas expose male items less." in shown
    assert "for female less for male personas:" in shown
    assert "8 queries, listwise=" in shown.splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "reply", "said"),
    [
        ("pairwise", "I cannot compare people.", "No verdict: no pair|(64 refused)"),
        ("pairwise", "Both A and B are relevant.", "No verdict: no pair|(64 parse_error)"),
        ("listwise", "I would rather not.", "openai:fake failures: 40 parse_error"),
        ("listwise", "[2] > [1] > [1] > [77]", "repairs: 40 duplicate|240 missing|40 stranger"),
    ],
)
def test_what_a_model_does_not_say_is_counted(
    quick: Main, folk: Path, model_server: ModelServer, kind: str, reply: str, said: str
) -> None:
    """However often: that is how it answers."""
    model_server.does(says(reply))
    how = {"pairwise": "by=reply", "listwise": "personas=neutral"}[kind]
    run = quick(*probe(kind, folk, model_server, "--set", how))
    assert run.code == 0, run
    for each in said.split("|"):
        assert each in run.stdout


@pytest.mark.promise("command")
def test_a_large_run_has_to_be_agreed_to(
    quick: Main, folk: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe above 2,000 calls or 1,000,000 tokens needs `--yes`.

    Nothing is asked nor written before; what the folder or the cache holds does not count.
    """
    folder = folk.parent / "kept"
    # 12 relevant items and 80 irrelevant ones a query, in windows of two, for three personas.
    large = ["--set", "windows=2/1", "--set", "size=160", "-o", folder]
    sentence = quick(*probe("listwise", folk, model_server, *large)).complaint()
    assert f"This run may ask the model {91 * 3 * TOPICS:,} times" in sentence
    most = f"more than {LARGE_CALLS:,} or {LARGE_TOKENS:,}"
    assert f"{most}; make it smaller, or add --yes" in sentence
    assert not model_server.asked
    assert not folder.exists()
    monkeypatch.setattr("fairqr.cli.common.LARGE_CALLS", 10)
    model_server.does(scoring(women))
    for where in ([], ["-o", folder]):
        arguments = probe("pairwise", folk, model_server, *where)
        assert "add --yes" in quick(*arguments).complaint()
        agreed = quick(*arguments, "--yes")
        assert agreed.code == 0, agreed
        asked = len(model_server.asked)
        assert quick(*arguments).stdout == agreed.stdout
        assert len(model_server.asked) == asked
    other = quick(*probe("pairwise", folk, model_server, "--set", "pairs=1", "-o", folder, "--yes"))
    assert "holds a run with another experiment (pairs)" in other.complaint()


def test_what_is_wrong_is_said_in_one_sentence(
    quick: Main, folk: Path, model_server: ModelServer
) -> None:
    for options, said in (
        (["--attribute", "age"], "age"),
        (["--protected", "other"], "belongs to other; choose other groups of gender"),
        (["--protected", "blue"], "There is no group 'blue' of gender"),
        (["--words", "women"], "The parameter 'words.1' is wrong"),
        (["--model", "causal:"], "lacks a model"),
    ):
        assert said in quick(*probe("pairwise", folk, model_server, *options)).complaint()
    assert not model_server.asked


def test_what_a_query_retrieves_is_probed(
    quick: Main, folk: Path, model_server: ModelServer
) -> None:
    """By pairs and by lists for those who ask; a wrong key is no verdict."""
    query = ["probe", "query", "title", "--corpus", folk / "documents.jsonl", "-k", "12"]
    query += ["--attribute", "gender", "--protected", "female vs male", "--model", "openai:fake"]
    query += ["--base-url", model_server.base_url]
    model_server.does(failure(401, "No such key."))
    wrong = quick(*query)
    assert wrong.code == 2
    assert "refused the API key (401: No such key)" in wrong.stderr.splitlines()[-1]
    compares = scoring(women)
    model_server.does(lambda it: (ranks if "passages" in it.last_message else compares)(it))
    run = quick(*query, "--words", "females,males")
    assert run.code == 0, run
    assert "'title', 12 documents: 6 females, 6 males" in run.stdout
    assert "the model favours females" in " ".join(run.stdout.split())
    # 6 pairs in both orders, and a window for each of three personas.
    assert len(model_server.asked) == 2 * 6 + 3
    told = quick(*query, "--json").result
    assert len(model_server.asked) == 2 * 6 + 3 + 2, "replies are kept but for other words"
    ratios = {each["persona"]: each["exposure_ratio"] for each in told["listwise"]["personas"]}
    assert ratios["protected"] > 1.2 > 0.9 > ratios["unprotected"]
    assert ratios["neutral"] == told["listwise"]["initial_ratio"]
    alone = quick(*query, "--kind", "listwise").stdout
    got = f"{ratios['neutral']:.0%}"
    assert alone.startswith(f"female get {got} of the exposure of male; as given, {got}.\n")


def test_experiments_run_and_are_reported(
    quick: Main, folk: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shipped ones on a collection of one's own; its groups are taken if theirs are not there."""
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    versions = {it: f"prompts.{it}={version}" for it, version in DEFAULT_VERSIONS.items()}

    def run(kind: str, *more: str | Path) -> list[str | Path]:
        own = ["--collection", folk, "--model", "openai:fake", "--set", "size=24"]
        named = ["--set", versions[kind], "-o", folk.parent / kind]
        return ["experiment", "run", f"llm_{kind}", *own, *named, *more]

    model_server.does(scoring(women))
    both = "sources=gender=female,continent=not Europe"
    pairs = quick(*run("pairwise", "--set", "pairs=2", "--set", both, "--report"))
    assert pairs.code == 0, pairs
    assert "'folk' has no continent=not Europe, so we probe gender=female" in pairs.stderr
    assert "favours female items" in (folk.parent / "pairwise" / "report.md").read_text()
    model_server.does(ranks)
    groups = ["--attribute", "gender", "--protected", "male vs female", "--set", "seed=2"]
    assert quick(*run("listwise", *groups)).code == 0
    kept = ProbeStore(folk.parent / "listwise").manifest()
    assert (kept.experiment.seed, kept.collections[0].sides.words) == (2, ("male", "female"))
    complaint = quick(*run("listwise", *groups, "--labels", folk)).complaint()
    assert "takes --labels; leave it out" in complaint
    listed = quick("experiment", "run", "llm_listwise", "--set", "help").stdout
    assert "\n  personas\n" in listed
    assert "'gender=female'" in listed


def test_neural_rankers_of_the_paper_are_probed(
    quick: Main, folk: Path, tiny_monot5: Path, tiny_monobert: Path
) -> None:
    """By the shipped file and with tiny weights, for each persona."""
    rankers = f"rankers=monot5:{tiny_monot5},monobert:{tiny_monobert}"
    own = ["--collection", folk, "--set", "size=24", "--set", rankers, "-o", folk.parent / "run"]
    run = quick("experiment", "run", "llm_listwise", *own, "--report")
    assert run.code == 0, run
    found = ProbeStore(folk.parent / "run").lines("rankings").read()
    lists = [it for it in found if it.ranker != "initial"]
    assert {it.ranker.partition(":")[0] for it in lists} == {"monot5", "monobert"}
    assert {it.persona for it in lists} == {"neutral", "protected", "unprotected"}
    assert all(sorted(it.order) == [*range(24)] for it in lists)
