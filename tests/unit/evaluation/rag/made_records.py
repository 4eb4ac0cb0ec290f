"""A small Fair RAG experiment whose records are made by hand: who is shown and used is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery, RagTask
from fairqr.evaluation.rag.measures import MeasuredRag, measure_fair_rag
from fairqr.evaluation.rag.specification import LABELS, FairRagExperiment
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord, RagManifest
from fairqr.retrieval.sources.schema import Schema

SCHEMA = Schema.model_validate(
    {"attributes": {"gender": {"field": "gender", "groups": ["female", "male"]}}}
)
N, K = 6, 2
USEFUL = (0, 2, 3)


@dataclass(frozen=True)
class Exact:
    """Utility: 1 for a right answer."""

    name: str = "accuracy"
    greatest: float = 1.0

    def __call__(self, answer: str, golds: Sequence[str]) -> float:
        """Compare."""
        return float(answer in golds)


@dataclass
class Made:
    """What a run would have left."""

    manifest: RagManifest
    records: list[PolicyRecord]
    collections: dict[str, RagCollection]

    def measured(self) -> MeasuredRag:
        """Measure it."""
        return measure_fair_rag(self.manifest, self.records, self.collections)


def made(
    *,
    queries: int = 6,
    alphas: Sequence[float] = (1.0, 8.0),
    generators: Sequence[str] = ("small", "large"),
    retrievers: Sequence[str] = ("bm25", "dense"),
    title: str = "Films",
    schema: Schema | None = SCHEMA,
    samples: int = 12,
    **changes: Any,
) -> Made:
    """Make records: an answer is right if a useful document is read first, and uses the even ones.

    Args:
        queries: How many.
        alphas: Of the policies.
        generators: Their names.
        retrievers: Their names.
        title: What the collection is called.
        schema: Of its groups.
        samples: Of each policy.
        changes: Of the experiment.
    """
    facts: dict[str, Any] = {"kind": "fair_rag", "title": "A small one", "about": "Is it fair?"}
    facts |= {"collections": ["films"], "retrievers": retrievers, "generators": generators}
    facts |= {"alphas": alphas, "samples": samples, "k": K}
    experiment = FairRagExperiment.model_validate(facts | changes)
    names = tuple(f"q{number}" for number in range(queries))
    manifest = RagManifest(
        experiment=experiment,
        collections={"films": "f" * 64},
        prompts={"lamp2=v1": "a" * 64},
        attributor="overlap",
        versions={"fairqr": "1", "python": "3.11"},
        started="2026-01-01T00:00:00Z",
    )
    random = np.random.default_rng(1)
    return Made(
        manifest,
        [
            record
            for generator in generators
            for name in names
            for record in _records(experiment, generator, name, random)
        ]
        + [label for generator in generators for label in _labels(generator, names)],
        {"films": _films(title, (*names, "dropped", "failed"), schema)},
    )


def _films(title: str, names: Sequence[str], schema: Schema | None) -> RagCollection:
    """Women are in the documents 0 and 3, and of 5 nothing is known."""
    women = [{"gender": {"female" if i % 3 == 0 else "male": 1.0}} for i in range(N - 1)]
    pool = tuple(
        PoolDocument(f"d{i}", {"title": f"T{i}"}, f"text {i}", groups)
        for i, groups in enumerate([*women, {}])
    )
    return RagCollection(
        name="films",
        title=title,
        note="A note.",
        task=RagTask("LaMP-2", "lamp2", Exact()),
        queries=tuple(RagQuery(name, f"ask {name}", name, ("right",), pool) for name in names),
        fingerprint="f" * 64,
        schema=schema,
        left_out={"the profile is empty": 2},
    )


def record_of(n: int = N, **values: Any) -> PolicyRecord:
    """A record of a pool of n documents, d0 and so on; by default of a policy with α of 1."""
    facts: dict[str, Any] = {"collection": "films", "generator": "small", "query": "q0", "seed": 0}
    facts |= {"retriever": "bm25", "policy": "plackett-luce", "alpha": 1.0, "k": K}
    return PolicyRecord(**(facts | {"pool": tuple(f"d{i}" for i in range(n))} | values))


def _labels(generator: str, names: Sequence[str]) -> list[PolicyRecord]:
    """A query is dropped, since one answer was declined and no other helps; and one has failed."""
    worth = {name: [0.0, *(0.5 * (i in USEFUL) for i in range(N))] for name in names}
    rankings = [(), *((i,) for i in range(N))]
    return [
        record_of(
            **LABELS._asdict(),
            generator=generator,
            query=query,
            k=1,
            useful=USEFUL if query in names else (),
            model_calls=7 if query in names else 0,
            answers=tuple(
                AnswerRecord(ranking=r, status="refused" if u is None else "ok", utility=u)
                for r, u in zip(rankings, utilities, strict=False)
            ),
        )
        for query, utilities in {**worth, "dropped": [0.0, None], "failed": [None]}.items()
    ]


def _records(
    experiment: FairRagExperiment, generator: str, query: str, random: np.random.Generator
) -> list[PolicyRecord]:
    def made_of(retriever: str, policy: str, alpha: float | None, rows: Any) -> PolicyRecord:
        samples = tuple(tuple(map(int, row[:K])) for row in rows)
        cost = {"model_calls": 2, "tokens": 30, "milliseconds": 12.5}
        facts = {"retriever": retriever, "policy": policy, "alpha": alpha, "useful": USEFUL}
        own = {"generator": generator, "query": query, "samples": samples}
        return record_of(**own, **facts, **cost, answers=_answers(samples))

    records = []
    for retriever in experiment.retrievers:
        scores = 1 + random.random(N)
        records.append(made_of(retriever, "deterministic", None, [np.argsort(-scores)]))
        for alpha in experiment.alphas:
            logits = scores**alpha + random.gumbel(size=(experiment.samples, N))
            rows = np.argsort(-logits, axis=1)
            records.append(made_of(retriever, "plackett-luce", alpha, rows))
    first = [random.permutation(USEFUL) for _ in range(experiment.samples)]
    return [*records, made_of("", "oracle", None, first)]


def _answers(samples: Sequence[tuple[int, ...]]) -> tuple[AnswerRecord, ...]:
    return tuple(
        AnswerRecord(
            ranking=ranking,
            times=times,
            status="ok",
            text="right" if ranking[0] in USEFUL else "wrong",
            utility=float(ranking[0] in USEFUL),
            used=tuple(i % 2 == 0 for i in ranking),
        )
        for ranking, times in Counter(samples).items()
    )
