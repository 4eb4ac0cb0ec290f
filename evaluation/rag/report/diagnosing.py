"""The diagnosis in words: where imbalance arises, and what goes to documents that do not help."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Heading, Items, Paragraph
from fairqr.evaluation.rag.analysis.diagnosis import FEWEST, Diagnosis, diagnose, is_above
from fairqr.evaluation.rag.analysis.frame import Frame, Mean, PolicyKey, policy_name
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.report.common import ORACLE, by_collection, mean_cell, policy_rows

__all__ = ["diagnosis_blocks", "in_short"]


def in_short(measured: MeasuredRag) -> Iterator[Block]:
    """Yield what the numbers say, computed, whatever it is."""
    yield Heading("In short")
    sentences = [
        sentence
        for title, frame in by_collection(measured)
        for sentence in (
            *(_fall(title, frame, retriever) for retriever in frame.retrievers),
            *(_unequal(title, frame, retriever) for retriever in frame.retrievers),
            *(_wasted(title, frame, retriever) for retriever in frame.retrievers),
            *_origins(title, frame),
            *_concentrated(title, frame),
        )
        if sentence
    ]
    yield Items(tuple(sentences or ["No query has a value to speak of."]))


def _fall(title: str, frame: Frame, retriever: str) -> str:
    mine = frame.select(retriever=retriever)
    known = [
        (policy, mean.value) for policy, mean in _means(mine, Name.EE_D) if mean.value is not None
    ]
    if len(known) < 2:
        return ""
    values = [value for _, value in known]
    steps = "at every step" if values == sorted(values) and len(set(values)) == len(values) else ""
    told = ", ".join(f"{value:.3f} at {policy_name(policy)}" for policy, value in reversed(known))
    if values[-1] <= values[0]:
        return f"{title}, {retriever}: disparity (EE-D) does not fall with α: {told}."
    how = f"falls {steps}" if steps else "falls, though not at every step"
    return f"{title}, {retriever}: disparity (EE-D) {how} as α does: {told}."


def _unequal(title: str, frame: Frame, retriever: str) -> str:
    means = _means(frame.select(retriever=retriever), Name.UNEQUAL)
    told = [
        f"{_percent(mean)} at {policy_name(policy)}" for policy, mean in means if is_above(mean)
    ]
    if not told:
        return ""
    rest = [policy_name(policy) for policy, mean in means if not is_above(mean)]
    more = f"; none can be told at {', '.join(rest)}" if rest else ""
    return (
        f"{title}, {retriever}: useful documents are not exposed equally: of the greatest "
        f"inequality among them that any policy can have, {', '.join(told)}{more}."
    )


def _means(frame: Frame, name: Name) -> list[tuple[PolicyKey, Mean]]:
    """Return the mean of each random policy."""
    return [
        (policy, frame.select(policy=policy).mean(name))
        for policy in frame.policies
        if policy[0] == "plackett-luce"
    ]


def _concentrated(title: str, frame: Frame) -> Iterator[str]:
    for generator in frame.generators:
        for retriever in frame.retrievers:
            mine = frame.select(generator=generator, retriever=retriever)
            told = [
                f"{policy_name(policy)} by {numbers.value(mean.value)}"
                for policy, mean in _means(mine, Name.SHARE_EXCESS)
                if is_above(mean)
            ]
            if told:
                yield (
                    f"{title}, {generator}, {retriever}: over all documents, what is used is more "
                    f"concentrated than what is shown, {Name.SHARE} above EE-D/k, at "
                    f"{', '.join(told)}."
                )


def _wasted(title: str, frame: Frame, retriever: str) -> str:
    mine = frame.select(retriever=retriever)
    told = [
        f"{_percent(mean)} "
        + ("with the one ranking" if policy[0] == "deterministic" else f"at {policy_name(policy)}")
        for policy in mine.policies
        if (mean := mine.select(policy=policy).mean(Name.NOT_USEFUL)).value is not None
    ]
    if not told:
        return ""
    least = frame.select(policy=ORACLE).mean(Name.NOT_USEFUL)
    floor = f"; the oracle cannot do with less than {_percent(least)}" if least.count else ""
    return (
        f"{title}, {retriever}: exposure that goes to documents that are not useful is "
        f"{', '.join(told)}{floor}."
    )


def _percent(mean: Mean) -> str:
    return "–" if mean.value is None else f"{100 * mean.value:.1f}%"


def _origins(title: str, frame: Frame) -> Iterator[str]:
    for generator in frame.generators:
        for retriever in frame.retrievers:
            mine = frame.select(generator=generator, retriever=retriever, kind="plackett-luce")
            found: dict[str, list[str]] = {}
            for policy in mine.policies:
                verdict = _said(diagnose(mine.select(policy=policy)))
                found.setdefault(verdict, []).append(policy_name(policy))
            told = "; ".join(f"{', '.join(names)}: {said}" for said, names in found.items())
            if told:
                yield (
                    f"{title}, {generator}, {retriever}: where unequal use of useful documents "
                    f"comes from: {told}."
                )


def _said(found: Diagnosis) -> str:
    """Say a verdict."""
    if not found.difference.count:
        return "nothing to tell it from"
    if found.difference.count < FEWEST:
        return f"cannot be told from {numbers.count(found.difference.count, 'query', 'queries')}"
    match found.verdict:
        case "retrieval":
            more = ", and what is picked adds to it" if is_above(found.picking) else ""
            return f"mostly from what was retrieved{more}"
        case "picking":
            more = ", and what was retrieved adds to it" if is_above(found.retrieval) else ""
            return f"mostly from what the generator picks{more}"
        case "both":
            return "from both what was retrieved and what the generator picks"
        case _:
            pass
    there = [
        words
        for words, part in (
            ("what was retrieved", found.retrieval),
            ("what the generator picks", found.picking),
        )
        if is_above(part)
    ]
    if there:
        return (
            f"cannot be told which is more; the part from {' and that from '.join(there)} is there"
        )
    return "cannot be told, the intervals of both parts hold 0"


_PARTS = (
    ("total", "total"),
    ("from retrieval", "retrieval"),
    ("from picking", "picking"),
    ("from repetition", "repetition"),
    ("retrieval − picking", "difference"),
    ("retrieval − both others", "lead"),
)


def diagnosis_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield the split of the inequality of use, and the verdicts."""
    yield Paragraph(
        "Useful documents have equal merit, so answers should use them equally. The inequality of "
        "use among the useful documents of a query, Σ (ε^a − mean)², is estimated without bias "
        "from pairs of samples, and splits exactly into three parts. From retrieval: what is left "
        "if each useful document that is read were used equally often. From picking: what answers "
        "to different rankings add by coming back to the same documents; it is 0 on average if "
        "each useful document that is read is used with the same chance. From repetition: what the "
        "same answer adds by being served again. A part is there if its 95% interval "
        "over queries is above 0. The verdict is picking where that part is there and is larger "
        "than that from retrieval, by the paired bootstrap; retrieval where that part is there and "
        "is larger than both others together, since with nearly fixed rankings a preference shows "
        "as repetition; both, where both are there and neither is larger; and else that it cannot "
        "be told, which does not say that there is none. Intervals are not corrected for their "
        "number. A deterministic ranking has one answer, and gives nothing to split."
    )
    for title, frame in by_collection(measured):
        rows = []
        for names, policy, found in policy_rows(frame, by_generator=True):
            if policy[0] == "deterministic":
                continue
            told = diagnose(found)
            cells = [mean_cell(getattr(told, part), signed=True) for _, part in _PARTS]
            rows.append((*map(Cell, names), Cell(told.verdict), *cells))
        yield parts.Table(
            f"{title}: inequality of use among useful documents, and where it comes from, as the "
            "mean over queries with its 95% interval and over how many queries it is.",
            ("generator", "retriever", "policy", "verdict", *(name for name, _ in _PARTS)),
            tuple(rows),
        )
