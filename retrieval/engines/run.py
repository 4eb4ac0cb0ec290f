"""Exported rankings: TREC run files, which can be measured like any other engine.

A run answers only the queries in it. Ties are in order of id, as everywhere in fairqr; trec_eval
puts them in descending order.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fairqr.base.errors import QueryError, SourceError, UnsupportedError, one_line
from fairqr.base.files import sha256_of
from fairqr.retrieval.engines.engine import EngineInfo, Hits, Query, require_groups
from fairqr.retrieval.engines.report import AttributeReport, SourceReport, report_on
from fairqr.retrieval.engines.search_only import LimitedEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.documents import (
    Document,
    in_known_forms,
    known_form,
    read_documents,
)
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.query_files import read_queries
from fairqr.retrieval.sources.runs import read_run
from fairqr.retrieval.sources.source import RunSource


class RunEngine(LimitedEngine):
    """The rankings of one or several run files.

    The constructor reads all that a search needs, which blocks: use :func:`open_run`.
    """

    in_process = True

    def __init__(self, source: RunSource, labels: LabelReader) -> None:
        self.source = source
        tags, self.rankings = _read_runs(source)
        topics = read_queries(source.path(source.topics)) if source.topics else {}
        self.texts = in_known_forms(topics, self.rankings)
        self._ids_of_text: dict[str, list[str]] = {}
        for id_, text in self.texts.items():
            self._ids_of_text.setdefault(_plain(text), []).append(id_)
        self._ids: set[str] = set()
        for ranking in self.rankings.values():
            self._ids.update(ranking.ids)

        info = EngineInfo(
            name=source.name,
            engine="run",
            documents=len(self._ids),
            location=", ".join(str(source.path(written)) for written in source.runs),
            source=str(source.folder),
            fingerprint=_fingerprint(source),
        )
        super().__init__(info, labels, f"run:{'+'.join(tags)}")
        self._documents = self._read_documents()

    def _read_documents(self) -> dict[str, Document]:
        """Read the ranked documents from their file, if there is one.

        Raises:
            SourceError: A ranked document is twice in the file.
        """
        if not self.source.documents:
            return {}
        documents: dict[str, Document] = {}
        for document in read_documents(self.source.path(self.source.documents)):
            id_ = document.id
            if id_ in documents:
                problem = f"{self.source.documents} has the document '{one_line(id_)}' twice"
                raise SourceError(f"The documents of the runs, {problem}; keep one.")
            form = known_form(id_, self._ids)
            if id_ in self._ids:
                documents[id_] = document
            elif form != id_:
                documents.setdefault(form, replace(document, id=form))
        return documents

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Return the rankings of these queries, given by id or by text."""
        require_groups(self, queries)
        return await asyncio.to_thread(lambda: [self._answer(query) for query in queries])

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return these documents, in this order; empty ones if there is no file of documents."""
        return self._documents_of([id_ for id_ in ids if id_ in self._ids])

    def _answer(self, query: Query) -> Hits:
        if query.only is not None and not query.text:
            # Also documents that no run has, but a file of labels.
            known_ids = self.labels.in_files(query.only).union(self._ids)
            ids = [id_ for id_ in dict.fromkeys(query.only) if id_ in known_ids]
            ranking = Ranking.of(dict.fromkeys(ids, 0.0))
        elif query.only is not None or query.every_word:
            raise UnsupportedError(
                f"'{self.name}' is a run, which only answers its own queries; set max_iterations "
                "to 0, or choose a method that does not refine the query."
            )
        else:
            ranking = self.rankings[self._topic_of(query.text)]
        top = ranking.top(query.n)
        labels = self.labels.in_fields(self._documents_of(top.ids))
        return Hits(list(top.ids), list(top.scores), self.labels.memberships(top.ids, labels))

    def _topic_of(self, text: str) -> str:
        """Return the id of the query with this id or text.

        Raises:
            QueryError: No query has it, or several have this text.
        """
        if text.strip() in self.rankings:
            return text.strip()
        topics = [id_ for id_ in self._ids_of_text.get(_plain(text), ()) if id_ in self.rankings]
        if len(topics) == 1:
            return topics[0]
        if topics:
            raise QueryError(
                f"The queries {', '.join(topics[:5])} of '{self.name}' have the same text "
                f"'{one_line(text, 100)}'; ask for one of them by its id."
            )
        examples = ", ".join(list(self.rankings)[:3])
        way = "by id or by text" if self.texts else "by id (name 'topics' to ask by text)"
        raise QueryError(
            f"No run of '{self.name}' has the query '{one_line(text, 100)}'; ask {way} for one "
            f"that it has, such as {examples}."
        )

    def _documents_of(self, ids: Sequence[str]) -> list[Document]:
        """Return a document for each id; an empty one if no file has it."""
        return [self._documents.get(id_) or Document(id_, "", "") for id_ in ids]

    def labels_of_all(self) -> list[AttributeReport]:
        """Return what the check says of the labels of all documents."""
        ids = sorted(self._ids)
        labels = self.labels.in_fields(self._documents_of(ids))
        return self.labels.reports(labels, ids)

    def remarks(self) -> Iterator[str]:
        """Yield what users should know of the files."""
        yield f"Queries that have a ranking: {len(self.rankings):,}."
        if not self.source.documents:
            yield (
                "The documents have neither titles nor texts; name a file of them in 'documents'."
            )
            return
        missing = len(self._ids) - len(self._documents)
        if missing:
            path = self.source.path(self.source.documents)
            yield f"Documents that are not in {path}: {missing:,}."


async def open_run(source: RunSource, labels: LabelReader) -> RunEngine:
    """Read run files.

    Raises:
        CorpusError: A file cannot be read, or a line of a run or of the documents is wrong.
        SourceError: Two runs have the same query, a ranked document is twice in their file, or a
            line of another file is wrong.
    """
    return await asyncio.to_thread(RunEngine, source, labels)


async def check(engine: RunEngine) -> SourceReport:
    """Report what the files contain."""
    sample = next(iter(engine.rankings))
    (hits,) = await engine.search([Query(sample, 5)])
    attributes = await asyncio.to_thread(engine.labels_of_all)
    return await report_on(engine, attributes, sample, hits, [*engine.remarks()])


def _read_runs(source: RunSource) -> tuple[list[str], dict[str, Ranking]]:
    """Return the tags of the runs, and the ranking of each query."""
    rankings: dict[str, Ranking] = {}
    tags: dict[str, None] = {}
    for file in source.runs:
        run = read_run(source.path(file), ties="id")
        tags[run.name] = None
        for query, rankings_of_query in run.rankings.items():
            if query in rankings or len(rankings_of_query) > 1:
                raise SourceError(
                    f"The run {file} ranks documents again for the query "
                    f"'{one_line(query, 100)}'; make one source of each ranking."
                )
            rankings[query] = rankings_of_query[0]
    return list(tags), rankings


def _fingerprint(source: RunSource) -> str:
    """Return a hash that changes with the description, or with what any file contains."""
    labels = [attribute.labels for attribute in source.attributes.values()]
    files = filter(None, [*source.runs, source.topics, source.documents, *labels])
    # Whoever reads a missing file reports it.
    hashes = [sha256_of(path) for path in map(source.path, files) if path.is_file()]
    return hashlib.sha256(f"{source.fingerprint} {hashes}".encode()).hexdigest()


def _plain(text: str) -> str:
    """Return a query without case, and with single spaces."""
    return " ".join(text.casefold().split())
