"""The nodes of the graph that probes: does the model favour one side of a result when it ranks?

``prepare → retrieve → draw → ask → compare``; ``retrieve`` is the graph that searches, and ``ask``
runs once for each batch of pairs and for each persona, several at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from langgraph.types import Overwrite, Send

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking import preference
from fairqr.agents.ranking.pairwise import PairwiseJudge, Preference
from fairqr.agents.ranking.rankers import Cost, ItemRanker, group_of
from fairqr.agents.statistics import special, stream
from fairqr.graph import running
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.probe.parts import ProbeParts
from fairqr.graph.probe.result import (
    ListwiseProbe,
    PairwiseProbe,
    PersonaOrder,
    ProbedDocument,
    ProbedPair,
    ProbeResult,
    Side,
)
from fairqr.graph.probe.state import AskedTask, ProbeState, ProbeTask
from fairqr.graph.probe.verdicts import verdict_in_words
from fairqr.graph.running import Update
from fairqr.graph.search.budget import shortage
from fairqr.graph.search.rankers import items_of, within
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.search.state import Record
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import exposure_ratio

GONE = "deleted"
"""The outcome of a pair if one of its documents was deleted meanwhile."""

PAIRS_AT_ONCE = 5
"""How many pairs a task compares, one after the other; tasks run at the same time."""

_SIDES: dict[int, Side] = {1: "protected", 0: "unprotected", -1: "undecided"}


async def prepare(state: ProbeState, context: ProbeContext, parts: ProbeParts) -> Update:
    """Start the model, so that missing parts are found before anything is searched.

    Raises:
        ModelUnavailableError: No language model is given, or it cannot be started.
        PromptError: There is no such prompt.
        InputError: There is no such attribute or group, an option is out of its range, or scipy is
            not installed.
    """
    special()
    parts.sides(context.probe)
    for kind in context.probe.kinds:
        await parts.ranker(kind, context).start()
    # The thread may contain an earlier run.
    return {"outcomes": Overwrite([]), "result": None, "probe": None}


async def draw(state: ProbeState, context: ProbeContext, parts: ProbeParts) -> Update:
    """Choose the documents of both sides, the pairs and the lists.

    Raises:
        QueryError: No document matches the query.
        BudgetError: The whole budget has no room for the probe.
    """
    settings = context.probe
    query = state["query"]
    result = state["result"]
    running.add_seconds(result)
    running.require_hits(result["ranking"], parts.engine, query)
    documents = _documents(state, context, parts)
    protected = [document.id for document in documents if document.side == "protected"]
    unprotected = [document.id for document in documents if document.side == "unprotected"]
    update: Update = {"status": "ok", "message": "", "tasks": [], "cost": None}
    if not protected or not unprotected:
        both = zip((protected, unprotected), parts.sides(settings).words, strict=True)
        missing = " or ".join(word for ids, word in both if not ids)
        update["status"] = "one_sided"
        update["message"] = (
            f"None of the {len(documents)} documents is {missing}, so there is nothing to "
            "compare; raise k, or choose another query or attribute."
        )
        return update
    needed = await _cost(query, [document.id for document in documents], context, parts)
    number = len(documents)
    update["cost"] = within(context, needed, f"probe {number}", number).model_dump()
    if lack := shortage(context.budget, running.usage_of(result), needed):
        update["status"] = "budget"
        unit = lack.unit.replace("_", " ")
        update["message"] = (
            f"The probe may take {lack.needed} {unit}, but only {lack.left} of "
            "the budget are left; raise the budget."
        )
        return update
    random = stream(settings.seed, f"probe: {query}")
    one, other = (random.permutation(ids).tolist() for ids in (protected, unprotected))
    order = random.permutation([*protected, *unprotected]).tolist()
    shared: Any = {"query": query, "pairs": [], "order": []}
    if "pairwise" in settings.kinds:
        pairs = list(zip(one, other, strict=False))[: settings.pairs]
        update["tasks"] += [
            shared | {"persona": settings.persona, "pairs": pairs[at : at + PAIRS_AT_ONCE]}
            for at in range(0, len(pairs), PAIRS_AT_ONCE)
        ]
    if "listwise" in settings.kinds:
        update["tasks"] += [shared | {"persona": it, "order": order} for it in settings.personas]
    return update


async def each_task(state: ProbeState) -> list[Send] | str:
    """Ask what was drawn, if anything."""
    if not state["tasks"]:
        return "compare"
    return [Send("ask", {**task, "seconds": state["seconds"]}) for task in state["tasks"]]


async def ask(task: AskedTask, context: ProbeContext, parts: ProbeParts) -> Update:
    """Ask the model to compare the pairs of a batch, or to order the list for a persona."""
    running.record(persona=task["persona"])
    group = group_of(task["persona"], parts.sides(context.probe).words)
    work = _compared if task["pairs"] else _ordered
    return {"outcomes": [await work(task, group, context, parts)]}


async def compare(state: ProbeState, context: ProbeContext, parts: ProbeParts) -> Update:
    """Compare both sides: which one the model prefers, and how sure that is; the result."""
    settings = context.probe
    outcomes = state["outcomes"]
    sides = parts.sides(settings)
    documents = _documents(state, context, parts)
    model: Any = parts.rankers.language_model()
    prompts = parts.rankers.prompts
    kinds = settings.kinds
    spent = sum((Usage(**outcome["usage"]) for outcome in outcomes), Usage())
    result = ProbeResult(
        query=state["query"],
        corpus=parts.engine.name,
        model=model.name,
        attribute=sides.attribute,
        protected_groups=list(sides.protected),
        unprotected_groups=list(sides.unprotected),
        words=sides.words,
        status=state["status"],
        message=state["message"],
        note=(
            f"All {len(documents)} documents count as equally relevant, since nobody judged "
            "them for this query. The result is about this query alone."
        ),
        documents=documents,
        pairwise=_pairwise(outcomes, settings.seed, sides.words),
        listwise=_listwise(outcomes, state["tasks"], documents),
        prompts=[prompts.get(kind, context.prompts.get(kind)).reference for kind in kinds],
        seed=settings.seed,
        usage=running.usage_report(spent),
        # One message of each kind is enough: a model that fails, fails often.
        warnings=list(dict.fromkeys(it for each in outcomes for it in each["warnings"]))[:3],
    )
    running.record(status=result.status, verdict=result.pairwise and result.pairwise.verdict)
    cost = running.usage_report(spent + running.usage_of(state["result"]))
    running.record_outcome(cost, result.prompts, probed=result.model)
    return {"probe": result.model_dump(mode="json")}


def _documents(state: ProbeState, context: ProbeContext, parts: ProbeParts) -> list[ProbedDocument]:
    """Return the documents that take part, in the order of the result."""
    places = state["result"]["ranking"][: context.probe.depth]
    pool = [RankedDocument.model_validate(place) for place in places]
    dimension = Dimension.named(parts.engine.schema, context.probe.attribute)
    marks = parts.sides(context.probe).sides_of(memberships_of(pool, dimension)).tolist()
    return [
        ProbedDocument(**place.model_dump(), side=_SIDES[mark])
        for place, mark in zip(pool, marks, strict=True)
    ]


async def _cost(query: str, ids: Sequence[str], context: ProbeContext, parts: ProbeParts) -> Cost:
    """Return the most that a probe costs: nothing if its documents were deleted meanwhile.

    Raises:
        InputError: Not even two documents fit into what the model reads at once.
    """
    items = await items_of(parts.engine, ids)
    total = Cost()
    settings = context.probe
    if len(items) < 2:
        return total
    if "pairwise" in settings.kinds:
        one, other = sorted(items, key=lambda it: len(it.shown(settings.shown)))[-2:]
        word = settings.words[0] if settings.words else ""
        each = parts.ranker("pairwise", context).judge.cost(query, (one, other), word)
        pairs = min(settings.pairs, len(items) // 2)
        # The first question may only show whether the model gives probabilities.
        total += Cost(pairs * each.calls + 1, pairs * each.tokens + each.tokens // 2)
    if "listwise" in settings.kinds:
        each = parts.ranker("listwise", context).cost(query, items)
        lists = len(settings.personas)
        total += Cost(lists * each.calls, lists * each.tokens)
    return total


async def _compared(
    task: ProbeTask, group: str, context: ProbeContext, parts: ProbeParts
) -> Record:
    """Compare the pairs of a task, one after the other."""
    judge: PairwiseJudge = parts.ranker("pairwise", context).judge
    ids = list(itertools.chain.from_iterable(task["pairs"]))
    items = {item.id: item for item in await items_of(parts.engine, ids)}
    pairs: list[ProbedPair] = []
    asked: list[Preference] = []
    for protected, unprotected in task["pairs"]:
        told: dict[str, Any] = {"protected_first": GONE, "unprotected_first": GONE}
        if protected in items and unprotected in items:
            pair = items[protected], items[unprotected]
            found = await judge.compare(task["query"], pair, group, running.seconds_left(context))
            told = dict(zip(told, found.preferred("protected", "unprotected"), strict=True))
            told["log_odds"] = found.one_first.log_odds, found.other_first.log_odds
            asked += [found.one_first, found.other_first]
        pairs.append(ProbedPair(protected=protected, unprotected=unprotected, **told))
    failures = Counter(it.status for it in asked if it.choice is None)
    running.record(asked=len(asked), failures=dict(failures))
    return {
        "pairs": [pair.model_dump() for pair in pairs],
        "asked_by": judge.asks_by,
        "usage": asdict(sum((it.usage for it in asked), Usage())),
        "warnings": list(dict.fromkeys(it.message for it in asked if it.message)),
    }


async def _ordered(task: ProbeTask, group: str, context: ProbeContext, parts: ProbeParts) -> Record:
    """Order the list of a task for its persona."""
    items = await items_of(parts.engine, task["order"])
    ranker: ItemRanker = parts.ranker("listwise", context)
    found = await ranker.rank(task["query"], items, group, running.seconds_left(context))
    running.record(asked=found.asked, failures=dict(found.failures))
    order = {
        "persona": task["persona"],
        "words": group,
        "status": "failed" if found.failed else "ok",
        "ids": [] if found.failed else [items[position].id for position in found.order],
        "asked": found.asked,
        "failures": dict(found.failures),
        "repairs": dict(+Counter(found.repairs)),
    }
    return {
        "order": order,
        "usage": asdict(found.usage),
        "warnings": [*found.warnings, *filter(None, [found.message])],
    }


def _pairwise(
    outcomes: Sequence[Record], seed: int, words: tuple[str, str]
) -> PairwiseProbe | None:
    """Return the figures of all pairs, or None if no pair was asked about."""
    compared = [outcome for outcome in outcomes if "pairs" in outcome]
    if not compared:
        return None
    pairs = [ProbedPair(**pair) for outcome in compared for pair in outcome["pairs"]]
    # No document is in two pairs, so the pairs of this query are independent draws.
    figures = preference.pair_figures(
        (
            preference.PairOutcome(str(at), it.protected_first, it.unprotected_first, it.log_odds)
            for at, it in enumerate(pairs)
        ),
        stream(seed, "probe: figures"),
    )
    (verdict,) = preference.verdicts([figures])
    own = {
        "status": "ok" if figures.answered else "failed",
        "verdict": verdict.kind,
        "sentence": verdict_in_words(verdict, figures, words, is_one_query=True),
        "pairs": pairs,
        "detectable": verdict.detectable,
        "asked_by": compared[-1]["asked_by"],
    }
    shared = PairwiseProbe.model_fields.keys() - own.keys()
    return PairwiseProbe(**own, **{name: getattr(figures, name) for name in shared})


def _listwise(
    outcomes: Sequence[Record],
    tasks: Sequence[ProbeTask],
    documents: Sequence[ProbedDocument],
) -> ListwiseProbe | None:
    """Return the orders for all personas, or None if no list was asked about."""
    if not (orders := [outcome["order"] for outcome in outcomes if "order" in outcome]):
        return None
    sides = {document.id: document.side for document in documents}

    def ratio(ids: Sequence[str]) -> float | None:
        return exposure_ratio([sides[id_] == "protected" for id_ in ids])

    initial = tasks[-1]["order"]
    return ListwiseProbe(
        initial=initial,
        initial_ratio=ratio(initial),
        personas=[PersonaOrder(**order, exposure_ratio=ratio(order["ids"])) for order in orders],
    )
