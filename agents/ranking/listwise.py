"""Ranks with a language model that orders one window of the list after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.item_ranker import Cost, ItemRanking, RankItem, Shown
from fairqr.agents.ranking.listwise_prompt import ListwisePrompt
from fairqr.agents.ranking.model import RankingModel, asked_once
from fairqr.agents.ranking.permutation import parse_permutation
from fairqr.base.errors import InputError
from fairqr.prompts.template import PromptTemplate


class ListwiseRanker:
    """Asks a language model to order windows, from the end of the list to its beginning.

    Windows are ordered one after the other, since each contains the best items of the previous one
    (RankGPT, Sun et al. 2023). If a question fails, or the reply is not a list, the window keeps
    its order and counts as a failure; see :func:`parse_permutation` for repairs. The temperature
    is 0.

    If the model's context is known, long passages are cut fairly to fit. If some would get fewer
    than 48 tokens, the windows shrink and the ranking has a warning.

    Args:
        model: The language model.
        prompt: A version of the prompt ``listwise``.
        window: How many items a window has; at least 2.
        step: How many places the window moves toward the front; in [1, window - 1].
        shown: What the model reads of an item.
        length: The most characters of an item that are shown.
        context: How many tokens the model reads and writes at once; defaults to what the model
            states, or no limit.

    Raises:
        InputError: A number is out of range.
    """

    def __init__(
        self,
        model: RankingModel,
        prompt: PromptTemplate,
        *,
        window: int = 20,
        step: int = 10,
        shown: Shown = "title_text",
        length: int = 2000,
        context: int | None = None,
    ) -> None:
        windows(0, window, step)  # checks the ranges
        if length < 1:
            raise InputError(f"At least 1 character of an item must be shown, not {length}.")
        if context is not None and context < 1:
            raise InputError(f"The context of a model has at least 1 token, not {context}.")
        self._model = asked_once(model)
        self._prompt = prompt
        self._window = window
        self._step = step
        self._shown: Shown = shown
        self._length = length
        self._context = context

    @property
    def name(self) -> str:
        """``listwise(``, the model, and the window with its step."""
        return f"listwise({self._model.name}, {self._window}/{self._step})"

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
        passages = ListwisePrompt.passages(items, self._shown, self._length)
        prompt = ListwisePrompt(self._prompt, query, group, self._room())
        asked, _ = self._windows(prompt, passages)
        if not asked:
            return Cost()
        return Cost(len(asked), len(asked) * prompt.most_tokens(passages, len(asked[0])))

    async def rank(
        self,
        query: str,
        items: Sequence[RankItem],
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> ItemRanking:
        """Rank the items; see :meth:`fairqr.agents.ranking.item_ranker.ItemRanker.rank`.

        Windows after the deadline count as asked, with the failure ``timeout``.

        Raises:
            ModelUnavailableError: The model cannot be started.
            InputError: Not even two items fit into the context.
        """
        end = None if deadline is None else time.monotonic() + deadline
        if len(items) > 1:
            await self.start()  # some models only know their context after this
        passages = ListwisePrompt.passages(items, self._shown, self._length)
        prompt = ListwisePrompt(self._prompt, query, group, self._room())
        asked, warnings = self._windows(prompt, passages)
        order = list(range(len(items)))
        failures: Counter[str] = Counter()
        repairs: Counter[str] = Counter()
        usage = Usage()
        message = ""
        for window in asked:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                failures["timeout"] += 1
                continue
            stretch = order[window.start : window.stop]
            reply = await self._model.write(prompt.question([passages[it] for it in stretch]), left)
            usage += reply.usage
            if reply.status != "ok":
                failures[reply.status] += 1
                message = reply.message
                continue
            found = parse_permutation(reply.text, len(stretch))
            if found.status != "ok":
                failures[found.status] += 1
                continue
            repairs.update(found.repairs)
            order[window.start : window.stop] = [stretch[it] for it in found.order]
        return ItemRanking(
            tuple(order),
            asked=len(asked),
            failures=dict(failures),
            repairs=dict(repairs),
            usage=usage,
            warnings=warnings,
            message=message,
        )

    def _room(self) -> int | None:
        """Return how many tokens the model reads and writes at once, if known.

        A model in this process only knows it after its start.
        """
        return self._model.context_tokens if self._context is None else self._context

    def _windows(
        self, prompt: ListwisePrompt, passages: Sequence[str]
    ) -> tuple[list[range], tuple[str, ...]]:
        """Return the windows, shrunk until they fit, and warnings about that.

        Raises:
            InputError: Windows of 2 do not fit.
        """
        wanted = min(self._window, len(passages))
        if wanted < 2:
            return [], ()
        size = prompt.largest_window(passages, wanted)
        if size == wanted:
            return windows(len(passages), self._window, self._step), ()
        limit = f"The model {self._model.name} reads and writes {self._room()} tokens at once"
        if not size:
            raise InputError(
                f"{limit}, which is too few for two items and the prompt; shorten the query, or "
                "use a model with a larger context."
            )
        step = max(1, min(self._step, size // 2))
        warning = f"{limit}, too few for {wanted} items; it was asked for {size} with step {step}."
        return windows(len(passages), size, step), (warning,)


def windows(n: int, size: int, step: int) -> list[range]:
    """Return the windows over a list, in the order in which they are ranked.

    The first window covers the last ``size`` positions. Each next window begins ``step`` positions
    nearer to the front, and the last one begins at 0 (RankGPT, Sun et al. 2023). All have the same
    size, so the last one may overlap more. If the model ranks correctly, the best ``size - step``
    items of the list come to the front, in their order.

    Args:
        n: How many items the list has.
        size: How many positions a window has; a shorter list has one window.
        step: In [1, size - 1].

    Returns:
        Ranges of positions; empty for fewer than two items.

    Raises:
        InputError: ``size`` or ``step`` is out of range.
    """
    if size < 2:
        raise InputError(f"A window has at least 2 items, not {size}.")
    if not 1 <= step < size:
        raise InputError(
            f"The step of windows of {size} must be from 1 to {size - 1}, not {step}; half of the "
            "window is usual."
        )
    if n < 2:
        return []
    size = min(size, n)
    return [range(begin, begin + size) for begin in [*range(n - size, 0, -step), 0]]
