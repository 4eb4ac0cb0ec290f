"""Makes the result of a probe: the figures of its pairs and lists, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fairqr.agents.ranking.lean import (
    PairFigures,
    PairOutcome,
    Share,
    Verdict,
    pair_figures,
    verdicts,
)
from fairqr.agents.ranking.rankers import group_of
from fairqr.agents.statistics import Interval, stream
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.probe.result import (
    AskerOrder,
    ListwiseProbe,
    PairwiseProbe,
    ProbedDocument,
    ProbedPair,
    ProbedShare,
    ProbeResult,
    ProbeStatus,
)
from fairqr.graph.probe.state import ProbedRecord, ProbePlan, State
from fairqr.graph.usage import total_usage, usage_report
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.fairness.exposure import exposure_ratio
from fairqr.retrieval.fairness.protected import ProtectedGroup


def concluded(
    state: State,
    settings: ProbeSettings,
    sides: ProtectedGroup,
    *,
    corpus: str,
    model: str,
    prompts: Sequence[PromptReference],
) -> ProbeResult:
    """Make the result; see :class:`ProbeResult` for what its figures mean."""
    plan = state["plan"]
    records = sorted(state["probed"], key=lambda record: record["number"])
    compared = [record for record in records if record["outcomes"]]
    ordered = [record for record in records if not record["outcomes"]]
    documents = _documents(state, plan)
    messages = [message for record in records for message in record["messages"]]
    return ProbeResult(
        query=state["query"],
        corpus=corpus,
        model=model,
        attribute=sides.attribute,
        protected_groups=list(sides.protected),
        unprotected_groups=list(sides.unprotected),
        words=sides.words,
        status=plan["status"],
        message=plan["message"],
        note=(
            f"All {len(documents)} documents count as equally relevant, since nobody judged them "
            "for this query. The result is about this query alone."
        ),
        documents=documents,
        pairwise=_pairwise(compared, plan, settings, sides) if compared else None,
        listwise=_listwise(ordered, plan) if ordered else None,
        prompts=list(prompts),
        seed=settings.seed,
        usage=usage_report(total_usage(record["usage"] for record in records)),
        # One message of each kind is enough: a model that fails, fails often.
        warnings=list(dict.fromkeys(messages))[:3],
    )


def _documents(state: State, plan: ProbePlan) -> list[ProbedDocument]:
    sides = dict.fromkeys(plan["protected"], "protected")
    sides |= dict.fromkeys(plan["unprotected"], "unprotected")
    sides |= dict.fromkeys(plan["undecided"], "undecided")
    places = state["result"]["ranking"]
    return [
        ProbedDocument(
            rank=place["rank"],
            id=place["id"],
            title=place["title"],
            side=sides[place["id"]],
        )
        for place in places
        if place["id"] in sides
    ]


def _pairwise(
    records: Sequence[ProbedRecord], plan: ProbePlan, settings: ProbeSettings, sides: ProtectedGroup
) -> PairwiseProbe:
    outcomes = [outcome for record in records for outcome in record["outcomes"]]
    pairs = [
        ProbedPair(
            protected=protected,
            unprotected=unprotected,
            protected_first=one,
            unprotected_first=other,
            log_odds=(one_odds, other_odds),
        )
        for (protected, unprotected), (one, other, one_odds, other_odds) in zip(
            plan["pairs"], outcomes, strict=True
        )
    ]
    # No document is in two pairs, so the pairs of this query are independent draws.
    figures = pair_figures(
        (
            PairOutcome(str(at), it.protected_first, it.unprotected_first, it.log_odds)
            for at, it in enumerate(pairs)
        ),
        stream(settings.seed, "probe: figures"),
    )
    (conclusion,) = verdicts([figures])
    return PairwiseProbe(
        status="ok" if figures.answered else "failed",
        verdict=conclusion.kind,
        sentence=verdict_in_words(conclusion, figures, sides.words, is_one_query=True),
        pairs=pairs,
        answered=figures.answered,
        protected=_share(figures.protected),
        unprotected=_share(figures.unprotected),
        flips=_share(figures.flips),
        flips_to_first=figures.flips_to_first,
        position_p=figures.position_p,
        ratio=figures.ratio,
        ratio_interval=_ends(figures.ratio_interval),
        consistent=_share(figures.consistent),
        p=figures.p,
        detectable=conclusion.detectable,
        votes=_share(figures.votes),
        failures=dict(figures.failures),
        asked_by=records[-1]["asked_by"],
    )


def _share(share: Share) -> ProbedShare:
    return ProbedShare(
        count=share.count, of=share.of, share=share.value, interval=_ends(share.interval)
    )


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def verdict_in_words(
    verdict: Verdict, figures: PairFigures, words: tuple[str, str], *, is_one_query: bool = False
) -> str:
    """Return a verdict with its uncertainty, in one or more sentences.

    Args:
        verdict: The verdict.
        figures: What it is about.
        words: The words for the two sides, such as ``female`` and ``male``.
        is_one_query: Whether all pairs are of one query, and nothing is said about others.
    """
    sentences = ["No verdict: no pair has a preference in both orders."]
    if verdict.kind != "failed":
        sentences = [_about_lean(verdict, figures, words, is_one_query=is_one_query)]
    if verdict.position is not None:
        most = max(figures.flips_to_first, figures.flips_to_second)
        decides = verdict.kind == "position_decides"
        sentences.insert(
            0 if decides else 1,
            f"{'Position decides: ' if decides else ''}{figures.flips.count} of {figures.answered} "
            f"pairs flip with the order, and the {verdict.position} place wins {most} of these "
            f"({p_in_words(figures.position_p)}).",
        )
    if failures := ", ".join(f"{count} {status}" for status, count in figures.failures.items()):
        sentences.append(
            f"Of {figures.replies} replies {figures.failed} prefer neither ({failures})."
        )
    return " ".join(sentences)


def p_in_words(p: float | None) -> str:
    """Return a p value as text: ``p = 0.012``, ``p < 0.001``, or ``p has no value``."""
    if p is None:
        return "p has no value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _about_lean(
    verdict: Verdict, figures: PairFigures, words: tuple[str, str], *, is_one_query: bool
) -> str:
    wins, losses, tests = figures.protected.count, figures.unprotected.count, p_in_words(figures.p)
    noun, of, no_lean = "document", "", "On this query no lean was found"
    if not is_one_query:
        noun, of, no_lean = "item", f" from {figures.queries} queries", "No lean was found"
        over_queries, by_holm = map(p_in_words, (figures.over_queries, verdict.p))
        tests += f" over pairs, {over_queries} over queries, {by_holm} by Holm"
    counts = (
        f"of {figures.pairs} pairs{of} the {words[0]} {noun} is preferred in both orders in "
        f"{wins}, the {words[1]} one in {losses}"
    )
    if verdict.lean is None and (figures.p is None or verdict.detectable is None):
        return (
            f"Too few answers to tell whether there is a lean: {counts}, and it takes at least "
            f"{verdict.least} pairs with one winner"
            f"{'' if is_one_query else ', from as many queries'}."
        )
    if verdict.lean is not None:
        word = words[0] if verdict.lean == "protected" else words[1]
        model = "On this query the model" if is_one_query else "The model"
        return f"{model} favours {word} {noun}s: {counts} ({tests})."
    return (
        f"{no_lean}: {counts} ({tests}). With a power of 80%, this many independent pairs would "
        f"have shown a lean where one side wins {verdict.detectable:.0%} or more of those with one "
        "winner."
    )


def _listwise(records: Sequence[ProbedRecord], plan: ProbePlan) -> ListwiseProbe:
    protected = set(plan["protected"])

    def ratio(ids: Sequence[str]) -> float | None:
        return exposure_ratio([id_ in protected for id_ in ids])

    return ListwiseProbe(
        initial=plan["order"],
        initial_ratio=ratio(plan["order"]),
        askers=[_asker_order(record, plan, ratio(record["order"])) for record in records],
    )


def _asker_order(record: ProbedRecord, plan: ProbePlan, ratio: float | None) -> AskerOrder:
    status: ProbeStatus = "ok" if record["order"] else "failed"
    return AskerOrder(
        asker=record["asker"],
        words=group_of(record["asker"], plan["words"]),
        status=status,
        ids=record["order"],
        exposure_ratio=ratio,
        asked=record["asked"],
        failures=dict(Counter(record["failures"])),
        repairs=record["repairs"],
    )
