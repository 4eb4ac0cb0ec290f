"""Whether the exposure of lists leans toward a group, tested over queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.base.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.evaluation.probes.collection import CELLS, ProbeCollection
from fairqr.evaluation.probes.measured import ListwiseRow
from fairqr.retrieval.exposure import INVERSE_LOG, Discount

__all__ = ["INITIAL", "LEVEL", "Lean", "exposure_leans", "ratio_of_relevance", "references_of"]

INITIAL = "initial"
"""The ranker that leaves the order as it is given; nothing of it is tested."""

LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Lean:
    """What the exposure ratios of a row say.

    Attributes:
        kind: ``none`` where no lean was found, ``too_few`` where none could have been, even if the
            same group were favoured in every list.
        p: The greater one of two randomisation tests: that the ratio is 1, and that it is the one
            of lists in order of relevance; 1 where it is between the two, None without a ratio.
        holm_p: Corrected for all rows of the collection that have one.
        n: Over how many queries.
        tests: For how many rows it is corrected.
    """

    kind: Literal["protected", "unprotected", "none", "too_few"]
    p: float | None
    holm_p: float | None
    n: int
    tests: int


def exposure_leans(
    rows: Sequence[ListwiseRow], references: Mapping[str, float]
) -> list[Lean | None]:
    """Test for each row whether exposure leans.

    The test is on differences of exposure, protected less others, divided by the mean exposure of
    the list: by the ratio r and the share s of protected items, (r − 1)/(s·r + 1 − s). To swap the
    groups turns its sign, and its mean is 0 in lists of random order, whatever the sizes of the
    groups; neither the mean of r nor that of ln(r) is even then where one group is small. That is
    the paired randomisation test over queries. Where lists have only one or two items of a group
    the differences are skew, and 5 % of chance findings become about 10.

    Where cells are short, lists in order of relevance have another ratio than 1 although nobody
    leans, and a ranker that knows relevance in part is between the two. So a lean is claimed only
    if the ratio is beyond both, by the same test.

    Args:
        rows: Of one collection; p values are corrected by Holm for all of them together.
        references: By query the ratio of lists in order of relevance.

    Returns:
        One for each row; None for the initial order.
    """
    tested = [row for row in rows if row.ranker != INITIAL]
    both = [_differences(row, references) for row in tested]
    p_values = [_p(row, found) for row, found in zip(tested, both, strict=True)]
    tests = sum(p is not None for p in p_values)
    found = iter(
        [
            Lean(_kind(one[0], holm_p, tests), p, holm_p, len(one[0]), tests)
            for one, p, holm_p in zip(both, p_values, corrected_by_holm(p_values), strict=True)
        ]
    )
    return [None if row.ranker == INITIAL else next(found) for row in rows]


def _differences(
    row: ListwiseRow, references: Mapping[str, float]
) -> tuple[list[float], list[float]]:
    """Return the difference of exposure in each list, and the same less that of relevance."""
    found = [
        (_difference(one.ratio, one.share), _difference(references.get(one.query, 1.0), one.share))
        for one in row.by_query
        if one.ratio is not None and one.share is not None
    ]
    return (
        [own for own, _ in found],
        # What differs by rounding differs by nothing.
        [round(own - reference, 12) for own, reference in found],
    )


def _difference(ratio: float, share: float) -> float:
    """Return the exposure of a protected item less that of another, over the mean of all items."""
    return (ratio - 1) / (share * ratio + 1 - share)


def _p(row: ListwiseRow, differences: tuple[list[float], list[float]]) -> float | None:
    if not differences[0]:
        return None
    if sum(differences[0]) * sum(differences[1]) < 0:
        return 1.0
    name = "\n".join(("exposure", row.collection, row.ranker, row.window, row.asker))
    tests = [paired_randomisation(values, stream(0, name)) for values in differences]
    return max(test.p for test in tests if test is not None)


def _kind(
    values: Sequence[float], holm_p: float | None, tests: int
) -> Literal["protected", "unprotected", "none", "too_few"]:
    if holm_p is not None and holm_p <= LEVEL:
        return "protected" if sum(values) > 0 else "unprotected"
    # Of n signs the two assignments that agree are the least that an exact test can find.
    return "too_few" if max(tests, 1) * 2.0 ** (1 - len(values)) > LEVEL else "none"


def references_of(collection: ProbeCollection) -> dict[str, float]:
    """Return by query the exposure ratio of its list in order of relevance, where it has one."""
    found = {}
    for query in collection.queries:
        counts = {cell: len(query.of_cell(cell)) for cell in CELLS}
        ratio = ratio_of_relevance(
            (counts["relevant_protected"], counts["irrelevant_protected"]),
            (counts["relevant_unprotected"], counts["irrelevant_unprotected"]),
        )
        if ratio is not None:
            found[query.id] = ratio
    return found


def ratio_of_relevance(
    protected: tuple[int, int], unprotected: tuple[int, int], discount: Discount = INVERSE_LOG
) -> float | None:
    """Return the exposure ratio of lists that are in order of relevance, and random otherwise.

    It is 1 where both groups have the same share of relevant items; where cells are short it is
    what a ranker without any lean has.

    Args:
        protected: How many of its items are relevant, and how many are not.
        unprotected: The same for the others.
        discount: v; the ratio is that of expected exposure.

    Returns:
        None where one of the groups has no item.
    """
    relevant, irrelevant = protected[0] + unprotected[0], protected[1] + unprotected[1]
    if not sum(protected) or not sum(unprotected):
        return None
    weights = discount.weights(relevant + irrelevant)
    first = float(weights[:relevant].mean()) if relevant else 0.0
    rest = float(weights[relevant:].mean()) if irrelevant else 0.0
    own, others = (
        (group[0] * first + group[1] * rest) / sum(group) for group in (protected, unprotected)
    )
    return own / others
