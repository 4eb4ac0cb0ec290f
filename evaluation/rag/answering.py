"""Asking a generator for answers to the queries of a collection, and judging how good they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairqr.agents.generators import GenerationRequest, Generator
from fairqr.agents.replies import TextReply
from fairqr.evaluation.experiments.care import Patience
from fairqr.evaluation.rag.collection import RagQuery, RagTask
from fairqr.prompts.template import PromptTemplate

__all__ = ["Answered", "Answerer", "Spent"]


@dataclass(slots=True)
class Spent:
    """What answers cost, cached ones as when they were made.

    Attributes:
        model_calls: Requests.
        tokens: Read and written.
        milliseconds: How long it took.
    """

    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0

    def add(self, other: Spent) -> None:
        """Add what something else cost."""
        self.model_calls += other.model_calls
        self.tokens += other.tokens
        self.milliseconds += other.milliseconds


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of asking.

    Attributes:
        generation: The answer, or why there is none.
        utility: Of the answer; 0 of an empty one, None of one that failed.
        spent: What it cost.
    """

    generation: TextReply
    utility: float | None
    spent: Spent


@dataclass(slots=True)
class Answerer:
    """Asks one generator for answers to the queries of one task.

    Attributes:
        generator: Which has been started.
        task: Of the queries.
        prompt: Which asks.
        patience: With the generator.
    """

    generator: Generator
    task: RagTask
    prompt: PromptTemplate
    patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self.patience = Patience(self.generator.name)

    async def answer(self, query: RagQuery, ranking: Sequence[int]) -> Answered:
        """Return the answer to a query.

        Args:
            query: Which one.
            ranking: What the generator reads, as positions in the query's pool; may be empty.

        Raises:
            ModelError: This and the last answers all failed, so that going on would only write
                down that the model was not there.
        """
        begun = time.perf_counter()
        sources = [query.pool[place].fields for place in ranking]
        request = GenerationRequest(self.prompt, query.question, sources)
        generation = await self.generator.generate(request)
        took = (time.perf_counter() - begun) * 1000
        self._count(generation)
        usage = generation.usage
        spent = Spent(
            usage.model_calls + usage.cached_calls,
            usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
            # What the cache answered took no time now.
            usage.cached_milliseconds + (took if usage.model_calls else 0.0),
        )
        return Answered(generation, self._utility(generation, query), spent)

    def _utility(self, generation: TextReply, query: RagQuery) -> float | None:
        if generation.status == "ok":
            return self.task.utility(generation.text, query.golds)
        return 0.0 if generation.status == "empty" else None

    def _count(self, generation: TextReply) -> None:
        if generation.status in ("ok", "empty"):
            self.patience.answered()
        else:
            self.patience.failed(generation.status, generation.message)
