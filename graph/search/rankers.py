"""The models of a run: which one re-ranks, or is probed, what it costs at most, and how it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import cast

from langchain_core.language_models import BaseChatModel

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.opening import open_language_model, open_model
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking import rankers
from fairqr.agents.refiner import Refiner
from fairqr.base.errors import BudgetError, InputError, ModelUnavailableError
from fairqr.base.telemetry import span
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import RankingCost, Reranking
from fairqr.graph.search.rounds import Rounds, shortage
from fairqr.graph.steps import seconds_left
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import by_rank

ASKED: tuple[rankers.RankerName, ...] = ("listwise", "pairwise")
"""The rankers that ask a language model with a prompt; the others have their own model."""


Model = ChatModel | Refiner | LanguageModel
"""A model that refines queries, answers or ranks."""

GivenModel = Model | BaseChatModel | str
"""A model as callers give it: one of ours, a chat model of LangChain's, or a name."""


class Rankers:
    """The rankers for the runs of one or more graphs, which share the weights.

    Args:
        ranker: A language model or its name; or a ranker, which is used whatever the context names.
            Defaults to the model.
        model: The model of the graph.
        prompts: The library of prompts; defaults to the shipped prompts and yours.

    Attributes:
        prompts: The library of prompts.
    """

    def __init__(
        self,
        ranker: LanguageModel | rankers.ItemRanker | BaseChatModel | str | None = None,
        model: object = None,
        prompts: PromptLibrary | None = None,
    ) -> None:
        self._given = ChatModel.of(ranker) if isinstance(ranker, BaseChatModel) else ranker
        if not isinstance(ranker, BaseChatModel | str | None):
            require_method("ranker", ranker, "rank", "weigh")
        self._model = model
        self.prompts = prompts or PromptLibrary()
        # Weights are loaded once for all runs.
        self._neural: dict[str, rankers.ItemRanker] = {}

    @classmethod
    def of(
        cls, given: GivenRanker | None, model: Model | None, prompts: PromptLibrary | None
    ) -> Rankers:
        """Return a given ``Rankers`` as it is, or make one."""
        return given if isinstance(given, Rankers) else cls(given, model, prompts)

    def language_model(self) -> LanguageModel | None:
        """Return the language model that is asked to rank, if there is one.

        Raises:
            ModelUnavailableError: There is no model of that name.
        """
        if isinstance(self._given, str):
            self._given = open_language_model(self._given)
        for each in (self._given, self._model):
            if hasattr(each, "weigh") and hasattr(each, "write"):
                return cast("LanguageModel", each)
        return None

    def ranker_for(self, context: Context) -> rankers.ItemRanker | None:
        """Return the ranker for a run with this context, or None if nothing re-ranks.

        Raises:
            ModelUnavailableError: The ranker needs a language model, but none is given.
            PromptError: The prompt does not exist.
            InputError: An option is out of range.
        """
        name = context.strategy.ranker
        if name is None:
            return None
        if hasattr(self._given, "rank"):
            return cast("rankers.ItemRanker", self._given)
        options = context.ranking.ranker_options(context.prompts)
        if name in ASKED:
            return rankers.open_ranker(name, self.language_model(), self.prompts, options)
        key = f"{name} {context.ranking.model_dump_json()}"
        if key not in self._neural:
            self._neural[key] = rankers.open_ranker(name, None, self.prompts, options)
        return self._neural[key]


GivenRanker = Rankers | LanguageModel | rankers.ItemRanker | BaseChatModel | str
"""A ranker as callers give it."""


def require_refines(model: Model) -> None:
    """Check that a model can refine queries.

    Raises:
        ModelUnavailableError: It can only rank.
    """
    if not isinstance(model, ChatModel) and not hasattr(model, "refine"):
        raise ModelUnavailableError(
            f"The model {model.name} can rank, but not refine queries; choose a method that does "
            "not refine, such as listwise, or another model."
        )


def model_of(given: GivenModel | None, engine: SearchEngine) -> Model | None:
    """Return a model from its name, or from a chat model of LangChain.

    Raises:
        ModelUnavailableError: No model has this name.
        InputError: The object is not a model.
    """
    if isinstance(given, str):
        return open_model(given, engine=engine)
    if isinstance(given, BaseChatModel):
        return ChatModel.of(given)
    if given is not None:
        require_method("model", given, "refine", "weigh")
    return given


def require_method(role: str, given: object, *methods: str) -> None:
    """Check that an object has one of the methods that its role needs.

    Args:
        role: The name of the argument.
        given: The object, which is neither a name nor a chat model of LangChain.
        methods: The methods; the object needs one of them.

    Raises:
        InputError: The object has none of them. LangChain's wrappers of chat models have none, such
            as ``model.with_retry()``.
    """
    if not any(hasattr(given, method) for method in methods):
        raise InputError(
            f"The {role} must be a name, a chat model of LangChain itself, or an object with a "
            f"method '{methods[0]}', not {type(given).__name__}."
        )


async def items_of(engine: SearchEngine, ids: Sequence[str]) -> list[rankers.RankItem]:
    """Return these documents for a ranker; deleted documents are left out."""
    return [rankers.RankItem(d.id, d.title, d.text) for d in await engine.documents(ids)]


Reserve = Callable[[str, Sequence[str], Context], Awaitable[rankers.Cost]]
"""Returns the largest cost of the steps after a search, from the query and the ids it found."""


async def expected_cost(
    rounds: Rounds, ranker: rankers.ItemRanker | None, reserve: Reserve | None
) -> RankingCost | None:
    """Return the largest cost of asking models, and check that the budget has room for it.

    Args:
        rounds: What the original query found.
        ranker: The model that re-ranks; optional.
        reserve: Returns the largest cost of the steps after the search; optional.

    Returns:
        The cost, or None if no model re-ranks and none is asked after the search.

    Raises:
        BudgetError: The budget has no room for one list and the steps after the search.
        InputError: A window of documents does not fit into what the model reads at once.
    """
    if ranker is None and reserve is None:
        return None
    context, strategy, query = rounds.context, rounds.context.strategy, rounds.state["query"]
    found = rounds.own_ranking.ids
    documents, lists, ranking, later, tasks = 0, 0, rankers.Cost(), rankers.Cost(), []
    if ranker is not None:
        items = await items_of(rounds.engine, found[: min(strategy.reads, strategy.depth or 0)])
        if context.rounds and items:
            # The lists of refined queries may be longer, but never than what the ranker reads.
            lacking = range(len(items), strategy.reads)
            items += [rankers.RankItem(f"\0{at}", items[0].title, items[0].text) for at in lacking]
        documents = len(items)
        ranking = ranker.cost(query, items) if documents > 1 else ranking
        # The exposure-aware step may try the list of each round, until one reaches the target.
        lists = context.rounds + 1 if strategy.final_step == "exposure-aware" else 1
        tasks.append(f"to re-rank {documents} documents")
    if reserve is not None:
        later = await reserve(query, found, context)
        tasks.append("to probe the model")
    if (lack := shortage(context.budget, Usage(), ranking + later)) is not None:
        raise BudgetError(
            lack.unit,
            lack.needed,
            lack.limit,
            f"It may take {lack.needed} {lack.unit_in_words} {' and '.join(tasks)}, but the budget "
            f"has {lack.limit}; raise the budget, or lower the number of documents.",
        )
    return RankingCost(
        documents=documents,
        lists=lists,
        **asdict(ranking),
        reserved_calls=later.calls,
        reserved_tokens=later.tokens,
    )


class ModelRanking:
    """Re-ranks the lists of one run within the budget, and reports how that went.

    Args:
        rounds: The rounds of the run.
        ranker: The ranker, started.

    Attributes:
        name: The name of the ranker.
        usage: What the run has cost so far, including these lists.
        lists: How the ranker put each list in order, by the number of its documents.
        tried: Whether there was a list to re-rank.
    """

    def __init__(self, rounds: Rounds, ranker: rankers.ItemRanker) -> None:
        self.name = ranker.name
        self.usage = Usage(**rounds.state["usage"])
        self.lists: list[tuple[int, rankers.ItemRanking]] = []
        self.tried = False
        self._rounds, self._ranker = rounds, ranker

    async def reranked(self, order: Ranking) -> Ranking | None:
        """Return the documents, the first of them in the ranker's order.

        Args:
            order: All documents that take part.

        Returns:
            A ranking with 1/rank as scores; the order itself if the model gave no usable reply;
            None if the budget has no room for a question.

        Raises:
            ModelUnavailableError: The model has become unavailable since it was started.
            InputError: Not even two documents fit into what the model reads at once.
        """
        query, context = self._rounds.state["query"], self._rounds.context
        items = await items_of(self._rounds.engine, order.ids[: context.strategy.reads])
        if len(items) < 2 or self._gave_up:
            return order
        self.tried = True
        cost = self._ranker.cost(query, items) + self._rounds.cost.reserved
        if shortage(context.budget, self.usage, cost) is not None:
            return None
        with span("fairqr.rank") as opened:
            opened.set("fairqr.ranker", self.name)
            opened.set("fairqr.documents", len(items))
            found = await self._ranker.rank(query, items, deadline=seconds_left(context))
            opened.set("fairqr.asked", found.asked)
            opened.set("fairqr.failures", dict(found.failures))
            opened.set("fairqr.repairs", dict(found.repairs))
        self.lists.append((len(items), found))
        self.usage += found.usage
        if found.failed:
            return order
        best = [items[position].id for position in found.order]
        placed = set(best)
        return by_rank([*best, *(id_ for id_ in order.ids if id_ not in placed)])

    @property
    def _gave_up(self) -> bool:
        """Whether the model answered nothing, so that we do not wait for it again."""
        return bool(self.lists) and self.lists[-1][1].failed

    @property
    def report(self) -> Reranking:
        """How the re-ranking went."""
        found = [ranking for _, ranking in self.lists]
        return Reranking(
            ranker=self.name,
            lists=len(found),
            documents=max((documents for documents, _ in self.lists), default=0),
            asked=sum(it.asked for it in found),
            failures=dict(sum((Counter(it.failures) for it in found), Counter())),
            repairs=dict(sum((Counter(it.repairs) for it in found), Counter())),
        )

    @property
    def warnings(self) -> list[str]:
        """Sentences for users about what went wrong."""
        report, found = self.report, [ranking for _, ranking in self.lists]
        sentences = [warning for it in found for warning in it.warnings]
        if failed := sum(report.failures.values()):
            last = next((it.message for it in reversed(found) if it.message), "")
            last = f" Lastly: {last}" if last and last not in sentences else ""
            sentences.append(
                f"{self.name} failed on {failed} of {report.asked} questions "
                f"({_in_words(report.failures)}); there the order by the query stays.{last}"
            )
        if report.repairs:
            sentences.append(
                f"Replies to {self.name} were mended, in documents: {_in_words(report.repairs)}."
            )
        if self.tried and not found:
            sentences.append(
                f"Nothing is left of the budget for {self.name}; the order by the query stays."
            )
        return list(dict.fromkeys(sentences))


def _in_words(counts: Mapping[str, int]) -> str:
    """Return counts by kind in words: ``2 refused, 1 timeout``."""
    return ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
