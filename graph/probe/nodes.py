"""The steps that probe: does the model favour one side of a result when it ranks?

``prepare → search → plan → probe* → conclude``; the step with a star runs once for each batch of
pairs and for each asker, several at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from langgraph.types import Overwrite, Send

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.lean import PairOutcome, pair_figures, verdicts
from fairqr.agents.ranking.pairwise import PairComparison, PairwiseJudge
from fairqr.agents.ranking.rankers import Cost, ItemRanker, RankItem, group_of, open_ranker
from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.telemetry import Span
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.probe.result import (
    AskerOrder,
    ListwiseProbe,
    PairwiseProbe,
    ProbedDocument,
    ProbedPair,
    ProbedShare,
    ProbeResult,
    ends_of,
    verdict_in_words,
)
from fairqr.graph.probe.state import ProbedRecord, ProbePlan, ProbeTask, State
from fairqr.graph.search.context import Context
from fairqr.graph.search.rankers import items_of
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.search.rounds import shortage
from fairqr.graph.steps import Update, context_of, forgotten, record_outcome, require_hits, traced
from fairqr.graph.usage import seconds_left, total_usage, usage_of, usage_report
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import exposure_ratio
from fairqr.retrieval.fairness.protected import ProtectedGroup

GONE = "deleted"
"""The outcome of a pair if one of its documents was deleted meanwhile."""

PAIRS_AT_ONCE = 5
"""How many pairs a task compares, one after the other; tasks run at the same time."""


@dataclass(frozen=True)
class Nodes:
    """The steps over one engine.

    Attributes:
        engine: The search engine.
        model_for: Returns the language model that is probed, or None.
        prompts: The library of prompts.
        default: The context of runs that bring none of ours. Without it, each run must bring one.
        judges: Those in use, since each learns once whether its model gives probabilities.
    """

    engine: SearchEngine
    model_for: Callable[[], LanguageModel | None]
    prompts: PromptLibrary
    default: ProbeContext | None
    judges: dict[tuple[object, ...], PairwiseJudge] = field(default_factory=dict)

    def context(self, given: object) -> ProbeContext:
        """See :func:`fairqr.graph.steps.context_of`.

        Raises:
            InputError: The run brings none, and the graph has none.
        """
        if self.default is not None:
            return context_of(given, self.default)
        if not isinstance(given, ProbeContext):
            raise InputError("The probe needs a context; give the graph a ProbeContext.")
        return given

    def _model(self) -> LanguageModel:
        """Return the model.

        Raises:
            ModelUnavailableError: No language model is given.
        """
        model = self.model_for()
        if model is None:
            raise ModelUnavailableError(
                "No language model is given to probe; name one, such as openai:gpt-4o or "
                "local:smollm2-135m."
            )
        return model

    def _prompt(self, context: ProbeContext, kind: str) -> PromptTemplate:
        return self.prompts.get(kind, context.prompts.get(kind))

    def _judge(self, context: ProbeContext) -> PairwiseJudge:
        model, prompt, settings = self._model(), self._prompt(context, "pairwise"), context.probe
        key = (prompt.sha256, settings.by, settings.shown, settings.length)
        if key not in self.judges:
            self.judges[key] = PairwiseJudge(
                model, prompt, settings.ranker_options(context.prompts)
            )
        return self.judges[key]

    def _ranker(self, context: ProbeContext) -> ItemRanker:
        options = context.probe.ranker_options(context.prompts)
        return open_ranker("listwise", self._model(), self.prompts, options)

    @traced
    async def prepare(self, state: State, context: ProbeContext, opened: Span) -> Update:
        """Start the model, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: There is no such attribute or group, or an option is out of its range.
        """
        sides_of(self.engine, context.probe)
        if "pairwise" in context.probe.kinds:
            await self._judge(context).start()
        if "listwise" in context.probe.kinds:
            await self._ranker(context).start()
        earlier = forgotten(state, "result", "probe")
        return {**earlier, "seconds": Overwrite(0.0), "probed": Overwrite([])}

    async def cost(self, query: str, found: Sequence[str], context: Context) -> Cost:
        """Return the most that the probe will cost.

        Args:
            query: The original query.
            found: The ids of the documents that it found, best first; the result may have others.
            context: The context of the run.

        Raises:
            InputError: Not even two documents fit into what the model reads at once.
        """
        context = self.context(context)
        items = await items_of(self.engine, found[: _depth(context)])
        return self._cost(query, items, context) if len(items) > 1 else Cost()

    def _cost(self, query: str, items: Sequence[RankItem], context: ProbeContext) -> Cost:
        """Return the cost of as many pairs as there can be, and of a list for each asker."""
        total, settings = Cost(), context.probe
        if "pairwise" in settings.kinds:
            judge = self._judge(context)
            one, other = sorted(items, key=lambda it: len(it.shown(settings.shown)))[-2:]
            each = judge.cost(query, (one, other), settings.words[0] if settings.words else "")
            pairs = min(settings.pairs, len(items) // 2)
            # The first question may only show whether the model gives probabilities.
            total += Cost(pairs * each.calls + 1, pairs * each.tokens + each.tokens // 2)
        if "listwise" in settings.kinds:
            each = self._ranker(context).cost(query, items)
            lists = len(settings.askers)
            total += Cost(lists * each.calls, lists * each.tokens)
        return total

    @traced
    async def plan(self, state: State, context: ProbeContext, opened: Span) -> Update:
        """Choose the documents of both sides, the pairs and the list.

        Raises:
            NoMatchError: No document matches the query.
        """
        settings = context.probe
        places = state["result"]["ranking"]
        require_hits(places, self.engine, state["query"])
        searched = state["result"]["usage"]["milliseconds"] / 1000
        ids = [place["id"] for place in places[: _depth(context)]]
        sides = sides_of(self.engine, settings)
        dimension = Dimension.named(self.engine.schema, settings.attribute)
        pool = [RankedDocument.model_validate(place) for place in places[: len(ids)]]
        marks = sides.sides_of(memberships_of(pool, dimension)).tolist()
        of_side = {
            side: [i for i, mark in zip(ids, marks, strict=True) if mark == side]
            for side in (1, 0, -1)
        }
        plan = ProbePlan(
            status="ok",
            message="",
            words=list(sides.words),
            protected=of_side[1],
            unprotected=of_side[0],
            undecided=of_side[-1],
            pairs=[],
            order=[],
            asker=settings.asker,
            askers=list(settings.askers),
        )
        update = {"plan": plan, "seconds": searched}
        lacking = [sides.words[1 - side] for side in (1, 0) if not of_side[side]]
        if lacking:
            plan["status"] = "one_sided"
            plan["message"] = (
                f"None of the {len(ids)} documents is {' or '.join(lacking)}, so there is nothing "
                "to compare; raise k, or choose another query or attribute."
            )
            return update
        items = await items_of(self.engine, ids)
        needed = self._cost(state["query"], items, context)
        if lack := shortage(context.budget, usage_of(state["result"]), needed):
            plan["status"] = "budget"
            plan["message"] = (
                f"The probe may take {lack.needed} {lack.unit_in_words}, but only {lack.left} of "
                "the budget are left; raise the budget."
            )
            return update
        random = stream(settings.seed, f"probe: {state['query']}")
        one, other = (random.permutation(of_side[side]).tolist() for side in (1, 0))
        order = random.permutation([*of_side[1], *of_side[0]]).tolist()
        if "pairwise" in settings.kinds:
            plan["pairs"] = list(zip(one, other, strict=False))[: settings.pairs]
        if "listwise" in settings.kinds:
            plan["order"] = order
        return update

    @traced
    async def probe(self, state: ProbeTask, context: ProbeContext, opened: Span) -> Update:
        """Compare the pairs of a batch, or order the list for an asker."""
        opened.set("fairqr.asker", state["asker"])
        work = self._compared if state["pairs"] else self._ordered
        record = await work(state, context)
        opened.set("fairqr.asked", record["asked"])
        opened.set("fairqr.failures", record["failures"])
        return {"probed": [record]}

    async def _compared(self, task: ProbeTask, context: ProbeContext) -> ProbedRecord:
        """Compare the pairs of a task, one after the other."""
        judge = self._judge(context)
        ids = list(dict.fromkeys(id_ for pair in task["pairs"] for id_ in pair))
        items = {item.id: item for item in await items_of(self.engine, ids)}
        group = group_of(task["asker"], task["words"])
        found: list[PairComparison | None] = []
        for protected, unprotected in task["pairs"]:
            if protected not in items or unprotected not in items:
                found.append(None)  # it was deleted meanwhile
                continue
            left = seconds_left(context)
            pair = items[protected], items[unprotected]
            found.append(await judge.compare(task["query"], pair, group, left))
        asked = [preference for it in found if it for preference in (it.one_first, it.other_first)]
        failures = Counter[str](it.status for it in asked if it.choice is None)
        return ProbedRecord(
            number=task["number"],
            asker=task["asker"],
            outcomes=[_outcome(it) for it in found],
            order=[],
            asked=len(asked),
            failures=dict(failures),
            repairs={},
            asked_by=judge.asks_by,
            messages=list(dict.fromkeys(it.message for it in asked if it.message)),
            usage=asdict(sum((it.usage for it in asked), Usage())),
        )

    async def _ordered(self, task: ProbeTask, context: ProbeContext) -> ProbedRecord:
        """Order the list of a task for its asker."""
        items = await items_of(self.engine, task["order"])
        found = await self._ranker(context).rank(
            task["query"],
            items,
            group=group_of(task["asker"], task["words"]),
            deadline=seconds_left(context),
        )
        return ProbedRecord(
            number=task["number"],
            asker=task["asker"],
            outcomes=[],
            order=[] if found.failed else [items[position].id for position in found.order],
            asked=found.asked,
            failures=dict(found.failures),
            repairs={kind: times for kind, times in found.repairs.items() if times},
            asked_by="reply",
            messages=[*found.warnings, *filter(None, [found.message])],
            usage=asdict(found.usage),
        )

    @traced
    async def conclude(self, state: State, context: ProbeContext, opened: Span) -> Update:
        """Put the result together."""
        settings, plan = context.probe, state["plan"]
        sides = sides_of(self.engine, settings)
        records = sorted(state["probed"], key=lambda record: record["number"])
        compared = [record for record in records if record["outcomes"]]
        ordered = [record for record in records if not record["outcomes"]]
        documents = _documents(state["result"]["ranking"], plan)
        messages = [message for record in records for message in record["messages"]]
        spent = total_usage(record["usage"] for record in records)
        prompts = [self._prompt(context, kind) for kind in settings.kinds]
        result = ProbeResult(
            query=state["query"],
            corpus=self.engine.name,
            model=self._model().name,
            attribute=sides.attribute,
            protected_groups=list(sides.protected),
            unprotected_groups=list(sides.unprotected),
            words=sides.words,
            status=plan["status"],
            message=plan["message"],
            note=(
                f"All {len(documents)} documents count as equally relevant, since nobody judged "
                "them for this query. The result is about this query alone."
            ),
            documents=documents,
            pairwise=_pairwise(compared, plan, settings, sides) if compared else None,
            listwise=_listwise(ordered, plan) if ordered else None,
            prompts=[prompt.reference for prompt in prompts],
            seed=settings.seed,
            usage=usage_report(spent),
            # One message of each kind is enough: a model that fails, fails often.
            warnings=list(dict.fromkeys(messages))[:3],
        )
        opened.set("fairqr.status", result.status)
        if result.pairwise is not None:
            opened.set("fairqr.verdict", result.pairwise.verdict)
        cost = usage_report(spent + usage_of(state["result"]))
        record_outcome(opened, cost, result.prompts, probed=result.model)
        return {"probe": result.model_dump(mode="json")}


def to_probe(state: State) -> list[Send] | Literal["conclude"]:
    """Send each batch of pairs, and the list once for each asker, if anything is asked."""
    plan = state["plan"]
    if plan["status"] != "ok":
        return "conclude"
    base = ProbeTask(
        query=state["query"],
        seconds=state["seconds"],
        number=0,
        words=plan["words"],
        pairs=[],
        order=[],
        asker=plan["asker"],
    )
    pairs = plan["pairs"]
    batches = [pairs[at : at + PAIRS_AT_ONCE] for at in range(0, len(pairs), PAIRS_AT_ONCE)]
    tasks: list[ProbeTask] = [{**base, "pairs": batch} for batch in batches]
    if plan["order"]:
        tasks += [{**base, "order": plan["order"], "asker": asker} for asker in plan["askers"]]
    sends = [Send("probe", {**task, "number": number}) for number, task in enumerate(tasks)]
    return sends or "conclude"


def sides_of(engine: SearchEngine, settings: ProbeSettings) -> ProtectedGroup:
    """Return the two sides.

    Raises:
        InputError: The attribute or a group does not exist, or a side has no group.
    """
    attribute = engine.schema.attribute(settings.attribute)
    return ProtectedGroup.parse(attribute, settings.protected, settings.words)


def _depth(context: ProbeContext) -> int:
    return min(context.probe.depth or context.k, context.k)


def _documents(places: Sequence[Mapping[str, Any]], plan: ProbePlan) -> list[ProbedDocument]:
    """Return the documents that take part, in the order of the result."""
    named = {side: plan[side] for side in ("protected", "unprotected", "undecided")}
    sides = {id_: side for side, ids in named.items() for id_ in ids}
    return [
        ProbedDocument(
            rank=place["rank"], id=place["id"], title=place["title"], side=sides[place["id"]]
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
    shares = ("protected", "unprotected", "flips", "consistent", "votes")
    numbers = ("answered", "flips_to_first", "position_p", "ratio", "p")
    return PairwiseProbe(
        status="ok" if figures.answered else "failed",
        verdict=conclusion.kind,
        sentence=verdict_in_words(conclusion, figures, sides.words, is_one_query=True),
        pairs=pairs,
        **{name: ProbedShare.of_figure(getattr(figures, name)) for name in shares},
        **{name: getattr(figures, name) for name in numbers},
        ratio_interval=ends_of(figures.ratio_interval),
        detectable=conclusion.detectable,
        failures=dict(figures.failures),
        asked_by=records[-1]["asked_by"],
    )


def _listwise(records: Sequence[ProbedRecord], plan: ProbePlan) -> ListwiseProbe:
    protected = set(plan["protected"])

    def ratio(ids: Sequence[str]) -> float | None:
        return exposure_ratio([id_ in protected for id_ in ids])

    return ListwiseProbe(
        initial=plan["order"],
        initial_ratio=ratio(plan["order"]),
        askers=[
            AskerOrder(
                asker=record["asker"],
                words=group_of(record["asker"], plan["words"]),
                status="ok" if record["order"] else "failed",
                ids=record["order"],
                exposure_ratio=ratio(record["order"]),
                asked=record["asked"],
                failures=record["failures"],
                repairs=record["repairs"],
            )
            for record in records
        ],
    )


def _outcome(comparison: PairComparison | None) -> tuple[str, str, float | None, float | None]:
    """Return the preferences with the protected document first and second, and the log-odds."""
    if comparison is None:
        return GONE, GONE, None, None
    protected_first, unprotected_first = comparison.preferred("protected", "unprotected")
    return (
        protected_first,
        unprotected_first,
        comparison.one_first.log_odds,
        comparison.other_first.log_odds,
    )
