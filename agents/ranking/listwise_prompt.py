"""The question to a language model about one window of a list, and its number of tokens."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from fairqr.agents.models.question import Question
from fairqr.agents.ranking.item_ranker import RankItem, Shown, before_those_who_ask
from fairqr.prompts.budget import SAFE_SHARE, estimated_tokens, message_tokens, render_documents
from fairqr.prompts.template import PromptTemplate, fence

TOKENS_AN_ITEM = 6
"""The most tokens of ``[12] > `` in common vocabularies."""

TOKENS_OF_A_LEAD_IN = 32

LEAST_PASSAGE = 48
"""The tokens that each longer passage must get at least; otherwise the window is too large."""

MAX_QUERY_CHARACTERS = 2000

# A title that contains an identifier must not rank its article. Texts contain [3] as references.
_IDENTIFIER = re.compile(r"\[(\s*-?\d+\s*)\]")


class ListwisePrompt:
    """The prompt ``listwise`` for one query and one asker.

    Args:
        template: A version of the prompt.
        query: The query as the user wrote it.
        group: The word for the asker; empty for a neutral one.
        context: How many tokens the model reads and writes at once; unlimited by default.
    """

    def __init__(
        self, template: PromptTemplate, query: str, group: str, context: int | None
    ) -> None:
        self._template = template
        self._values = {
            "group": before_those_who_ask(group),
            "query": fence(query, MAX_QUERY_CHARACTERS),
        }
        self._context = context

    @staticmethod
    def passages(items: Sequence[RankItem], shown: Shown, length: int) -> list[str]:
        """Return each item's text on one line, fenced, without texts that look like identifiers."""
        return [fence(_IDENTIFIER.sub(r"(\1)", item.shown(shown)), length) for item in items]

    def question(self, passages: Sequence[str]) -> Question:
        """Return the question about a window; long passages share the room fairly."""
        size = len(passages)
        room = self.room(size)
        # Without a limit there is nothing to count.
        count, budget = (len, sys.maxsize) if room is None else (estimated_tokens, room)
        sources = [{"passage": passage} for passage in passages]
        return Question(
            prompt=self._template,
            values={
                **self._values,
                "number": str(size),
                "passages": render_documents(self._template, sources, count, budget),
            },
            temperature=0.0,
            max_tokens=self.reply_tokens(size),
        )

    def reply_tokens(self, size: int) -> int:
        """Return how many tokens the order of this many passages may have.

        If the prompt's own limit is larger, it counts: a model that thinks aloud may need it.
        """
        needed = TOKENS_AN_ITEM * size + TOKENS_OF_A_LEAD_IN
        return max(self._template.defaults.max_tokens, needed)

    def room(self, size: int) -> int | None:
        """Return the estimated room for all passages of a window; None without a limit."""
        if self._context is None:
            return None
        left = self._context - self.reply_tokens(size)
        return int(SAFE_SHARE * left) - self._tokens_besides(size)

    def largest_window(self, passages: Sequence[str], wanted: int) -> int:
        """Return how many of any passages fit, at most ``wanted``; 0 if not even two fit."""
        if self._context is None:
            return wanted
        least = [min(length, LEAST_PASSAGE) + 1 for length in self._lengths(passages)]
        least.sort(reverse=True)
        fitting = (it for it in range(wanted, 1, -1) if sum(least[:it]) <= (self.room(it) or 0))
        return next(fitting, 0)

    def most_tokens(self, passages: Sequence[str], size: int) -> int:
        """Return the largest estimated number of tokens of a window and its reply."""
        read = sum(sorted(self._lengths(passages))[-size:]) + size
        room = self.room(size)
        read = read if room is None else min(read, room)
        return self._tokens_besides(size) + read + self.reply_tokens(size)

    def _lengths(self, passages: Sequence[str]) -> list[int]:
        """Return the tokens of the line of each passage, in order."""
        highest = str(len(passages))  # no other number has more digits
        return [
            estimated_tokens(self._template.render_item({"number": highest, "passage": passage}))
            for passage in passages
        ]

    def _tokens_besides(self, size: int) -> int:
        messages = self._template.render({**self._values, "number": str(size), "passages": ""})
        return message_tokens(messages)
