"""Reading single documents of a source, for instance behind a citation."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.base.errors import DocumentNotFoundError, one_line
from fairqr.base.settings import is_web_address
from fairqr.graph.documented import Documented
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.sources.documents import Document, value_at

LONGEST_LINK = 2000
"""The most characters of a web address; browsers guarantee no more."""

LONGEST_LINE = 160
"""The most characters of a document's line."""


class ServedDocument(Documented):
    """A document.

    Attributes:
        groups: For each attribute, the share of each group in the document; empty if unknown.
        link: Its address on the web; null if the source names no field for it.
    """

    id: str
    title: str
    text: str
    groups: dict[str, dict[str, float]]
    link: str | None


async def read_document(engine: SearchEngine, id_: str, link: str | None) -> ServedDocument:
    """Return a document with its groups.

    Args:
        engine: The engine that has the document.
        id_: The id of the document.
        link: The field with its web address, if the source names one.

    Raises:
        DocumentNotFoundError: The engine does not find it.
    """
    found = await engine.documents([id_])
    if not found:
        known = "" if "read_by_id" in engine.capabilities else " that a search has found"
        raise DocumentNotFoundError(
            f"'{engine.name}' has no document '{one_line(id_, 60)}'{known}; check the id."
        )
    (hits,) = await engine.search([Query("", 1, only=(id_,))])
    return ServedDocument(
        id=id_,
        title=found[0].title,
        text=found[0].text,
        groups=hits.groups(0, engine.schema) if hits.ids else {},
        link=_link_of(found[0], link),
    )


class DocumentLine(Documented):
    """One line about a document.

    Attributes:
        line: The first 160 characters of its text, at most.
    """

    id: str
    title: str
    line: str


async def read_lines(engine: SearchEngine, ids: Sequence[str]) -> list[DocumentLine]:
    """Return one line for each of these documents that the engine finds."""
    return [
        DocumentLine(id=it.id, title=it.title, line=one_line(it.text, LONGEST_LINE))
        for it in await engine.documents(ids)
    ]


async def links_of(engine: SearchEngine, ids: Sequence[str], link: str | None) -> dict[str, str]:
    """Return the web addresses of documents, by id; not every document has one."""
    documents = await engine.documents(ids) if link and ids else []
    links = {document.id: _link_of(document, link) for document in documents}
    return {id_: address for id_, address in links.items() if address}


def _link_of(document: Document, field: str | None) -> str | None:
    """Return the web address of a document, if the field holds one."""
    link = value_at(document.fields, field) if field else None
    is_link = isinstance(link, str) and len(link) <= LONGEST_LINK and is_web_address(link)
    return link if is_link else None
