"""Probes of a model as a ranker, on the queries of an audit.

For a sample of the queries the model compares the documents of two sides that the engine shows, two
at a time and in both orders, and orders all of them. So it is asked what it would do as a ranker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.agents.chat import ChatModel
from fairqr.agents.ranking.lean import PairOutcome, pair_figures
from fairqr.agents.ranking.verdict import VerdictKind, verdict
from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.base.statistics import stream
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.estimates import Estimate, means
from fairqr.evaluation.audit.parts import Part
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import AskerName, ProbedQuery
from fairqr.evaluation.experiments.engine import Absence, Done
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.sides import Sides, parse_sides

if TYPE_CHECKING:
    from fairqr.graph.probe.result import ProbeResult

__all__ = ["LIST", "ProbeFigures", "Probes", "measure_probes", "sides_in"]

LIST = 20
"""So many documents stand in one list; more do not take part."""


@dataclass(frozen=True)
class Probes(Part[AuditQuery, ProbedQuery]):
    """The queries on which a model is probed.

    Attributes:
        engine: Shows the documents.
        model: Is asked; it has been started.
        sides: The two sides.
        protected: How the sides were written.
        documents: How many of the results of a query take part.
        tasks: The sample of the queries.
        words: Returns what the engine is asked for a query.
    """

    name = title = "probes"
    record = ProbedQuery
    ends = (FairqrError,)

    engine: SearchEngine
    model: ChatModel
    sides: Sides
    protected: str
    documents: int
    tasks: tuple[AuditQuery, ...]
    words: Callable[[AuditQuery], str]

    @property
    def asked(self) -> str:
        """The model."""
        return self.model.name

    def cost(self, done: int = 0) -> str:
        """Say how many questions are left."""
        left = len(self.tasks) - done
        # Each document stands in one pair, which is asked in both orders; and there are 3 lists.
        questions = left * (2 * (self.documents // 2) + 3)
        return f"a probe of '{self.model.name}' on {left:,} queries, about {questions:,} questions"

    async def do(self, task: AuditQuery, folder: AuditFolder) -> Done[ProbedQuery]:
        """Probe the model with the documents of one query."""
        from fairqr.graph.probe.result import ProbeResult

        graph, context = self._graph
        state = await graph.ainvoke({"query": self.words(task)}, context=context)
        return _done(task.id, ProbeResult.model_validate(state["probe"]))

    @cached_property
    def _graph(self) -> tuple[Any, Any]:
        # Reading an audit needs no graph, and its imports take long.
        from fairqr.graph.probe.builder import build_probe_graph
        from fairqr.graph.probe.context import probe_context

        context = probe_context(
            attribute=self.sides.attribute, protected=self.protected, k=self.documents
        )
        return build_probe_graph(self.engine, self.model, context=context), context


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
    lists: Mapping[AskerName, Estimate]


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
    askers: tuple[AskerName, ...] = ("neutral", "unprotected", "protected")
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
        lists={
            asker: means(np.array(values)[:, None], np.ones(len(values)), log=True)[0]
            for asker, values in ratios.items()
            if values
        },
    )
