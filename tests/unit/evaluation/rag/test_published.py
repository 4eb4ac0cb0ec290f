"""Figures and tables as "Towards Fair RAG" has them, beside brute force."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fairqr.base.errors import InputError
from fairqr.evaluation.rag import published
from fairqr.evaluation.rag.measures import Name
from fairqr.evaluation.rag.running import make_rag_plan
from fairqr.evaluation.rag.summaries import EDGES
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.rag import small_rag
from tests.unit.evaluation.rag.small_rag import query_of

QUERIES = 12
ALPHAS = (1, 4, 8)


@pytest.fixture
def values() -> pd.DataFrame:
    """Runs of one retriever at three values of α, and its one ranking, by chance."""
    chance = np.random.default_rng(7)
    rows = []
    whole = {"collection": "c", "generator": "g", "retriever": "bm25", "seed": 0}
    for query in range(QUERIES):
        for place, alpha in enumerate(ALPHAS):
            x = (place + chance.random()) / 3
            row = {"policy": f"α = {alpha}", "kind": "plackett-luce", Name.EE_D: x}
            rows.append(whole | row | {Name.EE_R: 0.3 + 0.2 * x + 0.1 * chance.random()})
            rows[-1] |= {"query": f"q{query}", Name.EE_D_K: x}
        row = {"policy": "deterministic", "kind": "deterministic", "query": f"q{query}"}
        rows.append(whole | row | {Name.EE_D: 1.0, Name.EE_D_K: 1.0, Name.EE_R: 0.5})
    order = [*(f"α = {alpha}" for alpha in ALPHAS), "deterministic"]
    frame = pd.DataFrame(rows)
    frame = frame.assign(**{Name.EE_R_FAIR_RAG: frame[Name.EE_R], Name.EU_MAX: frame[Name.EE_R]})
    frame["policy"] = pd.Categorical(frame.policy, order, ordered=True)
    return frame


def test_boxes_are_quantiles_over_queries(values: pd.DataFrame) -> None:
    boxes = published.boxes_of(values).set_index("policy")
    for policy, own in values.groupby("policy", observed=True):
        expected = np.quantile(own[Name.EE_D_K], [*published.QUANTILES.values()])
        found = boxes.loc[policy, [*published.QUANTILES]].to_numpy(dtype=float)
        np.testing.assert_allclose(found, expected)
        assert boxes.loc[policy, "queries"] == QUERIES


def test_runs_are_gathered_by_interval(values: pd.DataFrame) -> None:
    """Counted by hand; what is fixed stands behind the last interval, at 1."""
    found = published.gathered(values, "retriever", Name.EE_D, Name.EE_R).set_index("place")
    for place, (low, high) in enumerate(itertools.pairwise(EDGES)):
        inside = values[(values[Name.EE_D] >= low) & (values[Name.EE_D] < high)]
        assert found.loc[place, "runs"] == len(inside)
        assert found.loc[place, "y"] == pytest.approx(inside[Name.EE_R].mean())
    assert (found.loc[5, "x"], found.loc[5, "runs"]) == (1.0, QUERIES)
    curve = published.curves_by_interval(values).iloc[0]
    heights = np.interp(EDGES, found.x, found.y)
    assert curve.slope == pytest.approx(stats.linregress(EDGES, heights).slope)
    assert curve.area == pytest.approx(np.trapezoid(heights, EDGES))


def test_disparity_is_tested_in_pairs_of_queries(values: pd.DataFrame) -> None:
    """As scipy tests related samples, for each of the three pairs of α."""
    found = published.paired_tests(values)
    assert len(found) == 3
    for row in found.itertuples():
        pair = [values[values.policy == name][Name.EE_D_K] for name in (row.higher, row.lower)]
        expected = stats.ttest_rel(*pair)
        assert (row.t, row.p) == pytest.approx((expected.statistic, expected.pvalue))
        assert row.holm >= row.p


def test_a_correlation_is_over_all_runs(
    values: pd.DataFrame,
) -> None:
    found = published.correlation_of(values, Name.EE_D, Name.EE_R)
    assert found["r"] == pytest.approx(np.corrcoef(values[Name.EE_D], values[Name.EE_R])[0, 1])
    assert found["low"] < found["r"] < found["high"]
    few = values[values["query"].isin(["q0", "q1"])]
    assert np.isnan(published.correlation_of(few, Name.EE_D, Name.EE_R)["r"])


def test_relevance_of_random_rankings_is_held_against_the_fixed(values: pd.DataFrame) -> None:
    found = published.against_fixed(values, ["retriever", "policy"], Name.EE_R)
    first = values[values.policy == "α = 1"][Name.EE_R]
    assert found.iloc[0]["mean"] == pytest.approx((first - 0.5).mean())
    assert set(found.policy) == {f"α = {alpha}" for alpha in ALPHAS}


def test_judgements_are_labels_where_nobody_generates() -> None:
    """Without them, one has to say who knows what is useful."""
    query = query_of("q0")
    judged = dataclasses.replace(query, judged=frozenset([query.pool[1].id, query.pool[3].id]))
    experiment = small_rag.experiment_of(generators=())
    assert experiment.answered == 0
    plan = make_rag_plan(experiment, {"letters": small_rag.collection_of(judged)}, PromptLibrary())
    assert [label.useful for label in plan.labels] == [(1, 3)]
    assert not plan.tasks[0][0].asks
    with pytest.raises(InputError, match="Nobody judged"):
        make_rag_plan(experiment, {"letters": small_rag.collection_of(query)}, PromptLibrary())


def test_one_table_has_the_labels_of_several_generators(tmp_path: Path) -> None:
    query = query_of("q0")
    collections = {"letters": small_rag.collection_of(query)}
    experiment = small_rag.experiment_of(generators=("one", "other"), generated=0)
    path = tmp_path / "labels.tsv"
    first = query.pool[0].id
    rows = "".join(f"q0\t{it.id}\t{int(it.id == first)}\tone\n" for it in query.pool)
    rows += "".join(f"q0\t{it.id}\t{int(it.id != first)}\tother\n" for it in query.pool)
    path.write_text("qid\tpid\trelevance_label\tgenerator\n" + rows)
    plan = make_rag_plan(experiment, collections, PromptLibrary(), labels=[path])
    useful = {label.generator: label.useful for label in plan.labels}
    assert useful == {"one": (0,), "other": tuple(range(1, len(query.pool)))}
    path.write_text(
        "qid\tpid\trelevance_label\n" + rows.replace("\tone", "").replace("\tother", "")
    )
    with pytest.raises(InputError, match="add a column 'generator'"):
        make_rag_plan(experiment, collections, PromptLibrary(), labels=[path])
