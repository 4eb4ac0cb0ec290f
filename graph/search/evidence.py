"""Checks proposed keywords against the documents."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from fairqr.agents.refiner import Refinement
from fairqr.graph.search.context import Context
from fairqr.graph.search.round_lists import table_of, usual_shares
from fairqr.graph.search.state import GroupKey, State
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
