"""Ranks with a language model that orders one window of the list after the other."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Question, Usage
from fairqr.agents.ranking import rankers
from fairqr.agents.ranking.rankers import Cost, ItemRanking, RankerOptions, RankItem
from fairqr.agents.ranking.reply_parser import parse_permutation, without_identifiers
from fairqr.base.errors import InputError
from fairqr.prompts.budget import SAFE_SHARE, estimated_tokens, message_tokens, render_documents
from fairqr.prompts.template import PromptTemplate, fence

TOKENS_AN_ITEM = 6
"""The most tokens of ``[12] > `` in common vocabularies."""

TOKENS_OF_A_LEAD_IN = 32
"""What a model may write before its list."""

LEAST_PASSAGE = 48
"""The tokens that each longer passage must get at least; otherwise the window is too large."""

MAX_QUERY_CHARACTERS = 2000
"""How much of a query is shown."""


class ListwiseRanker:
    """Asks a language model to order windows, from the end of the list to its beginning.

    Windows are ordered one after the other, since each contains the best items of the previous one
    (RankGPT, Sun et al. 2023). If a question fails, or the reply is not a list, the window keeps
    its order and counts as a failure; see :func:`parse_permutation` for repairs. The temperature
    is 0.

    If the model's context is known, long passages are cut fairly to fit. If some would get fewer
    than 48 tokens, nothing is asked and the error says which window fits.

    Args:
        model: The language model.
        prompt: A version of the prompt ``listwise``.
        options: The windows, the context, and what is shown.

    Attributes:
        name: ``listwise(``, the model, and the window with its step.
    """

    def __init__(
        self, model: LanguageModel, prompt: PromptTemplate, options: RankerOptions
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._options = options
        self.name = f"listwise({model.name}, {options.window}/{options.step})"

    async def start(self) -> None:
        """Start the model.

        Raises:
            ModelUnavailableError: It cannot be started.
        """
        await self._model.start("text")

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return the number of windows, and the tokens of their prompts and replies.

        We do not know which passages will share a window, so we count the longest ones for each.

        Raises:
            InputError: As :meth:`rank` raises it.
        """
        prompt = self._prompt_about(query, items, group)
        windows_to_ask = self._windows(prompt)
        if not windows_to_ask:
            return Cost()
        calls = len(windows_to_ask)
        return Cost(calls, calls * prompt.most_tokens(len(windows_to_ask[0])))

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        """Rank the items; see :meth:`fairqr.agents.ranking.rankers.ItemRanker.rank`.

        Windows after the deadline count as asked, with the failure ``timeout``.

        Raises:
            ModelUnavailableError: The model cannot be started.
            InputError: The windows do not fit into the context.
        """
        until = rankers.moment_after(deadline)
        if len(items) > 1:
            await self.start()  # some models only know their context after this
        prompt = self._prompt_about(query, items, group)
        windows_to_ask = self._windows(prompt)
        order = list(range(len(items)))
        failures: Counter[str] = Counter()
        repairs: Counter[str] = Counter()
        usage = Usage()
        message = ""
        for window in windows_to_ask:
            stretch = order[window.start : window.stop]
            reply = await self._model.write(prompt.question(stretch), rankers.seconds_until(until))
            usage += reply.usage
            message = reply.message or message
            permutation = parse_permutation(reply.text, len(stretch))
            status = permutation.status if reply.status == "ok" else reply.status
            if status != "ok":
                failures[status] += 1
                continue
            repairs.update(permutation.repairs)
            order[window.start : window.stop] = [stretch[row] for row in permutation.order]
        return ItemRanking(
            tuple(order), len(windows_to_ask), failures, repairs, usage=usage, message=message
        )

    def _prompt_about(self, query: str, items: Sequence[RankItem], group: str) -> WindowPrompt:
        """Return the prompt for a query, a persona and a list."""
        options = self._options
        passages = []
        for item in items:
            text = without_identifiers(item.shown(options.shown))
            passages.append(fence(text, options.length))
        persona = {
            "group": rankers.persona_prefix(group),
            "query": fence(query, MAX_QUERY_CHARACTERS),
        }
        # A model of the caller may not say how much it reads.
        context = options.context or getattr(self._model, "context_tokens", None)
        return WindowPrompt(self._prompt, persona, passages, context)

    def _windows(self, prompt: WindowPrompt) -> list[range]:
        """Return the windows.

        Raises:
            InputError: They do not fit into the context.
        """
        n = len(prompt.passages)
        window = min(self._options.window, n)
        largest = prompt.largest_window(window)
        if largest < window:
            advice = "shorten the query"
            if largest:
                advice = f"set window to {largest} and step to {largest // 2}"
            raise InputError(
                f"The model {self._model.name} reads and writes {prompt.context} tokens at once, "
                f"too few for {window} items; {advice}, or use a model with a larger context."
            )
        return windows(n, self._options.window, self._options.step)


@dataclass(frozen=True, slots=True)
class WindowPrompt:
    """The prompt ``listwise`` for one query, one persona and one list.

    Attributes:
        template: A version of the prompt.
        persona: The values ``group`` and ``query``, fenced.
        passages: Each item's text on one line, fenced, without texts that look like identifiers.
        context: How many tokens the model reads and writes at once; None for no limit.
    """

    template: PromptTemplate
    persona: Mapping[str, str]
    passages: Sequence[str]
    context: int | None

    def question(self, positions: Sequence[int]) -> Question:
        """Return the question about the passages of a window; long ones share the room fairly."""
        size = len(positions)
        # Without a limit there is nothing to count.
        count = len if self.context is None else estimated_tokens
        sources = [{"passage": self.passages[position]} for position in positions]
        passages = render_documents(self.template, sources, count, self.room(size))
        values = {**self.persona, "number": str(size), "passages": passages}
        return Question(self.template, values, temperature=0.0, max_tokens=self.reply_tokens(size))

    def reply_tokens(self, size: int) -> int:
        """Return how many tokens the order of this many passages may have.

        If the prompt's own limit is larger, it counts: a model that thinks aloud may need it.
        """
        tokens_of_order = TOKENS_AN_ITEM * size + TOKENS_OF_A_LEAD_IN
        return max(self.template.defaults.max_tokens, tokens_of_order)

    def room(self, size: int) -> int:
        """Return the estimated room for all passages of a window."""
        if self.context is None:
            return sys.maxsize
        prompt_tokens = self.context - self.reply_tokens(size)
        return int(SAFE_SHARE * prompt_tokens) - self._tokens_besides(size)

    def largest_window(self, most: int) -> int:
        """Return how many of any passages fit, up to a number; 0 if not even two fit."""
        if self.context is None or most < 2:
            return most
        least_lengths = [min(length, LEAST_PASSAGE) + 1 for length in self._lengths()]
        for size in range(most, 1, -1):
            if sum(least_lengths[:size]) <= self.room(size):
                return size
        return 0

    def most_tokens(self, size: int) -> int:
        """Return the largest estimated number of tokens of a window and its reply."""
        tokens_of_passages = sum(self._lengths()[:size]) + size
        read = min(tokens_of_passages, self.room(size))
        return self._tokens_besides(size) + read + self.reply_tokens(size)

    def _lengths(self) -> list[int]:
        """Return the tokens of the lines of all passages, the longest first."""
        highest = str(len(self.passages))  # no other number has more digits
        lengths = []
        for passage in self.passages:
            line = self.template.render_item({"number": highest, "passage": passage})
            lengths.append(estimated_tokens(line))
        return sorted(lengths, reverse=True)

    def _tokens_besides(self, size: int) -> int:
        """Return the tokens of the prompt without any passage."""
        values = {**self.persona, "number": str(size), "passages": ""}
        return message_tokens(self.template.render(values))


def windows(n: int, size: int, step: int) -> list[range]:
    """Return the windows over a list, in the order in which they are ranked.

    The first window covers the last ``size`` positions. Each next window begins ``step`` positions
    nearer to the front, and the last one begins at 0 (RankGPT, Sun et al. 2023). All have the same
    size, so the last one may overlap more. If the model ranks correctly, the best ``size - step``
    items of the list come to the front, in their order.

    Args:
        n: How many items the list has.
        size: How many positions a window has, at least 2; a shorter list has one window.
        step: In [1, size - 1].

    Returns:
        Ranges of positions; empty for fewer than two items.
    """
    if n < 2:
        return []
    size = min(size, n)
    return [range(start, start + size) for start in [*range(n - size, 0, -step), 0]]
