"""Models that rank in ``fairqr search``, by the command and a real HTTP server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch
from fairqr.agents.ranking.rankers import RankerOptions, RankItem, open_ranker
from fairqr.evaluation.experiments.running import run
from fairqr.evaluation.experiments.specification import RunFolder
from fairqr.evaluation.experiments.workers import RunOptions
from fairqr.retrieval.sources.catalog import Catalog
from tests.servers.model_server import (
    Answer,
    Asked,
    Main,
    ModelServer,
    Run,
    failure,
    says,
    scores,
    write_people,
)
from tests.unit.agents.ranking.tiny_models import tiny_monobert, tiny_monot5
from tests.unit.engines import hits_of
from tests.unit.evaluation.experiments.small import experiment, write_collection

__all__ = ["tiny_monobert", "tiny_monot5"]

Worth = Callable[[str], float]


def born(text: str) -> float:
    """What an oracle goes by: who was born last is the most relevant."""
    return float(re.findall(r"born in (\d{4})", text)[0])


def orders(worth: Worth = born) -> Callable[[Asked], Answer]:
    """A model that ranks passages, and compares two, by what they are worth."""

    def answer(asked: Asked) -> Answer:
        text = asked.last_message
        if compared := re.findall(r"^A: (.*)\nB: (.*)$", text, re.M):
            one, other = compared[-1]
            best = "A" if worth(one) >= worth(other) else "B"
            if asked.body.get("logprobs"):
                rest = "B" if best == "A" else "A"
                return scores({best: 0.7, rest: 0.2})
            return says(best)
        passages = re.findall(r"^\[(\d+)\] (.*)$", text, re.M)
        best_first = sorted(passages, key=lambda it: -worth(it[1]))
        return says(" > ".join(f"[{number}]" for number, _ in best_first))

    return answer


def ids(result: dict[str, Any]) -> list[str]:
    return [place["id"] for place in result["ranking"]]


def search(
    quick: Main, server: ModelServer, corpus: Path, *more: str | Path, json_: bool = True
) -> Run:
    model = [] if "--model" in more else ["--model", "openai:fake", "--base-url", server.base_url]
    shown = ["--json"] if json_ else []
    gender = ["--attribute", "gender", "-k", "10"]
    return quick("search", "physicist", "--corpus", corpus, *gender, *model, *shown, *more)


@pytest.mark.promise("command")
def test_a_language_model_ranks_by_windows_at_a_stated_cost(
    quick: Main, people: Path, model_server: ModelServer
) -> None:
    """A search says what a ranking model costs before it starts, and prints who is seen first."""
    model_server.does(orders())
    asked = ("--method", "listwise", "--set", "final_step=none")
    run = search(quick, model_server, people, *asked)
    assert run.code == 0, run.stderr
    line = run.stderr.strip()
    # Sixty people, windows of 20 by 10.
    assert line.startswith("at most 5 calls of openai:fake for 60 documents; about ")
    assert "\n" not in line
    result = run.result
    assert ids(result) == [f"p{at}" for at in range(59, 49, -1)]
    assert ids(result) != [place["id"] for place in result["baseline"]["ranking"]]
    assert result["ranker"] == "listwise(openai:fake, 20/10)"
    assert result["reranking"]["asked"] == len(model_server.asked) == 5
    assert result["usage"]["model_calls"] == 5
    assert result["warnings"] == []
    shown = search(quick, model_server, people, *asked, "--verbose", json_=False)
    before = result["baseline"]["exposure"]["gender"]["female"]
    assert shown.stdout.startswith(f"female: {before:.0%} of the attention; ")
    assert "Re-ranked by listwise(openai:fake, 20/10)." in shown.stdout
    assert "5 from the cache" in shown.stdout
    assert "at most 5 calls of openai:fake for 60 documents" in shown.stderr
    assert "at most" not in shown.stdout
    assert len(model_server.asked) == 5


def test_a_ranker_that_cannot_rank_is_a_failure(
    quick: Main, people: Path, model_server: ModelServer
) -> None:
    asked = ("--method", "listwise", "--set")
    run = search(quick, model_server, people, *asked, "budget.model_calls=4")
    assert "may take 5 model calls to re-rank 60 documents" in run.complaint()
    assert "budget has 4" in run.stderr
    cannot = search(quick, model_server, people, "--model", "causal:nothing/here").complaint()
    assert "can rank, but not refine queries" in cannot
    assert model_server.asked == []
    model_server.does(says("I'm sorry, I cannot help with that."))
    strict = search(quick, model_server, people, *asked, "strict=yes")
    assert strict.code == 2
    assert strict.stderr.rstrip().endswith("The model failed, and strict was set.")
    # A wrong key is not taken for a model that declines.
    model_server.does(failure(401, "No such key."))
    wrong = search(quick, model_server, people, "--method", "pairwise")
    assert wrong.code == 0, wrong
    assert "refused the API key (401: No such key); check the key of the provider" in wrong.stderr


@pytest.mark.promise("command")
def test_a_costly_ranking_needs_consent(
    quick: Main, people: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ranking above 2,000 calls or 1,000,000 tokens needs `--yes`.

    Pairs of sixty documents, in both orders; and an answer from a list that is ranked.
    """
    monkeypatch.setattr("fairqr.cli.common.LARGE_CALLS", 500)
    pairs = ["--method", "pairwise", "--set", "ranking.depth=60"]
    sentence = search(quick, model_server, people, *pairs).complaint()
    assert sentence.startswith("This run may ask the model 594 times and take about")
    assert sentence.endswith("or add --yes to go on.")
    assert not model_server.asked
    model_server.does(orders())
    model = ["--model", "openai:fake", "--base-url", model_server.base_url, "--json"]
    run = quick("answer", "physicist", "--corpus", people, "--method", "listwise", *model)
    assert run.code == 0, run
    assert run.stderr.startswith("at most 5 calls of openai:fake for 60 documents; about ")


@pytest.mark.parametrize("name", ["monot5", "monobert"])
async def test_a_neural_model_ranks_without_being_asked(
    clean_environment: Path, tiny_monot5: Path, tiny_monobert: Path, name: str
) -> None:
    """Its scores are its own; they are those of the ranker without any search."""
    words = "river old stone house users papers female studied exposure merit equal true"
    known = words.split()

    def in_its_words(document: dict[str, Any]) -> dict[str, Any]:
        number = int(document["id"][1:])
        shown = [known[number * step % len(known)] for step in (1, 5, 7)]
        return {**document, "title": shown[0], "text": f"physicist {' '.join(shown)}"}

    people = write_people(clean_environment / "known", in_its_words)
    weights = str({"monot5": tiny_monot5, "monobert": tiny_monobert}[name])
    engine = await Catalog().resolve(str(people))
    settings = {"weights": weights, "shown": "title_text"}
    asked: Any = {"attribute": "gender", "k": 10, "method": name, "final_step": "none", "depth": 20}
    result = await FairSearch(engine, "feedback").search("physicist", **asked, ranking=settings)
    plain = (await hits_of(engine, "physicist", 20)).ids
    items = [RankItem(d.id, d.title, d.text) for d in await engine.documents(plain)]
    alone = await open_ranker(name, options=RankerOptions(weights=weights)).rank("physicist", items)
    await engine.aclose()
    assert [place.id for place in result.ranking] == [plain[at] for at in alone.order[:10]]
    assert [place.id for place in result.ranking] != plain[:10]
    assert (result.usage.model_calls, result.warnings) == (0, [])
    assert result.ranker is not None
    assert result.ranker.startswith(name)


async def test_an_experiment_compares_rankers(
    clean_environment: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each topic, whatever the seeds; replies are kept with the experiment."""
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    model_server.does(orders(lambda text: float(re.findall(r"Person (\d+)", text)[0])))
    collection = write_collection(clean_environment / "collection")
    store = RunFolder(clean_environment / "run")
    settings = {"final_step": "none"}
    systems = [
        {"name": "BM25", "method": "baseline"},
        {"name": "listwise", "method": "listwise", "settings": settings},
        {"name": "pairwise, {depth}", "method": "pairwise", "settings": {**settings}}
        | {"vary": {"depth": [5, 8]}},
    ]
    more: Any = {"model": "openai:fake", "seeds": [0, 1], "systems": systems}
    asked = experiment(clean_environment, collection=str(collection.folder), **more)
    await run(asked, RunOptions(store.folder))
    prompts = store.manifest().prompts
    assert {name.partition("=")[0] for name in prompts} == {"listwise", "pairwise"}
    calls = len(model_server.asked)
    records = {(record.system, record.topic): record for record in store.lines.read()}
    assert len(records) == 4 * 4
    for (system, _), record in records.items():
        numbers = [int(id_[1:]) for id_ in record.ids]
        assert record.error == ""
        if system != "BM25":
            assert numbers == sorted(numbers, reverse=True)
            assert record.model_calls > 0
    # Twelve documents are one window; both depths compare some of the same pairs.
    assert records["listwise", "t0"].model_calls == 1
    assert records["pairwise, 8", "t0"].model_calls <= 2 * 17
    assert calls < sum(record.model_calls for record in records.values())
    await run(asked, RunOptions(store.folder))
    assert len(model_server.asked) == calls
