"""What the numbers of Fair RAG say, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.evaluation.experiments.report import numbers
from fairqr.evaluation.experiments.report.parts import Block, Heading, Items
from fairqr.evaluation.rag.analysis.frame import Frame, Mean, PolicyKey, policy_name
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.report.common import ORACLE, by_collection

__all__ = ["in_short"]


def in_short(measured: MeasuredRag) -> Iterator[Block]:
    """Yield sentences computed from the measures, whatever they say."""
    yield Heading("In short")
    sentences = [
        sentence
        for title, frame in by_collection(measured)
        for sentence in (
            *(_fall(title, frame, retriever) for retriever in frame.retrievers),
            *(_wasted(title, frame, retriever) for retriever in frame.retrievers),
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
                if _is_above(mean)
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


def _is_above(mean: Mean) -> bool:
    """Return whether the whole interval is above 0 by more than rounding."""
    return mean.interval is not None and mean.interval.low > 1e-12
