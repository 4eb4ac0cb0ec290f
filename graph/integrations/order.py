"""The fair order of a list that somebody else retrieved: what both integrations show.

It is the fair step of a search whose only round is that list, so it equals what
:class:`fairqr.FairReranker` makes of it. Groups are known by labels that the documents bring, else
by the source's. No model is asked; words that one gave for the query before count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fairqr.base.errors import InputError, one_line
from fairqr.base.loops import Turn
from fairqr.graph.integrations.amortised import target_with_deficit
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.learnt import LearntWords, with_words
from fairqr.graph.running import compute
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import Objective, Shares
from fairqr.graph.search.target import by_group, estimate_target, vector_of
from fairqr.retrieval.engines.engine import Hits, Memberships, Query, SearchEngine, lexical_of
from fairqr.retrieval.fairness.claims import claims_by_text, merits_of
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import relevance_by_rank
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.sources.label_rows import in_groups, label_rows
from fairqr.retrieval.sources.label_values import weighted_values
from fairqr.retrieval.sources.schema import Attribute, Schema

WORDS, BEST = 300, 3
"""A given text is searched for by its first characters, and looked for in the best results."""


class Given(NamedTuple):
    """A document that somebody else retrieved.

    Attributes:
        place: Its place in what was sent, for complaints.
        id: Its id in the source, by which labels that it does not bring are looked up; empty if it
            has none, or brings all there are.
        text: What it says.
        title: Its title, which the text begins with; empty if it has none.
        label: Returns the label for an attribute that it brings; None if it brings none.
    """

    place: int
    id: str
    text: str
    title: str
    label: Callable[[Attribute], object]


class Evidence(NamedTuple):
    """What tells which documents of a list are relevant.

    Attributes:
        texts: Compares the texts of the documents with queries.
        words: Knows the words that a model gave for the query before; they count beside the query.
        turn: Taken to encode texts; see :meth:`ListEvidence.estimated`.
    """

    texts: ListEvidence
    words: LearntWords | None = None
    turn: Turn = nullcontext


class FirstDocuments(Objective):
    """The first k documents of a list."""

    exposure: Shares = Field(description="The exposure of each group, by attribute.")


class OrderedList(NamedTuple):
    """A list in its fair order.

    Attributes:
        positions: The places of all its documents, in their new order: the first k are fair, the
            others keep their order.
        before: The first k as they were.
        after: The first k as they are now.
        target: The exposure that each group should get, by attribute; not moved by deficits.
        dimensions: What exposure is measured over; open attributes have the groups of the list.
        members: The share of each group in each document, in the order they were given, by
            attribute, or for the product of all.
        words_of: The model whose words of earlier searches count; empty if none do.
    """

    positions: list[int]
    before: FirstDocuments
    after: FirstDocuments
    target: Shares
    dimensions: list[Dimension]
    members: Memberships
    words_of: str = ""


async def fair_list(
    engine: SearchEngine,
    context: Context,
    query: str,
    documents: Sequence[Given],
    evidence: Evidence | None,
    *,
    deficit: Shares | None = None,
) -> tuple[OrderedList, Hits, Labelled]:
    """Return the fair order of documents, the list as it was given, and what is known of labels.

    Args:
        engine: The source of the documents; see :func:`labels_of`.
        context: What to aim at.
        query: What was searched for.
        documents: The documents, best first.
        evidence: Tells which documents are relevant; without it, ranks tell.
        deficit: See :func:`fair_order`.

    Raises:
        FairqrError: See these functions.
    """
    hits, labelled = await listed_hits(engine, context, documents)
    words_of = ""
    if evidence:
        hits, words_of = await _estimated(engine, context, query, documents, hits, evidence)
    order = await compute(partial(fair_order, engine.schema, context, hits, deficit))
    return order._replace(words_of=words_of), hits, labelled


async def listed_hits(
    engine: SearchEngine, context: Context, documents: Sequence[Given]
) -> tuple[Hits, Labelled]:
    """Return a list as it was given, its groups with it, and what is known of labels.

    Raises:
        FairqrError: See :func:`labels_of`.
    """
    labelled = await labels_of(engine, context, documents)
    places = range(len(documents))
    scores = [1 / (place + 1) for place in places]
    claims = None
    if context.aims_at_merit:
        claims = claims_by_text([one.text for one in documents])
    return Hits([*map(str, places)], scores, labelled.members, claims=claims), labelled


async def _estimated(
    engine: SearchEngine,
    context: Context,
    query: str,
    documents: Sequence[Given],
    hits: Hits,
    evidence: Evidence,
) -> tuple[Hits, str]:
    """Return a list with its relevance, and the model whose earlier words count, if any do."""
    texts = [one.text for one in documents]
    learnt = None
    if evidence.words is not None:
        learnt = await evidence.words.of(engine, context, query)
    others = [] if learnt is None else [it["text"] for it in learnt.queries]
    estimated, *by_words = await evidence.texts.estimated(
        [query, *others], texts, hits, evidence.turn
    )
    words_count = any(it.relevance is not None for it in by_words)
    if learnt is None or estimated.relevance is None or not words_count:
        return estimated, ""
    titles = [one.title for one in documents]
    judged = await with_words(engine, context, learnt, estimated, by_words, texts, titles)
    return judged, learnt.model


def fair_order(
    schema: Schema, context: Context, hits: Hits, deficit: Shares | None = None
) -> OrderedList:
    """Return the fair order of a list.

    Args:
        schema: The attributes of the documents.
        context: What to aim at; ``k`` is how many ranks count.
        hits: The list, best first, at least one document, with its groups.
        deficit: The amortised deficit of groups by attribute, which moves the target.

    Raises:
        InputError: An attribute does not exist.
        TargetError: The target is undefined, or needs what a list cannot tell.
    """
    aimed = aimed_at(schema, context, hits)
    dimensions = aimed.dimensions
    discount = context.discount
    aim = aimed.target if deficit is None else target_with_deficit(aimed.target, deficit)
    candidates = Candidates.of(
        aimed.table,
        aimed.listed,
        dimensions,
        [vector_of(it, aim[it.name]) for it in dimensions],
        discount,
        relevance=hits.relevance,
    )
    present = candidates.with_absent_groups_as_one()
    k = min(context.k, len(hits))
    step = context.fair_step
    fair = step.take(present, k)
    objective = step.objective(present, fair.weight, k)
    best = fair.positions.tolist()

    def shown(places: list[int]) -> FirstDocuments:
        members = zip(dimensions, candidates.memberships, strict=True)
        given = {it.name: by_group(it, exposure(own[places], discount)) for it, own in members}
        return FirstDocuments(
            **objective.quality(places).figures, weight=fair.weight, exposure=given
        )

    broken = step.broken(present, best)
    after = shown(best).model_copy(update={"broken": tuple(broken)})
    if context.certify:
        after = after.certified(certify(present, step, fair.weight, k, best))
    return OrderedList(
        positions=best + sorted({*range(len(hits))}.difference(best)),
        before=shown([*range(k)]),
        after=after,
        target=aimed.target,
        dimensions=dimensions,
        members=aimed.members,
    )


class AimedAt(NamedTuple):
    """A list, and the target that it is measured against.

    Attributes:
        listed: The list.
        dimensions: What exposure is measured over.
        table: The groups of its documents.
        target: The exposure that each group should get, by attribute.
    """

    listed: Ranking
    dimensions: list[Dimension]
    table: DocumentTable
    target: Shares

    @property
    def members(self) -> Memberships:
        """The share of each group in each document, by attribute, or for the product of all."""
        ids = self.listed.ids
        return {it.name: self.table.memberships(it, ids) for it in self.dimensions}


def aimed_at(schema: Schema, context: Context, hits: Hits) -> AimedAt:
    """Return the target of a list; see :func:`fair_order` for the arguments.

    Raises:
        InputError: An attribute does not exist.
        TargetError: The target is undefined, or needs what a list cannot tell.
    """
    table, listed = DocumentTable(), Ranking(hits.ids, hits.scores)
    table.add(hits.ids, hits.memberships)
    dimensions = [
        table.with_found_groups(dimension, listed.ids)
        for dimension in dimensions_of(schema, context.attributes, intersect=context.intersect)
    ]
    known = relevance_by_rank(len(hits)) if hits.relevance is None else hits.relevance
    merits = dict(zip(hits.ids, merits_of(known, hits.claims).tolist(), strict=True))
    target = estimate_target(table, dimensions, listed, context, {}, merits)
    return AimedAt(listed, dimensions, table, target)


class NoLabelsError(InputError):
    """No document of a list has a label of any attribute that counts."""


class Labelled(NamedTuple):
    """What is known of the labels of a list.

    Attributes:
        members: The share of each group in each document, by attribute.
        unlabelled: How many documents have no label, by attribute.
        notes: A sentence for each attribute of which some label belongs to no group.
    """

    members: Memberships
    unlabelled: dict[str, int]
    notes: list[str]


async def labels_of(engine: SearchEngine, context: Context, documents: Sequence[Given]) -> Labelled:
    """Return what is known of the labels of a list; a label that cannot be read is unknown.

    Args:
        engine: Looks up the labels that documents do not bring.
        context: Says which attributes count.
        documents: The documents.

    Raises:
        InputError: An attribute does not exist.
        NoLabelsError: No document has any label.
    """
    dimensions = dimensions_of(engine.schema, context.attributes, intersect=context.intersect)
    attributes = [it for dimension in dimensions for it in dimension.factors]
    own = [[one.label(it) for it in attributes] for one in documents]
    every = zip(documents, own, strict=True)
    missing = tuple({one.id for one, labels in every if None in labels and one.id})
    known: dict[str, dict[str, Any]] = {}
    if missing:
        (found,) = await engine.search([Query("", len(missing), only=missing)])
        for place, id_ in enumerate(found.ids):
            known[id_] = {it: rows[place] for it, rows in found.memberships.items()}

    members: dict[str, NDArray[Any]] = {}
    unlabelled: dict[str, int] = {}
    notes: list[str] = []
    for it, labels in zip(attributes, zip(*own, strict=True), strict=True):
        pairs = zip(documents, labels, strict=True)
        rows = label_rows(it, labels)
        for place, (one, label) in enumerate(pairs):
            kept = known.get(one.id, {})
            if label is None and it.name in kept:
                rows[place] = kept[it.name]
        members[it.name] = rows
        without = np.flatnonzero(~in_groups(it, rows)).tolist()
        unlabelled[it.name] = len(without)
        if unread := [labels[place] for place in without if any(weighted_values(labels[place]))]:
            notes.append(
                f"{len(unread)} of {len(documents)} documents have a {it.name} of no group, such "
                f"as {one_line(repr(unread[0]), 60)}."
            )
    if min(unlabelled.values()) == len(documents):
        named = " or ".join(members)
        raise NoLabelsError(
            f"No document has a label of {named}; send labels or fields, or ids of the source."
        )
    return Labelled(members, unlabelled, notes)


async def ids_of(engine: SearchEngine, texts: Sequence[str]) -> list[str]:
    """Return the id of the document of the source that has each text; empty if several have it."""
    found = await lexical_of(engine).search([Query(text[:WORDS], BEST) for text in texts])
    documents = await engine.documents([*{id_ for hits in found for id_ in hits.ids}])
    whole = {it.id: " ".join(f"{it.title} {it.text}".split()) for it in documents}

    def one(text: str, ids: Sequence[str]) -> str:
        words = " ".join(text.split())
        inside = [id_ for id_ in ids if words and words in whole.get(id_, "")]
        return inside[0] if len(inside) == 1 else next((i for i in inside if words == whole[i]), "")

    return [one(text, hits.ids) for text, hits in zip(texts, found, strict=True)]
