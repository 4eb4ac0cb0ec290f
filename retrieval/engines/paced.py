"""An engine whose requests keep to a rate."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, cast

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.limits import Limits
from fairqr.retrieval.sources.documents import Document


class _PacedEngine:
    """An engine that gets no more than so many requests a second, evenly spaced."""

    def __init__(self, engine: SearchEngine, rate: float) -> None:
        self._engine, self.lexical = engine, lexical_of(engine)
        self._limits = Limits(sys.maxsize, rate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        found = []
        for query in queries:  # An engine may need a request for each.
            async with self._limits:
                found += await self._engine.search([query])
        return found

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        async with self._limits:
            return await self._engine.documents(ids)


def paced(engine: SearchEngine, rate: float | None) -> SearchEngine:
    """Return an engine whose requests keep to a rate, in requests a second; None is no limit.

    Raises:
        InputError: The rate is not above 0 and finite.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"The rate is requests a second, above 0, not {rate:g}.")
    return engine if rate is None else cast("SearchEngine", _PacedEngine(engine, rate))
