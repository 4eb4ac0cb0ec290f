"""From a refiner's keywords to the next round's queries: which keywords help, and what they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from fairqr.agents.refiner import Refinement
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import GroupKey, QueryRecord, RefinedGroup, State
from fairqr.graph.search.rounds import Rounds
from fairqr.graph.steps import Update
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.table import decoded
from fairqr.retrieval.texts import evidence as judging

Answers = Mapping[GroupKey, Refinement]
"""What was proposed for each chosen group."""

# With all but the first, the model replied, but its words do not help.
_NO_FAILURE = ("ok", "repeated", "unknown_terms", "unsupported")


def shown(query: QueryRecord) -> str:
    """Return a query as results show it: its text, and the words that only boost."""
    return f"{query['text']} {query['boost']}".strip()


def after_refinement(
    state: State,
    context: Context,
    answers: Answers,
    new_topic: Sequence[str],
    *,
    is_spent: bool = False,
) -> Update:
    """Return what a round of refinement changes: the next queries, or why the loop ends.

    The loop ends if no group has a new keyword: with ``budget`` if the model failed and the budget
    is spent, with ``model_failed`` if the model failed for all groups, or else with
    ``no_improvement``.

    Args:
        state: The state of the run.
        context: The context of the run.
        answers: The refinements, with the keywords that may be used.
        new_topic: The keywords among them that belong to the topic of the query.
        is_spent: Whether the budget has no room for another question.
    """
    keywords = {name: dict(groups) for name, groups in state["keywords"].items()}
    for (name, group), answer in answers.items():
        if answer.status == "ok":
            groups = keywords.setdefault(name, {})
            kept = [word for word in groups.get(group, []) if word not in answer.drop]
            groups[group] = [*kept, *answer.keywords]
    words = {
        "keywords": keywords,
        "topic_words": list(dict.fromkeys([*state["topic_words"], *new_topic])),
    }
    refinements = [
        RefinedGroup(
            attribute=name,
            group=group,
            keywords=list(answer.keywords),
            dropped=list(answer.drop),
            reason=answer.reason,
            status=answer.status,
        ).model_dump()
        for (name, group), answer in answers.items()
    ]
    failed = [answer for answer in answers.values() if answer.status not in _NO_FAILURE]
    helped = any(answer.status == "ok" for answer in answers.values())
    # After some rounds, a loop normally ends without new keywords; in the first round we warn.
    reported = failed if helped or len(state["iterations"]) > 1 else answers.values()
    update: Update = {
        "refinements": refinements,
        "warnings": list(dict.fromkeys(answer.message for answer in reported)),
    }
    if refined_queries(cast("State", {**state, **update, **words}), context):
        return {**update, **words, "iteration": state["iteration"] + 1}
    reason = "model_failed" if failed and len(failed) == len(answers) else "no_improvement"
    return {**update, "stop_reason": "budget" if failed and is_spent else reason}


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
    topic = state["topic_words"]
    used = {
        (name, group): words
        for name, groups in state["keywords"].items()
        for group, words in groups.items()
        if words
    }

    def query(words: Sequence[str], key: tuple[str | None, str | None]) -> QueryRecord:
        text, distinct = state["query"], " ".join(dict.fromkeys(words))
        # With evidence, the words only boost; otherwise they alone can find documents, too.
        if not context.strategy.evidence:
            text, distinct = f"{text} {distinct}", ""
        return QueryRecord(text=text, boost=distinct, attribute=key[0], group=key[1])

    if context.strategy.groups == "most":
        # A person may have replaced the group's words with words for another group.
        sought = [key for key in (*helped, *used) if key in used]
        every = [word for words in used.values() for word in words]
        return [query(every, (sought or helped)[0])]
    lacking = [(name, group) for name, group in state["lacking"]]  # lists, if it was stored
    queries = [query([*topic, *used[key]], key) for key in lacking if key in helped and key in used]
    return [query(topic, (None, None)), *queries] if topic else queries


async def checked_refinements(rounds: Rounds, answers: Answers) -> tuple[Answers, list[str]]:
    """Keep the keywords that the documents have evidence for, or at least contain.

    An engine that counts documents is asked once for all keywords. For other engines, we read the
    texts that were retrieved so far.

    Returns:
        The refinements with the remaining keywords, and the keywords that belong to the topic.
    """
    schema, topic, checked = rounds.engine.schema, list[str](), dict(answers)
    proposals = {
        key: judging.Proposal(Dimension.named(schema, key[0]), key[1], answer.keywords)
        for key, answer in answers.items()
        if answer.status == "ok"
    }
    if proposals and rounds.context.strategy.evidence:
        evidence = await _evidence(rounds, list(proposals.values()))
        for (key, proposal), gathered in zip(proposals.items(), evidence, strict=True):
            pairs = list(zip(proposal.keywords, gathered, strict=True))
            topic += [word for word, found in pairs if found.is_of_the_topic]
            kept = [word for word, found in pairs if found.is_of_the_topic or found.is_of_the_group]
            is_known = any(found.documents for _, found in pairs)
            checked[key] = _with_keywords(answers[key], kept, is_known=is_known)
    elif proposals:
        counts = dict.fromkeys((word for it in proposals.values() for word in it.keywords), 1)
        if "document_frequencies" in rounds.engine.capabilities:
            _, counts = await judging.document_frequencies(rounds.engine, list(counts))
        for key, proposal in proposals.items():
            kept = [word for word in proposal.keywords if counts[word]]
            checked[key] = _with_keywords(answers[key], kept)
    return checked, topic


def _with_keywords(
    refinement: Refinement, kept: Sequence[str], *, is_known: bool = False
) -> Refinement:
    """Return a refinement with only these keywords; if there are none, its status says why.

    Args:
        refinement: What was proposed.
        kept: The keywords to keep.
        is_known: Whether some document contains one of the proposed keywords.
    """
    if kept:
        return replace(refinement, keywords=tuple(kept))
    if is_known:
        message = "The proposed keywords belong neither to the topic nor to the group."
        return replace(refinement, keywords=(), status="unsupported", message=message)
    message = "No document contains any of the proposed keywords."
    return replace(refinement, keywords=(), status="unknown_terms", message=message)


async def _evidence(
    rounds: Rounds, proposals: Sequence[judging.Proposal]
) -> list[list[judging.Evidence]]:
    """Return the evidence for each keyword of each proposal."""
    engine, state = rounds.engine, rounds.state
    original, query = state["rankings"][0], state["query"]
    if "document_frequencies" in engine.capabilities:
        # Where the engine cannot count the documents of each group, their shares of the documents
        # that the original query retrieved are the usual ones.
        counted = state.get("corpus_shares", {})
        usual = {
            name: np.array(counted[name]) if name in counted else decoded(members).mean(axis=0)
            for name, members in original["memberships"].items()
        }
        return await judging.gather_evidence(engine, query, original["ids"], proposals, usual)
    documents = await engine.documents(rounds.table.ids)
    texts = [f"{document.title}\n{document.text}" for document in documents]
    stems = await asyncio.to_thread(judging.stems_of, texts)
    read, table = [document.id for document in documents], rounds.table
    return [
        judging.evidence_from_texts(
            query,
            stems,
            table.memberships(proposal.dimension, read),
            proposal.dimension.groups.index(proposal.group),
            proposal.keywords,
        )
        for proposal in proposals
    ]
