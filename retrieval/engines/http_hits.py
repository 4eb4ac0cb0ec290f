"""Reads the hits in the JSON that an endpoint answers, by JMESPath expressions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairqr.errors import SourceError, one_line
from fairqr.retrieval.documents import Document, identifier
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.source import HttpSource

if TYPE_CHECKING:
    from jmespath.parser import ParsedResult

__all__ = ["HitReader", "ReadHits"]


class ReadHits(NamedTuple):
    """The hits of one answer, in its order; the fields of a document are its labels."""

    documents: list[Document]
    scores: list[float]


class HitReader:
    """The expressions of a source, compiled.

    Raises:
        SourceError: An expression is not JMESPath, or jmespath is not installed.
    """

    def __init__(self, source: HttpSource, attributes: Sequence[Attribute]) -> None:
        self._source = source
        self._hits = self._compiled("hits", source.hits)
        self._id = self._compiled("id", source.id)
        self._optional = {
            name: self._compiled(name, expression)
            for name in ("score", "title", "text")
            if (expression := getattr(source, name))
        }
        self._labels = {a.field: self._compiled(a.name, a.field) for a in attributes}

    def read(self, answer: bytes) -> ReadHits:
        """Return the hits in an answer.

        Raises:
            SourceError: It is not JSON, or an expression finds nothing in it.
        """
        data = self._json(answer)
        hits = self._found(self._hits, data, f"hits: {self._source.hits}", "the answer")
        if not isinstance(hits, list):
            among = f", which has {_keys(data)}" if hits is None else ""
            raise self._error(
                f"'hits: {self._source.hits}' finds {_kind(hits)} in the answer{among}, where a "
                "list of hits is needed"
            )
        documents: dict[str, Document] = {}
        scores: list[float] = []
        for rank, hit in enumerate(hits, 1):
            where = f"hit {rank}"
            document = Document(
                self._identifier(hit, where),
                self._text("title", hit, where),
                self._text("text", hit, where),
                {
                    field: self._found(expression, hit, field, where)
                    for field, expression in self._labels.items()
                },
            )
            if documents.setdefault(document.id, document) is not document:
                raise self._error(
                    f"'id: {self._source.id}' gives two hits the id '{one_line(document.id, 80)}'"
                )
            scores.append(self._score(hit, where) if "score" in self._optional else 1 / rank)
        return ReadHits(list(documents.values()), scores)

    def _json(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            is_page = answer.lstrip()[:1] == b"<"
            what = "a page of HTML or XML" if is_page else f"no valid JSON ({one_line(error, 100)})"
            raise SourceError(
                f"The endpoint of the source '{self._source.name}' answered {what}; correct 'url' "
                "and 'body', or ask who runs it."
            ) from None

    def _identifier(self, hit: Any, where: str) -> str:
        try:
            return identifier(self._found(self._id, hit, f"id: {self._source.id}", where))
        except ValueError as error:
            among = f", which has {_keys(hit)}"
            raise self._error(f"'id: {self._source.id}' fails on {where}{among}: {error}") from None

    def _score(self, hit: Any, where: str) -> float:
        score = self._found(self._optional["score"], hit, f"score: {self._source.score}", where)
        if isinstance(score, bool) or not isinstance(score, int | float) or not _is_finite(score):
            raise self._error(
                f"'score: {self._source.score}' finds {_kind(score)} in {where}, where a number is "
                "needed"
            )
        return float(score)

    def _text(self, name: str, hit: Any, where: str) -> str:
        """Return a text; an endpoint may leave it out, or give a list of paragraphs."""
        if name not in self._optional:
            return ""
        written = f"{name}: {getattr(self._source, name)}"
        found = self._found(self._optional[name], hit, written, where)
        texts = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(text, str | int | float) for text in texts):
            raise self._error(
                f"'{written}' finds {_kind(found)} in {where}, where a text is needed"
            )
        # JSON can carry half a surrogate pair, which is no text.
        return "\n".join(map(str, texts)).encode(errors="replace").decode()

    def _found(self, expression: ParsedResult, data: Any, written: str, where: str) -> Any:
        from jmespath.exceptions import JMESPathError

        try:
            return expression.search(data)
        except (JMESPathError, ArithmeticError, ValueError) as error:
            raise self._error(f"'{written}' fails on {where} ({one_line(error, 150)})") from None

    def _compiled(self, name: str, expression: str) -> ParsedResult:
        try:
            import jmespath
            from jmespath.exceptions import JMESPathError
        except ImportError:
            raise SourceError(
                f"The source '{self._source.name}' needs jmespath; install it by pip install "
                "'fairqr[http]'."
            ) from None
        try:
            return jmespath.compile(expression)
        except JMESPathError as error:
            reason = one_line(str(error).partition("\n")[0], 150).rstrip(":. ")
            raise self._error(f"'{name}: {expression}' is not JMESPath ({reason})") from None

    def _error(self, problem: str) -> SourceError:
        return SourceError(f"In the source '{self._source.name}', {problem}; correct it.")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # A whole number that no float can hold.
        return False


def _kind(value: Any) -> str:
    """Return what a JSON value is, for people."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"'{one_line(value, 40)}'"


def _keys(value: Any) -> str:
    """Return what an expression could have named."""
    if not isinstance(value, dict):
        return f"no keys, being {_kind(value)}"
    return one_line(f"the keys {', '.join(map(str, value))}" if value else "no keys", 200)
