"""Exported rankings: TREC run files, which can be measured like any other engine.

A run answers only the queries in it. Ties are in order of id, as everywhere in fairqr; trec_eval
puts them in descending order.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from fairqr.base.errors import QueryError, SourceError, UnsupportedError, one_line
from fairqr.retrieval.engines.engine import (
    Capability,
    EngineInfo,
    Hits,
    Memberships,
    Query,
    best_first,
    require,
    require_groups,
)
from fairqr.retrieval.engines.report import AttributeReport, SourceReport, report_on
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.documents import Document, DocumentLines
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.query_files import read_queries
from fairqr.retrieval.sources.runs import read_run
from fairqr.retrieval.sources.source import RunSource


class RunEngine:
    """The rankings of one or several run files; see :class:`SearchEngine`.

    The constructor reads all that a search needs, which blocks: use :func:`open_run`.
    """

    in_process = True
    capabilities: frozenset[Capability] = frozenset()
    filterable: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, source: RunSource, labels: LabelReader) -> None:
        self.source, self._labels = source, labels
        self.name, self.schema = source.name, labels.schema
        self._location = ", ".join(str(source.path(written)) for written in source.runs)
        self._fingerprint = _fingerprint(source)
        tags, self.rankings, self.tied = _read_runs(source)
        self.retriever = f"run:{'+'.join(tags)}"
        self.texts = read_queries(source.path(source.topics)) if source.topics else {}
        self._ids_of_text: dict[str, list[str]] = {}
        for id_, text in self.texts.items():
            self._ids_of_text.setdefault(_plain(text), []).append(id_)
        self._ids = {id_ for ranking in self.rankings.values() for id_ in ranking.ids}
        # For each attribute that reads a field, the label of each document.
        self._field_labels: dict[str, dict[str, object]] = {
            attribute.name: {} for attribute in labels.field_attributes
        }
        self.lines: DocumentLines | None = None
        if source.documents:
            path = source.path(source.documents)
            self.lines = DocumentLines(path, self._ids, self._take_labels)
        self._check_labels()

    async def info(self) -> EngineInfo:
        """Return what we know of the files."""
        return EngineInfo(
            name=self.name,
            engine="run",
            documents=len(self._ids),
            location=self._location,
            source=str(self.source.folder),
            fingerprint=self._fingerprint,
        )

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Return the rankings of these queries, given by id or by text."""
        require_groups(self, queries)
        return await asyncio.to_thread(lambda: [self._answer(query) for query in queries])

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; empty ones if there is no file of documents."""
        return await asyncio.to_thread(self.read, ids)

    async def corpus_shares(self) -> Mapping[str, FloatArray]:
        """Raise an error, because a run does not have all documents."""
        require(self, "corpus_shares", "The share of each group in all documents")
        return {}

    async def aclose(self) -> None:
        """Do nothing: no file stays open."""

    def _take_labels(self, document: Document) -> None:
        for attribute in self._labels.field_attributes:
            if (label := document.label(attribute)) is not None:
                self._field_labels[attribute.name][document.id] = label

    def _check_labels(self) -> None:
        for attribute in self._labels.field_attributes:
            if self.lines is None:
                raise SourceError(
                    f"The source '{self.name}' reads '{attribute.name}' from the field "
                    f"'{attribute.field}', but a run has no fields; name the file of its documents "
                    "in 'documents', or a file of ids and groups in 'labels'."
                )
            if not self._field_labels[attribute.name]:
                raise SourceError(
                    f"No document of the run in {self.lines.path} has the field "
                    f"'{attribute.field}' of '{attribute.name}'; correct the name of the field, or "
                    "the ids of the documents."
                )

    def _labels_of(self, ids: Sequence[str]) -> dict[str, list[object]]:
        return {name: [of.get(id_) for id_ in ids] for name, of in self._field_labels.items()}

    def memberships_of(self, ids: Sequence[str]) -> Memberships:
        """Return the groups of these documents; this blocks."""
        return self._labels.memberships(ids, self._labels_of(ids))

    def _answer(self, query: Query) -> Hits:
        if query.only is not None and not query.text:
            # Also documents that no run has, but a file of labels.
            named = self._labels.in_files(query.only).union(self._ids)
            ids = [id_ for id_ in dict.fromkeys(query.only) if id_ in named]
            return best_first(ids, [0.0] * len(ids), self.memberships_of(ids), query.n)
        if query.only is not None or query.every_word or query.boost:
            raise UnsupportedError(
                f"'{self.name}' is a run, which only answers its own queries; set max_iterations "
                "to 0, or choose a method that does not refine the query."
            )
        top = self.rankings[self.topic_of(query.text)].top(query.n)
        return Hits(list(top.ids), list(top.scores), self.memberships_of(top.ids))

    def topic_of(self, text: str) -> str:
        """Return the id of the query with this id or text.

        Raises:
            QueryError: The run has no such query, or two of its queries have this text.
        """
        found = [text.strip()]
        if found[0] not in self.rankings:
            found = [i for i in self._ids_of_text.get(_plain(text), ()) if i in self.rankings]
        if len(found) > 1:
            raise QueryError(
                f"The queries {', '.join(found[:5])} of '{self.name}' have the same text "
                f"'{one_line(text, 100)}'; ask for one of them by its id."
            )
        if not found:
            some = ", ".join(list(self.rankings)[:3])
            how = "by id or by text" if self.texts else "by id (name 'topics' to ask by text)"
            raise QueryError(
                f"No run of '{self.name}' has the query '{one_line(text, 100)}'; ask {how} for one "
                f"that it has, such as {some}."
            )
        return found[0]

    def read(self, ids: Sequence[str]) -> list[Document]:
        """Do the same as :meth:`documents`; this blocks."""
        known = [id_ for id_ in ids if id_ in self._ids]
        found = {d.id: d for d in self.lines.read(known)} if self.lines else {}
        return [found.get(id_) or Document(id_, "", "") for id_ in known]

    def labels_of_all(self) -> list[AttributeReport]:
        """Return what the check says of the labels of all documents."""
        ids = sorted(self._ids)
        return self._labels.reports(self._labels_of(ids), ids)

    def remarks(self) -> Iterator[str]:
        """Yield what users should know of the files."""
        yield f"Queries that have a ranking: {len(self.rankings):,}."
        if self.tied:
            yield (
                f"Documents with the same score as the one before them: {self.tied:,}; they are "
                "in order of id."
            )
        if self.lines is None:
            yield (
                "The documents have neither titles nor texts; name a file of them in 'documents'."
            )
        elif missing := len(self._ids) - len(self.lines):
            yield f"Documents that are not in {self.lines.path}: {missing:,}."
        if self.texts and (unnamed := sum(id_ not in self.texts for id_ in self.rankings)):
            yield f"Queries that have no text in {self.source.topics}: {unnamed:,}."


async def open_run(source: RunSource, labels: LabelReader) -> RunEngine:
    """Read run files.

    Raises:
        CorpusError: A file cannot be read, or a line of a run is wrong.
        SourceError: Two runs have the same query, a line of another file is wrong, or no document
            has the field of an attribute.
    """
    return await asyncio.to_thread(RunEngine, source, labels)


async def check(engine: RunEngine) -> SourceReport:
    """Report what the files contain."""
    sample = next(iter(engine.rankings))
    (hits,) = await engine.search([Query(sample, 5)])
    attributes = await asyncio.to_thread(engine.labels_of_all)
    return await report_on(engine, attributes, sample, hits, [*engine.remarks()])


def _read_runs(source: RunSource) -> tuple[list[str], dict[str, Ranking], int]:
    """Return the tags of the runs, the ranking of each query, and the number of tied documents."""
    rankings: dict[str, Ranking] = {}
    first_file: dict[str, str] = {}
    tags: dict[str, None] = {}
    tied = 0
    for written in source.runs:
        run = read_run(source.path(written), ties="id")
        tags[run.name] = None
        tied += run.tied
        for query, sampled in run.rankings.items():
            if query in rankings:
                raise SourceError(
                    f"The runs {first_file[query]} and {written} both rank documents for the query "
                    f"'{one_line(query, 100)}'; make one source of each."
                )
            if len(sampled) > 1:
                raise SourceError(
                    f"The run {written} has {len(sampled)} rankings for the query "
                    f"'{one_line(query, 100)}'; name a run with one ranking for each query."
                )
            rankings[query], first_file[query] = sampled[0], written
    return list(tags), rankings, tied


def _fingerprint(source: RunSource) -> str:
    """Return a hash that changes with the description, or with any file's size or time."""
    labels = [attribute.labels for attribute in source.attributes.values()]
    written = [*source.runs, source.topics, source.documents, *labels]
    states = []
    for path in (source.path(name) for name in written if name):
        # Whoever reads the missing file reports it.
        if path.is_file():
            states.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
    return hashlib.sha256(f"{source.fingerprint} {states}".encode()).hexdigest()


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
