"""Reads the hits from the JSON that an endpoint returns, by JMESPath expressions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.sources.documents import Document, identifier
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import HttpSource
from fairqr.retrieval.texts.sendable import sendable

if TYPE_CHECKING:
    from jmespath.parser import ParsedResult


class ReadHits(NamedTuple):
    """The hits of one response, in its order; labels and links are fields of the documents."""

    documents: list[Document]
    scores: list[float]


class _Expression(NamedTuple):
    """A compiled expression, and its text in the source."""

    written: str
    compiled: ParsedResult


class AnswerReader:
    """The compiled expressions of a source.

    Raises:
        SourceError: An expression is not valid JMESPath, or jmespath is not installed.
    """

    def __init__(self, source: HttpSource, attributes: Sequence[Attribute]) -> None:
        self._source = source
        self._hits = self._compiled("hits", source.hits)
        self._id = self._compiled("id", source.id)
        self._score = self._compiled("score", source.score) if source.score else None
        self._title = self._compiled("title", source.title) if source.title else None
        self._text = self._compiled("text", source.text) if source.text else None
        self._fields = {a.field: self._compiled(a.name, a.field) for a in attributes}
        if source.link:
            self._fields[source.link] = self._compiled("link", source.link)

    def read(self, answer: bytes) -> ReadHits:
        """Return the hits in a response.

        Raises:
            SourceError: It is not JSON, or an expression finds nothing in it.
        """
        data = self._json(answer)
        hits = self._found(self._hits, data, "the answer")
        if not isinstance(hits, list):
            among = f", which has {_keys(data)}" if hits is None else ""
            raise self._error(
                f"'{self._hits.written}' finds {_kind(hits)} in the answer{among}, but must find a "
                "list of hits"
            )
        documents: dict[str, Document] = {}
        scores: list[float] = []
        for rank, hit in enumerate(hits, 1):
            where = f"hit {rank}"
            fields = {field: self._found(it, hit, where) for field, it in self._fields.items()}
            document = Document(
                self._identifier(hit, where),
                self._text_of(self._title, hit, where),
                self._text_of(self._text, hit, where),
                fields,
            )
            if documents.setdefault(document.id, document) is not document:
                raise self._error(
                    f"'{self._id.written}' gives two hits the id '{one_line(document.id, 80)}'"
                )
            scores.append(self._score_of(self._score, hit, where) if self._score else 1 / rank)
        return ReadHits(list(documents.values()), scores)

    def _json(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            is_page = answer.lstrip()[:1] == b"<"
            what = "a page of HTML or XML" if is_page else f"no valid JSON ({one_line(error, 100)})"
            raise SourceError(
                f"The endpoint of the source '{self._source.name}' answered {what}; correct 'url' "
                "and 'body', or ask its operator."
            ) from None

    def _identifier(self, hit: Any, where: str) -> str:
        found = self._found(self._id, hit, where)
        try:
            return identifier(found)
        except ValueError as error:
            among = f", which has {_keys(hit)}"
            raise self._error(f"'{self._id.written}' fails on {where}{among}: {error}") from None

    def _score_of(self, expression: _Expression, hit: Any, where: str) -> float:
        score = self._found(expression, hit, where)
        if isinstance(score, bool) or not isinstance(score, int | float) or not _is_finite(score):
            raise self._error(
                f"'{expression.written}' finds {_kind(score)} in {where}, but must find a number"
            )
        return float(score)

    def _text_of(self, expression: _Expression | None, hit: Any, where: str) -> str:
        """Return a text; an endpoint may omit it, or return a list of paragraphs."""
        if expression is None:
            return ""
        found = self._found(expression, hit, where)
        texts = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(text, str | int | float) for text in texts):
            raise self._error(
                f"'{expression.written}' finds {_kind(found)} in {where}, but must find a text"
            )
        return sendable("\n".join(map(str, texts)))

    def _found(self, expression: _Expression, data: Any, where: str) -> Any:
        from jmespath.exceptions import JMESPathError

        try:
            return expression.compiled.search(data)
        except (JMESPathError, ArithmeticError, ValueError) as error:
            problem = f"'{expression.written}' fails on {where} ({one_line(error, 150)})"
            raise self._error(problem) from None

    def _compiled(self, name: str, expression: str) -> _Expression:
        try:
            import jmespath
            from jmespath.exceptions import JMESPathError
        except ImportError:
            raise SourceError(
                f"The source '{self._source.name}' needs jmespath; run pip install 'fairqr[http]'."
            ) from None
        try:
            return _Expression(f"{name}: {expression}", jmespath.compile(expression))
        except JMESPathError as error:
            reason = one_line(str(error).partition("\n")[0], 150).rstrip(":. ")
            raise self._error(f"'{name}: {expression}' is not JMESPath ({reason})") from None

    def _error(self, problem: str) -> SourceError:
        return SourceError(f"In the source '{self._source.name}', {problem}; correct it.")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # No float can represent this whole number.
        return False


def _kind(value: Any) -> str:
    """Return what kind of JSON value this is, for messages."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"'{one_line(value, 40)}'"


def _keys(value: Any) -> str:
    """Return the keys that an expression could use."""
    if not isinstance(value, dict):
        return f"no keys, being {_kind(value)}"
    return one_line(f"the keys {', '.join(map(str, value))}" if value else "no keys", 200)
