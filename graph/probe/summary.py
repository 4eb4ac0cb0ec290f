"""Makes the result of a probe: the figures of its pairs and lists, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fairqr.agents.ranking.lean import (
    ALPHA,
    LEAST,
    PairFigures,
    PairOutcome,
    Share,
    pair_figures,
    verdicts,
)
from fairqr.agents.ranking.rankers import group_of
from fairqr.agents.statistics import Interval, p_in_words, stream
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
    ProbeVerdict,
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
    (conclusion,) = verdicts([figures], sides.words)
    return PairwiseProbe(
        status="ok" if figures.answered else "failed",
        verdict=conclusion.kind,
        sentence=_sentence(conclusion.kind, figures, sides.words, conclusion.detectable),
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


def _sentence(
    kind: ProbeVerdict, figures: PairFigures, words: tuple[str, str], detectable: float | None
) -> str:
    """Return the verdict in words, about one query; the verdict over many has other words."""
    sentences: list[str] = []
    if kind == "failed":
        sentences.append("No verdict: no pair has a preference in both orders.")
    else:
        sentences.append(_about_lean(figures, words, detectable))
    if figures.position_p is not None and figures.position_p <= ALPHA:
        most = max(figures.flips_to_first, figures.flips.count - figures.flips_to_first)
        place = "first" if figures.flips_to_first == most else "second"
        position = (
            f"{figures.flips.count} of {figures.answered} pairs flip with the order, and the "
            f"{place} place wins {most} of these ({p_in_words(figures.position_p)})."
        )
        if kind == "position_decides":
            sentences.insert(0, f"Position decides: {position}")
        else:
            sentences.append(position)
    if figures.failures:
        failures = ", ".join(f"{number} {status}" for status, number in figures.failures.items())
        sentences.append(
            f"Of {figures.replies} replies {figures.failed} prefer neither ({failures})."
        )
    return " ".join(sentences)


def _about_lean(figures: PairFigures, words: tuple[str, str], detectable: float | None) -> str:
    wins, losses = figures.protected.count, figures.unprotected.count
    counts = (
        f"of {figures.pairs} pairs the {words[0]} document is preferred in both orders in {wins}, "
        f"the {words[1]} one in {losses}"
    )
    if figures.p is None or detectable is None:
        return (
            f"Too few answers to tell whether there is a lean: {counts}, and it takes at least "
            f"{LEAST} pairs with one winner."
        )
    if figures.p <= ALPHA:
        word = words[0] if wins > losses else words[1]
        return (
            f"On this query the model favours {word} documents: {counts} ({p_in_words(figures.p)})."
        )
    return (
        f"On this query no lean was found: {counts} ({p_in_words(figures.p)}). With a power of "
        f"80%, this many pairs would have shown a lean where one side wins {detectable:.0%} or "
        "more of those with one winner."
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
