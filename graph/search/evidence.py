"""Holding proposed keywords against the documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairqr.agents.refiner import Refinement
from fairqr.graph.search.context import Context
from fairqr.graph.search.pool_and_order import table_of, usual_shares
from fairqr.graph.search.refinement import CheckedRefinement, kept_only
from fairqr.graph.search.state import GroupKey, State
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.evidence import Evidence, Proposal, frequencies, gather_evidence
from fairqr.retrieval.evidence_from_texts import evidence_from_texts, stems_of

__all__ = ["checked_refinements"]


async def checked_refinements(
    engine: SearchEngine,
    answers: Sequence[tuple[GroupKey, Refinement]],
    state: State,
    context: Context,
) -> list[CheckedRefinement]:
    """Keep the keywords that the documents have evidence for, or at least contain.

    An engine that counts documents is asked once for all keywords. For another one the texts that
    were retrieved so far are read.

    Args:
        engine: Has the documents.
        answers: What was proposed for each group.
        state: Of the run.
        context: Of the run.
    """
    proposals = [
        Proposal(Dimension.named(engine.schema, name), group, answer.keywords)
        for (name, group), answer in answers
        if answer.status == "ok"
    ]
    if not proposals:
        return [CheckedRefinement(answer) for _, answer in answers]
    if not context.strategy.evidence:
        kept = iter(await _contained(engine, proposals))
        return [
            kept_only(answer, next(kept), ())
            if answer.status == "ok"
            else CheckedRefinement(answer)
            for _, answer in answers
        ]
    evidence = iter(await _evidence(engine, proposals, state))
    return [
        _supported(answer, next(evidence)) if answer.status == "ok" else CheckedRefinement(answer)
        for _, answer in answers
    ]


def _supported(answer: Refinement, evidence: Sequence[Evidence]) -> CheckedRefinement:
    """Keep the keywords of the topic and of the group."""
    pairs = list(zip(answer.keywords, evidence, strict=True))
    topic = [word for word, found in pairs if found.is_of_the_topic]
    kept = [word for word, found in pairs if word in topic or found.is_of_the_group]
    return kept_only(answer, kept, topic, known=any(found.documents for _, found in pairs))


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
    table, there = table_of(state["rankings"]), [document.id for document in documents]
    return [
        evidence_from_texts(
            state["query"],
            stems,
            table.memberships(proposal.dimension, there),
            proposal.dimension.groups.index(proposal.group),
            proposal.keywords,
        )
        for proposal in proposals
    ]


async def _contained(engine: SearchEngine, proposals: Sequence[Proposal]) -> list[list[str]]:
    """Return the keywords of each proposal that some document contains, if the engine counts."""
    words = list(dict.fromkeys(word for proposal in proposals for word in proposal.keywords))
    if "document_frequencies" not in engine.capabilities:
        return [list(proposal.keywords) for proposal in proposals]
    counts = dict(zip(words, await frequencies(engine, words), strict=True))
    return [[word for word in proposal.keywords if counts[word]] for proposal in proposals]
