"""What a job of a Fair RAG experiment does: it labels documents, draws rankings and answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.attribution.attributor import Attributor, Pair, hypothesis_of
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import GenerationRequest, Generator
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelError
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.tasks import Done, check_answered, refusal_of
from fairqr.evaluation.experiments.workers import Tools
from fairqr.evaluation.rag.collection import RagQuery, Utility
from fairqr.evaluation.rag.specification import LABELS, Draw, FairRagExperiment
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord
from fairqr.evaluation.rag.targets import memberships_of, shares_of
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.retrievers import PoolRetriever, open_pool_retriever
from fairqr.retrieval.sampling import plackett_luce
from fairqr.retrieval.sampling.group_aware import shifted
from fairqr.retrieval.sources.schema import Attribute

Ranking = tuple[int, ...]
"""Positions in a pool, the best first."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A generator on a collection, as a job needs it.

    Attributes:
        collection: The name of the collection.
        generator: As :func:`fairqr.agents.models.opening.open_generator` takes it; empty for none.
        attributor: Its name; empty for no attribution.
        groups: The attribute whose groups the policy ``group-aware`` minds.
        asks: Whether the generator is asked for anything: for labels, or from rankings.
    """

    experiment: FairRagExperiment
    collection: str
    generator: str
    utility: Utility
    label_utility: Utility
    prompt: PromptTemplate
    attributor: str
    groups: Attribute | None = None
    asks: bool = True

    def key(self, draw: Draw, query: RagQuery) -> tuple[Any, ...]:
        """Return the key of the record of a query."""
        return (self.collection, self.generator, *draw, query.id)


Task = tuple[Part, RagQuery]


def draw_rankings(
    part: Part, query: RagQuery, draw: Draw, scores: FloatArray, useful: Sequence[int]
) -> tuple[Ranking, ...]:
    """Draw the rankings of a policy; neither order nor concurrency changes what is drawn.

    Args:
        part: How many rankings, and how long.
        query: Its stream of random numbers is its own.
        draw: The policy.
        scores: The retriever's, shape (n,); the oracle needs their number alone.
        useful: The positions of the useful documents, for the oracle.

    Raises:
        InputError: The scores are no finite numbers.
    """
    experiment = part.experiment
    names = (part.collection, query.id)
    length = min(experiment.k, len(scores))
    if draw.policy == "oracle":
        random = plackett_luce.stream_of(draw.seed, *names, draw.policy)
        is_useful = np.isin(np.arange(len(scores)), useful)
        drawn = plackett_luce.sample_oracle(is_useful, experiment.samples, experiment.k, random)
    elif draw.alpha is None:
        drawn = plackett_luce.deterministic(scores, experiment.k)[np.newaxis]
    else:
        random = plackett_luce.stream_of(draw.seed, *names, draw.retriever, f"{draw.alpha:g}")
        weights = plackett_luce.log_weights_of(scores, draw.alpha, experiment.form)
        if draw.policy == "group-aware" and part.groups is not None:
            groups = [document.groups for document in query.pool]
            members = memberships_of(part.groups, groups)[:, :-1]
            target = shares_of(part.groups, members)
            weights = shifted(weights, members, target, length, random)
        drawn = plackett_luce.race(weights, experiment.samples, length, random)
    return tuple(map(tuple, drawn.tolist()))


def singles(query: RagQuery) -> list[Ranking]:
    """Return what labels are made from: no document, and then each alone."""
    return [(), *((position,) for position in range(len(query.pool)))]


def record_of(part: Part, draw: Draw, query: RagQuery, **values: Any) -> PolicyRecord:
    """Return the record of a policy on a query; the one of labels names the useful documents."""
    facts = dict(zip(PolicyRecord.keys, part.key(draw, query), strict=True))
    facts["pool"] = tuple(document.id for document in query.pool)
    facts["k"] = part.experiment.k
    if draw == LABELS:
        without, *alone = [answer.utility for answer in values["answers"]]
        is_better = [utility is not None and utility > without for utility in alone]
        facts["useful"] = np.flatnonzero(is_better).tolist()
        facts["k"] = 1
    return PolicyRecord.model_validate(facts | values)


class OpenPart(NamedTuple):
    """What answers the queries of a part, started.

    Attributes:
        generator: None if it is asked for nothing.
        attributor: None if nothing judges.
        retrievers: By name.
    """

    generator: Generator | None
    attributor: Attributor | None
    retrievers: dict[str, PoolRetriever]


async def open_part(tools: Tools, part: Part) -> OpenPart:
    """Return the generator, the attributor and the retrievers, as far as they are needed.

    Raises:
        ModelUnavailableError: One of them is not there.
    """
    retrievers = {}
    for name in part.experiment.retrievers:
        opened = partial(open_pool_retriever, name)
        retrievers[name] = await tools.started(f"retriever {name}", name, opened)
    attributor: Attributor | None = None
    if part.attributor:
        judge = partial(
            open_attributor, part.attributor, cache=tools.replies, prompts=tools.prompts
        )
        attributor = await tools.started("attributor", part.attributor, judge)
    generator: Generator | None = None
    if part.asks:
        # One place for all, since large models do not fit side by side.
        model = partial(
            open_generator,
            part.generator,
            cache=tools.replies,
            input_tokens=part.experiment.input_tokens,
        )
        generator = await tools.started("generator", part.generator, model)
    return OpenPart(generator, attributor, retrievers)


async def answer_query(
    tools: Tools, part: Part, query: RagQuery, before: Sequence[PolicyRecord]
) -> Done[PolicyRecord]:
    """Label the documents of a query, and answer from the rankings of every policy.

    Args:
        tools: What is open.
        part: The generator and what it is asked.
        query: The question and its pool.
        before: The records that are there.
    """
    opened = await open_part(tools, part)
    known: dict[Ranking, AnswerRecord] = {}
    for record in before:
        if record.policy != "labels":
            known |= {answer.ranking: answer for answer in record.answers}
    answerer = Answerer(part, query, opened.generator, opened.attributor, known)
    done = {record.key: record for record in before}
    records: list[PolicyRecord] = []
    try:
        label = done.get(part.key(LABELS, query))
        if label is None:
            label = await answerer.label()
            records.append(label)
        if not label.why_dropped(part.experiment.min_useful):
            scores = {"": np.zeros(len(query.pool))}  # the oracle has no retriever
            for draw in part.experiment.draws:
                if part.key(draw, query) in done:
                    continue
                name = draw.retriever
                if name not in scores:
                    texts = [document.text for document in query.pool]
                    scores[name] = await opened.retrievers[name].scores(query.query, texts)
                records.append(await answerer.follow(draw, scores[name], label.useful))
    except ModelError as error:
        return Done(records, away=error)
    return Done(records, refusal=refusal_of(answerer.checked))


@dataclass(slots=True)
class Answerer:
    """Answers a query from rankings of its pool, and asks for each once.

    Attributes:
        generator: It has been started, and so has the attributor; None if nothing is to be asked.
        known: The answers that there are.
        checked: For each question why it was refused, if it was.
    """

    part: Part
    query: RagQuery
    generator: Generator | None
    attributor: Attributor | None
    known: dict[Ranking, AnswerRecord] = field(default_factory=dict)
    checked: list[ModelError | None] = field(default_factory=list, init=False)
    _usage: Usage = field(default_factory=Usage, init=False)
    _begun: float = field(default_factory=time.perf_counter, init=False)

    async def label(self) -> PolicyRecord:
        """Ask with no document, and then with each alone.

        Raises:
            ModelError: The generator was away.
        """
        answers: list[AnswerRecord] = []
        for ranking in singles(self.query):
            answers.append(await self._ask(ranking, self.part.label_utility))
            if answers[0].utility is None:
                break  # no gain can be known, and the query will be dropped
        return self._record(LABELS, answers=answers)

    async def follow(self, draw: Draw, scores: FloatArray, useful: Ranking) -> PolicyRecord:
        """Draw the rankings of a policy, and answer from the first of them.

        Args:
            draw: The policy.
            scores: See :func:`draw_rankings`.
            useful: The positions of the useful documents.

        Raises:
            ModelError: The generator or the attributor was away.
        """
        try:
            # Groups may take seconds to weigh, in which other questions go on.
            samples = await asyncio.to_thread(
                draw_rankings, self.part, self.query, draw, scores, useful
            )
        except InputError as error:
            return self._record(draw, useful=useful, failure=str(error))
        answers = []
        first_samples = samples[: self.part.experiment.answered]
        for ranking, times in Counter(first_samples).items():
            if ranking not in self.known:
                self.known[ranking] = await self._answer(ranking)
            answers.append(self.known[ranking].model_copy(update={"times": times}))
        return self._record(draw, useful=useful, samples=samples, answers=answers)

    def _record(self, draw: Draw, **values: Any) -> PolicyRecord:
        """Return a record with what was spent since the last one."""
        now = time.perf_counter()
        usage = self._usage
        # Cached replies count as when they were made, and took no time now.
        milliseconds = (now - self._begun) * 1000 if usage.model_calls else 0.0
        values |= spent(usage)
        values["milliseconds"] = round(milliseconds + usage.cached_milliseconds, 1)
        self._usage = Usage()
        self._begun = now
        return record_of(self.part, draw, self.query, **values)

    async def _answer(self, ranking: Ranking) -> AnswerRecord:
        """Answer from a ranking, and judge which documents the answer used."""
        answer = await self._ask(ranking, self.part.utility)
        if answer.utility is None:
            return answer
        used = await self._used(ranking, answer.text)
        return answer.model_copy(update={"used": used})

    async def _ask(self, ranking: Ranking, utility_of: Utility) -> AnswerRecord:
        if self.generator is None:
            raise RuntimeError(f"Nobody is there to answer '{self.query.id}'.")
        sources = [self.query.pool[position].fields for position in ranking]
        request = GenerationRequest(self.part.prompt, self.query.question, sources)
        reply = await self.generator.generate(request)
        self._usage += reply.usage
        self.checked.append(check_answered(reply.status, reply.message))
        utility: float | None = None
        if reply.status in ("ok", "empty"):
            utility = utility_of(reply.text, self.query.golds)
        return AnswerRecord(ranking=ranking, status=reply.status, text=reply.text, utility=utility)

    async def _used(self, ranking: Ranking, answer: str) -> tuple[bool | None, ...]:
        """Return for each document of a ranking whether an answer used it."""
        if self.attributor is None:
            return ()
        hypothesis = hypothesis_of(answer)
        pairs = [Pair(self.query.pool[position].text, hypothesis) for position in ranking]
        verdicts = await self.attributor.judge(pairs)
        for verdict in verdicts:
            self._usage += verdict.usage
            check_answered(verdict.status, verdict.message)
        return tuple(verdict.attributed for verdict in verdicts)
