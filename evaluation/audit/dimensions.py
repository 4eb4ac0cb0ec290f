"""What an audit measures over: attributes, their combinations, and the groups of open ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.table import decoded, largest_first, totals_by_group
from fairqr.retrieval.sources.schema import Schema

MOST_GROUPS = 20
"""So many groups of an open attribute have figures, the largest; the others are one."""

Observed = Callable[[Sequence[str]], Iterable[Observation]]
"""Reads what was observed of queries, given by their ids."""

Sizes = dict[str, dict[str, float]]
"""By open attribute and group, the mean share of what the queries found."""


def dimensions_to_measure(schema: Schema, spec: AuditSpec) -> list[Dimension]:
    """Return the attributes of an audit, and then the combinations of each two.

    Raises:
        UnknownAttributeError: The schema lacks an attribute.
    """
    names = list(dict.fromkeys(spec.attributes)) or list(schema.attributes)
    products: list[str] = []
    if spec.intersections:
        single = [name for name in names if TIMES not in name]
        products = [TIMES.join(pair) for pair in combinations(single, 2)]
    return [Dimension.named(schema, name) for name in (*names, *products)]


def sizes_of_groups(
    dimensions: Iterable[Dimension], queries: Mapping[str, AuditQuery], observed: Observed
) -> Sizes:
    """Return how large the groups of the open attributes of dimensions are."""
    open_attributes = {}
    for dimension in dimensions:
        for factor in dimension.factors:
            if factor.open:
                open_attributes[factor.name] = factor
    if not open_attributes:
        return {}
    sizes: Sizes = {name: defaultdict(float) for name in open_attributes}
    whole = sum(query.weight for query in queries.values())
    for observation in observed([*queries]):
        share_of_queries = queries[observation.query].weight / whole
        weight = share_of_queries / max(1, len(observation.pool))
        for name in open_attributes.keys() & observation.groups.keys():
            memberships = decoded(observation.groups[name])
            totals = totals_by_group(open_attributes[name], memberships)
            for group, total in totals.items():
                sizes[name][group] += weight * total
    return sizes


def largest_groups(sizes: Sizes) -> dict[str, list[str]]:
    """Return the groups of open attributes that have figures of their own, the largest first."""
    return {name: largest_first(by_group)[:MOST_GROUPS] for name, by_group in sizes.items()}
