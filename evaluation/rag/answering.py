"""Asking a generator for answers to the queries of a collection, and judging how good they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairqr.agents.generators import GenerationRequest, Generator, open_generator
from fairqr.agents.replies import TextReply, Usage
from fairqr.evaluation.experiments.care import Patience
from fairqr.evaluation.experiments.engine import Absence
from fairqr.evaluation.rag.collection import RagQuery, RagTask
from fairqr.evaluation.workers.tools import Tools
from fairqr.prompts.template import PromptTemplate

__all__ = ["Answerer", "Asked", "open_answerer"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, as a job needs it.

    Attributes:
        generator: As :func:`fairqr.agents.generators.open_generator` takes it.
        task: Of the queries.
        prompt: Which asks.
    """

    generator: str
    task: RagTask
    prompt: PromptTemplate


@dataclass(slots=True)
class Answerer:
    """Asks a generator for answers, and counts what they cost.

    Attributes:
        generator: Which has been started.
        task: Of the queries.
        prompt: Which asks.
        usage: Of all that was asked, judgements of attribution included.
        milliseconds: How long that took, cached replies as when they were made.
        replies: Whether the generator answered, in the order of the questions.
    """

    generator: Generator
    task: RagTask
    prompt: PromptTemplate
    usage: Usage = field(default_factory=Usage, init=False)
    milliseconds: float = field(default=0.0, init=False)
    replies: list[Absence | None] = field(default_factory=list, init=False)
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._patience = Patience(self.generator.name)

    async def answer(
        self, query: RagQuery, ranking: Sequence[int]
    ) -> tuple[TextReply, float | None]:
        """Return the answer to a query, and its utility: 0 if it is empty, None if it failed.

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
        reply = await self.generator.generate(request)
        self.spend(reply.usage, begun)
        if reply.status not in ("ok", "empty"):
            self.replies.append(Absence(reply.status, reply.message))
            self._patience.failed(reply.status, reply.message)
            return reply, None
        self.replies.append(None)
        self._patience.answered()
        return reply, self.task.utility(reply.text, query.golds) if reply.text else 0.0

    def spend(self, usage: Usage, begun: float) -> None:
        """Count what something cost that was begun at a time of ``time.perf_counter``."""
        took = (time.perf_counter() - begun) * 1000
        self.usage += usage
        # What the cache answered took no time now.
        self.milliseconds += usage.cached_milliseconds + (took if usage.model_calls else 0.0)

    def spent(self) -> dict[str, Any]:
        """Return what all of it cost, as records have it; cached replies as when they were made."""
        usage = self.usage
        return {
            "model_calls": usage.model_calls + usage.cached_calls,
            "tokens": usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
            "milliseconds": round(self.milliseconds, 1),
        }


async def open_answerer(tools: Tools, asked: Asked) -> Answerer:
    """Return what answers, started.

    Raises:
        ModelUnavailableError: The generator is not there.
    """
    # One place for all, since large models do not fit side by side.
    generator = await tools.started(
        "generator", asked.generator, lambda: open_generator(asked.generator, cache=tools.replies)
    )
    return Answerer(generator, asked.task, asked.prompt)
