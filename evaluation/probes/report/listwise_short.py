"""What the numbers of a listwise probe say in words: computed, whatever it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairqr.base.statistics import paired_randomisation, stream
from fairqr.evaluation.experiments.report import numbers
from fairqr.evaluation.experiments.report.parts import Block, Heading, Items
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeManifest
from fairqr.evaluation.probes.measured import AskerDifference, ListwiseRow, MeasuredListwise
from fairqr.evaluation.probes.report.common import ORDERS, REASONS, counted, grouped, ranker_name
from fairqr.evaluation.probes.report.leaning import (
    INITIAL,
    LEVEL,
    Lean,
    exposure_leans,
    references_of,
)
from fairqr.evaluation.probes.report.listwise import built_of, by_collection

__all__ = ["listwise_in_short"]

SAME = 5e-4
"""Ratios that differ by less are printed alike."""

MOSTLY = 0.5
"""Where more than this share of the questions failed, the order is rather the given one."""


def listwise_in_short(
    measured: MeasuredListwise, collections: Sequence[ProbeCollection]
) -> Iterator[Block]:
    """Yield whether exposure leans, whether lists are in order of relevance, and for whom.

    Args:
        measured: The numbers.
        collections: Those of the run, with their items.
    """
    yield Heading("In short")
    built = built_of(measured)
    k = measured.manifest.rankings.k
    sentences: list[str] = []
    references = {one.manifest.name: references_of(one) for one in collections}
    for name, rows in by_collection(measured):
        tested = list(zip(rows, exposure_leans(rows, references[name]), strict=True))
        told = [
            _given(rows, built[name]),
            *_failures(rows),
            *_exposure(tested, built[name], references[name]),
            *_relevance(rows, k),
            *_query_side(measured.differences, name, k),
        ]
        sentences += [f"{name}: {sentence}" for sentence in told]
    yield Items(tuple(sentences or ["No ranking was made, so nothing can be said."]))


def _given(rows: Sequence[ListwiseRow], built: ProbeManifest) -> str:
    given = next((row for row in rows if row.ranker == INITIAL), None)
    own = f", which itself has the exposure ratio {_ratio(given)}" if given else ""
    return (
        f"the protected group is {built.protected}, the other {built.unprotected}. Rankers were "
        f"shown lists in the order {ORDERS[built.order]}{own}."
    )


def _ratio(row: ListwiseRow) -> str:
    if row.ratio.mean is None:
        return "– (n=0)"
    span = numbers.span(row.ratio.interval)
    return f"{row.ratio.mean:.3f} " + (f"{span} " if span else "") + f"(n={row.ratio.n})"


def _failures(rows: Sequence[ListwiseRow]) -> Iterator[str]:
    for ranker, found in grouped((ranker_name(row.ranker, row.window), row) for row in rows):
        asked = sum(row.asked for row in found)
        failed = sum(sum(row.failures.values()) for row in found)
        if asked and failed == asked:
            kinds = counted(_added(found))
            yield f"{ranker}: all of {numbers.count(asked, 'question')} failed ({kinds})."
        elif failed > MOSTLY * asked:
            yield (
                f"{ranker}: {failed:,} of {numbers.count(asked, 'question')} failed. Where one "
                "fails the order stays as it was, so what is said of this ranker is rather said of "
                "the order that it was given."
            )


def _added(rows: Sequence[ListwiseRow]) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.failures)
    return total


def _exposure(
    tested: Sequence[tuple[ListwiseRow, Lean | None]],
    built: ProbeManifest,
    references: Mapping[str, float],
) -> Iterator[str]:
    """Say of which rankers exposure leans, of which that was not found, and of which not known."""
    keyed = ((ranker_name(row.ranker, row.window), (row, lean)) for row, lean in tested if lean)
    even, few, without = [], [], []
    for ranker, found in grouped(keyed):
        by_kind: dict[str, list[str]] = {}
        for row, lean in found:
            if lean is None or lean.p is None:
                reasons = counted(row.ratio.left_out, REASONS)
                by_kind.setdefault("without", []).append(f"{_asker(row, built)} ({reasons})")
            else:
                p = numbers.p_value(lean.holm_p)
                text = f"{_asker(row, built)} {_ratio(row)}, p by Holm {p}"
                by_kind.setdefault(lean.kind, []).append(text)
        for kind, group in (("protected", built.protected), ("unprotected", built.unprotected)):
            if kind in by_kind:
                yield (
                    f"{ranker} favours {group} items in exposure; exposure ratio by query"
                    f"{_beside(references)}: {'; '.join(by_kind[kind])}."
                )
        even += [f"{ranker}: {'; '.join(by_kind['none'])}"] if "none" in by_kind else []
        few += [f"{ranker}: {'; '.join(by_kind['too_few'])}"] if "too_few" in by_kind else []
        without += [f"{ranker}: {'; '.join(by_kind['without'])}"] if "without" in by_kind else []
    if even:
        yield (
            "no lean of exposure was found, which does not show that there is none, for the "
            f"following exposure ratios by query{_beside(references)}. {'. '.join(even)}."
        )
    if few:
        tests = max(lean.tests for _, lean in tested if lean)
        yield (
            f"too few lists to tell whether exposure leans: corrected for {tests} tests, not even "
            f"a group that is favoured in every list would be found. {'. '.join(few)}."
        )
    if without:
        yield f"no exposure ratio. {'. '.join(without)}."


def _beside(references: Mapping[str, float]) -> str:
    """Name the ratio of relevance alone, where it is not 1."""
    mean = float(np.mean(list(references.values()))) if references else 1.0
    return "" if abs(mean - 1) < SAME else f", where order of relevance alone has {mean:.3f}"


def _asker(row: ListwiseRow, built: ProbeManifest) -> str:
    words = {"neutral": "neutral", "protected": built.protected, "unprotected": built.unprotected}
    return words[row.asker]


def _relevance(rows: Sequence[ListwiseRow], k: int) -> Iterator[str]:
    """Say which rankers order by relevance better than the list they were given."""
    given = next((row for row in rows if row.ranker == INITIAL), None)
    if given is None:
        return
    old = {one.query: one.precision for one in given.by_query}
    better: list[str] = []
    others: list[str] = []
    keyed = ((ranker_name(row.ranker, row.window), row) for row in rows if row.ranker != INITIAL)
    for ranker, (row, *_) in grouped(keyed):
        differences = [
            one.precision - was
            for one in row.by_query
            if one.precision is not None and (was := old.get(one.query)) is not None
        ]
        test = paired_randomisation(differences, stream(0, f"{row.collection}\n{ranker}"))
        if test is None:
            continue
        mean = float(np.mean(differences))
        p = numbers.p_value(test.p)
        text = f"{ranker}: {numbers.difference(mean)} (n={len(differences)}, p {p})"
        (better if mean > 0 and test.p <= LEVEL else others).append(text)
    if better:
        yield (
            f"P@{k} less that of the order that was given, by the first query, is above 0. "
            f"{'; '.join(better)}."
        )
    if others:
        yield (
            f"P@{k} cannot be told to be above that of the order that was given, by the first "
            "query; what such a ranker does to groups says little of how it would rank. "
            f"{'; '.join(others)}."
        )


def _query_side(differences: Sequence[AskerDifference], name: str, k: int) -> Iterator[str]:
    names = {"precision": f"P@{k}", "ndcg": f"nDCG@{k}"}
    found = [one for one in differences if one.collection == name and one.ranker != INITIAL]
    holding = [one for one in found if one.holm_p is not None and one.holm_p <= LEVEL]
    if holding:
        told = "; ".join(
            f"{ranker_name(one.ranker, one.window)}: {names[one.measure]} "
            f"{numbers.difference(one.difference.mean)} (n={one.difference.n}, p by Holm "
            f"{numbers.p_value(one.holm_p)})"
            for one in holding
        )
        yield f"lists differ between the askers, protected less unprotected. {told}."
    rest = [one for one in found if one.difference.mean is not None and one not in holding]
    if rest:
        most = max(abs(one.difference.mean or 0) for one in rest)
        yield (
            "no "
            + ("other " if holding else "")
            + f"difference in P@{k} or nDCG@{k} between protected and unprotected askers was "
            f"found; the largest mean difference is {most:.4f}, over at most "
            f"{max(one.difference.n for one in rest)} queries."
        )
