"""Counterfactual pairs: the same document in two versions, and what scores each of them.

A file says which queries to ask and which documents to score for them, as Grep-BiasIR (Krieg et
al. 2023) does: a row is a query, a document, and the version that the document is in. Nothing of
the texts is kept.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, Field, model_validator

from fairqr.agents.ranking.item_ranker import ItemRanker, RankItem
from fairqr.agents.ranking.rankers import open_ranker
from fairqr.base.errors import InputError, SourceError, one_line
from fairqr.evaluation.experiments.folder import Record
from fairqr.retrieval.documents import encodable, identifier, numbered_lines, parse_object
from fairqr.retrieval.engines.engine import Query, SearchEngine, require
from fairqr.retrieval.pools.base import PoolRetriever
from fairqr.retrieval.pools.open import POOL_RETRIEVERS, open_pool_retriever

__all__ = [
    "BY_ENGINE",
    "EngineScorer",
    "PairDocument",
    "PairQuery",
    "PairScorer",
    "PairScores",
    "Pairs",
    "open_pair_scorer",
    "read_pairs",
    "scored",
]

BY_ENGINE = "engine"
"""The name of the audited engine as what scores pairs."""

RANKERS = ("monot5", "monobert")
"""The rankers that give a score to each document."""

COLUMNS = ("query", "pair", "version", "document", "title", "text")


@dataclass(frozen=True, slots=True)
class PairDocument:
    """One version of a document.

    Attributes:
        pair: Tells which documents of a query are versions of the same.
        version: The name of the version.
        id: Of the document in the audited engine; None if the row holds a text.
        title: May be empty.
        text: May be empty.
    """

    pair: str
    version: str
    id: str | None = None
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class PairQuery:
    """A query, and the documents to score for it.

    Attributes:
        number: Its place among the queries of the file, from 1 on.
        text: The query.
        documents: Each in at least two versions.
    """

    number: int
    text: str
    documents: tuple[PairDocument, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The content of a file of pairs.

    Attributes:
        queries: In the order of the file.
        are_texts: Whether rows hold texts, rather than ids of the audited engine.
    """

    queries: tuple[PairQuery, ...]
    are_texts: bool

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the content."""
        return hashlib.sha256(repr(self.queries).encode()).hexdigest()


class PairScores(Record):
    """The scores of a query's documents; it names neither the query nor the documents.

    Attributes:
        query: The number of the query.
        status: ``ok`` or ``failed``.
        message: Why it failed.
        pairs: For each document, the number of its pair within the query.
        versions: For each document, its version.
        scores: For each document; None if the engine does not have it.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    keys = ("query",)

    query: int = Field(ge=1)
    status: Literal["ok", "failed"]
    message: str = ""
    pairs: tuple[int, ...] = ()
    versions: tuple[str, ...] = ()
    scores: tuple[float | None, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return self.status != "failed"

    @model_validator(mode="after")
    def _fits_together(self) -> PairScores:
        if not len(self.pairs) == len(self.versions) == len(self.scores):
            raise ValueError("there are not as many versions and scores as documents")
        if len(set(zip(self.pairs, self.versions, strict=True))) != len(self.pairs):
            raise ValueError("a pair has a version twice")
        return self


class PairScorer(Protocol):
    """Scores the documents of a query."""

    @property
    def name(self) -> str:
        """What scores, for the report."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelUnavailableError if something is missing."""
        ...

    async def scores(self, query: PairQuery) -> list[float | None]:
        """Return a score for each document, None for one that is not there; higher is better."""
        ...


@dataclass(frozen=True, slots=True)
class EngineScorer:
    """The audited engine, which scores its own documents.

    Attributes:
        engine: It can score given documents.
    """

    engine: SearchEngine

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.engine.name

    async def start(self) -> None:
        """Nothing has to be made ready."""

    async def scores(self, query: PairQuery) -> list[float | None]:
        """Ask for all documents of a query in one request."""
        ids = tuple(dict.fromkeys(it.id for it in query.documents if it.id is not None))
        (hits,) = await self.engine.search([Query(query.text, len(ids), only=ids)])
        found = dict(zip(hits.ids, hits.scores, strict=True))
        return [None if it.id is None else found.get(it.id) for it in query.documents]


@dataclass(frozen=True, slots=True)
class _RetrieverScorer:
    retriever: PoolRetriever

    @property
    def name(self) -> str:
        return self.retriever.name

    async def start(self) -> None:
        await self.retriever.start()

    async def scores(self, query: PairQuery) -> list[float | None]:
        texts = [_read(it).shown("title_text") for it in query.documents]
        return list((await self.retriever.scores(query.text, texts)).tolist())


@dataclass(frozen=True, slots=True)
class _RankerScorer:
    ranker: ItemRanker

    @property
    def name(self) -> str:
        return self.ranker.name

    async def start(self) -> None:
        await self.ranker.start()

    async def scores(self, query: PairQuery) -> list[float | None]:
        ranking = await self.ranker.rank(query.text, [_read(it) for it in query.documents])
        if ranking.scores is None:
            raise InputError(ranking.message or f"{self.name} gave no scores.")
        return list(ranking.scores)


def _read(document: PairDocument) -> RankItem:
    return RankItem(f"{document.pair} {document.version}", document.title, document.text)


def open_pair_scorer(name: str, pairs: Pairs, engine: SearchEngine) -> PairScorer:
    """Return what scores pairs.

    Args:
        name: ``engine`` for the audited one, a retriever over small pools, or a ranker that scores.
        pairs: What is to be scored.
        engine: The audited one.

    Raises:
        InputError: There is nothing of this name, or it cannot score what the file holds.
        UnsupportedError: The engine cannot score given documents.
        ModelUnavailableError: An encoder is missing.
    """
    if name == BY_ENGINE:
        if pairs.are_texts:
            raise InputError(
                "The pairs are texts, and an engine scores only documents that it holds; choose "
                "what reads texts with --pairs-by, such as dense or monot5."
            )
        require(engine, "rescore", "Scoring pairs")
        return EngineScorer(engine)
    if not pairs.are_texts:
        raise InputError(
            f"The pairs are ids of documents, and '{one_line(name, 80)}' reads texts; put the "
            "texts into a column 'text', or let the engine score them (--pairs-by engine)."
        )
    if name in RANKERS:
        return _RankerScorer(open_ranker(name))
    if name.partition(":")[0] in {it.partition("[")[0] for it in POOL_RETRIEVERS}:
        return _RetrieverScorer(open_pool_retriever(name))
    choices = ", ".join([BY_ENGINE, *POOL_RETRIEVERS, *RANKERS])
    raise InputError(f"Nothing scores pairs as '{one_line(name, 80)}'; choose {choices}.")


def read_pairs(path: Path) -> Pairs:
    """Read a file of pairs: JSON Lines, or CSV with the columns in its first line.

    The columns are ``query``; ``version``; ``document``, an id of the engine, or ``text`` with
    perhaps ``title``; and ``pair``, which tells which documents of a query are versions of the
    same. Without ``pair`` all documents of a query are.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A line is wrong; it is named.
        InputError: The file holds no pairs.
    """
    are_texts: bool | None = None
    found: dict[str, dict[tuple[str, str], PairDocument]] = {}
    lines: dict[tuple[str, str], int] = {}
    for number, row in _rows(path):
        try:
            query, document = _document(row)
            if are_texts is None:
                are_texts = document.id is None
            if are_texts != (document.id is None):
                raise ValueError("some lines have a document's id, and others a text")
            held = found.setdefault(query, {})
            key = (document.pair, document.version)
            if key in held:
                which = f"'{one_line(document.version, 80)}'"
                raise ValueError(
                    f"the version {which} of its pair was there before; tell the pairs of a query "
                    "apart in a column 'pair'"
                )
        except ValueError as error:
            raise _wrong(path, number, str(error)) from None
        held[key] = document
        lines.setdefault((query, document.pair), number)
    if are_texts is None:
        raise InputError(f"The pairs {path} are empty; give a row for each version of a document.")
    for (query, pair), number in lines.items():
        if sum(one == pair for one, _ in found[query]) < 2:
            raise _wrong(path, number, "its document has no second version")
    queries = tuple(
        PairQuery(number, query, tuple(held.values()))
        for number, (query, held) in enumerate(found.items(), start=1)
    )
    return Pairs(queries, are_texts)


def _document(row: Mapping[str, Any]) -> tuple[str, PairDocument]:
    """Return the query of a row, and its document."""
    query, version, text = (_text(row, name) for name in ("query", "version", "text"))
    for name, value in (("query", query), ("version", version)):
        if not value:
            raise ValueError(f"it has no {name}")
    pair = "" if row.get("pair") is None else str(row["pair"]).strip()
    id_ = row.get("document")
    if id_ in (None, ""):
        if not text:
            raise ValueError("it has neither a document nor a text")
        return query, PairDocument(pair, version, None, _text(row, "title"), text)
    if text:
        raise ValueError("it has both a document and a text; leave one out")
    return query, PairDocument(pair, version, identifier(id_))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"its {name} is not text")
    return " ".join(encodable(value, name).split())


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the columns of each line."""
    if path.name.lower().removesuffix(".gz").endswith((".json", ".jsonl", ".ndjson")):
        for number, line in numbered_lines(path):
            try:
                yield number, parse_object(line)
            except ValueError as error:
                raise _wrong(path, number, str(error)) from None
        return
    yield from _csv_rows(path, _lines(path))


def _lines(path: Path) -> Iterable[str]:
    for number, line in numbered_lines(path):
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise _wrong(path, number, "it is not UTF-8 text") from None


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    names: Sequence[str] = ()
    try:
        for cells in reader:
            if not names:
                names = [cell.strip().casefold() for cell in cells]
                if not {"query", "version"} <= set(names) or len(set(names)) != len(names):
                    what = f"it names {one_line(', '.join(names), 200)}"
                    todo = f"name each column once, of {', '.join(COLUMNS)}"
                    raise _wrong(path, reader.line_num, what, todo)
            elif len(cells) != len(names):
                what = f"it has {len(cells)} columns, and the first line {len(names)}"
                raise _wrong(path, reader.line_num, what)
            else:
                yield reader.line_num, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise _wrong(path, reader.line_num, f"it is not CSV ({one_line(error)})") from None


def _wrong(path: Path, number: int, what: str, todo: str = "fix the line") -> SourceError:
    return SourceError(f"The pairs {path}, line {number}: {what}; {todo}.")


def scored(query: PairQuery, scores: Sequence[float | None]) -> PairScores:
    """Return the record of a query's scores.

    Raises:
        ValueError: A score is no finite number.
    """
    if not all(it is None or math.isfinite(it) for it in scores):
        raise ValueError("a score is no finite number")
    numbers = {pair: n for n, pair in enumerate(dict.fromkeys(it.pair for it in query.documents))}
    return PairScores(
        query=query.number,
        status="ok",
        pairs=tuple(numbers[it.pair] for it in query.documents),
        versions=tuple(it.version for it in query.documents),
        scores=tuple(scores),
    )
