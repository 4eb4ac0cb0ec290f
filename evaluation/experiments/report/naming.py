"""What tables call measures and systems, and which measure plays which part."""

from __future__ import annotations

from dataclasses import dataclass

from fairqr.evaluation.experiments.measuring import Table
from fairqr.evaluation.experiments.report.style import FAMILIES
from fairqr.evaluation.experiments.specification import Experiment, System
from fairqr.evaluation.measures.base import Measure, Need
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.relevance import AP, NDCG, RR, Precision, Recall
from fairqr.evaluation.measures.text import parse_measures

RELEVANCE = (NDCG, Precision, Recall, AP, RR)

__all__ = [
    "Roles",
    "common_topics",
    "family_of",
    "headings",
    "is_ours",
    "measures_of",
    "roles_of",
    "share_topics",
    "title_of",
]


@dataclass(frozen=True, slots=True)
class Roles:
    """The measures of an experiment by what they are for; each is a key of an evaluation.

    Attributes:
        main: The last one, by which systems are compared.
        relevance: The first that looks at no groups; None where there is none.
        fairness: The first that looks at groups and is no product; None where there is none.
    """

    main: str
    relevance: str | None
    fairness: str | None


def measures_of(table: Table) -> list[Measure]:
    """Return the measures of a table, as they were computed."""
    evaluation = next(iter(table.evaluations.values()))
    return [result.measure for result in evaluation.results.values()]


def roles_of(table: Table) -> Roles:
    """Return which measure of a table, which must have a system, plays which part."""
    measures = measures_of(table)
    of_groups = [m for m in measures if Need.GROUPS in m.needs and not isinstance(m, Product)]
    of_relevance = [m for m in measures if isinstance(m, RELEVANCE)]
    return Roles(
        str(measures[-1]),
        str(of_relevance[0]) if of_relevance else None,
        str(of_groups[0]) if of_groups else None,
    )


def headings(experiment: Experiment, table: Table) -> dict[str, str]:
    """Return what the columns of a table are called: measures without the table's attribute."""
    short = {
        str(measure.with_attribute(table.attribute)): str(measure)
        for measure in parse_measures(experiment.measures)
    }
    return {str(m): short.get(str(m), str(m)) for m in measures_of(table)}


def common_topics(table: Table, measure: str | None = None) -> list[str]:
    """Return the topics for which every system of a table has a value of a measure; None is all."""
    defined = [
        result.defined()
        for evaluation in table.evaluations.values()
        for name, result in evaluation.results.items()
        if measure in (None, name)
    ]
    return [topic for topic in defined[0] if all(topic in values for values in defined)]


def share_topics(table: Table) -> bool:
    """Return whether all means of a table are over the same topics."""
    common = len(common_topics(table))
    return all(
        result.count == common
        for evaluation in table.evaluations.values()
        for result in evaluation.results.values()
    )


def title_of(table: Table) -> str:
    """Return what a table is about."""
    return f"{table.attribute}, queries: {table.queries}"


def is_ours(name: str) -> bool:
    """Return whether a system goes by the name of this project's own method."""
    return name.startswith("ours")


def family_of(system: System) -> str:
    """Return the kind of a system, one of :data:`style.FAMILIES`."""
    return system.method if system.method in FAMILIES else "baseline"
