"""Cleans what a model proposed: keeps what can be used, and says why the rest is left out.

Each field of a reply has limits of its own. Single words and short phrases lose the words that the
query has already, because repeating a word changes its weight but not its meaning. Names, phrases
and whole queries stay as they are, or are left out as a whole.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from fairqr.agents.refiners.refiner import LeftOut, Refinement
from fairqr.base.errors import one_line
from fairqr.retrieval.texts.words import folded_runs, phrase_parts


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of a list in a reply is read.

    Attributes:
        entries: How many entries are kept.
        characters: The longest entry, in characters.
        words: The longest entry, in words; unlimited by default.
    """

    entries: int
    characters: int
    words: int | None = None


TOPIC_LIMIT = Limit(entries=24, characters=80, words=8)
KEYWORDS_LIMIT = Limit(entries=24, characters=80, words=8)
PHRASES_LIMIT = Limit(entries=24, characters=120, words=12)
NAMES_LIMIT = Limit(entries=40, characters=80, words=8)
QUERIES_LIMIT = Limit(entries=6, characters=300)

LONGEST_PASSAGE = 1000
"""How many characters of a passage are read; what follows is left out from a word on."""

WORD_LIMITS = {"topic": TOPIC_LIMIT, "keywords": KEYWORDS_LIMIT}
"""The fields whose entries lose the words that are known already."""

WHOLE_LIMITS = {"queries": QUERIES_LIMIT, "phrases": PHRASES_LIMIT, "names": NAMES_LIMIT}
"""The fields whose entries stay whole."""

LIMITS = WORD_LIMITS | WHOLE_LIMITS

REPEATS_QUERY = "repeats the query"
REPEATS_EARLIER = "repeats an earlier entry"
IN_USE = "is in use already"
REPETITIONS = frozenset({REPEATS_QUERY, REPEATS_EARLIER, IN_USE})

NO_TEXT = "is no text"
NO_LETTERS = "has no letters"
NO_WORDS = "has no words"

ADDS_SINGLE_WORDS = "is not searched for, since this method adds single words"

SHOWN_CHARACTERS = 200
"""How much is shown of a text that is left out."""

MOST_IN_TURN = Limit(entries=8, characters=80, words=8)
"""How many topic words and keywords one query takes."""

# They belong to words of scripts such as Persian and Hindi, although nobody sees them.
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The entries of one list that can be used, and those that cannot."""

    kept: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


def tidy(text: str) -> str:
    """Return a text on one line, without control characters and characters that nobody sees."""
    return " ".join("".join(map(_replace_invisible, text)).split())


def _replace_invisible(character: str) -> str:
    """Return the character; a space for a control character, nothing for an invisible one."""
    if character in _JOINERS:
        return character
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    # Format characters, such as overrides of the text direction, and half surrogate pairs.
    return "" if category in ("Cf", "Cs") else character


def clean_words(
    candidates: Sequence[object], limit: Limit, *, query: str = "", in_use: Sequence[str] = ()
) -> Cleaned:
    """Return usable words and short phrases, in their order.

    Punctuation is dropped. So are words that occur in the query, among the words in use, or in
    earlier entries. ``sci-fi`` repeats ``sci`` and ``fi``. In scripts without spaces a word counts
    as new even if it is a part of a longer run, since many engines do not find it by that run.

    Args:
        candidates: What the model proposed.
        limit: How much of it is read.
        query: The original query.
        in_use: Words that are added to the query already.
    """
    known_words = _collect_known_words(query, in_use)
    kept: list[str] = []
    left_out: list[LeftOut] = []
    for candidate in candidates:
        problem = _find_problem(candidate, limit, len(kept))
        if problem:
            left_out.append(_leave_out(candidate, problem))
            continue

        new_words, repeated = _split_new_words(tidy(str(candidate)), known_words)
        entry = " ".join(new_words)
        if not any(map(str.isalpha, entry)):
            reason = repeated[0].reason if repeated else NO_LETTERS
            left_out.append(_leave_out(candidate, reason))
            continue

        kept.append(entry)
        left_out += repeated
        for word in folded_runs(entry):
            known_words.setdefault(word, REPEATS_EARLIER)
    return Cleaned(tuple(kept), tuple(left_out))


def _collect_known_words(query: str, in_use: Sequence[str]) -> dict[str, str]:
    """Return the words that a new entry must not repeat, each with the reason."""
    known_words = dict.fromkeys(folded_runs(query), REPEATS_QUERY)
    for text in in_use:
        for word in folded_runs(text):
            known_words.setdefault(word, IN_USE)
    return known_words


def _split_new_words(text: str, known_words: Mapping[str, str]) -> tuple[list[str], list[LeftOut]]:
    """Return the words of a text that are not known, and those that are."""
    new_words: list[str] = []
    repeated: list[LeftOut] = []
    new_parts: set[str] = set()
    for word in phrase_parts(text):
        parts = folded_runs(word)
        if any(part not in known_words and part not in new_parts for part in parts):
            new_words.append(word)
            new_parts.update(parts)
        else:
            reasons = [known_words[part] for part in parts if part in known_words]
            repeated.append(LeftOut(word, reasons[0] if reasons else REPEATS_EARLIER))
    return new_words, repeated


def clean_whole(
    candidates: Sequence[object], limit: Limit, *, query: str = "", in_use: Sequence[str] = ()
) -> Cleaned:
    """Return usable names, phrases or queries, in their order; nothing is cut out of them.

    Args:
        candidates: What the model proposed.
        limit: How much of it is read.
        query: The original query. An entry that has no other words than the query is left out.
        in_use: Words that are added to the query already.
    """
    query_words = set(folded_runs(query))
    seen = {tuple(folded_runs(text)): IN_USE for text in in_use}
    kept: list[str] = []
    left_out: list[LeftOut] = []
    for candidate in candidates:
        problem = _find_problem(candidate, limit, len(kept))
        if problem:
            left_out.append(_leave_out(candidate, problem))
            continue

        entry = tidy(str(candidate))
        words = tuple(folded_runs(entry))
        repetition = _find_repetition(words, query_words) or seen.get(words)
        if repetition:
            left_out.append(_leave_out(candidate, repetition))
            continue

        kept.append(entry)
        seen[words] = REPEATS_EARLIER
    return Cleaned(tuple(kept), tuple(left_out))


def _find_repetition(words: Sequence[str], query_words: set[str]) -> str:
    """Return why a whole text with these words says nothing new; empty if it does."""
    if not words:
        return NO_WORDS
    return REPEATS_QUERY if query_words.issuperset(words) else ""


def _find_problem(candidate: object, limit: Limit, n_kept: int) -> str:
    """Return why an entry is not read; empty if it is."""
    if not isinstance(candidate, str):
        return NO_TEXT
    if n_kept >= limit.entries:
        return f"is beyond the {limit.entries} that are read"
    if len(candidate) > limit.characters:
        return f"is longer than {limit.characters} characters"
    if limit.words is not None and len(phrase_parts(candidate)) > limit.words:
        return f"has more than {limit.words} words"
    return ""


def _leave_out(candidate: object, reason: str) -> LeftOut:
    """Return an entry that is not used, with as much of its text as is shown."""
    text = tidy(candidate) if isinstance(candidate, str) else ""
    return LeftOut(one_line(text, SHOWN_CHARACTERS), reason)


def clean_passage(text: str, *, query: str = "") -> tuple[str, tuple[LeftOut, ...]]:
    """Return as much of a passage as is read, and what is left out of it."""
    passage = tidy(text)
    if not passage:
        return "", ()
    problem = _find_repetition(folded_runs(passage), set(folded_runs(query)))
    if problem:
        return "", (_leave_out(passage, problem),)
    if len(passage) <= LONGEST_PASSAGE:
        return passage, ()

    # Text in a script without spaces is cut where the limit is.
    end = passage.rfind(" ", 0, LONGEST_PASSAGE + 1)
    if end < 0:
        end = LONGEST_PASSAGE
    reason = f"is beyond the {LONGEST_PASSAGE:,} characters that are read"
    return passage[:end], (_leave_out(passage[end:], reason),)


def make_refinement(
    reply: Mapping[str, Any], *, query: str, subject: str, proposer: str, in_use: Sequence[str] = ()
) -> Refinement:
    """Clean each field of a reply, and return them with a status that says what is left.

    Args:
        reply: The fields as :func:`fairqr.agents.refiners.language_model.read_reply` returns them.
        query: The original query.
        subject: What was asked about, for messages.
        proposer: Who proposed it, for messages.
        in_use: Words that are added to the query already.
    """
    kept: dict[str, tuple[str, ...]] = {}
    left_out: list[LeftOut] = []
    for field, limit in LIMITS.items():
        clean = clean_words if field in WORD_LIMITS else clean_whole
        cleaned = clean(reply.get(field, ()), limit, query=query, in_use=in_use)
        kept[field] = cleaned.kept
        left_out += cleaned.left_out
    passage, left_out_of_passage = clean_passage(reply.get("passage", ""), query=query)
    left_out += left_out_of_passage

    if not passage and not any(kept.values()):
        return make_empty_refinement(left_out, subject=subject, proposer=proposer)
    return Refinement(
        "ok",
        topic=kept["topic"],
        queries=kept["queries"],
        keywords=kept["keywords"],
        phrases=kept["phrases"],
        names=kept["names"],
        passage=passage,
        left_out=tuple(left_out),
    )


def make_empty_refinement(
    left_out: Sequence[LeftOut], *, subject: str, proposer: str
) -> Refinement:
    """Return the refinement of a reply without anything usable, or without anything new."""
    all_left_out = tuple(left_out)
    if any(part.reason in REPETITIONS for part in left_out):
        message = f"{proposer} proposed nothing new for {subject}."
        return Refinement("repeated", message=message, left_out=all_left_out)
    message = f"{proposer} proposed no usable keyword for {subject}."
    return Refinement("empty", message=message, left_out=all_left_out)


def without_fields(refinement: Refinement, fields: Sequence[str], reason: str) -> Refinement:
    """Return a refinement without what it proposes in some fields, left out for a reason."""
    emptied: dict[str, Any] = {}
    unused: list[LeftOut] = []
    for field in fields:
        value = getattr(refinement, field)
        if isinstance(value, str):
            texts = [value] if value else []
            emptied[field] = ""
        else:
            texts = value
            emptied[field] = ()
        unused += [_leave_out(text, reason) for text in texts]
    return replace(refinement, **emptied, left_out=(*refinement.left_out, *unused))


def take_in_turn(refinement: Refinement) -> Refinement:
    """Return the refinement with topic words and keywords in turn as its keywords, at most 8.

    A search that adds one list of words to its query takes these, and nothing else. Both lists are
    cut equally. A refinement without topic words keeps its keywords as they are.
    """
    refinement = without_fields(refinement, ("phrases", "names", "passage"), ADDS_SINGLE_WORDS)
    if refinement.topic:
        mixed: list[str] = []
        for pair in zip_longest(refinement.topic, refinement.keywords):
            mixed += [word for word in pair if word is not None]
        cleaned = clean_words(mixed, MOST_IN_TURN)
        left_out = (*refinement.left_out, *cleaned.left_out)
        return replace(refinement, topic=(), keywords=cleaned.kept, left_out=left_out)

    if refinement.status == "ok" and not refinement.keywords:
        message = "The model proposed no single words, and this search adds nothing else."
        return replace(refinement, status="empty", message=message)
    return refinement
