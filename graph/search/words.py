"""The words of a model: which of them may be used, and the queries that are made with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from fairqr.agents.refiners.refiner import Refinement, RefinementStatus
from fairqr.graph.running import Update
from fairqr.graph.search.context import Context
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.result import GroupKey, RefinedGroup
from fairqr.graph.search.state import QueryRecord, State
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.table import decoded
from fairqr.retrieval.texts import evidence as judging

Answers = Mapping[GroupKey, Refinement]
"""What was proposed for each chosen group."""

_IN_VAIN: dict[RefinementStatus, str] = {
    "unsupported": "The proposed keywords belong neither to the topic nor to the group.",
    "unknown_terms": "No document contains any of the proposed keywords.",
}
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
    """Return what the answers of a refiner change: the words in use, or why the loop ends.

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
    failed = [answer for answer in answers.values() if answer.status not in _NO_FAILURE]
    helped = any(answer.status == "ok" for answer in answers.values())
    # After some rounds, a loop normally ends without new keywords; in the first round we warn.
    is_first_round = len(state["iterations"]) == 1
    reported = answers.values() if is_first_round and not helped else failed
    update: Update = {
        "refinements": [_record_of(key, answer) for key, answer in answers.items()],
        "warnings": list(dict.fromkeys(answer.message for answer in reported)),
    }
    words = _words_with(state, answers, new_topic)
    if refined_queries(cast("State", {**state, **update, **words}), context):
        return {**update, **words}
    reason = "no_improvement"
    if failed and is_spent:
        reason = "budget"
    elif failed and len(failed) == len(answers):
        reason = "model_failed"
    return {**update, "stop_reason": reason}


def _words_with(state: State, answers: Answers, new_topic: Sequence[str]) -> Update:
    """Return the words in use, with those of the answers."""
    keywords = {name: dict(groups) for name, groups in state["keywords"].items()}
    for (name, group), answer in answers.items():
        if answer.status == "ok":
            groups = keywords.setdefault(name, {})
            kept = [word for word in groups.get(group, []) if word not in answer.drop]
            groups[group] = [*kept, *answer.keywords]
    topic_words = dict.fromkeys([*state["topic_words"], *new_topic])
    return {"keywords": keywords, "topic_words": list(topic_words)}


def _record_of(key: GroupKey, answer: Refinement) -> dict[str, object]:
    attribute, group = key
    refined = RefinedGroup(
        attribute=attribute,
        group=group,
        keywords=list(answer.keywords),
        dropped=list(answer.drop),
        reason=answer.reason,
        status=answer.status,
    )
    return refined.model_dump()


def refined_queries(state: State, context: Context) -> list[QueryRecord]:
    """Return the queries of a refined round; none if there is no new keyword.

    Each query keeps all terms of the original query. If a round refines for one group, there is one
    query with all keywords so far. If it refines for several groups, one query has the words of the
    topic, and each group that lacks exposure has a query with these words and its own.
    """
    helped: list[GroupKey] = []
    for record in state["refinements"]:
        if record["status"] == "ok":
            helped.append((record["attribute"], record["group"]))
    if not helped:
        return []
    in_use: dict[GroupKey, list[str]] = {}
    for name, groups in state["keywords"].items():
        for group, words in groups.items():
            if words:
                in_use[name, group] = words

    def query(words: Sequence[str], key: tuple[str | None, str | None]) -> QueryRecord:
        text = state["query"]
        boost = " ".join(dict.fromkeys(words))
        # With evidence, the words only boost; otherwise they alone can find documents, too.
        if not context.strategy.evidence:
            text = f"{text} {boost}"
            boost = ""
        attribute, group = key
        return QueryRecord(text=text, boost=boost, attribute=attribute, group=group)

    if context.strategy.groups == "most":
        # A person may have replaced the group's words with words for another group.
        sought = [key for key in (*helped, *in_use) if key in in_use]
        all_words = [word for words in in_use.values() for word in words]
        return [query(all_words, (sought or helped)[0])]
    topic = state["topic_words"]
    queries = []
    if topic:
        queries.append(query(topic, (None, None)))
    for name, group in state["lacking"]:
        key = (name, group)  # a stored state has lists
        if key in helped and key in in_use:
            queries.append(query([*topic, *in_use[key]], key))
    return queries


async def checked_refinements(pool: Pool, answers: Answers) -> tuple[Answers, list[str]]:
    """Keep the keywords that the documents have evidence for, if the method wants it.

    An engine that counts documents is asked once for all keywords. For other engines, we read the
    texts that were retrieved so far.

    Returns:
        The refinements with the remaining keywords, and the keywords that belong to the topic.
    """
    schema = pool.engine.schema
    proposals: dict[GroupKey, judging.Proposal] = {}
    for key, answer in answers.items():
        if answer.status == "ok":
            name, group = key
            dimension = Dimension.named(schema, name)
            proposals[key] = judging.Proposal(dimension, group, answer.keywords)
    if not proposals or not pool.context.strategy.evidence:
        return answers, []
    checked = dict(answers)
    topic: list[str] = []
    evidence = await _evidence(pool, list(proposals.values()))
    for (key, proposal), figures in zip(proposals.items(), evidence, strict=True):
        by_word = dict(zip(proposal.keywords, figures, strict=True))
        kept: list[str] = []
        for word, figure in by_word.items():
            if figure.is_of_the_topic:
                topic.append(word)
            if figure.is_of_the_topic or figure.is_of_the_group:
                kept.append(word)
        checked[key] = replace(answers[key], keywords=tuple(kept))
        if not kept:
            is_known = any(figure.documents for figure in by_word.values())
            status: RefinementStatus = "unsupported" if is_known else "unknown_terms"
            checked[key] = replace(checked[key], status=status, message=_IN_VAIN[status])
    return checked, topic


async def _evidence(
    pool: Pool, proposals: Sequence[judging.Proposal]
) -> list[list[judging.Evidence]]:
    """Return the evidence for each keyword of each proposal."""
    engine = pool.engine
    state = pool.state
    query = state["query"]
    if "document_frequencies" in engine.capabilities:
        original = state["rankings"][0]
        # Where the engine cannot count the documents of each group, their shares of the documents
        # that the original query retrieved are the usual ones.
        usual = {name: decoded(rows).mean(axis=0) for name, rows in original["memberships"].items()}
        for name, shares in state["corpus_shares"].items():
            usual[name] = np.array(shares)
        return await judging.gather_evidence(engine, query, original["ids"], proposals, usual)
    documents = await engine.documents(pool.table.ids)
    texts = [f"{document.title}\n{document.text}" for document in documents]
    stems = await asyncio.to_thread(judging.stems_of, texts)
    ids = [document.id for document in documents]
    evidence = []
    for proposal in proposals:
        dimension = proposal.dimension
        members = pool.table.memberships(dimension, ids)
        position = dimension.groups.index(proposal.group)
        evidence.append(
            judging.evidence_from_texts(query, stems, members, position, proposal.keywords)
        )
    return evidence
