"""Re-ranks lists with a model, within the budget, and reports how that went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost, ItemRanker, ItemRanking, RankItem
from fairqr.base.telemetry import span
from fairqr.graph.search.context import Context
from fairqr.graph.search.decisions import shortage
from fairqr.graph.search.result import Reranking
from fairqr.graph.search.state import State
from fairqr.graph.usage import seconds_left
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import by_rank


async def items_of(engine: SearchEngine, ids: Sequence[str]) -> list[RankItem]:
    """Return these documents for a ranker; deleted documents are left out."""
    return [RankItem(d.id, d.title, d.text) for d in await engine.documents(ids)]


class ModelRanking:
    """Re-ranks the lists of one run.

    Args:
        engine: The engine with the documents.
        ranker: The ranker, started.
        context: The context of the run.
        state: The state of the run after its rounds.

    Attributes:
        tried: Whether there was a list to re-rank.
        lists: How many lists the ranker was asked about.
        usage: What the run has cost so far, including these lists.
    """

    def __init__(
        self, engine: SearchEngine, ranker: ItemRanker, context: Context, state: State
    ) -> None:
        self._engine = engine
        self._ranker = ranker
        self._context = context
        self._state = state
        self.tried = False
        self.lists = 0
        self.usage = Usage(**state["usage"])
        self._documents = self._asked = 0
        self._failures: Counter[str] = Counter()
        self._repairs: Counter[str] = Counter()
        self._warnings: list[str] = []
        self._gave_up = False
        self._message = ""

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
        items = await items_of(self._engine, order.ids[: self._context.strategy.reads])
        if len(items) < 2 or self._gave_up:
            return order
        self.tried = True
        if not self._has_room_for(self._ranker.cost(self._state["query"], items)):
            return None
        with span("fairqr.rank") as opened:
            opened.set("fairqr.ranker", self._ranker.name)
            opened.set("fairqr.documents", len(items))
            found = await self._ranker.rank(
                self._state["query"], items, deadline=seconds_left(self._context)
            )
            opened.set("fairqr.asked", found.asked)
            opened.set("fairqr.failures", dict(found.failures))
            opened.set("fairqr.repairs", dict(found.repairs))
        self._count(found, len(items))
        if found.failed:
            # Do not wait again for a model that answers nothing.
            self._gave_up = True
            return order
        best = [items[position].id for position in found.order]
        placed = set(best)
        return by_rank([*best, *(id_ for id_ in order.ids if id_ not in placed)])

    @property
    def name(self) -> str:
        """The name of the ranker."""
        return self._ranker.name

    @property
    def report(self) -> Reranking:
        """How the re-ranking went."""
        return Reranking(
            ranker=self._ranker.name,
            lists=self.lists,
            documents=self._documents,
            asked=self._asked,
            failures=dict(self._failures),
            repairs=dict(self._repairs),
        )

    @property
    def warnings(self) -> list[str]:
        """Sentences for users about what went wrong."""
        name, failed = self._ranker.name, sum(self._failures.values())
        sentences = list(self._warnings)
        if failed and self._gave_up:
            sentences.append(
                f"{name} failed on each of {failed} questions ({counts_in_words(self._failures)}); "
                "the order by the query stays."
                if self.lists == 1
                else f"{name} failed on {failed} of {self._asked} questions "
                f"({counts_in_words(self._failures)}), and on all about one of its lists, which "
                "keeps its order by the query."
            )
        elif failed:
            sentences.append(
                f"{name} failed on {failed} of {self._asked} questions "
                f"({counts_in_words(self._failures)}); documents stay there as they were before."
            )
        if failed and self._message not in ("", *self._warnings):
            sentences[-1] += f" Lastly: {self._message}"
        if self._repairs:
            sentences.append(
                f"Replies to {name} were mended, in documents: {counts_in_words(self._repairs)}."
            )
        if self.tried and not self.lists:
            sentences.append(
                f"Nothing is left of the budget for {name}; the order by the query stays."
            )
        return list(dict.fromkeys(sentences))

    def _count(self, found: ItemRanking, documents: int) -> None:
        self.lists += 1
        self.usage += found.usage
        self._documents = max(self._documents, documents)
        self._asked += found.asked
        self._failures.update(found.failures)
        self._repairs.update({kind: times for kind, times in found.repairs.items() if times})
        self._warnings += found.warnings
        self._message = found.message or self._message

    def _has_room_for(self, cost: Cost) -> bool:
        """Return whether the budget has room for one more list and the later steps."""
        if (kept := self._state.get("cost")) is not None:
            cost += Cost(kept["reserved_calls"], kept["reserved_tokens"])
        return shortage(self._context.budget, self.usage, cost) is None


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Return counts by kind in words: ``2 refused, 1 timeout``."""
    return ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
