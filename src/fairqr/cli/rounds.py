"""Shows the rounds of a search: the words that a model added, and what they say of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from fairqr.cli.output import cut, decimal, literal, number, shortened, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from fairqr.graph.search.result import (
        Iteration,
        RankedDocument,
        RefinedGroup,
        RefinedTopic,
        SearchResult,
    )

WORDS_IN_A_LINE = 6
"""How many words the line of a round shows, of the topic and all groups together."""

FEWEST_WORDS = 2
"""How many it shows of each of them, though there are more groups than room."""

MOST_NAMED = 8
"""How many texts are named that were left out for the same reason."""

TITLE_WIDTH = 40

STOPPED = {
    "converged": "the divergence is at or below the threshold",
    "little_to_gain": "another round was expected to gain too little",
    "no_hits": "no document matches the query",
    "no_improvement": "nothing more was gained",
    "no_new_words": "no new word came",
    "max_iterations": "the rounds were used up",
    "not_refining": "no model was to be asked for words",
    "budget": "the budget was used up",
    "model_failed": "the model failed",
}

NO_WORDS = {
    "ok": "nothing that was not searched before",
    "repeated": "no new words",
    "unsupported": "nothing to learn words from",
}
"""What a refinement's status means for people, where there are no words; others are failures."""

QUERY = "query"
EVIDENCE = {
    QUERY: QUERY,
    "topic": "topic",
    "queries": "other queries",
    "passage": "passage",
    "group": "group",
    "named": "name",
}
"""What the kinds of evidence are called, in the order in which they are shown."""


def round_lines(result: SearchResult, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield a line for each round, and why they ended, if a model was asked or all is wanted.

    Args:
        result: The result of a search.
        verbose: Also yield all words of each round, what was left out, and the queries.
    """
    is_loop = len(result.iterations) > 1 or result.method == "fair-qr"
    unused_replies = _replies(result.unused_topic, result.unused_refinements)
    if not (verbose or is_loop or unused_replies):
        return

    yield ""
    yield _table(result)
    reasons = [say_no_words(reply) for reply in unused_replies]
    unused = f" ({'; '.join(reasons)})" if reasons else ""
    yield literal(f"Ended: {STOPPED[result.stop_reason]}{unused}.")
    if result.method == "fair-qr" and result.best_iteration:
        # The rounds were measured before the documents were re-ranked.
        divergence = decimal(result.divergence, 4)
        yield literal(f"Re-ranked by the original query: KL {divergence}.")

    if verbose:
        for iteration in result.iterations[1:]:
            yield from _all_words(iteration)
        if unused_replies:
            yield ""
            yield Text("Asked once more, without a round", "bold")
            yield from _left_out(unused_replies)


def _table(result: SearchResult) -> RenderableType:
    """Draw a line for each round: how good its list is, what it changed, and the words it added."""
    # The fair step weighs relevance against fairness; the published loop goes by the divergence.
    is_weighed = all(iteration.objective for iteration in result.iterations)
    heads: tuple[str, ...] = ("round", "KL", "brought", "words")
    if is_weighed:
        heads = ("round", "product", "words")
    rows: list[tuple[Any, ...]] = []
    previous = None
    for iteration in result.iterations:
        is_best = iteration.index == result.best_iteration
        label = f"{iteration.index} kept" if is_best else str(iteration.index)
        words = cut(literal(_words_in_short(result.query, iteration)))
        if is_weighed and iteration.objective:
            rows.append((label, iteration.objective.value, words))
        else:
            brought = cut(literal(_attention_brought(previous, iteration)))
            rows.append((label, iteration.divergence, brought, words))
        previous = iteration
    return table(heads, rows, digits=4)


def _attention_brought(previous: Iteration | None, iteration: Iteration) -> str:
    """Return how the attention of the groups changed for which a round refined."""
    if previous is None:
        return ""
    changes = []
    for refined in iteration.refinements:
        before = previous.exposure[refined.attribute][refined.group]
        after = iteration.exposure[refined.attribute][refined.group]
        changes.append(f"attention {before:.0%} → {after:.0%}")
    return ", ".join(changes)


def _words_in_short(query: str, iteration: Iteration) -> str:
    """Return the first words that a round added, by topic and group; for round 0, the query."""
    if not iteration.index:
        return query
    words_by_part: dict[str, Sequence[str]] = {}
    if iteration.topic is not None:
        words_by_part["topic"] = [*iteration.topic.words, *iteration.topic.queries]
    for refined in iteration.refinements:
        # Names say most in little room.
        words_by_part[refined.group] = [*refined.names, *refined.phrases, *refined.keywords]

    limit = max(FEWEST_WORDS, WORDS_IN_A_LINE // max(len(words_by_part), 1))
    replies = _replies(iteration.topic, iteration.refinements)
    without_words = {_subject(reply): say_no_words(reply) for reply in replies}
    parts = []
    for part, words in words_by_part.items():
        if words:
            ellipsis = " …" if len(words) > limit else ""
            parts.append(f"{part}: {', '.join(words[:limit])}{ellipsis}")
        else:
            parts.append(without_words[part])
    return "; ".join(parts)


def _replies(
    topic: RefinedTopic | None, groups: Sequence[RefinedGroup]
) -> list[RefinedTopic | RefinedGroup]:
    """Return what a model said about the topic and about groups, in one list."""
    if topic is None:
        return [*groups]
    return [topic, *groups]


def _subject(reply: RefinedTopic | RefinedGroup) -> str:
    """Return what a reply is about: the name of a group, or ``topic``."""
    return getattr(reply, "group", "topic")


def say_no_words(reply: RefinedTopic | RefinedGroup) -> str:
    """Say what a reply without words is about, and why it has none."""
    return f"{_subject(reply)}: {_why_no_words(reply)}"


def _why_no_words(reply: RefinedTopic | RefinedGroup) -> str:
    failed = f"no words ({reply.status.replace('_', ' ')})"
    return NO_WORDS.get(reply.status, failed)


def _all_words(iteration: Iteration) -> Iterator[RenderableType]:
    """Yield all words that a round added, what was left out, and the queries that it searched."""
    yield ""
    yield literal(f"Round {iteration.index}", "bold")
    if iteration.topic is not None:
        yield from _facts("topic", _words_of_topic(iteration.topic))
    for refined in iteration.refinements:
        yield from _facts(refined.group, _words_of_group(refined))
    yield from _left_out(_replies(iteration.topic, iteration.refinements))
    for query in iteration.queries:
        yield literal(f"  searched: {query}", "dim")


def _words_of_topic(topic: RefinedTopic) -> dict[str, str]:
    """Return the parts of what a model said about the topic, by their names."""
    return {
        "words": ", ".join(topic.words),
        "other queries": "; ".join(topic.queries),
        "passage": topic.passage,
    }


def _words_of_group(refined: RefinedGroup) -> dict[str, str]:
    """Return the parts of what a model said about a group, by their names."""
    if refined.status != "ok":
        return {"words": _why_no_words(refined)}
    return {
        "words": ", ".join(refined.keywords),
        "phrases": ", ".join(refined.phrases),
        "names": ", ".join(refined.names),
        "passage": refined.passage,
        "dropped": ", ".join(refined.dropped),
        "reason": refined.reason,
    }


def _facts(part: str, facts: Mapping[str, str]) -> Iterator[RenderableType]:
    for name, text in facts.items():
        if text:
            yield literal(f"  {part}, {name}: {text}")


def _left_out(replies: Sequence[RefinedTopic | RefinedGroup]) -> Iterator[RenderableType]:
    """Yield what of the replies was not used, and why."""
    for reply in replies:
        if not reply.left_out:
            continue
        texts_by_reason: dict[str, list[str]] = {}
        for unused in reply.left_out:
            texts_by_reason.setdefault(unused.reason, []).append(unused.text)
        sentences = [_say_unused(texts, reason) for reason, texts in texts_by_reason.items()]
        yield literal(f"  {_subject(reply)}, left out: {'; '.join(sentences)}")


def _say_unused(texts: Sequence[str], reason: str) -> str:
    """Say what of a reply was not used; of many texts, the first ones and how many others."""
    quoted = [f"'{text}'" for text in texts if text]
    if not quoted:
        return reason
    unnamed = len(quoted) - MOST_NAMED
    if unnamed > 0:
        return f"{', '.join(quoted[:MOST_NAMED])} and {unnamed} more: each {reason}"
    return "; ".join(f"{text} {reason}" for text in quoted)


def strongest_evidence(document: RankedDocument) -> str:
    """Return which of a model's words speak most for a document, and more than the query does.

    Empty if none do.
    """
    evidence = document.evidence
    if not evidence:
        return ""
    strongest = max(evidence, key=lambda kind: evidence[kind])
    if evidence[strongest] <= evidence.get(QUERY, 0.0):
        return ""
    return EVIDENCE[strongest]


def evidence_lines(result: SearchResult) -> Iterator[RenderableType]:
    """Yield how likely each document is relevant by each kind of evidence, if words count."""
    present: set[str] = set()
    for document in result.ranking:
        present.update(document.evidence)
    kinds = [kind for kind in EVIDENCE if kind in present]
    if not kinds:
        return
    yield ""
    yield "How likely each document is relevant: by all evidence, and by each kind of it."
    rows = []
    for document in result.ranking:
        title = cut(literal(shortened(document.title or document.id, TITLE_WIDTH)))
        probabilities = [_probability(document.evidence.get(kind)) for kind in kinds]
        rows.append((document.rank, title, _probability(document.relevance), *probabilities))
    heads = [number(EVIDENCE[kind]) for kind in kinds]
    yield table(("", "", number("all"), *heads), rows, gap=1)


def _probability(value: float | None) -> str:
    """Return a probability as a cell; an empty one if there is none."""
    return "" if value is None else decimal(value)
