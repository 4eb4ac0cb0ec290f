"""Pairwise ranking prompting: a language model compares two documents (PRP, Qin et al. 2024).

Each comparison asks in both orders. If the answers differ or one is missing, nobody wins.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Question, Reply, Status, Usage
from fairqr.agents.ranking import rankers
from fairqr.agents.ranking.rankers import Cost, ItemRanking, RankerOptions, RankItem
from fairqr.agents.ranking.reply_parser import (
    LABELS,
    Position,
    Unreadable,
    parse_first_of_two,
    parse_preference,
    without_identifiers,
)
from fairqr.base.errors import one_line
from fairqr.base.loops import PerLoop, run_together
from fairqr.prompts.budget import estimated_tokens
from fairqr.prompts.template import PromptTemplate, fence
from fairqr.retrieval.engines.limits import RequestLimits

FLOOR = 1e-6
"""The least probability of a label, since a label that is not among the likeliest tokens gets 0."""

LEAST_MASS = 0.1
"""Below this total probability of the labels, the model would say something else."""

Pair = tuple[RankItem, RankItem]

PreferenceStatus = Literal[Status, Unreadable, "neither", "tie"]
"""``tie`` is an answer that prefers neither; all others but ``ok`` are failures."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Which of two documents a model prefers in one order.

    Attributes:
        status: ``ok``; ``tie`` if both labels are equally probable, ``neither`` if the reply would
            hardly begin with one; or what came instead of an answer: a refusal, another text,
            nothing, or a failure of the model.
        choice: The position of the preferred document; None unless ``ok``.
        log_odds: ln P(first label) − ln P(second label), between −13.8 and 13.8; None if a reply
            was read or the model failed.
        message: A sentence that says why there is no choice; empty if ``ok``.
        usage: What it cost.
    """

    status: PreferenceStatus
    choice: Position | None = None
    log_odds: float | None = None
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen

    def of(self, first: str, second: str) -> str:
        """Return the preferred one of two names, or the status if neither is preferred."""
        if self.choice == "first":
            return first
        if self.choice == "second":
            return second
        return self.status


@dataclass(frozen=True, slots=True)
class PairComparison:
    """A model's preferences between two documents in both orders.

    Attributes:
        one_first: The preference with the one document first.
        other_first: The preference with the other document first.
    """

    one_first: Preference
    other_first: Preference

    @property
    def flips(self) -> bool:
        """Whether the same position is preferred both times."""
        choice = self.one_first.choice
        return choice is not None and choice == self.other_first.choice

    def preferred(self, one: str, other: str) -> tuple[str, str]:
        """Return the preferences with the one document first, and with the other first.

        Args:
            one: The name of the one document.
            other: The name of the other document.

        Returns:
            For each order, one of these names, or the status of an answer that prefers neither.
        """
        return self.one_first.of(one, other), self.other_first.of(other, one)

    @property
    def failure(self) -> Preference | None:
        """The first preference that failed, if any; a tie did not."""
        for preference in (self.one_first, self.other_first):
            if preference.status not in ("ok", "tie"):
                return preference
        return None

    @property
    def usage(self) -> Usage:
        """The cost of both questions."""
        return self.one_first.usage + self.other_first.usage


class PairwiseJudge:
    """Asks a model which of two documents is more relevant.

    If the model turns out not to give probabilities, its replies are read from then on. The first
    question is asked alone, so that this is learnt only once. A prompt with the output ``order``
    asks for a ranking of the two, so its replies are read in any case.

    Args:
        model: The language model.
        prompt: The template ``pairwise``.
        options: How to ask, and what is shown of a document.
    """

    def __init__(
        self, model: LanguageModel, prompt: PromptTemplate, options: RankerOptions
    ) -> None:
        self.model = model
        self.prompt = prompt
        self._options = options
        self._unsupported = False
        self._first: PerLoop[asyncio.Event] = PerLoop()

    @property
    def asks_for_order(self) -> bool:
        """Whether the prompt asks for a ranking of the two, such as ``[2] > [1]``."""
        return "order" in self.prompt.output

    @property
    def asks_by(self) -> rankers.By:
        """How the model is really asked, as far as we know."""
        if self.asks_for_order or self._unsupported or not self.model.gives_probabilities:
            return "reply"
        return self._options.by

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for users."""
        if self.asks_for_order or self.asks_by == self._options.by:
            return ()
        return (
            f"The model {self.model.name} does not give the probabilities of its tokens; its "
            "replies were read instead.",
        )

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: Something is missing.
        """
        await self.model.start("choice" if self.asks_by == "probabilities" else "text")

    def cost(self, query: str, pair: Pair, group: str = "") -> Cost:
        """Return the cost of :meth:`compare`: a question for each order.

        The first comparison may need one more, if the model turns out to give no probabilities.
        """
        messages = self.prompt.render(self.values(query, pair, group))
        prompt_tokens = sum(estimated_tokens(message["content"]) for message in messages)
        reply_tokens = self.prompt.defaults.max_tokens
        if self.asks_by == "probabilities":
            reply_tokens = 1
        return Cost(calls=2, tokens=2 * (prompt_tokens + reply_tokens))

    def text(self, item: RankItem) -> str:
        """Return what is shown of a document, fenced."""
        text = item.shown(self._options.shown)
        has_both = bool(item.title and item.text)
        if self._options.shown == "title_text" and has_both:
            text = f"{item.title}: {item.text}"
        if self.asks_for_order:
            text = without_identifiers(text)
        return fence(text, self._options.length)

    def values(self, query: str, pair: Pair, group: str = "") -> dict[str, str]:
        """Return the fenced values of the prompt, for the documents in this order."""
        first, second = map(self.text, pair)
        persona = rankers.persona_prefix(group)
        return {"group": persona, "query": fence(query), "first": first, "second": second}

    async def compare(
        self, query: str, pair: Pair, group: str = "", deadline: float | None = None
    ) -> PairComparison:
        """Ask in both orders at the same time; errors of a model never raise.

        Args:
            query: The query as the user wrote it.
            pair: The one document and the other.
            group: The word for the persona, such as ``female``; empty for a neutral one.
            deadline: Seconds from now after which to give up.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        until = rankers.moment_after(deadline)
        one, other = pair
        questions = []
        for pair_in_order in ((one, other), (other, one)):
            questions.append(Question(self.prompt, self.values(query, pair_in_order, group)))
        one_first, other_first = await run_together(
            self._prefer(question, until) for question in questions
        )
        return PairComparison(one_first, other_first)

    async def _prefer(self, question: Question, until: float | None) -> Preference:
        """Ask about a pair in one order."""
        usage = Usage()
        if self.asks_by == "probabilities":
            choice = await self._choice_probabilities(question, until)
            if choice.status != "unsupported":
                return self._scored(choice)
            usage = choice.usage
        reply = await self.model.write(question, rankers.seconds_until(until))
        return self._read(replace(reply, usage=usage + reply.usage))

    async def _choice_probabilities(self, question: Question, until: float | None) -> Reply:
        """Ask for the probabilities of the labels; other questions wait for the first one."""
        first_answer = self._first.get()
        if first_answer is not None:
            await first_answer.wait()
            if self.asks_by == "reply":  # the first question showed this meanwhile
                return Reply("unsupported")
        first_answer = self._first.setdefault(asyncio.Event())
        try:
            choice = await self.model.choice_probabilities(
                question, LABELS, rankers.seconds_until(until)
            )
        finally:
            first_answer.set()
        self._unsupported |= choice.status == "unsupported"
        return choice

    def _scored(self, reply: Reply) -> Preference:
        """Return the preference that the probabilities of the labels show."""
        name = self.model.name
        usage = reply.usage
        if reply.status == "parse_error" and usage.prompt_tokens:
            # Neither label is among the likeliest tokens.
            return Preference("neither", message=reply.message, usage=usage)
        if reply.status != "ok":
            return _failed(reply)
        if reply.mass < LEAST_MASS:
            labels = " or ".join(LABELS)
            message = (
                f"The model {name} would begin with {labels} with a probability of "
                f"{reply.mass:.2g} only."
            )
            return Preference("neither", message=message, usage=usage)

        first, second = (math.log(max(reply.probabilities[label], FLOOR)) for label in LABELS)
        if first == second:
            message = f"Both documents are as probable for the model {name}."
            return Preference("tie", None, 0.0, message, usage)
        choice: Position = "first" if first > second else "second"
        return Preference("ok", choice, first - second, usage=usage)

    def _read(self, reply: Reply) -> Preference:
        """Return the preference that a text says."""
        if reply.status != "ok":
            return _failed(reply)
        parse = parse_first_of_two if self.asks_for_order else parse_preference
        answer = parse(reply.text)
        if answer == "first" or answer == "second":
            return Preference("ok", answer, usage=reply.usage)
        message = f"The model {self.model.name} answered '{one_line(reply.text, 100)}'."
        return Preference(answer, message=message, usage=reply.usage)


def _failed(reply: Reply) -> Preference:
    """Return the failure of a model; a malformed response of a server counts as unavailable."""
    status = "unavailable" if reply.status == "parse_error" else reply.status
    return Preference(status, message=reply.message, usage=reply.usage)


class PairwiseRanker:
    """Orders items by a judge's comparisons of pairs.

    It is a merge sort. If nobody wins, the order stays.

    Args:
        judge: Compares two items.
        options: How many comparisons run at the same time.

    Attributes:
        name: The model and the way, e.g. ``pairwise(local:smollm2-135m, sorting)``.
    """

    def __init__(self, judge: PairwiseJudge, options: RankerOptions) -> None:
        self.judge = judge
        self._slots = RequestLimits(options.concurrency)
        self.name = f"pairwise({judge.model.name}, sorting)"

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: Something is missing.
        """
        await self.judge.start()

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return the largest cost of :meth:`rank`: two calls for each comparison.

        We count the tokens of the two longest items for each comparison.
        """
        comparisons = most_comparisons(len(items))
        if not comparisons:
            return Cost()

        def tokens_of(item: RankItem) -> int:
            return estimated_tokens(self.judge.text(item))

        one, other = heapq.nlargest(2, items, tokens_of)
        cost = self.judge.cost(query, (one, other), group)
        return Cost(comparisons * cost.calls, comparisons * cost.tokens)

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        """Rank the items; see :class:`fairqr.agents.ranking.rankers.ItemRanker`."""
        until = rankers.moment_after(deadline)
        comparisons: list[PairComparison] = []

        async def is_better(later: int, earlier: int) -> bool:
            async with self._slots:
                comparison = await self.judge.compare(
                    query, (items[earlier], items[later]), group, rankers.seconds_until(until)
                )
            comparisons.append(comparison)
            return comparison.preferred("earlier", "later") == ("later", "later")

        order = await _merge_sorted(is_better, list(range(len(items))))
        failures = []
        for comparison in comparisons:
            if comparison.failure:
                failures.append(comparison.failure)
        warnings = self.judge.warnings
        flips = sum(comparison.flips for comparison in comparisons)
        if 2 * flips > len(comparisons):
            warnings += (
                f"{flips} of {len(comparisons)} comparisons changed with the order of the two "
                "documents; the ranking is based on the others.",
            )
        return ItemRanking(
            order=tuple(order),
            asked=len(comparisons),
            failures=Counter(failure.status for failure in failures),
            usage=sum((comparison.usage for comparison in comparisons), Usage()),
            warnings=warnings,
            message=failures[-1].message if failures else "",
        )


IsBetter = Callable[[int, int], Awaitable[bool]]
"""Returns whether the item at a later position wins against one at an earlier position."""


def most_comparisons(items: int) -> int:
    """Return how many comparisons a ranking of this many items may take."""
    if items < 2:
        return 0
    half = items // 2
    # Each item but the last is placed by one comparison at most.
    merging = items - 1
    return most_comparisons(half) + most_comparisons(items - half) + merging


async def _merge_sorted(is_better: IsBetter, positions: list[int]) -> list[int]:
    """Return positions best first by a merge sort; both halves are sorted at the same time.

    No two positions are compared twice.
    """
    if len(positions) < 2:
        return positions
    half = len(positions) // 2
    ahead, behind = await run_together(
        _merge_sorted(is_better, part) for part in (positions[:half], positions[half:])
    )
    merged: list[int] = []
    while ahead and behind:
        wins = await is_better(behind[0], ahead[0])
        merged.append((behind if wins else ahead).pop(0))
    return merged + ahead + behind
