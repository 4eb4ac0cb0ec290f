"""From a refiner's keywords to the next round's queries: which keywords help, and what they ask."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiner import Refinement
from fairqr.graph.search.context import Context
from fairqr.graph.search.rounds import table_of, usual_shares
from fairqr.graph.search.state import GroupKey, QueryRecord, RefinementRecord, State
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.texts.evidence import (
    Evidence,
    Proposal,
    document_frequencies,
    evidence_from_texts,
    gather_evidence,
    stems_of,
)

# The model replied, but its words do not help. Any other status that is not ok is a failure.
_OF_NO_HELP = ("repeated", "unknown_terms", "unsupported")


def shown(query: QueryRecord) -> str:
    """Return a query as results show it: its text, and the words that only boost."""
    return f"{query['text']} {query['boost']}".strip()


def after_refinement(
    state: State,
    context: Context,
    refinements: Sequence[Refinement],
    new_topic: Sequence[str],
    usage: Usage,
    *,
    budget_is_spent: bool = False,
) -> dict[str, Any]:
    """Return what a round of refinement changes: the next queries, or why the loop ends.

    The loop ends if no group has a new keyword: with ``budget`` if the model failed and the budget
    is spent, with ``model_failed`` if the model failed for all groups, or else with
    ``no_improvement``.

    Args:
        state: The state of the run.
        context: The context of the run.
        refinements: One for each chosen group, with the keywords that may be used.
        new_topic: The keywords among them that belong to the topic of the query.
        usage: What the run has cost so far.
        budget_is_spent: Whether the budget has no room for another question to a model.
    """
    # A stored state has lists instead of tuples.
    chosen: list[GroupKey] = [(name, group) for name, group in state["chosen"]]
    keyed = list(zip(chosen, refinements, strict=True))
    failed = [r for r in refinements if r.status != "ok" and r.status not in _OF_NO_HELP]
    update: dict[str, Any] = {
        "usage": dataclasses.asdict(usage),
        "refinements": [
            RefinementRecord(
                attribute=name,
                group=group,
                keywords=list(refinement.keywords),
                dropped=list(refinement.drop),
                reason=refinement.reason,
                status=refinement.status,
            )
            for (name, group), refinement in keyed
        ],
    }
    helped = [key for key, refinement in keyed if refinement.status == "ok"]
    keywords = _with_new(state["keywords"], keyed)
    topic = list(dict.fromkeys([*state["topic_words"], *new_topic]))
    words = {"keywords": keywords, "topic_words": topic}
    after = cast("State", {**state, **update, **words})
    queries = refined_queries(after, context)
    # After some rounds, a loop normally ends without new keywords; in the first round we warn.
    reported = failed if helped or len(state["iterations"]) > 1 else refinements
    update["warnings"] = list(dict.fromkeys(refinement.message for refinement in reported))
    if not queries:
        reason = "model_failed" if failed and len(failed) == len(refinements) else "no_improvement"
        if failed and budget_is_spent:
            reason = "budget"
        return {**update, "stop_reason": reason}
    return {**update, **words, "iteration": state["iteration"] + 1}


def _with_new(
    used: Mapping[str, Mapping[str, Sequence[str]]],
    keyed: Sequence[tuple[GroupKey, Refinement]],
) -> dict[str, dict[str, list[str]]]:
    """Add each group's new keywords to those in use, and remove those to drop."""
    keywords = {
        name: {group: list(words) for group, words in groups.items()}
        for name, groups in used.items()
    }
    for (name, group), refinement in keyed:
        if refinement.status == "ok":
            groups = keywords.setdefault(name, {})
            kept = [word for word in groups.get(group, []) if word not in refinement.drop]
            groups[group] = [*kept, *refinement.keywords]
    return keywords


def refined_queries(state: State, context: Context) -> list[QueryRecord]:
    """Return the queries of a refined round; none if there is no new keyword.

    Each query keeps all terms of the original query. If a round refines for one group, there is one
    query with all keywords so far. If it refines for several groups, one query has the words of the
    topic, and each group that lacks exposure has a query with these words and its own.
    """
    ok = [record for record in state["refinements"] if record["status"] == "ok"]
    helped = [(record["attribute"], record["group"]) for record in ok]
    if not helped:
        return []
    keywords, topic = state["keywords"], state["topic_words"]
    query, adds = state["query"], not context.strategy.evidence
    if context.strategy.groups == "most":
        used = {
            (name, group): words
            for name, groups in keywords.items()
            for group, words in groups.items()
        }
        # A person may have replaced the group's words with words for another group.
        sought = [key for key in (*helped, *used) if used.get(key)]
        every = [word for words in used.values() for word in words]
        return [_query(query, every, (sought or helped)[0], adds=adds)]
    queries = [
        _query(query, [*topic, *keywords[name][group]], (name, group), adds=adds)
        for name, group in state["lacking"]
        if (name, group) in helped and keywords.get(name, {}).get(group)
    ]
    if topic:
        queries.insert(0, _query(query, topic, (None, None), adds=adds))
    return queries


def _query(
    query: str, words: Sequence[str], key: tuple[str | None, str | None], *, adds: bool
) -> QueryRecord:
    """Return the query with these words; if ``adds``, the words alone can also find documents."""
    distinct = " ".join(dict.fromkeys(words))
    return QueryRecord(
        text=f"{query} {distinct}" if adds else query,
        boost="" if adds else distinct,
        attribute=key[0],
        group=key[1],
    )


async def checked_refinements(
    engine: SearchEngine,
    answers: Sequence[tuple[GroupKey, Refinement]],
    state: State,
    context: Context,
) -> tuple[list[Refinement], list[str]]:
    """Keep the keywords that the documents have evidence for, or at least contain.

    An engine that counts documents is asked once for all keywords. For other engines, we read the
    texts that were retrieved so far.

    Args:
        engine: The engine with the documents.
        answers: What was proposed for each group.
        state: The state of the run.
        context: The context of the run.

    Returns:
        The refinements with the remaining keywords, and the keywords that belong to the topic.
    """
    proposals = {
        key: Proposal(Dimension.named(engine.schema, key[0]), key[1], answer.keywords)
        for key, answer in answers
        if answer.status == "ok"
    }
    topic: list[str] = []
    kept: dict[GroupKey, list[str]] = {}
    known: set[GroupKey] = set()
    if proposals and context.strategy.evidence:
        evidence = await _evidence(engine, list(proposals.values()), state)
        for (key, proposal), gathered in zip(proposals.items(), evidence, strict=True):
            pairs = list(zip(proposal.keywords, gathered, strict=True))
            on_topic = [word for word, found in pairs if found.is_of_the_topic]
            kept[key] = [word for word, found in pairs if word in on_topic or found.is_of_the_group]
            topic += on_topic
            if any(found.documents for _, found in pairs):
                known.add(key)
    elif proposals:
        contained = await _contained(engine, list(proposals.values()))
        kept = dict(zip(proposals, contained, strict=True))
    refinements = [
        _with_keywords(answer, kept[key], known=key in known) if key in kept else answer
        for key, answer in answers
    ]
    return refinements, topic


def _with_keywords(refinement: Refinement, kept: Sequence[str], *, known: bool) -> Refinement:
    """Return a refinement with only these keywords; if there are none, its status says why.

    Args:
        refinement: What was proposed.
        kept: The keywords to keep.
        known: Whether some document contains one of the proposed keywords.
    """
    if kept:
        return dataclasses.replace(refinement, keywords=tuple(kept))
    return dataclasses.replace(
        refinement,
        keywords=(),
        status="unsupported" if known else "unknown_terms",
        message=(
            "The proposed keywords belong neither to the topic nor to the group."
            if known
            else "No document contains any of the proposed keywords."
        ),
    )


async def _evidence(
    engine: SearchEngine, proposals: Sequence[Proposal], state: State
) -> Sequence[Sequence[Evidence]]:
    original = state["rankings"][0]
    if "document_frequencies" in engine.capabilities:
        usual = usual_shares(state["corpus_shares"], original)
        return await gather_evidence(engine, state["query"], original["ids"], proposals, usual)
    ids = list(dict.fromkeys(id_ for record in state["rankings"] for id_ in record["ids"]))
    documents = await engine.documents(ids)
    texts = [f"{document.title}\n{document.text}" for document in documents]
    stems = await asyncio.to_thread(stems_of, texts)
    table, read = table_of(state["rankings"]), [document.id for document in documents]
    return [
        evidence_from_texts(
            state["query"],
            stems,
            table.memberships(proposal.dimension, read),
            proposal.dimension.groups.index(proposal.group),
            proposal.keywords,
        )
        for proposal in proposals
    ]


async def _contained(engine: SearchEngine, proposals: Sequence[Proposal]) -> list[list[str]]:
    """Return the keywords of each proposal that occur in documents; all without counts."""
    words = list(dict.fromkeys(word for proposal in proposals for word in proposal.keywords))
    if "document_frequencies" not in engine.capabilities:
        return [list(proposal.keywords) for proposal in proposals]
    _, counts = await document_frequencies(engine, words)
    return [[word for word in proposal.keywords if counts[word]] for proposal in proposals]
