"""Asks the probed model about pairs in both orders, and about whole lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import (
    Cost,
    ItemRanker,
    RankItem,
    group_of,
    open_ranker,
)
from fairqr.base.errors import ModelUnavailableError
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.probe.state import ProbedRecord, ProbeTask
from fairqr.graph.search.model_ranking import items_of
from fairqr.graph.usage import seconds_left
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine

if TYPE_CHECKING:
    from fairqr.agents.ranking.pairwise import PairComparison, PairwiseJudge

GONE = "deleted"
"""The outcome of a pair if one of its documents was deleted meanwhile."""


class ProbedModel:
    """Asks one model about documents of an engine.

    Args:
        engine: The engine with the documents.
        model_for: Returns the language model that is probed, or None.
        prompts: The library of prompts.
    """

    def __init__(
        self,
        engine: SearchEngine,
        model_for: Callable[[], LanguageModel | None],
        prompts: PromptLibrary,
    ) -> None:
        self._engine = engine
        self._model_for = model_for
        self._prompts = prompts
        # Keep judges: each learns once whether its model gives probabilities.
        self._judges: dict[tuple[object, ...], PairwiseJudge] = {}

    def model(self) -> LanguageModel:
        """Return the model.

        Raises:
            ModelUnavailableError: No language model is given.
        """
        model = self._model_for()
        if model is None:
            raise ModelUnavailableError(
                "No language model is given to probe; name one, such as openai:gpt-4o or "
                "local:smollm2-135m."
            )
        return model

    def prompt(self, context: ProbeContext, kind: str) -> PromptTemplate:
        """Return the prompt of a kind of probe.

        Raises:
            PromptError: There is no such prompt.
        """
        return self._prompts.get(kind, context.prompts.get(kind))

    def _judge(self, context: ProbeContext) -> PairwiseJudge:
        from fairqr.agents.ranking.pairwise import PairwiseJudge

        model, prompt, settings = self.model(), self.prompt(context, "pairwise"), context.probe
        key = (prompt.sha256, settings.by, settings.shown, settings.length)
        if key not in self._judges:
            self._judges[key] = PairwiseJudge(model, prompt, settings.options(context.prompts))
        return self._judges[key]

    def _ranker(self, context: ProbeContext) -> ItemRanker:
        options = context.probe.options(context.prompts)
        return open_ranker("listwise", self.model(), self._prompts, options)

    async def start(self, context: ProbeContext) -> None:
        """Start the model, so that missing parts are found early.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: An option is out of its range.
        """
        if "pairwise" in context.probe.kinds:
            await self._judge(context).start()
        if "listwise" in context.probe.kinds:
            await self._ranker(context).start()

    def cost(self, query: str, items: Sequence[RankItem], context: ProbeContext) -> Cost:
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

    async def compared(self, task: ProbeTask, context: ProbeContext) -> ProbedRecord:
        """Compare the pairs of a task, one after the other."""
        judge = self._judge(context)
        ids = list(dict.fromkeys(id_ for pair in task["pairs"] for id_ in pair))
        items = {item.id: item for item in await items_of(self._engine, ids)}
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

    async def ordered(self, task: ProbeTask, context: ProbeContext) -> ProbedRecord:
        """Order the list of a task for its asker."""
        items = await items_of(self._engine, task["order"])
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
