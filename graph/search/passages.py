"""A search result as compact text: for a model that calls a tool, and lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairqr.graph.search.result import Place, SearchResult
from fairqr.prompts.template import fence
from fairqr.retrieval.sources.documents import Document

LINE = 120
"""How many characters of a document's title, and of its text, are shown."""


def passage_lines(ranking: Sequence[Place], documents: Sequence[Document]) -> Iterator[str]:
    """Yield the rank, the title, the groups and a line of text of each document."""
    texts = {document.id: document.text for document in documents}
    for place in ranking:
        groups = "; ".join(
            f"{attribute}: {', '.join(shares) or 'unknown'}"
            for attribute, shares in place.groups.items()
        )
        title, text = fence(place.title, LINE), passage_of(texts.get(place.id, ""))
        yield f"{place.rank}. {title} [{groups}] {text}".rstrip()


def exposure_lines(result: SearchResult) -> Iterator[str]:
    """Yield a line for each attribute that says how the exposure of its groups changed."""
    for attribute, shares in result.exposure.items() if result.ranking else ():
        before, target = result.baseline.exposure[attribute], result.target[attribute]
        changes = [
            f"{group} {before[group]:.0%} to {share:.0%} (target {target[group]:.0%})"
            for group, share in shares.items()
        ]
        yield f"Exposure by {attribute}: {', '.join(changes)}."


def passage_of(text: str) -> str:
    """Return the beginning of a text as one line without markup."""
    line = fence(text, len(text) + 1)
    return line if len(line) <= LINE else f"{line[:LINE].rsplit(' ', 1)[0]} …"
