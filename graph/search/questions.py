"""Asks the refiner of a run for words: of the topic, and of the groups that were chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from fairqr.agents.models.replies import Usage, no_answer_within
from fairqr.agents.refiners.cleaning import take_in_turn
from fairqr.agents.refiners.refiner import (
    GroupRequest,
    Refinement,
    Refiner,
    RoundRefiner,
    TopicRefiner,
    TopicRequest,
)
from fairqr.base.loops import run_together
from fairqr.base.telemetry import span
from fairqr.graph.running import record, seconds_left
from fairqr.graph.search.budget import Spending, tokens_a_question
from fairqr.graph.search.context import Context
from fairqr.graph.search.records import hits_of
from fairqr.graph.search.result import GroupKey
from fairqr.graph.search.state import SearchState
from fairqr.graph.search.words import Answers

GRACE = 0.25
"""Seconds after its deadline in which a refiner may still report its usage."""


def asks_about_topic(refiner: Refiner | None, state: SearchState, context: Context) -> bool:
    """Return whether the refiner is asked about the topic now: once in each search."""
    is_first_question = state["topic"] is None and len(state["iterations"]) == 1
    return context.words_are_evidence and is_first_question and isinstance(refiner, TopicRefiner)


class Questions:
    """The questions of a round to a refiner: about the topic, and about each chosen group.

    Args:
        refiner: The refiner.
        state: The state of the run.
        context: The context of the run.

    Attributes:
        usage: What the run has cost so far, with each answer that came, even if another one failed.
    """

    def __init__(self, refiner: Refiner, state: SearchState, context: Context) -> None:
        self._refiner = refiner
        self._state = state
        self._context = context
        self._deadline = seconds_left(context)
        self.usage = Usage(**state["usage"])

    async def ask(self) -> Answers:
        """Ask all questions at once, about the topic only if that was not asked before."""
        chosen = self._state["chosen"]
        asks_topic = asks_about_topic(self._refiner, self._state, self._context)
        may_ask_again = self._may_ask_again(len(chosen) + int(asks_topic))
        requests = [self._group_request(key, may_ask_again) for key in chosen]
        if isinstance(self._refiner, RoundRefiner):
            return await self._ask_together(self._refiner, requests)

        answering = []
        for key, request in zip(chosen, requests, strict=True):
            ask = partial(self._refiner.refine, request, self._deadline)
            answering.append(self._answer(ask, key))
        if asks_topic:
            refiner = cast("TopicRefiner", self._refiner)
            ask = partial(refiner.refine_topic, self._topic_request(may_ask_again), self._deadline)
            answering.append(self._answer(ask))
        answers = await run_together(answering)

        topic = answers.pop() if asks_topic else None
        adds_one_list = self._context.strategy.groups == "most"
        if adds_one_list and not self._context.words_are_evidence:
            answers = [take_in_turn(answer) for answer in answers]
        return Answers(topic, dict(zip(chosen, answers, strict=True)))

    async def _ask_together(self, refiner: RoundRefiner, requests: list[GroupRequest]) -> Answers:
        """Ask a refiner that answers about all groups of a round at once."""
        hits = hits_of(self._state["rankings"][0])
        answers = await refiner.refine_all(requests, hits)
        for answer in answers:
            self.usage += answer.usage
        return Answers(None, dict(zip(self._state["chosen"], answers, strict=True)))

    def _may_ask_again(self, questions: int) -> bool:
        """Return whether the budget has room to ask each question twice."""
        spending = Spending(self._context, self._state)
        questions_left = spending.questions_left(tokens_a_question(self._refiner))
        return questions_left is None or questions_left >= 2 * questions

    def _group_request(self, key: GroupKey, may_ask_again: bool) -> GroupRequest:
        """Return the question about a group."""
        name, group = key
        in_use = self._state["words"].get(name, {}).get(group)
        return GroupRequest(
            query=self._state["query"],
            attribute=name,
            group=group,
            keywords=in_use["keywords"] if in_use else [],
            seed=self._context.seed,
            temperature=self._context.temperature,
            may_ask_again=may_ask_again,
        )

    def _topic_request(self, may_ask_again: bool) -> TopicRequest:
        """Return the question about the topic."""
        return TopicRequest(
            self._state["query"],
            self._context.seed,
            self._context.temperature,
            may_ask_again=may_ask_again,
        )

    async def _answer(
        self,
        ask: Callable[[], Awaitable[Refinement]],
        key: GroupKey | tuple[None, None] = (None, None),
    ) -> Refinement:
        """Ask one question, and count what it cost.

        A refiner that ignores the deadline is cancelled soon after it.
        """
        attribute, group = key
        limit = None if self._deadline is None else self._deadline + GRACE
        timeout = asyncio.timeout(limit)
        with span("fairqr.refine_topic" if group is None else "fairqr.refine_group"):
            record(attribute=attribute, group=group)
            try:
                async with timeout:
                    answer = await ask()
            except TimeoutError:
                if not timeout.expired():
                    raise
                message = no_answer_within(self._refiner.name, self._deadline or 0)
                answer = Refinement("timeout", message=message)
            self.usage += answer.usage
            return answer
