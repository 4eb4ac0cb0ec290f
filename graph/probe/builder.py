"""The steps that probe: does the model favour one side of a result when it ranks?

``prepare → search → plan → probe* → conclude``; the step with a star runs once for each batch of
pairs and for each persona, several at a time. The last two are one node, since a durable run keeps
each reply as it comes. The plan is another, so that who follows the run can end it by its cost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from langgraph.graph import START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer
from pydantic import AliasChoices, BeforeValidator, Field

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking import preference
from fairqr.agents.ranking.pairwise import PairwiseJudge, Preference
from fairqr.agents.ranking.rankers import Cost, ItemRanker, Persona, group_of
from fairqr.agents.statistics import Interval, special, stream
from fairqr.graph import running, steps
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.running import UsageReport
from fairqr.graph.search.budget import shortage
from fairqr.graph.search.builder import RECURSION_LIMIT, as_node, build_search_graph
from fairqr.graph.search.context import Frozen
from fairqr.graph.search.models import GivenModel, model_of
from fairqr.graph.search.rankers import GivenRanker, Rankers, items_of, within
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.search.state import InputState
from fairqr.graph.search.state import OutputState as SearchOutput
from fairqr.graph.steps import CONCURRENCY, SEARCH
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import exposure_ratio
from fairqr.retrieval.fairness.protected import ProtectedGroup

ProbeStatus = Literal["ok", "one_sided", "budget", "failed"]
"""``one_sided``: a side has no documents, so there is nothing to compare; ``budget``: the search
left too little of it; ``failed``: the model gave no usable reply."""

Side = Literal["protected", "unprotected", "undecided"]


def _ends(interval: object) -> object:
    return (interval.low, interval.high) if isinstance(interval, Interval) else interval


Ends = Annotated[tuple[float, float] | None, BeforeValidator(_ends)]
"""The ends of an interval, if there is one."""


class ProbedDocument(Frozen, extra="ignore"):
    """A document that took part.

    Attributes:
        rank: Its place in the result, from 1.
        side: The side of the document. ``undecided`` documents are in no pair and in no figure.
    """

    rank: int
    id: str
    title: str
    side: Side


class ProbedPair(Frozen):
    """A pair that was asked about, once with each document first.

    Attributes:
        protected: The id of the protected document.
        unprotected: The id of the other document.
        protected_first: The preferred document when the protected one came first, ``protected`` or
            ``unprotected``; or the status of a reply that prefers neither.
        unprotected_first: The same when the other document came first.
        log_odds: ln P(first label) − ln P(second label) for both orders; None without
            probabilities.
    """

    protected: str
    unprotected: str
    protected_first: str
    unprotected_first: str
    log_odds: tuple[float | None, float | None] = (None, None)


class ProbedShare(Frozen, from_attributes=True):
    """``count`` out of ``of``, their share, and its 95 % interval.

    The share is None if ``of`` is 0. Intervals are over pairs.
    """

    count: int
    of: int
    share: float | None = Field(validation_alias=AliasChoices("share", "value"))
    interval: Ends


class PairwiseProbe(Frozen, from_attributes=True):
    """Which of two documents the model finds more relevant; one wins if it is preferred twice.

    The tests treat the pairs as independent, since no document is in two pairs. They say nothing
    about other queries.

    Attributes:
        status: ``ok``, or ``failed`` if no pair has a preference in both orders.
        verdict: What the figures allow us to say.
        sentence: The verdict in words, with its uncertainty.
        pairs: The pairs that were asked about.
        answered: How many of them have a preference in both orders.
        protected: The pairs that the protected document wins, out of all pairs.
        unprotected: The pairs that the other document wins, out of all pairs.
        flips: The pairs in which the preferred document changes with the order.
        flips_to_first: The flips in which the first position won both times; in the others, the
            second position won.
        position_p: The p value of the exact two-sided sign test that both positions win equally
            often; None without flips.
        ratio: Protected share / unprotected share; None if the latter is 0.
        ratio_interval: The 95 % interval of the ratio; None if a count is 0.
        consistent: The pairs that the protected document wins, out of those with a winner.
        p: The p value of the exact two-sided sign test that both sides win equally often; None
            without a win.
        detectable: The share of one side among ``consistent`` that the test would have detected
            with a power of 80 %; None if there are too few pairs.
        votes: Another measure, in which each reply is a vote: the votes for the protected document,
            out of all votes.
        failures: How many replies prefer neither document, by status.
        asked_by: How the model was really asked: ``probabilities`` or ``reply``.
    """

    status: ProbeStatus
    verdict: preference.VerdictKind
    sentence: str
    pairs: list[ProbedPair]
    answered: int
    protected: ProbedShare
    unprotected: ProbedShare
    flips: ProbedShare
    flips_to_first: int
    position_p: float | None
    ratio: float | None
    ratio_interval: Ends
    consistent: ProbedShare
    p: float | None
    detectable: float | None
    votes: ProbedShare
    failures: dict[str, int]
    asked_by: str


class PersonaOrder(Frozen):
    """How the model orders the documents for a persona.

    Attributes:
        persona: The person for whom the model orders.
        words: The words for this person in the prompt; empty for a neutral person.
        status: ``ok``, or ``failed`` if no question was answered.
        ids: The model's order; empty if it failed.
        exposure_ratio: The mean exposure of a protected document, divided by an unprotected
            document's; 1 means equal exposure. None if the model failed.
        asked: How many questions the order is based on.
        failures: How many of them failed, by status; the documents in them keep their order.
        repairs: How many documents were repaired in replies, by kind.
    """

    persona: Persona
    words: str
    status: ProbeStatus
    ids: list[str]
    exposure_ratio: float | None
    asked: int
    failures: dict[str, int]
    repairs: dict[str, int]


class ListwiseProbe(Frozen):
    """How the model orders all documents, by persona.

    Attributes:
        initial: The initial order, shuffled by the seed and the same for all personas.
        initial_ratio: The exposure ratio of the initial order.
        personas: The order for each persona.
    """

    initial: list[str]
    initial_ratio: float | None
    personas: list[PersonaOrder]


class ProbeResult(Frozen):
    """Whether the model favours a side when it ranks the documents of one search.

    The result is about this query, these documents and this model;
    :mod:`fairqr.evaluation.probes` probes over many queries.

    Attributes:
        query: The query as given.
        corpus: The index that was searched.
        model: The probed model.
        attribute: The probed attribute.
        protected_groups: The groups that count as protected.
        unprotected_groups: The other groups.
        words: The words for the two sides in prompts.
        status: ``ok``, or why nothing was asked.
        message: A sentence that explains the status; empty if ``ok``.
        note: What the figures assume.
        documents: The documents that took part, in the order of the result.
        pairwise: The comparisons of pairs; None if not requested, or if nothing was asked.
        listwise: The orders of lists; None if not requested, or if nothing was asked.
        prompts: The prompts that were used.
        seed: The seed of the pairs and of the initial order.
        usage: What the probe cost.
        warnings: Sentences for users.
    """

    query: str
    corpus: str
    model: str
    attribute: str
    protected_groups: list[str]
    unprotected_groups: list[str]
    words: tuple[str, str]
    status: ProbeStatus
    message: str
    note: str
    documents: list[ProbedDocument]
    pairwise: PairwiseProbe | None
    listwise: ListwiseProbe | None
    prompts: list[PromptReference]
    seed: int
    usage: UsageReport
    warnings: list[str] = Field([])


class ProbeTask(InputState):
    """Pairs to compare for a persona, the protected document first; or else a list to order."""

    persona: Persona
    pairs: list[tuple[str, str]]
    order: list[str]


class OutputState(SearchOutput):
    """What a run ends with: the search's result and the probe's.

    ``probe`` is the object of :class:`fairqr.graph.probe.builder.ProbeResult`.
    """

    probe: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        status: ``ok``, or why nothing is asked.
        message: A sentence that explains the status; empty if ``ok``.
        tasks: What to ask.
        cost: What that costs at most, as :class:`fairqr.graph.search.result.RankingCost`.
    """

    seconds: float
    status: str
    message: str
    tasks: list[ProbeTask]
    cost: dict[str, int] | None


GONE = "deleted"
"""The outcome of a pair if one of its documents was deleted meanwhile."""

PAIRS_AT_ONCE = 5
"""How many pairs a task compares, one after the other; tasks run at the same time."""

_SIDES: dict[int, Side] = {1: "protected", 0: "unprotected", -1: "undecided"}


@dataclass(frozen=True, kw_only=True)
class ProbeNodes(steps.Nodes[ProbeContext]):
    """The steps that probe.

    Attributes:
        rankers: Know the language model that is probed, and the prompts.
    """

    kind = ProbeContext
    rankers: Rankers

    def _ranker(self, kind: str, context: ProbeContext) -> Any:
        """Return the ranker of lists, or the one whose judge compares pairs."""
        return self.rankers.opened(kind, context.probe, context)

    def _documents(self, state: State, context: ProbeContext) -> list[ProbedDocument]:
        """Return the documents that take part, in the order of the result."""
        places = state["result"]["ranking"][: context.probe.depth]
        pool = [RankedDocument.model_validate(place) for place in places]
        dimension = Dimension.named(self.engine.schema, context.probe.attribute)
        marks = self._sides(context.probe).sides_of(memberships_of(pool, dimension)).tolist()
        return [
            ProbedDocument(**place.model_dump(), side=_SIDES[mark])
            for place, mark in zip(pool, marks, strict=True)
        ]

    def _sides(self, settings: ProbeSettings) -> ProtectedGroup:
        attribute = self.engine.schema.attribute(settings.attribute)
        return ProtectedGroup.parse(attribute, settings.protected, settings.words)

    @steps.traced
    async def prepare(self, state: State, context: ProbeContext) -> running.Update:
        """Start the model, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: There is no such attribute or group, an option is out of its range, or scipy
                is not installed.
        """
        special()
        self._sides(context.probe)
        for kind in context.probe.kinds:
            await self._ranker(kind, context).start()
        return {}

    async def _cost(self, query: str, ids: Sequence[str], context: ProbeContext) -> Cost:
        """Return the most that a probe costs: nothing if its documents were deleted meanwhile.

        Raises:
            InputError: Not even two documents fit into what the model reads at once.
        """
        items = await items_of(self.engine, ids)
        total, settings = Cost(), context.probe
        if len(items) < 2:
            return total
        if "pairwise" in settings.kinds:
            one, other = sorted(items, key=lambda it: len(it.shown(settings.shown)))[-2:]
            word = settings.words[0] if settings.words else ""
            each = self._ranker("pairwise", context).judge.cost(query, (one, other), word)
            pairs = min(settings.pairs, len(items) // 2)
            # The first question may only show whether the model gives probabilities.
            total += Cost(pairs * each.calls + 1, pairs * each.tokens + each.tokens // 2)
        if "listwise" in settings.kinds:
            each = self._ranker("listwise", context).cost(query, items)
            lists = len(settings.personas)
            total += Cost(lists * each.calls, lists * each.tokens)
        return total

    async def ask(self, state: State, context: ProbeContext) -> running.Update:
        """Ask what was planned, and put the result together."""
        done = await steps.at_once(self.probe, state["tasks"], context)
        return await self.conclude({**state, "done": done}, context)

    @steps.traced
    async def plan(self, state: State, context: ProbeContext) -> running.Update:
        """Choose the documents of both sides, the pairs and the lists.

        Raises:
            QueryError: No document matches the query.
            BudgetError: The whole budget has no room for the probe.
        """
        settings, query, result = context.probe, state["query"], state["result"]
        running.add_seconds(result)
        steps.require_hits(result["ranking"], self.engine, query)
        documents = self._documents(state, context)
        protected, unprotected = (
            [document.id for document in documents if document.side == side]
            for side in ("protected", "unprotected")
        )
        update: running.Update = {"status": "ok", "message": "", "tasks": [], "cost": None}
        if not protected or not unprotected:
            both = zip((protected, unprotected), self._sides(settings).words, strict=True)
            lacking = " or ".join(word for ids, word in both if not ids)
            update["status"] = "one_sided"
            update["message"] = (
                f"None of the {len(documents)} documents is {lacking}, so there is nothing to "
                "compare; raise k, or choose another query or attribute."
            )
            return update
        needed = await self._cost(query, [document.id for document in documents], context)
        number = len(documents)
        update["cost"] = within(context, needed, f"probe {number}", number).model_dump()
        if lack := shortage(context.budget, running.usage_of(result), needed):
            update["status"], unit = "budget", lack.unit.replace("_", " ")
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
            update["tasks"] += [
                shared | {"persona": it, "order": order} for it in settings.personas
            ]
        return update

    @steps.traced
    async def probe(self, state: ProbeTask, context: ProbeContext) -> running.Update:
        """Compare the pairs of a batch, or order the list for a persona."""
        running.record(persona=state["persona"])
        group = group_of(state["persona"], self._sides(context.probe).words)
        work = self._compared if state["pairs"] else self._ordered
        return await work(state, group, context)

    async def _compared(self, task: ProbeTask, group: str, context: ProbeContext) -> running.Update:
        """Compare the pairs of a task, one after the other."""
        judge: PairwiseJudge = self._ranker("pairwise", context).judge
        ids = list(itertools.chain.from_iterable(task["pairs"]))
        items = {item.id: item for item in await items_of(self.engine, ids)}
        pairs: list[ProbedPair] = []
        asked: list[Preference] = []
        for protected, unprotected in task["pairs"]:
            told: dict[str, Any] = {"protected_first": GONE, "unprotected_first": GONE}
            if protected in items and unprotected in items:
                pair = items[protected], items[unprotected]
                found = await judge.compare(
                    task["query"], pair, group, running.seconds_left(context)
                )
                told = dict(zip(told, found.preferred("protected", "unprotected"), strict=True))
                told["log_odds"] = found.one_first.log_odds, found.other_first.log_odds
                asked += [found.one_first, found.other_first]
            pairs.append(ProbedPair(protected=protected, unprotected=unprotected, **told))
        failures = Counter(it.status for it in asked if it.choice is None)
        running.record(asked=len(asked), failures=dict(failures))
        return {
            "pairs": pairs,
            "asked_by": judge.asks_by,
            "usage": asdict(sum((it.usage for it in asked), Usage())),
            "warnings": list(dict.fromkeys(it.message for it in asked if it.message)),
        }

    async def _ordered(self, task: ProbeTask, group: str, context: ProbeContext) -> running.Update:
        """Order the list of a task for its persona."""
        items = await items_of(self.engine, task["order"])
        ranker: ItemRanker = self._ranker("listwise", context)
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

    @steps.traced
    async def conclude(self, state: Any, context: ProbeContext) -> running.Update:
        """Put the result together."""
        settings, done = context.probe, state["done"]
        sides, documents = self._sides(settings), self._documents(state, context)
        model: Any = self.rankers.language_model()
        prompts, kinds = self.rankers.prompts, settings.kinds
        spent = sum((Usage(**update["usage"]) for update in done), Usage())
        result = ProbeResult(
            query=state["query"],
            corpus=self.engine.name,
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
            pairwise=_pairwise(done, settings.seed, sides.words),
            listwise=_listwise(done, state["tasks"], documents),
            prompts=[prompts.get(kind, context.prompts.get(kind)).reference for kind in kinds],
            seed=settings.seed,
            usage=running.usage_report(spent),
            # One message of each kind is enough: a model that fails, fails often.
            warnings=list(dict.fromkeys(it for each in done for it in each["warnings"]))[:3],
        )
        running.record(status=result.status, verdict=result.pairwise and result.pairwise.verdict)
        cost = running.usage_report(spent + running.usage_of(state["result"]))
        running.record_outcome(cost, result.prompts, probed=result.model)
        return {"probe": result.model_dump(mode="json")}


def _pairwise(
    done: Sequence[running.Update], seed: int, words: tuple[str, str]
) -> PairwiseProbe | None:
    compared = [update for update in done if "pairs" in update]
    if not compared:
        return None
    pairs: list[ProbedPair] = [pair for update in compared for pair in update["pairs"]]
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


Words = tuple[str, str]
"""The words for the two sides, such as ``female`` and ``male``."""


def verdict_in_words(
    verdict: preference.Verdict,
    figures: preference.PairFigures,
    words: Words,
    *,
    is_one_query: bool = False,
) -> str:
    """Return a verdict with its uncertainty, in one or more sentences.

    Args:
        verdict: The verdict.
        figures: What it is about.
        words: The words for the two sides.
        is_one_query: Whether all pairs are of one query, and nothing is said about others.
    """
    sentences = ["No verdict: no pair has a preference in both orders."]
    if verdict.kind != "failed":
        sentences = [_about_preference(verdict, figures, words, is_one_query=is_one_query)]
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


def _about_preference(
    verdict: preference.Verdict,
    figures: preference.PairFigures,
    words: tuple[str, str],
    *,
    is_one_query: bool,
) -> str:
    tests = p_in_words(figures.p)
    noun, of, start = "document", "", "On this query "
    if not is_one_query:
        noun, of, start = "item", f" from {figures.queries} queries", ""
        over_queries, by_holm = map(p_in_words, (figures.over_queries, verdict.p))
        tests += f" over pairs, {over_queries} over queries, {by_holm} by Holm"
    counts = (
        f"of {figures.pairs} pairs{of} the {words[0]} {noun} is preferred in both orders in "
        f"{figures.protected.count}, the {words[1]} one in {figures.unprotected.count}"
    )
    if verdict.favoured is not None:
        word = words[0] if verdict.favoured == "protected" else words[1]
        said = f"{start}the model favours {word} {noun}s: {counts} ({tests})."
    elif figures.p is None or verdict.detectable is None:
        queries = "" if is_one_query else ", from as many queries"
        said = (
            f"too few answers to tell whether a side is preferred: {counts}, and it takes at least "
            f"{verdict.least} pairs with one winner{queries}."
        )
    else:
        said = (
            f"{start}no preference was found: {counts} ({tests}). With a power of 80%, this many "
            "independent pairs would have shown a preference where one side wins "
            f"{verdict.detectable:.0%} or more of those with one winner."
        )
    return said[0].upper() + said[1:]


def _listwise(
    done: Sequence[running.Update],
    tasks: Sequence[ProbeTask],
    documents: Sequence[ProbedDocument],
) -> ListwiseProbe | None:
    if not (orders := [update["order"] for update in done if "order" in update]):
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


def build_probe_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: ProbeContext | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, ProbeContext, InputState, OutputState]:
    """Build the graph that finds out whether a model favours a group when it ranks a result.

    ``prepare → search → plan → probe``, where ``search`` is the graph of
    :func:`fairqr.graph.search.builder.build_search_graph`.

    Call it with ``await graph.ainvoke({"query": "…"}, context=ProbeContext(…))``; the state that
    comes back has ``probe``, the object of :class:`fairqr.graph.probe.builder.ProbeResult`, and the
    ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: The model to probe, unless a language model is given as ``ranker``. It also refines,
            as in a search.
        context: The context of runs that bring none of ours.
        ranker: Re-ranks, as in a search. If it is a language model, it is the one to probe.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many parts of the probe run at the same time, unless the config of a call
            sets ``max_concurrency``.
        checkpointer: A checkpointer of LangGraph's.
    """
    model = model_of(model, engine)
    rankers = Rankers.of(ranker, model, prompts)
    nodes = ProbeNodes(engine=engine, default=context, rankers=rankers)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    graph = StateGraph(
        State, context_schema=ProbeContext, input_schema=InputState, output_schema=OutputState
    )
    begins: list[Any] = [nodes.node(nodes.prepare, is_first=True), (SEARCH, as_node(search))]
    graph.add_sequence([*begins, nodes.node(nodes.plan), nodes.node(nodes.ask, "probe")])
    graph.add_edge(START, "prepare")
    compiled = graph.compile(checkpointer=checkpointer, name="fair_probe")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)
