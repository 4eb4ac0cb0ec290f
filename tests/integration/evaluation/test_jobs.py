"""The jobs of each kind of experiment: another process could do them, with the same results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.cache import ReplyCache
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.experiments.workers import Tools
from fairqr.evaluation.probes.running import make_probe_plan, run_probe
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.running import make_rag_plan, run_fair_rag
from fairqr.evaluation.rag.store import RagStore
from fairqr.prompts.library import PromptLibrary
from tests.integration.evaluation.test_experiments import collection
from tests.integration.model_server import (
    Answer,
    Asked,
    ModelServer,
    clean_environment,
    model_server,
    people,
    says,
    weighs,
)
from tests.unit.evaluation.probes import made
from tests.unit.evaluation.rag.small_rag import collection_of, experiment_of, query_of
from tests.unit.evaluation.watching import Watcher

__all__ = ["clean_environment", "collection", "model_server", "people", "records", "timeless"]


class Elsewhere(Tools):
    """Does jobs with tools of its own; what they take and give is pickled, as on Ray."""

    async def do(self, job: Any, *arguments: Any, **_: Any) -> Any:
        job, arguments = pickle.loads(pickle.dumps((job, arguments)))
        return pickle.loads(pickle.dumps(await super().do(job, *arguments)))


def _tools(where: str, prompts: PromptLibrary, replies: Path, at_once: int = 2) -> Tools:
    kind = Tools if where == "here" else Elsewhere
    return kind(prompts, ReplyCache(replies), at_once)


def _judges(asked: Asked) -> Answer:
    """Says a share, a preference, a list or an answer, by the question alone."""
    share = hashlib.sha256(asked.last_message.encode()).digest()[0] / 256 * 0.8 + 0.1
    if asked.body.get("logprobs"):
        labels = ("A", "B") if "<first>" in asked.last_message else ("Yes", "No")
        return weighs(dict(zip(labels, (share, 1 - share), strict=True)))
    numbers = re.findall(r"^\[(\d+)\]", asked.last_message, re.MULTILINE)
    if numbers and "What of" not in asked.last_message:
        return says(
            " > ".join(
                f"[{it}]"
                for it in sorted(numbers, key=lambda n: hashlib.sha256(n.encode()).digest())
            )
        )
    # Without a document it is never right, so that documents are useful.
    return says("a" if share > 0.5 and "Text " in asked.last_message else "x")


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, in the order of their keys, without what is a time."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [timeless(line) for line in lines]
    return sorted(kept, key=json.dumps)


def timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: timeless(v) for k, v in value.items() if k != "milliseconds"}
    return [timeless(it) for it in value] if isinstance(value, list) else value


async def test_the_jobs_of_fair_rag_are_plain_data(
    clean_environment: Path,
    model_server: ModelServer,
    minilm_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    prompts = PromptLibrary()
    attributor = "llm:openai:fake"
    experiment = experiment_of(
        generators=["openai:fake"],
        retrievers=["bm25", "dense"],
        attributor=attributor,
        samples=6,
        generated=3,
        min_useful=1,
        prompts={"answer": "v1"},
    )
    found = collection_of(*(_with_texts(query_of(f"q{n}")) for n in range(2)))
    plan = make_rag_plan(experiment, {"letters": found}, prompts, attributor)
    written = []
    for name in ("here", "there"):
        model_server.does(_judges)
        store = RagStore(clean_environment / name)
        tools = _tools(name, prompts, store.replies, 1)
        # One at a time, since both queries have documents with the same texts to be judged.
        await run_fair_rag(plan, store, tools, Watcher())
        written.append((_of(store.lines), len(model_server.asked)))
    assert written[0][0] == written[1][0]
    assert any(answer["used"] for record in written[0][0] for answer in record["answers"])
    assert written[1][1] > 10


def _with_texts(query: RagQuery) -> RagQuery:
    pool = [dataclasses.replace(it, fields={**it.fields, "text": it.text}) for it in query.pool]
    return dataclasses.replace(query, pool=tuple(pool))


async def test_the_jobs_of_lists_and_pairs_are_plain_data(
    clean_environment: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.base_url)
    prompts = PromptLibrary()
    made.people(clean_environment / "people", each=2)
    own: Any = {"collection": str(clean_environment / "people"), "size": 8}
    lists = made.listwise(**own, rankers=("initial", "openai:fake", "pairwise:openai:fake"))
    pairs = made.pairwise(**own)
    model_server.does(_judges)
    plans = [await make_probe_plan(experiment, prompts, Watcher()) for experiment in (lists, pairs)]
    written = []
    for name in ("here", "there"):
        stores = [ProbeStore(clean_environment / f"{name} {kind}") for kind in ("lists", "pairs")]
        tools = _tools(name, prompts, clean_environment / f"{name}.sqlite")
        for plan, store in zip(plans, stores, strict=True):
            await run_probe(plan, store, tools, watcher=Watcher())
        written.append((_of(stores[0].lines("rankings")), _of(stores[1].lines("pairs"))))
    assert written[0] == written[1]
    assert len(written[0][0]) == 2 * 9
    assert written[0][1]


def _of(lines: Lines[Any]) -> list[dict[str, Any]]:
    return records(lines.path) if lines.path.exists() else []
