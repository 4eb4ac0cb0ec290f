"""The fair order of a list that somebody else retrieved: what both integrations show.

It is the fair step of a search whose only round is that list, so it equals what
:class:`fairqr.FairReranker` makes of it. Groups are known by labels that the documents bring, else
by the source's. No model is asked; words that one gave for the query before count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

SEARCHED_CHARACTERS = 300
"""How much of a given text we search for, to find its document."""
SEARCHED_RESULTS = 3
"""In how many of the best results we look for the document."""


class Given(NamedTuple):
    """A document that somebody else retrieved.

    Attributes:
        place: Its position in what was sent, for error messages.
        id: Its id in the source, to look up labels that it does not bring; empty without an id,
            and if it brings all labels.
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
    """Says which documents of a list are relevant.

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
        evidence: Says which documents are relevant; without it, ranks do.
        deficit: See :func:`fair_order`.

    Raises:
        FairqrError: See these functions.
    """
    hits, labelled = await listed_hits(engine, context, documents)
    words_of = ""
    if evidence:
        hits, words_of = await _estimate(engine, context, query, documents, hits, evidence)
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
    ids = [str(position) for position in range(len(documents))]
    scores = [1 / (position + 1) for position in range(len(documents))]
    claims = None
    if context.aims_at_merit:
        claims = claims_by_text([document.text for document in documents])
    return Hits(ids, scores, labelled.members, claims=claims), labelled


async def _estimate(
    engine: SearchEngine,
    context: Context,
    query: str,
    documents: Sequence[Given],
    hits: Hits,
    evidence: Evidence,
) -> tuple[Hits, str]:
    """Return a list with its relevance, and the model whose earlier words count, if any do."""
    queries = [query]
    learnt = None
    if evidence.words is not None:
        learnt = await evidence.words.of(engine, context, query)
    if learnt is not None:
        queries += [record["text"] for record in learnt.queries]

    texts = [document.text for document in documents]
    by_query, *by_words = await evidence.texts.estimated(queries, texts, hits, evidence.turn)
    words_count = any(answer.relevance is not None for answer in by_words)
    if learnt is None or by_query.relevance is None or not words_count:
        return by_query, ""
    titles = [document.title for document in documents]
    by_all = await with_words(engine, context, learnt, by_query, by_words, texts, titles)
    return by_all, learnt.model


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
        TargetError: The target is undefined, or needs more than a list.
    """
    aimed = aimed_at(schema, context, hits)
    candidates = _candidates_of(context, aimed, hits, deficit)
    # The best order is the same if the many groups that no document has count as one.
    present = candidates.with_absent_groups_as_one()
    k = min(context.k, len(hits))
    step = context.fair_step
    fair = step.take(present, k)
    best = fair.positions.tolist()
    remaining = sorted(set(range(len(hits))).difference(best))
    objective = step.objective(present, fair.weight, k)

    def report(positions: list[int]) -> FirstDocuments:
        exposures: Shares = {}
        for dimension, members in zip(aimed.dimensions, candidates.memberships, strict=True):
            received = exposure(members[positions], context.discount)
            exposures[dimension.name] = by_group(dimension, received)
        figures = objective.quality(positions).figures
        return FirstDocuments(**figures, weight=fair.weight, exposure=exposures)

    broken = tuple(step.broken(present, best))
    after = report(best).model_copy(update={"broken": broken})
    if context.certify:
        after = after.certified(certify(present, step, fair.weight, k, best))
    return OrderedList(
        positions=best + remaining,
        before=report(list(range(k))),
        after=after,
        target=aimed.target,
        dimensions=aimed.dimensions,
        members=aimed.members,
    )


def _candidates_of(
    context: Context, aimed: AimedAt, hits: Hits, deficit: Shares | None
) -> Candidates:
    """Return the documents of a list as candidates for the fair step, with its target."""
    target = aimed.target
    if deficit is not None:
        target = target_with_deficit(target, deficit)
    vectors = [vector_of(dimension, target[dimension.name]) for dimension in aimed.dimensions]
    return Candidates.of(
        aimed.table,
        aimed.listed,
        aimed.dimensions,
        vectors,
        context.discount,
        relevance=hits.relevance,
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
        members: dict[str, NDArray[Any]] = {}
        for dimension in self.dimensions:
            members[dimension.name] = self.table.memberships(dimension, self.listed.ids)
        return members


def aimed_at(schema: Schema, context: Context, hits: Hits) -> AimedAt:
    """Return the target of a list; see :func:`fair_order` for the arguments.

    Raises:
        InputError: An attribute does not exist.
        TargetError: The target is undefined, or needs more than a list.
    """
    listed = Ranking(hits.ids, hits.scores)
    table = DocumentTable()
    table.add(hits.ids, hits.memberships)
    dimensions = []
    for dimension in dimensions_of(schema, context.attributes, intersect=context.intersect):
        dimensions.append(table.with_found_groups(dimension, listed.ids))

    relevance = hits.relevance
    if relevance is None:
        relevance = relevance_by_rank(len(hits))
    merits = merits_of(relevance, hits.claims)
    merit_by_id = dict(zip(hits.ids, merits.tolist(), strict=True))
    target = estimate_target(table, dimensions, listed, context, {}, merit_by_id)
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
    attributes: list[Attribute] = []
    for dimension in dimensions_of(engine.schema, context.attributes, intersect=context.intersect):
        attributes += dimension.factors
    brought = [_labels_brought(document, attributes) for document in documents]
    stored = await _stored_rows(engine, documents, brought)

    members: dict[str, NDArray[Any]] = {}
    unlabelled: dict[str, int] = {}
    notes: list[str] = []
    for attribute, labels in zip(attributes, zip(*brought, strict=True), strict=True):
        rows = label_rows(attribute, labels)
        for position, (document, label) in enumerate(zip(documents, labels, strict=True)):
            stored_rows = stored.get(document.id, {})
            if label is None and attribute.name in stored_rows:
                rows[position] = stored_rows[attribute.name]
        members[attribute.name] = rows
        in_no_group = np.flatnonzero(~in_groups(attribute, rows)).tolist()
        unlabelled[attribute.name] = len(in_no_group)
        notes += _notes_on_labels(attribute.name, labels, in_no_group)

    if min(unlabelled.values()) == len(documents):
        names = " or ".join(members)
        raise NoLabelsError(
            f"No document has a label of {names}; send labels or fields, or ids of the source."
        )
    return Labelled(members, unlabelled, notes)


def _labels_brought(document: Given, attributes: Sequence[Attribute]) -> list[object]:
    """Return the label that a document brings for each attribute, or None."""
    return [document.label(attribute) for attribute in attributes]


async def _stored_rows(
    engine: SearchEngine, documents: Sequence[Given], brought: Sequence[Sequence[object]]
) -> dict[str, dict[str, Any]]:
    """Look up documents that do not bring all labels.

    Args:
        engine: Has the documents.
        documents: The documents.
        brought: The labels that each of them brings.

    Returns:
        The row of each attribute in memberships, by the id of the document and the attribute.
    """
    incomplete: dict[str, None] = {}
    for document, labels in zip(documents, brought, strict=True):
        if document.id and None in labels:
            incomplete[document.id] = None
    if not incomplete:
        return {}

    (hits,) = await engine.search([Query("", len(incomplete), only=tuple(incomplete))])
    stored: dict[str, dict[str, Any]] = {}
    for position, id_ in enumerate(hits.ids):
        stored[id_] = {name: rows[position] for name, rows in hits.memberships.items()}
    return stored


def _notes_on_labels(
    attribute: str, labels: Sequence[object], in_no_group: Sequence[int]
) -> list[str]:
    """Return a sentence if some documents bring labels of an attribute that belong to no group.

    Args:
        attribute: The name of the attribute.
        labels: The label of each document.
        in_no_group: The positions of the documents without a group.
    """
    unread = []
    for position in in_no_group:
        has_value = any(weighted_values(labels[position]))
        if has_value:
            unread.append(labels[position])
    if not unread:
        return []
    example = one_line(repr(unread[0]), 60)
    return [
        f"{len(unread)} of {len(labels)} documents have a {attribute} of no group, such as "
        f"{example}."
    ]


async def ids_of(engine: SearchEngine, texts: Sequence[str]) -> list[str]:
    """Return the id of the document of the source that has each text; empty if several have it."""
    queries = [Query(text[:SEARCHED_CHARACTERS], SEARCHED_RESULTS) for text in texts]
    answers = await lexical_of(engine).search(queries)
    distinct: set[str] = set()
    for hits in answers:
        distinct.update(hits.ids)
    content = {}
    for document in await engine.documents(list(distinct)):
        content[document.id] = _spaced(f"{document.title} {document.text}")
    return [
        _id_with_text(_spaced(text), hits.ids, content)
        for text, hits in zip(texts, answers, strict=True)
    ]


def _spaced(text: str) -> str:
    """Return a text with single spaces between its words."""
    return " ".join(text.split())


def _id_with_text(text: str, ids: Sequence[str], content: Mapping[str, str]) -> str:
    """Return the id of the only document with a text, or which is just this text; or nothing."""
    if not text:
        return ""
    containing = [id_ for id_ in ids if text in content.get(id_, "")]
    if len(containing) == 1:
        return containing[0]
    return next((id_ for id_ in containing if content[id_] == text), "")
