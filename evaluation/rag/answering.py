"""Asking a generator for answers to the queries of a collection, and judging how good they are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import BaseModel

from fairqr.agents.generation import Generation, GenerationRequest, Generator
from fairqr.errors import ModelError, one_line
from fairqr.evaluation.experiments.folder import Lines
from fairqr.evaluation.rag.collection import RagQuery, RagTask
from fairqr.prompts.template import PromptTemplate

__all__ = ["GIVE_UP", "Answered", "Answerer", "Cautious", "Spent"]

R = TypeVar("R", bound=BaseModel)

GIVE_UP = 20
"""So many failures one after the other mean that the model is not there at all."""


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

    generation: Generation
    utility: float | None
    spent: Spent


@dataclass(slots=True)
class Answerer:
    """Asks one generator for answers to the queries of one task.

    Attributes:
        generator: Which has been started.
        task: Of the queries.
        prompt: Which asks.
    """

    generator: Generator
    task: RagTask
    prompt: PromptTemplate
    _failures: int = field(default=0, init=False)

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

    @property
    def is_failing(self) -> bool:
        """Whether the last answer failed."""
        return self._failures > 0

    def _utility(self, generation: Generation, query: RagQuery) -> float | None:
        if generation.status == "ok":
            return self.task.utility(generation.text, query.golds)
        return 0.0 if generation.status == "empty" else None

    def _count(self, generation: Generation) -> None:
        if generation.status in ("ok", "empty"):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= GIVE_UP:
            raise ModelError(
                generation.status,
                f"{self.generator.name} failed {self._failures} times in a row, lastly with: "
                f"{one_line(generation.message, 200).rstrip('.')}; mend it and run again, what was "
                "answered until then is kept.",
            )


class Cautious(Generic[R]):
    """Writes records; those with failures only once the generator has answered again.

    So a model that goes away leaves no failures behind: what it was asked last is asked again when
    the run goes on.

    Args:
        lines: Where they are written.
        answerer: What made them.
    """

    def __init__(self, lines: Lines[R], answerer: Answerer) -> None:
        self._lines = lines
        self._answerer = answerer
        self._held: list[R] = []

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file; what is still held is written at the end, unless an error ends it."""
        with self._lines.writing():
            yield
            self._release()

    def add(self, record: R, *, has_failures: bool) -> None:
        """Take a record."""
        if has_failures:
            self._held.append(record)
        else:
            self._lines.add(record)
        if not self._answerer.is_failing:
            self._release()

    def _release(self) -> None:
        while self._held:
            self._lines.add(self._held.pop(0))
