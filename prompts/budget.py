"""Fits documents into a prompt with limited room: each document gets a fair share of the tokens.

The caller says how to count tokens. Encoder-decoder models bring their tokenizer. For models
behind an API we do not know the tokenizer and use :func:`estimated_tokens`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairqr.prompts.template import PromptTemplate, fence

Count = Callable[[str], int]
"""Returns the number of tokens of a text: 0 for an empty one, and never fewer for a longer one."""

NO_DOCUMENTS = "none"
"""The text in a prompt if there are no documents, or no room for any."""

LONGEST_FIELD = 100_000
"""How many characters of a question or of a field of a document are read."""

MESSAGE_TOKENS = 8
"""The tokens that a message needs besides its text, for its role and its markers."""

SAFE_SHARE = 0.8
"""The share of a model's window that we fill when tokens are estimated; estimates may be low."""

LEAST_SHARE = 16
"""The tokens of each document that a model must see at least: enough for a number and a title."""


class NoRoomError(Exception):
    """A prompt has no room for its content; the message is one sentence for users."""


def fair_shares(lengths: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` among items so that the smallest share is as large as possible.

    Each item gets an equal share. What short items leave is divided among the others in the same
    way (max-min fairness). An indivisible remainder goes to the longest items.

    Args:
        lengths: How much each item can use; at least 0.
        total: How much there is; a negative total counts as 0.

    Returns:
        The share of each item, in order, at most its length. The sum is min(total, sum of the
        lengths). Shares of cut items differ by at most 1, and none is smaller than
        the share of an item that fits.
    """
    shares = [0] * len(lengths)
    remaining = max(0, total)
    # Of equally long items, the last one comes first.
    shortest_first = sorted(range(len(lengths)), key=lambda item: (lengths[item], -item))
    for rank, item in enumerate(shortest_first):
        items_to_share = len(lengths) - rank
        shares[item] = min(lengths[item], remaining // items_to_share)
        remaining -= shares[item]
    return shares


def cut(text: str, limit: int, count: Count) -> str:
    """Return at most ``limit`` tokens of a text; a text that is cut ends with an ellipsis.

    Args:
        text: Any text.
        limit: In tokens; below 1, the result is empty.
        count: Counts tokens.
    """
    if limit < 1:
        return ""
    if count(text) <= limit:
        return text

    def beginning(length: int) -> str:
        return f"{text[:length].rstrip()}…"

    def tokens_of(length: int) -> int:
        return count(beginning(length))

    longest = bisect.bisect_right(range(1, len(text)), limit, key=tokens_of)
    return beginning(longest) if longest else ""


def render_documents(
    template: PromptTemplate, sources: Sequence[Mapping[str, str]], count: Count, budget: int
) -> str:
    """Return the documents as a prompt shows them: an item each, in order, fairly cut.

    Args:
        template: A prompt with an ``item``.
        sources: The fields of each document; ``number``, the place from 1, is added. The texts are
            fenced here.
        count: Counts tokens.
        budget: In tokens, for all documents together.

    Returns:
        Text of at most ``budget`` tokens, or :data:`NO_DOCUMENTS` if there are none or the budget
        is too small.
    """
    items = _items(template, sources)
    lengths = [count(template.render_item(item)) for item in items]
    tokens_of_joints = len(items) * _tokens_of_joint(template, count)
    shares = fair_shares(lengths, budget - tokens_of_joints)
    texts = []
    for item, share in zip(items, shares, strict=True):
        texts.append(_fit_item(template, item, share, count))
    # Items without room are empty, and need no joint.
    return template.joiner.join(filter(None, texts)) or NO_DOCUMENTS


def _items(template: PromptTemplate, sources: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the fields of each document, fenced and numbered; a field that is missing is empty."""
    blank = dict.fromkeys(template.item_variables, "")
    items = []
    for number, source in enumerate(sources, 1):
        fenced = {name: fence(text, LONGEST_FIELD) for name, text in source.items()}
        items.append({**blank, "number": str(number), **fenced})
    return items


def _tokens_of_joint(template: PromptTemplate, count: Count) -> int:
    """Return the tokens between two items; the end of a line, or a space, is one."""
    return 1 + count(template.joiner.strip())


def _fit_item(template: PromptTemplate, item: Mapping[str, str], limit: int, count: Count) -> str:
    """Return an item in at most ``limit`` tokens: cut in the prompt's field, or else at its end."""
    line = template.render_item(item)
    if template.cut is None or count(line) <= limit:
        return cut(line, limit, count)
    field = template.cut
    text = item[field]

    def rendered(length: int) -> str:
        return template.render_item({**item, field: text[:length].rstrip()})

    def tokens_of(length: int) -> int:
        return count(rendered(length))

    fitting_lengths = bisect.bisect_right(range(len(text)), limit, key=tokens_of)
    if fitting_lengths:
        return rendered(fitting_lengths - 1)
    # Where there is no room for any of the field, the rest of the item is cut, too.
    return cut(rendered(0), limit, count)


def estimated_tokens(text: str) -> int:
    """Estimate how many tokens a text has for a model with an unknown tokenizer.

    We count one token for four ASCII letters or spaces, one for each digit or mark, and for any
    other character its bytes in UTF-8 less one. Compared to byte-pair encoders, that is a third too
    many for English prose, somewhat too few for other European languages, and too few for strings
    that are not words.
    """
    letters = 0
    digits_and_marks = 0
    for character in text:
        if character.isascii():
            if character.isalpha() or character == " ":
                letters += 1
            else:
                digits_and_marks += 1
    # The first byte of each character is free, so ASCII adds nothing here.
    further_bytes = len(text.encode("utf-8", "replace")) - len(text)
    return math.ceil(letters / 4) + digits_and_marks + further_bytes


def message_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Estimate how many tokens rendered messages have together."""
    return sum(estimated_tokens(message["content"]) + MESSAGE_TOKENS for message in messages)


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """The room of a prompt that answers a question from documents.

    Attributes:
        room: The most tokens of the whole prompt.
        question: The most tokens of the question in it.
        count: Counts the tokens of a text.
        size: Counts the tokens of rendered messages.
    """

    room: int
    question: int
    count: Count = estimated_tokens
    size: Callable[[Sequence[Mapping[str, str]]], int] = message_tokens

    def fill(
        self, prompt: PromptTemplate, question: str, sources: Sequence[Mapping[str, str]]
    ) -> dict[str, str]:
        """Return the values of a prompt, after cutting the question and the documents to fit.

        Args:
            prompt: A prompt with the placeholders ``question`` and ``documents``, and an item.
            question: As the user wrote it.
            sources: The fields of each document.

        Raises:
            NoRoomError: The prompt alone is too long, or a document would be cut to fewer than
                LEAST_SHARE tokens, so that an answer would claim what the model never saw.
        """
        values = {"question": "", "documents": NO_DOCUMENTS}
        size_alone = self.size(prompt.render(values))
        room = self.room - size_alone
        if room < 1:
            raise NoRoomError(
                f"The prompt {prompt.name} alone has about {size_alone} tokens, but there is "
                f"only room for {self.room}; shorten it, raise input_tokens, or use a model with a "
                "larger window."
            )
        fenced = fence(question, LONGEST_FIELD)
        values = {"question": cut(fenced, min(self.question, room), self.count), "documents": ""}
        budget = self.room - self.size(prompt.render(values))
        fitting = self._count_fitting(prompt, sources, budget)
        if fitting < len(sources):
            raise NoRoomError(
                f"The prompt {prompt.name} only has room for {fitting} of the {len(sources)} "
                "documents; lower k, raise input_tokens, or use a model with a larger window."
            )
        while True:
            values["documents"] = render_documents(prompt, sources, self.count, budget)
            # Joined texts may have a few more tokens than the sum of the parts.
            excess = self.size(prompt.render(values)) - self.room
            if excess <= 0 or budget <= 0:
                return values
            budget -= excess

    def _count_fitting(
        self, prompt: PromptTemplate, sources: Sequence[Mapping[str, str]], budget: int
    ) -> int:
        """Return how many documents get their least share, from the first on."""
        joint = _tokens_of_joint(prompt, self.count)
        tokens = 0
        for number, item in enumerate(_items(prompt, sources)):
            length = self.count(prompt.render_item(item))
            tokens += min(length, LEAST_SHARE) + joint
            if tokens > budget:
                return number
        return len(sources)
