"""What the default method is worth on human judgements, with the real model.

The topics lie beside the project and not in it; where they are absent the test is skipped, visibly.
What it holds is lower than what docs/results/quality.md has, so that it tells a fault from a
change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.evaluation.collections.finding import import_collection
from fairqr.evaluation.experiments.measuring import measure
from fairqr.evaluation.experiments.running import run
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.workers import RunOptions
from tests.integration.local_model import ENCODER, linked

SUBSET = Path(__file__).parents[4] / "shared" / "data" / "trec2022"


@pytest.mark.model
@pytest.mark.skipif(not SUBSET.is_dir(), reason=f"{SUBSET} is absent")
async def test_ours_is_above_plain_retrieval_and_keeps_its_relevance(
    model_cache: Path, pulled_minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 23 topics, titles, gender: the product at least 8 % above, and nDCG above."""
    linked(ENCODER, pulled_minilm, model_cache)
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    import_collection("trec2022-subset", [SUBSET], "trec2022")
    experiment = Experiment.model_validate(
        {
            "title": "Quality",
            "collection": "trec2022",
            "attributes": ["gender"],
            "baseline": "BM25",
            "systems": [
                {"name": "BM25", "method": "plain", "retriever": "bm25"},
                {"name": "ours", "method": "fairqr", "retriever": "hybrid"},
            ],
        }
    )
    await run(experiment, RunOptions(tmp_path / "run"))
    first, second = measure(tmp_path / "run").evaluations.values()
    plain, ours = ({n: it or 0.0 for n, it in each.mean.items()} for each in (first, second))
    relevance, fairness, product = plain
    assert second.results[product].count == 23
    assert ours[product] >= 1.08 * plain[product]
    assert ours[relevance] > plain[relevance]
    assert ours[fairness] > plain[fairness]
