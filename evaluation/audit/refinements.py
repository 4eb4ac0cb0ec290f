"""Refining queries by a model, on a sample of the queries of an audit, and what that changes.

Each query is searched for as ``fairqr search`` does it: the model is asked for words that bring up
the groups which the engine shows too little, and the refined queries go to the same engine. What
they find widens the pool, so that a fair re-ranking may choose among more documents.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairqr.agents.replies import Usage
from fairqr.base.errors import IndexUnavailableError, InputError, ModelError, one_line
from fairqr.evaluation.audit.asking import Asker, TextKeeper, paced
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.exposures import Answer, Choices, shown_by
from fairqr.evaluation.audit.measuring import answers_of, choices_of, single_attributes
from fairqr.evaluation.audit.mending import (
    MENDED_WEIGHT,
    Change,
    CurvePoint,
    Mendable,
    compared_curves,
)
from fairqr.evaluation.audit.parts import Part
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import Observation, RefinedQuery
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.engine import Absence, Done, is_away
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Schema
from fairqr.retrieval.table import coded, decoded
from fairqr.retrieval.target import Target

if TYPE_CHECKING:
    from fairqr.graph.search.context import Context
    from fairqr.graph.search.rankers import Model
    from fairqr.graph.search.state import InputState, State

__all__ = ["RefinedCost", "RefinedFigures", "Refinements", "measure_refinements"]

CHANNELS = [
    *("rankings", "rescored", "iteration", "keywords"),
    *("refinements", "stop_reason", "usage", "warnings"),
]
"""What is read of the state in which a search ends."""

ROUNDS = 5
"""How often a model is asked for words for one query, at most."""

REQUESTS = 4 + 3 * ROUNDS
"""How many requests a query sends to the engine, at most: the search, the shares of the corpus and
twice texts; and for each round evidence for its words, its search, and scores of what it found."""


@dataclass(frozen=True)
class Refinements(Part[AuditQuery, RefinedQuery]):
    """The queries that a model refines.

    If the model is away, this is said and the queries that are left count as failed: the audit is
    finished without them.

    Attributes:
        asker: Has the engine, its pace, and what says which documents are relevant.
        model: Proposes words; it has been started.
        spec: What the audit measures.
        dimensions: The attributes, without combinations.
        choices: What the audit measures by.
        tasks: The sample of the queries.
    """

    name = title = "refinements"
    record = RefinedQuery
    ends = (IndexUnavailableError, ModelError)

    asker: Asker
    model: Model
    spec: AuditSpec
    dimensions: tuple[Dimension, ...]
    choices: Choices
    tasks: tuple[AuditQuery, ...]

    @property
    def asked(self) -> str:
        """The model."""
        return self.model.name

    def cost(self, done: int = 0) -> str:
        """Say how many questions and requests are left."""
        left = len(self.tasks) - done
        return (
            f"{left:,} {'query' if left == 1 else 'queries'} refined by '{self.model.name}', up to "
            f"{left * ROUNDS:,} questions to it and {left * REQUESTS:,} requests"
        )

    async def run(self, folder: AuditFolder, *, concurrency: int, watcher: StageWatcher) -> None:
        """Refine all queries that have no record yet, and keep the texts of what they find."""
        lines = self.store(folder).lines
        try:
            await super().run(folder, concurrency=concurrency, watcher=watcher)
        except ModelError as error:
            watcher.note(f"The audit goes on without refined queries. {error}")
            done, message = lines.done(), one_line(error)
            with lines.writing():
                for query in self.tasks:
                    if (query.id,) not in done:
                        lines.add(RefinedQuery(query=query.id, status="failed", message=message))
        if self.spec.keep_texts:
            keeper = TextKeeper(paced(self.asker.engine, self.asker.pace), folder.texts.lines)
            for found in lines.read():
                await keeper.keep(found.ids)

    async def do(self, task: AuditQuery, folder: AuditFolder) -> Done[RefinedQuery]:
        """Search for one query by the words of the model, where that is needed."""
        observed = folder.observed(task.id)
        targets, is_enough = await asyncio.to_thread(self.targets, observed)
        if not targets or is_enough:
            status: Literal["enough", "empty"] = "enough" if targets else "empty"
            return Done(RefinedQuery(query=task.id, status=status))
        context = self.context(targets, len(observed.ids))
        words: InputState = {"query": self.asker.words(task)}
        state: Any = await self._graph.ainvoke(words, context=context, output_keys=CHANNELS)
        usage, absence = Usage(**state["usage"]), _absence(state)
        if absence is None:
            record = await self.found(task, observed, context, state)
            return Done(record, (None,), usage=usage)
        message = absence.message
        failed = RefinedQuery(query=task.id, status="failed", message=message, **spent(usage))
        return Done(failed, (absence,), usage=usage)

    @cached_property
    def _graph(self) -> Any:
        # Reading an audit needs no graph, and its imports take long.
        from fairqr.graph.search.builder import build_search_graph

        return build_search_graph(paced(self.asker.engine, self.asker.pace), self.model)

    def targets(self, observed: Observation) -> tuple[dict[str, dict[str, float]], bool]:
        """Return ε* of each attribute by group, and whether the pool is enough for all of them.

        It is enough if its relevant documents could give each group its share. Where relevance is
        judged, a re-ranking cannot know it, so that this is never said.
        """
        is_judged = self.asker.qrels is not None
        answers = answers_of(observed, self.dimensions, is_judged=is_judged)
        found: dict[str, dict[str, float]] = {}
        is_enough = not is_judged
        for dimension, answer in zip(self.dimensions, answers, strict=True):
            shown = shown_by(answer, dimension, self.choices)
            if answer.relevance is None or np.isnan(shown.target).any():
                continue
            found[dimension.name] = dict(zip(dimension.groups, shown.target.tolist(), strict=True))
            is_enough = is_enough and np.allclose(shown.supply, shown.target)
        return found, is_enough

    def context(self, targets: Mapping[str, dict[str, float]], shown: int) -> Context:
        """Return what a search is asked to do: the loop's default, with the audit's own measure.

        Args:
            targets: By attribute and group.
            shown: How many documents the engine showed.
        """
        from fairqr.graph.search.context import make_context

        return make_context(
            attributes=list(targets),
            target=Target(shares=dict(targets)),
            k=min(self.spec.k, shown),
            depth=self.spec.depth,
            discount=self.spec.discount,
            # Whether the model is needed was decided by the audit's own relevance.
            ask="always",
            max_iterations=ROUNDS,
            seed=self.spec.seed,
        )

    async def found(
        self, query: AuditQuery, observed: Observation, context: Context, state: State
    ) -> RefinedQuery:
        """Return the record of a search.

        Raises:
            InputError: The texts of what was found are missing, so that nothing can be estimated.
            FairqrError: The engine fails.
        """
        from fairqr.graph.search.round_lists import RoundLists

        dimensions = [it for it in self.dimensions if it.name in context.attributes]
        lists = RoundLists(dimensions, state, context, self.asker.engine)
        refined = [it for it in state["rankings"] if it["iteration"]]
        by_model = dict.fromkeys(id_ for it in refined for id_ in it["ids"][: self.spec.depth])
        known = set(observed.pool)
        ids = [id_ for id_ in by_model if id_ not in known]
        pool = [*observed.pool, *ids]
        relevance = await self.asker.relevance_of(query, pool)
        if relevance is None:
            raise InputError("Most of the documents that the refined queries found have no text.")
        order: list[int] = []
        if self.asker.qrels is not None:
            places = {id_: place for place, id_ in enumerate(pool)}
            usable = by_model.keys() | set(observed.ids)
            ranked = lists.retrieved(state["iteration"]).ids
            order = [places[id_] for id_ in ranked if id_ in usable]
        members = {it.name: lists.table.memberships(it, ids) for it in dimensions}
        by_attribute = state["keywords"].values()
        words = [word for groups in by_attribute for held in groups.values() for word in held]
        return RefinedQuery(
            query=query.id,
            status="refined",
            keywords=tuple(dict.fromkeys(words)),
            ids=tuple(ids),
            groups=coded(members, context.attributes) if ids else {},
            relevance=relevance,
            order=tuple(order),
            **spent(Usage(**state["usage"])),
        )


def _absence(state: State) -> Absence | None:
    """Return why the model gave nothing in the last round, if it was away."""
    usage, message = Usage(**state["usage"]), one_line(" ".join(state["warnings"]))
    statuses = [record["status"] for record in state["refinements"]]
    if state["stop_reason"] == "model_failed" and not statuses:
        return Absence("unavailable", message)  # a refiner of one's own raised an error
    away = [status for status in statuses if is_away(status, usage)]
    return Absence(away[0], message) if away else None


@dataclass(frozen=True, slots=True)
class RefinedCost:
    """What mending costs in one attribute, over the same queries.

    Attributes:
        without: The curve of re-rankings of what the engine answers.
        refined: The same with what the refined queries found.
        changes: The second less the first, by step.
    """

    without: list[CurvePoint]
    refined: list[CurvePoint]
    changes: list[Change]

    @property
    def mended(self) -> Change:
        """The change in the re-rankings of the default weight."""
        return next(it for it in self.changes if it.weight == MENDED_WEIGHT)


@dataclass(frozen=True, slots=True)
class RefinedFigures:
    """What refined queries change in the cost of mending.

    Attributes:
        model: What refined.
        queries: How many were chosen.
        refined: For how many the model was asked.
        enough: How many needed no model, since their pools have enough relevant documents.
        empty: How many have nothing to mend.
        failed: For how many the search or the model failed.
        too_many_failed: Whether so many failed that there are no curves.
        found: How many documents the refined queries found beyond the pools.
        model_calls: Questions to the model.
        tokens: What it read and wrote.
        costs: By attribute.
    """

    model: str
    queries: int
    refined: int
    enough: int
    empty: int
    failed: int
    too_many_failed: bool
    found: int
    model_calls: int
    tokens: int
    costs: dict[str, RefinedCost]


def measure_refinements(
    records: Iterable[RefinedQuery],
    observations: Iterable[Observation],
    queries: Mapping[str, AuditQuery],
    spec: AuditSpec,
    schema: Schema,
    *,
    corpus_shares: Mapping[str, FloatArray],
    is_judged: bool,
    model: str,
) -> RefinedFigures:
    """Compare both curves.

    Args:
        records: One for each query that was chosen.
        observations: Of these queries, and of others.
        queries: By id; a query counts by its weight.
        spec: What the audit measures.
        schema: The attributes, as the engine gave memberships in.
        corpus_shares: The shares of the groups in the whole corpus, for targets that name it.
        is_judged: Whether relevance was judged.
        model: What refined.
    """
    by_query = {it.query: it for it in records}
    listed = list(by_query.values())
    dimensions = single_attributes(schema, spec)
    choices = choices_of(spec, dimensions, corpus_shares)
    counts = Counter(it.status for it in listed)
    too_many = counts["failed"] > spec.failures * len(listed)
    pairs: dict[str, list[tuple[Mendable, Answer]]] = {it.name: [] for it in dimensions}
    for observation in observations if not too_many else ():
        record = by_query.get(observation.query)
        if record is None or record.status not in ("refined", "enough"):
            continue
        answers = answers_of(observation, dimensions, is_judged=is_judged)
        for dimension, answer in zip(dimensions, answers, strict=True):
            target = shown_by(answer, dimension, choices).target
            if answer.relevance is not None and not np.isnan(target).any():
                without, wider = _without_and_with(record, answer, dimension)
                mendable = Mendable(without, target, queries[record.query].weight)
                pairs[dimension.name].append((mendable, wider))
    costs = {}
    for dimension in dimensions:
        curves = RefinedCost(*compared_curves(pairs[dimension.name], choices, dimension.groups))
        if curves.without:
            costs[dimension.name] = curves
    return RefinedFigures(
        model=model,
        queries=len(listed),
        refined=counts["refined"],
        enough=counts["enough"],
        empty=counts["empty"],
        failed=counts["failed"],
        too_many_failed=too_many,
        found=sum(len(it.ids) for it in listed),
        model_calls=sum(it.model_calls for it in listed),
        tokens=sum(it.tokens for it in listed),
        costs=costs,
    )


def _without_and_with(
    record: RefinedQuery, answer: Answer, dimension: Dimension
) -> tuple[Answer, Answer]:
    """Return an answer, and the same with what the refined queries found.

    Both have the estimates of the wider pool, so that only the documents differ.
    """
    if record.status != "refined":
        return answer, answer
    relevance, members = np.array(record.relevance), answer.members
    without = replace(answer, relevance=relevance[: len(members)])
    if record.ids:
        members = np.concatenate([members, decoded(record.groups[dimension.name])])
    order = np.array(record.order, dtype=np.intp) if answer.is_judged else None
    return without, replace(answer, members=members, relevance=relevance, order=order)
