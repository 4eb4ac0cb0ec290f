"""Whether an audit finds women held down in real collections, by judgements and by estimates.

``python -m benchmarks.audit_demoted --trec FOLDER`` searches notables and the joined subset of TREC
Fair 2022, imported into FOLDER, by BM25, and multiplies the scores of all women by a factor.
Estimates of relevance are fitted on the other collection. What it prints stands in
docs/results/audits.md.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measuring import table
from fairqr.evaluation.audit.measuring import measure
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.running import Asker
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import (
    EngineOverWords,
    Hits,
    Query,
    SearchEngine,
    best_first,
)
from fairqr.retrieval.engines.hybrid.texts import TextRelevance
from fairqr.retrieval.fairness.relevance import FITTED, held_out
from fairqr.retrieval.sources.catalog import Catalog

DEEPEST = 3_000
"""So far down documents are looked for that the factor may bring up."""
SPEC = AuditSpec(attributes=("gender",), intersections=False, mend=0)


class Demoting(EngineOverWords):
    """Multiplies the scores of women."""

    def __init__(self, lexical: SearchEngine, factor: float) -> None:
        super().__init__(lexical)
        self.retriever, self.capabilities = lexical.retriever, lexical.capabilities
        self.women = lexical.schema.attribute("gender").universe.index("female")
        self.factor = factor

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Rank by the scores as they are then."""
        deep = [replace(it, n=DEEPEST) if it.is_ranking else it for it in queries]
        found = await self.lexical.search(deep)
        for place, (hits, query) in enumerate(zip(found, queries, strict=True)):
            if query.is_ranking:
                women = hits.memberships["gender"][:, self.women] > 0
                scores = np.array(hits.scores) * np.where(women, self.factor, 1.0)
                found[place] = best_first(hits.ids, scores.tolist(), hits.memberships, query.n)
        return found


async def audits(name: str, collection: Collection) -> AsyncIterator[dict[str, str]]:
    """Yield the lean against women by judgements and by estimates, for each factor."""
    engine = await Catalog().resolve(collection.corpus_name, retriever="bm25")
    texts = await TextRelevance.open(engine, open_encoder("minilm"))
    texts.calibrations = FITTED[held_out(name)]
    queries = {it.id: AuditQuery(it.id, it.text(0)) for it in collection.topics}
    for factor in (1.0, 0.7, 0.5):
        asked = Demoting(engine, factor)
        plain = Asker(asked, (engine.schema.attribute("gender"),), SPEC.depth)
        groups = tuple(it for it in sorted(asked.filterable) if it[0] == "gender")
        told = {"collection": name, "factor": str(factor)}
        for relevance, asker in {
            "judged": replace(plain, qrels=collection.qrels),
            "estimated": replace(plain, texts=texts, widened=groups),
        }.items():
            ids = asker.to_look_up(queries.values())
            await asker.look_up(ids, lambda done, total=None, /: None)
            seen = {id_: (await asker.observe(it)).records[0] for id_, it in queries.items()}
            records = functools.partial(map, seen.__getitem__)
            found = measure(SPEC, engine.schema, queries, records, relevance=relevance)
            (women,) = (it for it in found.groups if it.group == "female")
            lean = women.lean
            interval = f"{lean.value:+.3f} [{lean.low:+.3f}, {lean.high:+.3f}]"
            yield {**told, "relevance": relevance, "lean": interval, "verdict": women.verdict}


async def main(trec: Path) -> None:
    """Audit both collections."""
    for name, collection in {"notables": "notables", "trec2022": trec}.items():
        print(table([it async for it in audits(name, find_collection(collection))]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trec", type=Path, required=True)
    asyncio.run(main(parser.parse_args().trec))
