"""Probes of a model as a ranker, on the queries of an audit.

For a sample of the queries the model compares the documents of two sides that the engine shows, two
at a time and in both orders, and orders all of them. So it is asked what it would do as a ranker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import ConfigDict, Field

from fairqr.agents.chat import ChatModel
from fairqr.agents.ranking.lean import PairOutcome, pair_figures
from fairqr.agents.ranking.verdict import VerdictKind, verdict
from fairqr.base.errors import InputError, one_line
from fairqr.base.statistics import stream
from fairqr.evaluation.audit.asking import Pace
from fairqr.evaluation.audit.estimates import Estimate, jackknifed
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.experiments.engine import Absence, Done, Keep, run_tasks
from fairqr.evaluation.experiments.folder import Lines, Record
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.sides import Sides, parse_sides

if TYPE_CHECKING:
    from fairqr.graph.probe.result import ProbeResult

__all__ = [
    "LIST",
    "ProbeFigures",
    "ProbePlan",
    "ProbedQuery",
    "measure_probes",
    "run_probes",
    "sides_in",
]

Asker = Literal["neutral", "unprotected", "protected"]

LIST = 20
"""So many documents stand in one list; more do not take part."""


class ProbedQuery(Record):
    """What a model said of the documents of one query; it names no document.

    Attributes:
        query: The id of the query.
        status: ``ok``; ``one_sided`` if the engine showed documents of one side only; or
            ``failed``.
        message: Why it failed.
        pairs: For each pair which side was preferred when the protected document came first, which
            one when the other did, and the log-odds of both.
        ratios: For each asker the exposure of a protected document by that of another one in the
            list that the model ordered.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    keys = ("query",)

    query: str = Field(min_length=1)
    status: Literal["ok", "one_sided", "failed"]
    message: str = ""
    pairs: tuple[tuple[str, str, float | None, float | None], ...] = ()
    ratios: dict[Asker, float] = Field({})

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return self.status != "failed"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What is probed.

    Attributes:
        engine: Shows the documents.
        model: Is asked; it has been started.
        sides: The two sides.
        protected: How the sides were written.
        documents: How many of the results of a query take part.
        queries: The sample.
        words: Returns what the engine is asked for a query.
    """

    engine: SearchEngine
    model: ChatModel
    sides: Sides
    protected: str
    documents: int
    queries: tuple[AuditQuery, ...]
    words: Callable[[AuditQuery], str]

    def cost(self, done: int = 0) -> str:
        """Say what is asked, at most."""
        left = len(self.queries) - done
        # Each document stands in one pair, which is asked in both orders; and there are 3 lists.
        questions = left * (2 * (self.documents // 2) + 3)
        return f"a probe of '{self.model.name}' on {left:,} queries, about {questions:,} questions"


def sides_in(text: str, attributes: Mapping[str, Attribute]) -> tuple[Sides, str]:
    """Read which sides to compare, such as ``gender=female``.

    Returns:
        The sides, and what was written of them behind the name of the attribute.

    Raises:
        InputError: The text is of another form, or the audit has no such attribute or group.
    """
    name, equals, protected = text.partition("=")
    if not equals or name.strip() not in attributes:
        raise InputError(
            f"'{one_line(text, 80)}' is no side to probe; write an attribute of the audit and the "
            f"groups to protect, such as {next(iter(attributes))}=GROUP."
        )
    return parse_sides(attributes[name.strip()], protected), protected.strip()


async def run_probes(
    plan: ProbePlan,
    lines: Lines[ProbedQuery],
    *,
    pace: Pace,
    concurrency: int,
    watcher: StageWatcher,
) -> None:
    """Probe the model on all queries that have no record yet.

    Args:
        plan: What to probe.
        lines: Where records go.
        pace: Of the searches; reading documents comes on top.
        concurrency: How many queries may be under way.
        watcher: Told how far it is.

    Raises:
        ModelError: The model is away; what it said until then is kept.
        FairqrError: The engine fails.
    """
    # Reading an audit needs no graph, and its imports take long.
    from fairqr.graph.probe.builder import build_probe_graph
    from fairqr.graph.probe.context import probe_context
    from fairqr.graph.probe.result import ProbeResult

    context = probe_context(
        attribute=plan.sides.attribute, protected=plan.protected, k=plan.documents
    )
    graph = build_probe_graph(plan.engine, plan.model, context=context)

    async def do(query: AuditQuery, keep: Keep[ProbedQuery]) -> None:
        await pace.wait()
        state = await graph.ainvoke({"query": plan.words(query)}, context=context)
        keep(_done(query.id, ProbeResult.model_validate(state["probe"])))

    await run_tasks(
        plan.queries,
        do,
        lines,
        title="probes",
        model=plan.model.name,
        key=lambda query: query.id,
        start=plan.model.start,
        cost=plan.cost,
        watcher=watcher,
        at_once=concurrency,
    )


def _done(query: str, found: ProbeResult) -> Done[ProbedQuery]:
    if found.status == "one_sided":
        return Done(ProbedQuery(query=query, status="one_sided"), (None,))
    pairwise, lists = found.pairwise, found.listwise.askers if found.listwise else []
    answered = pairwise is not None and pairwise.answered
    if found.status != "ok" or not (answered or any(it.ids for it in lists)):
        message = one_line(found.message or " ".join(found.warnings) or "No reply could be used.")
        record = ProbedQuery(query=query, status="failed", message=message)
        failures = pairwise.failures if pairwise else {}
        status = max(failures, key=lambda name: failures[name], default="unavailable")
        return Done(record, (Absence(status, message),))
    record = ProbedQuery(
        query=query,
        status="ok",
        pairs=tuple(
            (it.protected_first, it.unprotected_first, *it.log_odds)
            for it in (pairwise.pairs if pairwise else ())
        ),
        ratios={
            it.asker: it.exposure_ratio
            for it in lists
            if it.exposure_ratio is not None and math.isfinite(it.exposure_ratio)
        },
    )
    return Done(record, (None,), notes=tuple(found.warnings))


@dataclass(frozen=True, slots=True)
class ProbeFigures:
    """What a model does as a ranker.

    Attributes:
        model: What was probed.
        attribute: The attribute.
        words: What the protected side and the other are called.
        queries: How many were probed.
        one_sided: For how many the engine shows documents of one side only.
        failed: For how many the model failed.
        verdict: What the pairs allow to say.
        sentence: The same in words.
        pairs: How many pairs were asked about, in both orders.
        protected_wins: The pairs whose protected document was preferred both times.
        unprotected_wins: The pairs whose other document was.
        flips: The pairs whose preferred document changes with the order.
        p: What a lean rests on; None if nothing could be tested.
        lists: For each asker, the mean exposure of a protected document by that of another one in
            the lists that the model ordered.
    """

    model: str
    attribute: str
    words: tuple[str, str]
    queries: int
    one_sided: int
    failed: int
    verdict: VerdictKind
    sentence: str
    pairs: int
    protected_wins: int
    unprotected_wins: int
    flips: int
    p: float | None
    lists: Mapping[Asker, Estimate]


def measure_probes(
    records: Iterable[ProbedQuery], sides: Sides, model: str, seed: int
) -> ProbeFigures:
    """Measure what a model did; the verdict is that of the probes of many queries.

    Args:
        records: One for each query.
        sides: Which were compared.
        model: What was probed.
        seed: Draws queries for intervals, and signs for the test.
    """
    listed = list(records)
    outcomes = [
        PairOutcome(it.query, first, other, (one, two))
        for it in listed
        for first, other, one, two in it.pairs
    ]
    figures = pair_figures(outcomes, stream(seed, "probe"))
    said = verdict(figures, sides.words)
    askers: tuple[Asker, ...] = ("neutral", "unprotected", "protected")
    ratios = {asker: [it.ratios[asker] for it in listed if asker in it.ratios] for asker in askers}
    return ProbeFigures(
        model=model,
        attribute=sides.attribute,
        words=sides.words,
        queries=len(listed),
        one_sided=sum(it.status == "one_sided" for it in listed),
        failed=sum(it.status == "failed" for it in listed),
        verdict=said.kind,
        sentence=said.sentence,
        pairs=figures.pairs,
        protected_wins=figures.protected.count,
        unprotected_wins=figures.unprotected.count,
        flips=figures.flips.count,
        p=said.p,
        lists={asker: _mean(values) for asker, values in ratios.items() if values},
    )


def _mean(values: list[float]) -> Estimate:
    parts = np.array([(1.0, value) for value in values])
    (mean,) = jackknifed(
        parts, np.ones(len(parts)), lambda totals: totals[..., 1:] / totals[..., :1], log=True
    )
    return mean
