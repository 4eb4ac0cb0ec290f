"""One policy on one query, as a job: its rankings, the answers from them, and what they used."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from fairqr.agents.attribution.attributors import open_attributor
from fairqr.agents.attribution.verdicts import Attributor, Pair, hypothesis_of
from fairqr.agents.replies import Usage
from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.engine import Done
from fairqr.evaluation.rag.answering import Answerer, Asked, open_answerer
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.policies import Draw, draw_rankings
from fairqr.evaluation.rag.records import AnswerRecord, PolicyRecord
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.evaluation.workers.tools import Tools
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.pools.base import PoolRetriever
from fairqr.retrieval.pools.open import open_pool_retriever

__all__ = ["Policies", "PolicyTask", "answer_policy", "open_policies", "score_pool"]


@dataclass(frozen=True, slots=True)
class Policies:
    """What the policies of a collection and a generator need.

    Attributes:
        experiment: How much is drawn and answered.
        collection: The name of the collection.
        asked: Of the generator.
        attributor: What judges, as it names itself; empty leaves attribution out.
        hypothesis: The template that makes answers into hypotheses.
    """

    experiment: FairRagExperiment
    collection: str
    asked: Asked
    attributor: str
    hypothesis: str


@dataclass(frozen=True, slots=True)
class PolicyTask:
    """A policy on a query.

    Attributes:
        query: Which one.
        useful: The positions of its useful documents.
        draw: Of which policy.
        scores: Of the retriever, for the documents of the pool; None for the oracle.
        known: Answers that other policies had from this query, which are not asked for again.
    """

    query: RagQuery
    useful: tuple[int, ...]
    draw: Draw
    scores: FloatArray | None
    known: tuple[AnswerRecord, ...] = ()


async def open_policies(tools: Tools, policies: Policies) -> None:
    """Make ready what draws, answers and judges."""
    await open_answerer(tools, policies.asked)
    await _open_attributor(tools, policies.attributor)
    for name in policies.experiment.retrievers:
        await _open_retriever(tools, name)


async def score_pool(tools: Tools, retriever: str, query: RagQuery) -> FloatArray:
    """Return a retriever's scores of the documents of a query's pool."""
    opened = await _open_retriever(tools, retriever)
    return await opened.scores(query.query, [document.text for document in query.pool])


async def answer_policy(tools: Tools, policies: Policies, task: PolicyTask) -> Done[PolicyRecord]:
    """Draw the rankings of a policy, and answer from the first of them.

    Raises:
        ModelError: The generator fails all the time.
    """
    experiment, query, draw = policies.experiment, task.query, task.draw
    names = ("collection", "generator", "retriever", "policy", "alpha", "seed", "query")
    key = draw.key(policies.collection, policies.asked.generator, query.id)
    parts = {
        **dict(zip(names, key, strict=True)),
        "pool": tuple(document.id for document in query.pool),
        "useful": task.useful,
        "k": experiment.k,
    }
    try:
        samples = draw_rankings(
            draw,
            task.scores,
            task.useful,
            len(query.pool),
            experiment,
            (policies.collection, query.id),
        )
    except InputError as error:
        return Done(PolicyRecord.model_validate({**parts, "failure": str(error)}))
    attributor = await _open_attributor(tools, policies.attributor)
    answerer = await open_answerer(tools, policies.asked)
    answers = _Answers(query, answerer, attributor, policies.hypothesis, task.known)
    times = Counter(samples[: draw.answered(experiment)])
    answered = [
        (await answers.of(ranking)).model_copy(update={"times": count})
        for ranking, count in times.items()
    ]
    record = PolicyRecord.model_validate(
        {**parts, "samples": samples, "answers": tuple(answered), **answerer.spent()}
    )
    failed = any(answer.utility is None for answer in answered)
    return Done(
        record,
        tuple(answerer.replies),
        usage=answerer.usage,
        work=draw.answered(experiment),
        is_held=failed,
    )


class _Answers:
    """The answers from the rankings of a query: each ranking and each judgement is asked once."""

    def __init__(
        self,
        query: RagQuery,
        answerer: Answerer,
        attributor: Attributor | None,
        hypothesis: str,
        known: tuple[AnswerRecord, ...],
    ) -> None:
        self._query = query
        self._answerer = answerer
        self._attributor = attributor
        self._hypothesis = hypothesis
        self._answers = {answer.ranking: answer for answer in known}
        self._verdicts = {
            (place, hypothesis_of(answer.text, hypothesis)): used
            for answer in known
            for place, used in zip(answer.ranking, answer.used, strict=False)
            if used is not None
        }

    async def of(self, ranking: tuple[int, ...]) -> AnswerRecord:
        """Return the answer from a ranking."""
        if ranking not in self._answers:
            reply, utility = await self._answerer.answer(self._query, ranking)
            self._answers[ranking] = AnswerRecord(
                ranking=ranking,
                times=1,
                status=reply.status,
                text=reply.text,
                utility=utility,
                used=() if utility is None else await self._used(ranking, reply.text),
            )
        return self._answers[ranking]

    async def _used(self, ranking: tuple[int, ...], answer: str) -> tuple[bool | None, ...]:
        """Return for each document of a ranking whether an answer used it."""
        if self._attributor is None:
            return ()
        hypothesis = hypothesis_of(answer, self._hypothesis)
        asked = [place for place in ranking if (place, hypothesis) not in self._verdicts]
        begun = time.perf_counter()
        verdicts = await self._attributor.judge(
            [Pair(self._query.pool[place].text, hypothesis) for place in asked]
        )
        self._answerer.spend(sum((verdict.usage for verdict in verdicts), Usage()), begun)
        for place, verdict in zip(asked, verdicts, strict=True):
            if verdict.attributed is not None:
                self._verdicts[place, hypothesis] = verdict.attributed
        return tuple(self._verdicts.get((place, hypothesis)) for place in ranking)


async def _open_attributor(tools: Tools, name: str) -> Attributor | None:
    def opened() -> Attributor:
        return open_attributor(name, cache=tools.replies, prompts=tools.prompts)

    return await tools.started("attributor", name, opened) if name else None


async def _open_retriever(tools: Tools, name: str) -> PoolRetriever:
    return await tools.started(f"retriever {name}", name, lambda: open_pool_retriever(name))
