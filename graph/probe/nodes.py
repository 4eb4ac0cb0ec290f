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
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
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

MOST_WARNINGS = 3
"""How many different warnings a result has at most."""

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
    query = state["query"]
    result = state["result"]
    running.add_seconds(result)
    running.require_hits(result["ranking"], parts.engine, query)
    documents = _documents(state, context, parts)
    update: Update = {"status": "ok", "message": "", "tasks": [], "cost": None}
    missing = _missing_sides(documents, parts.sides(context.probe).words)
    if missing:
        update["status"] = "one_sided"
        update["message"] = (
            f"None of the {len(documents)} documents is {' or '.join(missing)}, so there is "
            "nothing to compare; raise k, or choose another query or attribute."
        )
        return update

    count = len(documents)
    cost = await _cost(query, [document.id for document in documents], context, parts)
    update["cost"] = within(context, cost, f"probe {count}", count).model_dump()
    lack = shortage(context.budget, running.usage_of(result), cost)
    if lack is not None:
        unit = lack.unit.replace("_", " ")
        update["status"] = "budget"
        update["message"] = (
            f"The probe may take {lack.needed} {unit}, but only {lack.remaining} of the budget are "
            "left; raise the budget."
        )
        return update
    update["tasks"] = _draw_tasks(query, documents, context.probe)
    return update


def _missing_sides(documents: Sequence[ProbedDocument], words: tuple[str, str]) -> list[str]:
    """Return the words for the sides that have no document."""
    present = {document.side for document in documents}
    sides: tuple[Side, Side] = ("protected", "unprotected")
    return [word for side, word in zip(sides, words, strict=True) if side not in present]


def _draw_tasks(
    query: str, documents: Sequence[ProbedDocument], settings: ProbeSettings
) -> list[Record]:
    """Draw the pairs, in batches, and the order of the list, once for each persona."""
    protected = [document.id for document in documents if document.side == "protected"]
    unprotected = [document.id for document in documents if document.side == "unprotected"]
    random = stream(settings.seed, f"probe: {query}")
    drawn_protected = random.permutation(protected).tolist()
    drawn_unprotected = random.permutation(unprotected).tolist()
    order = random.permutation([*protected, *unprotected]).tolist()

    tasks: list[Record] = []
    shared: Record = {"query": query, "pairs": [], "order": []}
    if "pairwise" in settings.kinds:
        pairs = list(zip(drawn_protected, drawn_unprotected, strict=False))[: settings.pairs]
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            batch = pairs[start : start + PAIRS_AT_ONCE]
            tasks.append(shared | {"persona": settings.persona, "pairs": batch})
    if "listwise" in settings.kinds:
        for persona in settings.personas:
            tasks.append(shared | {"persona": persona, "order": order})
    return tasks


async def each_task(state: ProbeState) -> list[Send] | str:
    """Ask what was drawn, if anything."""
    if not state["tasks"]:
        return "compare"
    return [Send("ask", {**task, "seconds": state["seconds"]}) for task in state["tasks"]]


async def ask(task: AskedTask, context: ProbeContext, parts: ProbeParts) -> Update:
    """Ask the model to compare the pairs of a batch, or to order the list for a persona."""
    running.record(persona=task["persona"])
    group = group_of(task["persona"], parts.sides(context.probe).words)
    if task["pairs"]:
        outcome = await _compare_pairs(task, group, context, parts)
    else:
        outcome = await _order_list(task, group, context, parts)
    return {"outcomes": [outcome]}


async def compare(state: ProbeState, context: ProbeContext, parts: ProbeParts) -> Update:
    """Compare both sides: which one the model prefers, and how sure that is; the result."""
    settings = context.probe
    outcomes = state["outcomes"]
    sides = parts.sides(settings)
    documents = _documents(state, context, parts)
    model: Any = parts.rankers.language_model()
    prompts = []
    for kind in settings.kinds:
        prompt = parts.rankers.prompts.get(kind, context.prompts.get(kind))
        prompts.append(prompt.reference)
    spent = sum((Usage(**outcome["usage"]) for outcome in outcomes), Usage())
    warnings: dict[str, None] = {}
    for outcome in outcomes:
        warnings |= dict.fromkeys(outcome["warnings"])

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
        prompts=prompts,
        seed=settings.seed,
        usage=running.usage_report(spent),
        # A few messages are enough: a model that fails, fails often.
        warnings=list(warnings)[:MOST_WARNINGS],
    )
    running.record(status=result.status, verdict=result.pairwise and result.pairwise.verdict)
    cost = running.usage_report(spent + running.usage_of(state["result"]))
    running.record_outcome(cost, result.prompts, probed=result.model)
    return {"probe": result.model_dump(mode="json")}


def _documents(state: ProbeState, context: ProbeContext, parts: ProbeParts) -> list[ProbedDocument]:
    """Return the documents that take part, in the order of the result."""
    records = state["result"]["ranking"][: context.probe.depth]
    ranking = [RankedDocument.model_validate(record) for record in records]
    dimension = Dimension.named(parts.engine.schema, context.probe.attribute)
    sides = parts.sides(context.probe).sides_of(memberships_of(ranking, dimension))
    documents = []
    for document, side in zip(ranking, sides.tolist(), strict=True):
        documents.append(ProbedDocument(**document.model_dump(), side=_SIDES[side]))
    return documents


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
        by_length = sorted(items, key=lambda item: len(item.shown(settings.shown)))
        longest = (by_length[-2], by_length[-1])
        word = settings.words[0] if settings.words else ""
        of_pair = parts.ranker("pairwise", context).judge.cost(query, longest, word)
        pairs = min(settings.pairs, len(items) // 2)
        # The first question may only show whether the model gives probabilities.
        total += Cost(pairs * of_pair.calls + 1, pairs * of_pair.tokens + of_pair.tokens // 2)
    if "listwise" in settings.kinds:
        of_list = parts.ranker("listwise", context).cost(query, items)
        lists = len(settings.personas)
        total += Cost(lists * of_list.calls, lists * of_list.tokens)
    return total


async def _compare_pairs(
    task: ProbeTask, group: str, context: ProbeContext, parts: ProbeParts
) -> Record:
    """Compare the pairs of a task, one after the other."""
    judge: PairwiseJudge = parts.ranker("pairwise", context).judge
    ids = list(itertools.chain.from_iterable(task["pairs"]))
    items = {item.id: item for item in await items_of(parts.engine, ids)}
    pairs: list[ProbedPair] = []
    preferences: list[Preference] = []
    for protected, unprotected in task["pairs"]:
        replies = (GONE, GONE)
        log_odds: tuple[float | None, float | None] = (None, None)
        if protected in items and unprotected in items:
            pair = (items[protected], items[unprotected])
            seconds = running.seconds_left(context)
            comparison = await judge.compare(task["query"], pair, group, seconds)
            replies = comparison.preferred("protected", "unprotected")
            log_odds = (comparison.one_first.log_odds, comparison.other_first.log_odds)
            preferences += [comparison.one_first, comparison.other_first]
        probed_pair = ProbedPair(
            protected=protected,
            unprotected=unprotected,
            protected_first=replies[0],
            unprotected_first=replies[1],
            log_odds=log_odds,
        )
        pairs.append(probed_pair)

    failures = Counter(reply.status for reply in preferences if reply.choice is None)
    running.record(asked=len(preferences), failures=dict(failures))
    messages = [reply.message for reply in preferences if reply.message]
    return {
        "pairs": [pair.model_dump() for pair in pairs],
        "asked_by": judge.asks_by,
        "usage": asdict(sum((reply.usage for reply in preferences), Usage())),
        "warnings": list(dict.fromkeys(messages)),
    }


async def _order_list(
    task: ProbeTask, group: str, context: ProbeContext, parts: ProbeParts
) -> Record:
    """Order the list of a task for its persona."""
    items = await items_of(parts.engine, task["order"])
    ranker: ItemRanker = parts.ranker("listwise", context)
    answer = await ranker.rank(task["query"], items, group, running.seconds_left(context))
    running.record(asked=answer.asked, failures=dict(answer.failures))
    status = "failed"
    ids: list[str] = []
    if not answer.failed:
        status = "ok"
        ids = [items[position].id for position in answer.order]
    order = {
        "persona": task["persona"],
        "words": group,
        "status": status,
        "ids": ids,
        "asked": answer.asked,
        "failures": dict(answer.failures),
        "repairs": dict(+Counter(answer.repairs)),
    }
    warnings = list(answer.warnings)
    if answer.message:
        warnings.append(answer.message)
    return {"order": order, "usage": asdict(answer.usage), "warnings": warnings}


def _pairwise(
    outcomes: Sequence[Record], seed: int, words: tuple[str, str]
) -> PairwiseProbe | None:
    """Return the figures of all pairs, or None if no pair was asked about."""
    compared = [outcome for outcome in outcomes if "pairs" in outcome]
    if not compared:
        return None
    pairs: list[ProbedPair] = []
    for outcome in compared:
        pairs += [ProbedPair(**record) for record in outcome["pairs"]]

    # No document is in two pairs, so the pairs of this query are independent draws: we give each a
    # query of its own.
    pair_outcomes = []
    for position, pair in enumerate(pairs):
        pair_outcome = preference.PairOutcome(
            str(position), pair.protected_first, pair.unprotected_first, pair.log_odds
        )
        pair_outcomes.append(pair_outcome)
    figures = preference.pair_figures(pair_outcomes, stream(seed, "probe: figures"))
    (verdict,) = preference.verdicts([figures])
    fields: dict[str, Any] = {
        "status": "ok" if figures.answered else "failed",
        "verdict": verdict.kind,
        "sentence": verdict_in_words(verdict, figures, words, is_one_query=True),
        "pairs": pairs,
        "detectable": verdict.detectable,
        "asked_by": compared[-1]["asked_by"],
    }
    # The figures have the other fields, under the same names.
    for name in PairwiseProbe.model_fields.keys() - fields.keys():
        fields[name] = getattr(figures, name)
    return PairwiseProbe(**fields)


def _listwise(
    outcomes: Sequence[Record],
    tasks: Sequence[ProbeTask],
    documents: Sequence[ProbedDocument],
) -> ListwiseProbe | None:
    """Return the orders for all personas, or None if no list was asked about."""
    orders = [outcome["order"] for outcome in outcomes if "order" in outcome]
    if not orders:
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
