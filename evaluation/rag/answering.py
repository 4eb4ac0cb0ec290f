"""The jobs of Fair RAG: rankings drawn from a policy, the answers from them, and what they used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairqr.agents.attribution.attributor import Attributor, Pair, hypothesis_of
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import GenerationRequest, Generator
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.replies import Reply, Usage
from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.engine import check_answered
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.workers import Tools
from fairqr.evaluation.rag.collection import RagQuery, RagTask
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.evaluation.rag.store import AnswerRecord, Policy, PolicyRecord
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.retrievers import PoolRetriever, open_pool_retriever
from fairqr.retrieval.sampling.plackett_luce import (
    deterministic,
    sample_oracle,
    sample_plackett_luce,
    stream_of,
)

Key = tuple[str, str, str, str, float | None, int, str]
"""See :attr:`fairqr.evaluation.rag.store.PolicyRecord.key`."""

Rankings = tuple[tuple[int, ...], ...]
"""Positions in a pool, the best first."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A policy that draws rankings; see :class:`~fairqr.evaluation.rag.store.PolicyRecord`."""

    retriever: str
    policy: Policy
    alpha: float | None
    seed: int

    def key(self, collection: str, generator: str, query: str) -> Key:
        """Return the key of the record of a query."""
        own = (self.retriever, self.policy, self.alpha, self.seed)
        return (collection, generator, *own, query)

    def answered(self, experiment: FairRagExperiment) -> int:
        """Return from how many of them answers are generated."""
        return 1 if self.policy == "deterministic" else experiment.answered


def draws_of(experiment: FairRagExperiment) -> list[Draw]:
    """Return all policies: each retriever as it is and at every α, and the oracle.

    The deterministic ranking has no chance in it, and stands under every seed, so that the policies
    of a seed can be held against it.
    """
    draws: list[Draw] = []
    for seed in experiment.seeds:
        for retriever in experiment.retrievers:
            draws.append(Draw(retriever, "deterministic", None, seed))
            draws += [Draw(retriever, "plackett-luce", alpha, seed) for alpha in experiment.alphas]
        draws.append(Draw("", "oracle", None, seed))
    return draws


def draw_rankings(
    draw: Draw,
    scores: FloatArray | None,
    useful: Sequence[int],
    size: int,
    experiment: FairRagExperiment,
    names: Sequence[str],
) -> Rankings:
    """Draw the rankings of one query.

    Args:
        draw: The policy.
        scores: The retriever's, shape (n,); None for the oracle.
        useful: The positions of the useful documents, for the oracle.
        size: n, how many documents the pool has.
        experiment: How many rankings, and how long.
        names: Of the collection and the query, which the stream is derived from, so that neither
            order nor concurrency changes what is drawn.

    Raises:
        InputError: The scores are no finite numbers.
    """
    if scores is None:
        is_useful = np.zeros(size, dtype=bool)
        is_useful[list(useful)] = True
        stream = stream_of(draw.seed, *names, draw.policy)
        drawn = sample_oracle(is_useful, experiment.samples, experiment.k, stream)
    elif draw.alpha is None:
        drawn = deterministic(scores, experiment.k)[np.newaxis, :]
    else:
        stream = stream_of(draw.seed, *names, draw.retriever, f"{draw.alpha:g}")
        samples, k, form = experiment.samples, experiment.k, experiment.form
        drawn = sample_plackett_luce(scores, draw.alpha, samples, k, stream, form)
    return tuple(tuple(ranking) for ranking in drawn.tolist())


@dataclass(frozen=True, slots=True)
class Asked:
    """A generator with its prompt, as a job needs it.

    Attributes:
        generator: As :func:`fairqr.agents.models.opening.open_generator` takes it.
    """

    generator: str
    task: RagTask
    prompt: PromptTemplate


@dataclass(slots=True)
class Answerer:
    """Asks a generator for answers, and counts what they cost.

    Attributes:
        generator: It has been started.
        usage: What all questions used, judgements of attribution included.
        milliseconds: How long they took; cached replies count as when they were made.
    """

    generator: Generator
    task: RagTask
    prompt: PromptTemplate
    usage: Usage = field(default_factory=Usage, init=False)
    milliseconds: float = field(default=0.0, init=False)

    async def answer(self, query: RagQuery, ranking: Sequence[int]) -> tuple[Reply, float | None]:
        """Return the answer to a query, and its utility: 0 if it is empty, None if it failed.

        Args:
            query: The question and its pool.
            ranking: The documents that the generator reads, as positions in the pool; may be empty.

        Raises:
            ModelError: The generator was away.
        """
        begun = time.perf_counter()
        sources = [query.pool[place].fields for place in ranking]
        request = GenerationRequest(self.prompt, query.question, sources)
        reply = await self.generator.generate(request)
        self.spend(reply.usage, begun)
        check_answered(reply.status, reply.message, reply.usage)
        if reply.status not in ("ok", "empty"):
            return reply, None
        return reply, self.task.utility(reply.text, query.golds) if reply.text else 0.0

    def spend(self, usage: Usage, begun: float) -> None:
        """Count a cost since ``begun``, a time of ``time.perf_counter``."""
        took = (time.perf_counter() - begun) * 1000
        self.usage += usage
        # Cached answers took no time now.
        self.milliseconds += usage.cached_milliseconds + (took if usage.model_calls else 0.0)

    def spent(self) -> dict[str, Any]:
        """Return the whole cost for a record; cached replies count as when they were made."""
        return spent(self.usage) | {"milliseconds": round(self.milliseconds, 1)}


async def open_answerer(tools: Tools, asked: Asked) -> Answerer:
    """Return the generator, started.

    Raises:
        ModelUnavailableError: The generator is not there.
    """
    # One place for all, since large models do not fit side by side.
    generator = await tools.started(
        "generator", asked.generator, lambda: open_generator(asked.generator, cache=tools.replies)
    )
    return Answerer(generator, asked.task, asked.prompt)


@dataclass(frozen=True, slots=True)
class Policies:
    """The settings of all policies of a collection and a generator.

    Attributes:
        collection: The name of the collection.
        attributor: The attributor's name; empty for no attribution.
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
        query: The question and its pool.
        useful: The positions of its useful documents.
        scores: The retriever's scores of the documents of the pool; None for the oracle.
        known: Answers to this query that other policies had; we do not ask for them again.
    """

    query: RagQuery
    useful: tuple[int, ...]
    draw: Draw
    scores: FloatArray | None
    known: tuple[AnswerRecord, ...] = ()


async def open_policies(tools: Tools, policies: Policies) -> None:
    """Make the retrievers, the generator and the attributor ready."""
    await open_answerer(tools, policies.asked)
    await _open_attributor(tools, policies.attributor)
    for name in policies.experiment.retrievers:
        await _open_retriever(tools, name)


async def score_pool(tools: Tools, retriever: str, query: RagQuery) -> FloatArray:
    """Return a retriever's scores of the documents of a query's pool."""
    opened = await _open_retriever(tools, retriever)
    return await opened.scores(query.query, [document.text for document in query.pool])


async def answer_policy(tools: Tools, policies: Policies, task: PolicyTask) -> PolicyRecord:
    """Draw the rankings of a policy, and answer from the first of them.

    Raises:
        ModelError: The generator was away.
    """
    experiment, query, draw = policies.experiment, task.query, task.draw
    names = (policies.collection, query.id)
    key = draw.key(policies.collection, policies.asked.generator, query.id)
    parts = {
        **dict(zip(PolicyRecord.keys, key, strict=True)),
        "pool": tuple(document.id for document in query.pool),
        "useful": task.useful,
        "k": experiment.k,
    }
    try:
        samples = draw_rankings(draw, task.scores, task.useful, len(query.pool), experiment, names)
    except InputError as error:
        return PolicyRecord.model_validate({**parts, "failure": str(error)})
    attributor = await _open_attributor(tools, policies.attributor)
    answerer = await open_answerer(tools, policies.asked)
    answers = _Answers(query, answerer, attributor, policies.hypothesis, task.known)
    times = Counter(samples[: draw.answered(experiment)])
    answered = [
        (await answers.of(ranking)).model_copy(update={"times": count})
        for ranking, count in times.items()
    ]
    return PolicyRecord.model_validate(
        {**parts, "samples": samples, "answers": tuple(answered), **answerer.spent()}
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
            check_answered(verdict.status, verdict.message, verdict.usage)
            if verdict.attributed is not None:
                self._verdicts[place, hypothesis] = verdict.attributed
        return tuple(self._verdicts.get((place, hypothesis)) for place in ranking)


async def _open_attributor(tools: Tools, name: str) -> Attributor | None:
    def opened() -> Attributor:
        return open_attributor(name, cache=tools.replies, prompts=tools.prompts)

    return await tools.started("attributor", name, opened) if name else None


async def _open_retriever(tools: Tools, name: str) -> PoolRetriever:
    return await tools.started(f"retriever {name}", name, lambda: open_pool_retriever(name))
