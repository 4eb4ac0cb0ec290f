"""Whether an audit finds women held down in real collections, by judgements and by estimates.

``python -m benchmarks.audit_demoted --trec FOLDER`` searches notables and the joined subset of TREC
Fair 2022 in FOLDER by BM25, and multiplies the scores of all women by a factor. Estimates of
relevance are fitted on the other collection. What it prints stands in docs/results/audits.md.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairqr.evaluation.audit.asking import Asker
from fairqr.evaluation.audit.measuring import measure
from fairqr.evaluation.audit.queries import AuditQuery
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

FACTORS = (1.0, 0.7, 0.5)
DEEPEST = 3_000
"""So far down documents are looked for that the factor may bring up."""
SPEC = AuditSpec(attributes=("gender",), intersections=False, mend=0)


class Demoting(EngineOverWords):
    """Multiplies the scores of women."""

    def __init__(self, lexical: SearchEngine, factor: float) -> None:
        super().__init__(lexical)
        self.factor = factor
        self.retriever, self.capabilities = lexical.retriever, lexical.capabilities

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        """Rank by the scores as they are then."""
        deep = [replace(it, n=DEEPEST) if it.is_ranking else it for it in queries]
        found = await self.lexical.search(deep)
        return [
            self._demoted(hits, query.n) if query.is_ranking else hits
            for query, hits in zip(queries, found, strict=True)
        ]

    def _demoted(self, hits: Hits, n: int) -> Hits:
        groups = self.schema.attribute("gender").universe
        women = hits.memberships["gender"][:, groups.index("female")]
        scores = np.array(hits.scores) * np.where(women > 0, self.factor, 1.0)
        return best_first(hits.ids, scores.tolist(), hits.memberships, n)


async def audits(name: str, collection: Collection) -> None:
    """Print the lean against women by judgements and by estimates, for each factor."""
    engine = await Catalog().resolve(collection.corpus_name, retriever="bm25")
    texts = await TextRelevance.open(engine, open_encoder("minilm"))
    texts.calibrations = FITTED[held_out(name)]
    queries = {it.id: AuditQuery(it.id, it.text(0)) for it in collection.topics}
    for factor in FACTORS:
        asked = Demoting(engine, factor)
        plain = Asker(asked, (engine.schema.attribute("gender"),), SPEC.depth)
        groups = tuple(it for it in sorted(asked.filterable) if it[0] == "gender")
        askers = {
            "judged": replace(plain, qrels=collection.qrels),
            "estimated": replace(plain, texts=texts, widened=groups),
        }
        for relevance, asker in askers.items():
            await asker.look_up([*queries.values()], lambda done, total=None, /: None)
            observed = {id_: (await asker.observe(it)).record for id_, it in queries.items()}
            found = measure(
                SPEC,
                engine.schema,
                queries,
                functools.partial(map, observed.__getitem__),
                relevance=relevance,
            )
            women = next(it for it in found.groups if it.group == "female")
            print(
                f"{name:9} factor {factor:.1f}  {relevance:9} exposure {women.exposure.value:.3f}  "
                f"target {women.target.value:.3f}  lean {women.lean.value:+.3f} "
                f"[{women.lean.low:+.3f}, {women.lean.high:+.3f}]  {women.verdict}",
                flush=True,
            )
    await engine.aclose()


async def main(trec: Path) -> None:
    """Audit both collections."""
    await audits("notables", find_collection("notables"))
    await audits("trec2022", find_collection(trec))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trec", type=Path, required=True)
    asyncio.run(main(parser.parse_args().trec))
