"""Documents in a prompt that has room for so many tokens only: each gets its fair share.

How tokens are counted is the caller's matter: encoder-decoder models bring their tokenizer; for
models behind an API, whose tokenizer nobody knows, :func:`estimated_tokens` stands in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fairqr.prompts.template import PromptTemplate, fence

__all__ = [
    "LEAST_SHARE",
    "NO_DOCUMENTS",
    "SAFE_SHARE",
    "Count",
    "NoRoomError",
    "cut",
    "estimated_tokens",
    "fair_shares",
    "message_tokens",
    "render_documents",
    "require_room",
]

Count = Callable[[str], int]
"""Returns how many tokens a text has; 0 for an empty one, and no fewer for a longer one."""

NO_DOCUMENTS = "none"
"""What stands in a prompt where there is no document, or no room for one."""

MAX_FIELD_CHARACTERS = 100_000

MESSAGE_TOKENS = 8
"""What a message takes besides its text, for its role and its ends."""

SAFE_SHARE = 0.8
"""How much of a model's room is filled by estimate, since an estimate may be too low."""

LEAST_SHARE = 16
"""Tokens of a document that a model has to see, or all of a shorter one: a number and a title."""


class NoRoomError(Exception):
    """A prompt has no room for what it is to hold; the message is one sentence for people."""


def fair_shares(lengths: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` among items so that the least of what anyone gets is as great as can be.

    Each gets its equal share; what the short ones leave is divided among the others in the same way
    (max-min fairness). A remainder that cannot be divided goes to the longest.

    Args:
        lengths: What each could use; at least 0.
        total: What there is; nothing where negative.

    Returns:
        For each item at most its length, in order. The sum is the lesser of ``total`` and the sum
        of the lengths. Items that are cut differ by 1 at the most, and none gets less than an item
        that is whole.
    """
    shares = [0] * len(lengths)
    left = max(0, total)
    shortest_first = sorted(range(len(lengths)), key=lambda place: (lengths[place], -place))
    for done, place in enumerate(shortest_first):
        shares[place] = min(lengths[place], left // (len(lengths) - done))
        left -= shares[place]
    return shares


def cut(text: str, limit: int, count: Count) -> str:
    """Return a text of at most ``limit`` tokens: the whole, or its begin with a mark of the cut.

    Args:
        text: Any.
        limit: In tokens; below 1 nothing is left.
        count: Counts tokens.
    """
    if limit < 1:
        return ""
    if count(text) <= limit:
        return text
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count(_begin(text, middle)) <= limit:
            fits = middle
        else:
            too_long = middle
    return _begin(text, fits) if fits else ""


def _begin(text: str, length: int) -> str:
    return f"{text[:length].rstrip()}…"


def render_documents(
    template: PromptTemplate, sources: Sequence[Mapping[str, str]], count: Count, budget: int
) -> str:
    """Return the documents as a prompt shows them: one line each, in order, fairly cut.

    Args:
        template: Has an ``item``.
        sources: Each with the fields of the item; ``number``, the place from 1, is there always.
            They are fenced here.
        count: Counts tokens.
        budget: In tokens, for all documents together.

    Returns:
        Text of at most ``budget`` tokens, unless that is less than :data:`NO_DOCUMENTS` has, which
        stands for no documents.

    Raises:
        PromptError: A field is missing, or the prompt has no item.
    """
    lines = _lines(template, sources)
    lengths = [count(line) for line in lines]
    room = budget - len(lines)  # a line's end is a token
    while lines and room > 0:
        shares = fair_shares(lengths, room)
        kept = [cut(line, share, count) for line, share in zip(lines, shares, strict=True)]
        text = "\n".join(line for line in kept if line)
        # Joined, texts may have more tokens than each by itself.
        over = count(text) - budget
        if over <= 0:
            return text or NO_DOCUMENTS
        room -= over
    return NO_DOCUMENTS


def require_room(
    template: PromptTemplate, sources: Sequence[Mapping[str, str]], count: Count, budget: int
) -> None:
    """Check that :func:`render_documents` shows something of each document.

    An answer would else pass for one from documents that the model never saw.

    Its arguments are those of :func:`render_documents`.

    Raises:
        NoRoomError: Some would have less than LEAST_SHARE tokens, and not be whole either.
        PromptError: As :func:`render_documents` raises it.
    """
    needed = fitting = 0
    for line in _lines(template, sources):
        needed += min(count(line), LEAST_SHARE) + 1  # a line's end is a token
        fitting += needed <= budget
    if fitting < len(sources):
        raise NoRoomError(
            f"The prompt {template.id}/{template.version} has room for {fitting} of the "
            f"{len(sources)} documents only; lower k, raise input_tokens, or take a model with a "
            "larger window."
        )


def _lines(template: PromptTemplate, sources: Sequence[Mapping[str, str]]) -> list[str]:
    return [
        template.render_item(
            {
                "number": str(number),
                **{name: fence(text, MAX_FIELD_CHARACTERS) for name, text in source.items()},
            }
        )
        for number, source in enumerate(sources, 1)
    ]


def estimated_tokens(text: str) -> int:
    """Estimate how many tokens a text has for a model whose tokenizer is not known.

    A token for four letters or spaces of ASCII, one for each digit or mark, and for a letter of
    another script one less than the bytes that it has in UTF-8. That is a third more than byte-pair
    encoders make of English prose, somewhat less than they make of other European languages, and
    too little for strings that are no words.
    """
    plain = sum(1 for it in text if it.isascii() and (it.isalpha() or it == " "))
    ascii_ = sum(1 for it in text if it.isascii())
    others = len(text.encode("utf-8", "replace")) - ascii_ - (len(text) - ascii_)
    return math.ceil(plain / 4) + (ascii_ - plain) + others


def message_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Estimate how many tokens rendered messages have together."""
    return sum(estimated_tokens(it["content"]) + MESSAGE_TOKENS for it in messages)
