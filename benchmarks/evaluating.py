"""Evaluation from ids, as a user calls it, beside ir_measures and a data frame per query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from measuring import Row, in_turns, median
from workspace import Workspace

import fairqr
from fairqr.evaluation.qrels import read_qrels
from fairqr.retrieval.fairness.exposure import TREC
from fairqr.retrieval.sources.runs import read_run

RANKED, DOCUMENTS, JUDGED, SHOWN = 1_000, 200_000, 100, 20
RELEVANCE = "nDCG@20,AP"
MEASURES = [ir_measures.nDCG @ 20, ir_measures.AP]
GROUPS = [f"group{number}" for number in range(8)]


def evaluating_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure nDCG@20 and AP, and AWRF@20, of a run of 1,000 queries × 1,000 documents."""
    queries = 100 if workspace.quick else 1_000
    run, qrels = _made(queries)
    run_path, qrels_path = _written(workspace.folder, run, qrels)
    labels = {f"d{number:06d}": GROUPS[number % 8] for number in range(DOCUMENTS)}

    theirs = ir_measures.calc_aggregate(MEASURES, qrels, run)
    ours = fairqr.evaluate(run, qrels, RELEVANCE).mean
    _close([ours[str(measure)] for measure in MEASURES], [theirs[m] for m in MEASURES])
    frames = _frames(labels)
    awrf = fairqr.evaluate(run, qrels, "AWRF@20(discount=trec)", groups=labels)
    _close(next(iter(awrf.mean.values())), _awrf(run, qrels, frames))

    taken = in_turns(
        {
            "dicts": lambda _: fairqr.evaluate(run, qrels, RELEVANCE),
            "their dicts": lambda _: ir_measures.calc_aggregate(MEASURES, qrels, run),
            "files": lambda _: fairqr.evaluate(run_path, qrels_path, RELEVANCE),
            "their files": lambda _: ir_measures.calc_aggregate(
                MEASURES,
                list(ir_measures.read_trec_qrels(str(qrels_path))),
                list(ir_measures.read_trec_run(str(run_path))),
            ),
            "reading": lambda _: (read_run(run_path), read_qrels(qrels_path)),
            "their reading": lambda _: (
                list(ir_measures.read_trec_run(str(run_path))),
                list(ir_measures.read_trec_qrels(str(qrels_path))),
            ),
            "awrf": lambda _: fairqr.evaluate(run, qrels, "AWRF@20(discount=trec)", groups=labels),
            "their awrf": lambda _: _awrf(run, qrels, frames),
        },
        workspace.rounds(5),
        1,
    )
    what = f"{queries:,} queries × {RANKED:,} documents"
    for name, told, times in (
        ("dicts", f"nDCG@20 and AP from dicts, {what}", 1),
        ("files", f"nDCG@20 and AP from files, {what}", 3),
        ("reading", f"of that reading the files, {what}", None),
        ("awrf", f"AWRF@20 from dicts, {what}, 8 groups", 20),
    ):
        mine, peers = median(taken[name]), median(taken[f"their {name}"])
        target = "" if times is None else f"≤ 1/{times}"
        reached = None if times is None else mine * times <= peers
        peer = "a data frame per query" if name == "awrf" else "ir_measures, pytrec_eval"
        yield Row("evaluating", told, mine, "ms", peer, peers, target, reached)


def _made(queries: int) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
    random = np.random.default_rng(0)
    run, qrels = {}, {}
    for query in range(queries):
        ids = [f"d{n:06d}" for n in random.choice(DOCUMENTS, RANKED + JUDGED // 2, replace=False)]
        scores = np.round(random.random(RANKED) * 30, 6)
        run[f"q{query}"] = dict(zip(ids[:RANKED], scores.tolist(), strict=True))
        judged = random.permutation(ids[:RANKED])[: JUDGED // 2].tolist() + ids[RANKED:]
        grades = random.integers(0, 3, JUDGED).tolist()
        qrels[f"q{query}"] = dict(zip(judged, grades, strict=True))
    return run, qrels


def _written(
    folder: Path, run: Mapping[str, Mapping[str, float]], qrels: Mapping[str, Mapping[str, int]]
) -> tuple[Path, Path]:
    run_path, qrels_path = folder / "large.run", folder / "large.qrels"
    with run_path.open("w") as stream:
        for query, found in run.items():
            ordered = sorted(found.items(), key=lambda item: -item[1])
            for rank, (id_, score) in enumerate(ordered, start=1):
                stream.write(f"{query} Q0 {id_} {rank} {score:.6f} bm25\n")
    with qrels_path.open("w") as stream:
        for query, judged in qrels.items():
            stream.writelines(f"{query} 0 {id_} {grade}\n" for id_, grade in judged.items())
    return run_path, qrels_path


def _frames(labels: Mapping[str, str]) -> Any:
    """Return the groups of documents as a data frame."""
    return pd.get_dummies(pd.Series(labels), dtype=float)


def _awrf(
    run: Mapping[str, Mapping[str, float]], qrels: Mapping[str, Mapping[str, int]], alignment: Any
) -> float:
    """Return AWRF@20 by query, with data frames.

    TREC's own code is not here; this is written like it, and says nothing of its exact speed.
    """
    scores = []
    for query, found in run.items():
        relevant = [id_ for id_, grade in qrels[query].items() if grade > 0]
        target = alignment.loc[relevant].mean(axis=0) / 2 + 1 / len(GROUPS) / 2
        shown = pd.Series(found).nlargest(SHOWN).index
        weights = pd.Series(TREC.weights(SHOWN), index=shown)
        exposure = alignment.reindex(shown).fillna(0.0).multiply(weights, axis=0).sum(axis=0)
        exposure /= exposure.sum()
        middle = (exposure + target) / 2
        parts = [
            (part * np.log(part.where(part > 0, 1.0) / middle)).sum() / 2
            for part in (exposure, target)
        ]
        scores.append(1 - sum(parts))
    return float(np.mean(scores))


def _close(found: object, expected: object) -> None:
    if not np.allclose(np.asarray(found), np.asarray(expected)):
        raise AssertionError(f"{found} is not {expected}")
