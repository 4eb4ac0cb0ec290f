"""What the default method is worth on human judgements, with the real model.

The topics lie beside the project and not in it; where they are absent the test is skipped, visibly.
What it holds is lower than what docs/results/quality.md has, so that it tells a fault from a
change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.measuring import measure_experiment
from fairqr.evaluation.experiments.running import make_plan, run_searches
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.store import Store
from fairqr.evaluation.experiments.workers import RunOptions
from fairqr.prompts.library import PromptLibrary
from tests.integration.local_model import ENCODER, linked
from tests.unit.evaluation.watching import Watcher

SUBSET = Path(__file__).parents[4] / "shared" / "data" / "trec2022"


@pytest.mark.model
@pytest.mark.skipif(not SUBSET.is_dir(), reason=f"{SUBSET} is absent")
async def test_ours_is_above_plain_retrieval_and_keeps_its_relevance(
    model_cache: Path, pulled_minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 23 topics, titles, gender: the product at least 8 % above, and nDCG above."""
    linked(ENCODER, pulled_minilm, model_cache)
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    collection = find_collection(SUBSET)
    experiment = Experiment.model_validate(
        {
            "title": "Quality",
            "collection": str(SUBSET),
            "attributes": ["gender"],
            "baseline": "BM25",
            "systems": [
                {"name": "BM25", "method": "plain", "retriever": "bm25"},
                {"name": "ours", "method": "fairqr", "retriever": "hybrid"},
            ],
        }
    )
    prompts, store = PromptLibrary(), Store(tmp_path / "run")
    plan = make_plan(experiment, collection, prompts)
    async with RunOptions(store.folder).tools(store.replies) as tools:
        await run_searches(plan, collection, store, tools, watcher=Watcher())
    (found,) = measure_experiment(store, collection).evaluations.values()
    plain, ours = (
        {name: result.mean or 0.0 for name, result in found[system].results.items()}
        for system in ("BM25", "ours")
    )
    relevance, fairness, product = plain
    assert found["ours"].results[product].count == 23
    assert ours[product] >= 1.08 * plain[product]
    assert ours[relevance] > plain[relevance]
    assert ours[fairness] > plain[fairness]
