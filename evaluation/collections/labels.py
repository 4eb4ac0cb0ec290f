"""The groups of documents, without their texts.

There are two ways to get them: read a corpus once, or ask a search engine. Both hold only the
documents asked for in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection as Ids
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import TargetError
from fairqr.evaluation.collections.collection import watched
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import ProgressFunction, chunks, known_form, other_form
from fairqr.retrieval.sources.schema import UNKNOWN, Schema

UnknownPolicy = Literal["group", "exclude"]
AT_ONCE = 10_000
"""How many documents we request from an engine."""


def with_unknown(memberships: ArrayLike) -> FloatArray:
    """Append what each row lacks to 1 as the membership in the group of the unknown.

    Args:
        memberships: In the known groups, shape (n, G); a row sums to at most 1.

    Returns:
        Shape (n, G+1); rows sum to 1.
    """
    known = np.asarray(memberships, dtype=np.float64)
    unknown = np.clip(1 - known.sum(axis=-1, keepdims=True), 0, 1)
    return np.concatenate([known, unknown], axis=-1)


def schema_with_unknown(schema: Schema, unknown: UnknownPolicy) -> Schema:
    """Return the schema with the same policy on the unknown for all attributes."""
    data = schema.model_dump()
    for attribute in data["attributes"].values():
        attribute["unknown"] = unknown
        population = attribute["population"]
        if unknown == "exclude" and population and population.pop(UNKNOWN, 0):
            # Its share has no place among the known groups.
            total = sum(population.values())
            shares = {group: share / total for group, share in population.items() if total}
            attribute["population"] = shares or None
    return Schema.model_validate(data)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of some documents, and their shares of all documents.

    Attributes:
        schema: The attributes and their groups.
        rows: The row of each document in the arrays.
        arrays: For each attribute, shape (n, G+1): the known groups and, last, the unknown mass.
        shares: For each attribute, the mean membership over all documents, shape (G+1,), the
            unknown last; sums to 1.
        documents: How many there are in all, if they were counted.
    """

    schema: Schema
    rows: Mapping[str, int]
    arrays: Mapping[str, FloatArray]
    shares: Mapping[str, FloatArray]
    documents: int = 0

    def known(self, ids: Iterable[str]) -> list[str]:
        """Return the documents that are known here."""
        return [id_ for id_ in ids if known_form(id_, self.rows) in self.rows]

    def memberships(
        self, attribute: str, ids: Sequence[str], unknown: UnknownPolicy | None = None
    ) -> FloatArray:
        """Return the memberships of documents in the groups of an attribute.

        Args:
            attribute: Its name.
            ids: Documents.
            unknown: ``group`` has the unknown mass as the last column, ``exclude`` leaves it out.
                Defaults to the schema's policy.

        Returns:
            Shape (len(ids), G) or (len(ids), G+1). All zeros for a document that is not known here.

        Raises:
            UnknownAttributeError: The schema has no such attribute.
        """
        of_schema = self.schema.attribute(attribute)
        array = self.arrays[of_schema.name]
        policy = unknown or of_schema.unknown
        if policy == "exclude":
            array = array[:, :-1]
        if not len(array):
            return np.zeros((len(ids), array.shape[1]))
        row_of = self.rows.get
        positions = (row_of(known_form(id_, self.rows), -1) for id_ in ids)
        rows = np.fromiter(positions, np.int64, len(ids))
        is_known = rows >= 0
        return np.where(is_known[:, None], array[rows], 0.0)

    def in_dimension(self, dimension: Dimension, ids: Sequence[str]) -> FloatArray:
        """Return the memberships in a dimension, by its attributes' own policies, (len(ids), G)."""
        of_factors = [
            self.memberships(factor.name, ids, factor.unknown) for factor in dimension.factors
        ]
        return intersection(of_factors)

    def dimension(self, name: str, unknown: UnknownPolicy | None = None) -> Dimension:
        """Return a dimension.

        Args:
            name: An attribute, or several as ``gender×continent``.
            unknown: ``exclude`` or ``group``, in place of the schema's policy for unknown labels.

        Raises:
            UnknownAttributeError: The schema lacks an attribute.
        """
        schema = schema_with_unknown(self.schema, unknown) if unknown else self.schema
        return Dimension.named(schema, name)

    def corpus_shares(self, dimension: Dimension) -> FloatArray:
        """Return the mean membership over all documents, shape (G,).

        Raises:
            TargetError: They are not known: those of a product of attributes are not counted, and
                some engines cannot count their documents by group.
        """
        if dimension.name not in self.shares:
            raise TargetError(
                f"The target part 'corpus' is not known for {dimension.name}; choose another part."
            )
        return self.shares[dimension.name][: len(dimension.groups)]


def scan_corpus(
    corpus: Corpus,
    ids: Ids[str],
    *,
    progress: ProgressFunction | None = None,
) -> Groups:
    """Read a corpus once, document by document, and keep the labels of the documents asked for.

    Args:
        corpus: Its memory use does not grow with its size, only with the number of ``ids``.
        ids: Documents; those that the corpus lacks are left out.
        progress: Called now and then with the number of documents read.

    Raises:
        CorpusError: The file cannot be read, or a line is not a document.
    """
    wanted = frozenset(ids)
    attributes = list(schema_with_unknown(corpus.schema, "group").attributes.values())
    rows: dict[str, int] = {}
    memberships: list[list[tuple[float, ...]]] = []
    totals = [np.zeros(len(attribute.universe)) for attribute in attributes]
    count = 0
    for document in watched(corpus.documents(), progress):
        count += 1
        members = [document.membership(attribute) for attribute in attributes]
        for total, membership in zip(totals, members, strict=True):
            total += membership
        if known_form(document.id, wanted) in wanted and document.id not in rows:
            rows[document.id] = len(rows)
            memberships.append(members)
    arrays = {}
    shares = {}
    for column, attribute in enumerate(attributes):
        total = totals[column]
        array = np.array([members[column] for members in memberships], dtype=np.float64)
        arrays[attribute.name] = array.reshape(-1, len(total))
        shares[attribute.name] = total / max(1, count)
    return Groups(corpus.schema, rows, arrays, shares, count)


async def scan_engine(engine: SearchEngine, ids: Ids[str]) -> Groups:
    """Return what an engine knows of the groups of these documents, and of all its documents.

    It is to an engine what :func:`scan_corpus` is to a file: documents that the engine lacks are
    left out. Where it cannot count the documents of each group, the shares are left out.

    Raises:
        IndexUnavailableError: The engine cannot be reached.
        UnsupportedError: It cannot look documents up.
    """
    answers = []
    whole = [id_.removesuffix(".0") for id_ in ids if id_.endswith(".0") and other_form(id_)]
    for chunk in chunks(dict.fromkeys([*ids, *whole]), AT_ONCE):
        answers += await engine.search([Query("", len(chunk), only=tuple(chunk))])
    arrays = {}
    for name, attribute in engine.schema.attributes.items():
        parts = [hits.memberships[name] for hits in answers if name in hits.memberships]
        array = np.concatenate([np.zeros((0, len(attribute.universe))), *parts])
        arrays[name] = array if attribute.unknown == "group" else with_unknown(array)
    shares = {}
    if "corpus_shares" in engine.capabilities:
        for name, share in (await engine.corpus_shares()).items():
            groups = engine.schema.attribute(name).groups
            shares[name] = with_unknown(share[: len(groups)])
    found = itertools.chain.from_iterable(hits.ids for hits in answers)
    rows = {id_: row for row, id_ in enumerate(found)}
    return Groups(engine.schema, rows, arrays, shares)
