"""What a language model is asked about one window of a list, and how many tokens that takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from fairqr.agents.question import Question
from fairqr.agents.ranking.item_ranker import RankItem, Shown, before_those_who_ask
from fairqr.prompts.budget import SAFE_SHARE, estimated_tokens, message_tokens, render_documents
from fairqr.prompts.template import PromptTemplate, fence

__all__ = ["ListwisePrompt"]

TOKENS_AN_ITEM = 6
"""What ``[12] > `` takes at the most in the vocabularies in use."""

TOKENS_OF_A_LEAD_IN = 32

LEAST_PASSAGE = 48
"""Tokens of a passage, or all of a shorter one, below which a window is too large."""

MAX_QUERY_CHARACTERS = 2000

# The title of an article must not rank it. Such as [3] may stand in texts as references, too.
_IDENTIFIER = re.compile(r"\[(\s*-?\d+\s*)\]")


class ListwisePrompt:
    """The prompt ``listwise`` for one query and one who asks.

    Args:
        template: In some version.
        query: As the user wrote it.
        group: What stands before those who ask; empty for nobody in particular.
        context: Tokens that the model reads and writes at once; no limit where None.
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
        """Return what is read of each item, on one line, fenced, without identifiers of ours."""
        return [fence(_IDENTIFIER.sub(r"(\1)", item.shown(shown)), length) for item in items]

    def question(self, passages: Sequence[str]) -> Question:
        """Return the question about a window; passages that are too long share the room fairly."""
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
        """Return how many tokens the order of so many passages may have.

        The limit of the prompt itself holds where it is larger, as a model that thinks aloud may
        need.
        """
        needed = TOKENS_AN_ITEM * size + TOKENS_OF_A_LEAD_IN
        return max(self._template.defaults.max_tokens, needed)

    def room(self, size: int) -> int | None:
        """Return the tokens for all passages of a window, by estimate; None without a limit."""
        if self._context is None:
            return None
        left = self._context - self.reply_tokens(size)
        return int(SAFE_SHARE * left) - self._tokens_besides(size)

    def largest_window(self, passages: Sequence[str], wanted: int) -> int:
        """Return how many passages fit, whichever they are: ``wanted`` or fewer; 0 if no two do."""
        if self._context is None:
            return wanted
        least = [min(length, LEAST_PASSAGE) + 1 for length in self._lengths(passages)]
        least.sort(reverse=True)
        fitting = (it for it in range(wanted, 1, -1) if sum(least[:it]) <= (self.room(it) or 0))
        return next(fitting, 0)

    def most_tokens(self, passages: Sequence[str], size: int) -> int:
        """Return what a window and its reply take at the most, by estimate."""
        read = sum(sorted(self._lengths(passages))[-size:]) + size
        room = self.room(size)
        read = read if room is None else min(read, room)
        return self._tokens_besides(size) + read + self.reply_tokens(size)

    def _lengths(self, passages: Sequence[str]) -> list[int]:
        """Return the tokens of the line of each passage, in order."""
        highest = str(len(passages))  # has no fewer digits than any other
        return [
            estimated_tokens(self._template.render_item({"number": highest, "passage": passage}))
            for passage in passages
        ]

    def _tokens_besides(self, size: int) -> int:
        messages = self._template.render({**self._values, "number": str(size), "passages": ""})
        return message_tokens(messages)
