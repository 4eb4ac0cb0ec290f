"""The one call: values or reasons for all that can be odd about a query, and stated conventions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fairqr.evaluation.collections.labels import Groups, UnknownPolicy, schema_with_unknown
from fairqr.evaluation.evaluate import evaluate
from fairqr.evaluation.measures.kinds import KINDS
from fairqr.evaluation.measures.measure import parse_measures
from fairqr.evaluation.results import Evaluation
from fairqr.evaluation.scores import Reason
from fairqr.retrieval.rerankers.base import by_rank
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.runs import SystemRun
from fairqr.retrieval.sources.source import Source
from tests.golden.reports import check_text


def run_of(**rankings: Sequence[Sequence[str]]) -> SystemRun:
    """A run from lists of rankings by query."""
    made = {query: [by_rank(list(ids)) for ids in own] for query, own in rankings.items()}
    return SystemRun("ours", made)


RELEVANCE = ["nDCG@3", "P@3", "R@3", "AP", "RR"]
TARGETED = [
    "AWRF@3",
    "KL@3",
    "NDKL",
    "EE-L@3(attribute=gender)",
    "EE-D@3(attribute=gender)",
    "EE-R@3(attribute=gender)",
    "AWRF@3(convention=trec2022)",
]
ITEMS = ["EE-D@3", "EE-R@3", "EE-L@3"]
ALL = [*RELEVANCE, *TARGETED, "Exposure@3(group=female)", *ITEMS, "nDCG@3×AWRF@3"]

ODD = {
    "plain": ("f1 m2 m1 f2", "f1 m1", "f2 m2"),
    "bare": ("f1 m1 f2 m2", "", "f1 m1"),
    "full": ("f1 m1 m2 f2", "f1 m1 m2 f2", ""),
    "gone": ("", "f1", "m1"),
    "hidden": ("u1 u2 nobody", "f1 m1", ""),
    "short": ("m1", "f1 m1", "m2 f2"),
    "unlabelled": ("f1 m1 m2 f2", "u1 u2", ""),
}
"""By query what is ranked, what is relevant, and what is judged and not relevant."""

QRELS = {
    query: dict.fromkeys(good.split(), 1) | dict.fromkeys(bad.split(), 0)
    for query, (_, good, bad) in ODD.items()
}
RUN = run_of(**{query: [ranked.split()] for query, (ranked, *_) in ODD.items() if ranked})


@pytest.fixture(scope="module")
def whole(scan: Groups) -> Evaluation:
    return evaluate(RUN, QRELS, ALL, groups=scan, attributes="gender")


@pytest.mark.promise("evaluation")
def test_values_and_reasons_of_odd_queries_are_known(whole: Evaluation) -> None:
    """A value of a query is a number, or the reason why there is none.

    Each measure has a finite value for each query, or the reason why there is none.
    """
    tried = {id(factor.kind) for measure in parse_measures(ALL) for factor in measure.parts}
    assert tried >= set(map(id, KINDS.values())), "a new measure must be added to the lists above"
    found = {
        text: {
            query: score if isinstance(score, Reason) else round(score, 12)
            for query, score in result.values.items()
        }
        for text, result in whole.results.items()
    }
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    check_text("measures.json", text + "\n")
    for result in whole.results.values():
        values = result.defined().values()
        assert result.mean == pytest.approx(np.mean([*values]))
        assert len(values) + sum(result.undefined().values()) == len(QRELS)


@pytest.mark.promise("evaluation")
def test_a_query_that_the_run_lacks_counts_as_asked(scan: Groups, whole: Evaluation) -> None:
    """Queries that a run lacks count as the caller asks.

    It counts as 0 in what measures relevance, and in nothing else; or it is left out.
    """
    zeros = {text for text, result in whole.results.items() if result.values["gone"] == 0.0}
    assert zeros == {*RELEVANCE, "nDCG@3×AWRF@3(attribute=gender)"}
    found = evaluate(RUN, QRELS, ALL, groups=scan, attributes="gender", missing="undefined")
    assert {it.values["gone"] for it in found.results.values()} == {Reason.MISSING}


def test_queries_are_measured_part_by_part(
    scan: Groups, monkeypatch: pytest.MonkeyPatch, whole: Evaluation
) -> None:
    monkeypatch.setattr("fairqr.evaluation.evaluate.RANKS_AT_ONCE", 5)
    assert evaluate(RUN, QRELS, ALL, groups=scan, attributes="gender") == whole


def test_the_notes_say_what_was_odd(scan: Groups) -> None:
    run = SystemRun("ours", {**RUN.rankings, **run_of(unasked=[["f1"]]).rankings}, 3, "id")
    qrels = {**QRELS, "graded": {"f1": 3, "stranger": 1}}
    found = evaluate(run, qrels, ["nDCG@3", "AWRF@3"], groups=scan, attributes="gender")
    assert {note.kind: note.count for note in found.notes} == {
        "unjudged_queries": 1,
        "missing_queries": 2,
        "unknown_documents": 1,
        "unknown_relevant": 1,
        "unlabelled_documents": 2,
        "ties": 3,
    }
    assert "unasked" not in found.queries


def test_measures_of_one_ranking_are_the_mean_over_several(scan: Groups) -> None:
    """A product is taken for each ranking before that mean."""
    first, second = ["f1", "m2", "m1"], ["u1", "m1", "f1"]
    measures = ["nDCG@3", "AWRF@3", "nDCG@3×AWRF@3", "NDKL", "P@3"]

    def means(*rankings: list[str]) -> dict[str, Any]:
        qrels = {"q": {"f1": 1, "m1": 1}}
        return evaluate(run_of(q=rankings), qrels, measures, groups=scan, attributes="gender").mean

    one, two = means(first), means(second)
    both = {text: (one[text] + two[text]) / 2 for text in one}
    assert means(first, second) == pytest.approx(both)


NORTH, SOUTH = np.eye(2)
LABELS = {"f1": NORTH, "m1": NORTH, "f2": SOUTH, "m2": SOUTH, "u2": SOUTH}
LABELS["m3"] = 0.25 * NORTH + 0.75 * SOUTH
TARGET = np.array([0.4, 0.6])


class TestBySecondWay:
    """Each measure of groups once more, document by document."""

    def shares(self, ids: Sequence[str], weights: Sequence[float]) -> Any:
        each = zip(ids, weights, strict=False)
        total = sum(weight * LABELS.get(id_, np.zeros(2)) for id_, weight in each)
        return total / total.sum()

    def by_hand(self, ids: Sequence[str], k: int) -> dict[str, float]:
        """All measures of one ranking that has both groups in its first k."""
        weights = [1 / math.log2(rank + 1) for rank in range(1, len(ids) + 1)]
        found = self.shares(ids[:k], weights)
        js = jensenshannon(found, TARGET) ** 2
        smooth = [0.999 * shares + 0.001 / 2 for shares in (TARGET, found)]
        first = next(i for i, id_ in enumerate(ids) if id_ in LABELS)
        prefixes = range(first + 1, len(ids) + 1)
        each = [entropy(self.shares(ids[:i], [1.0] * i), TARGET) for i in prefixes]
        return {
            f"AWRF@{k}": 1 - js,
            f"AWRF@{k}(unit=bits)": 1 - js / math.log(2),
            f"KL@{k}": entropy(*smooth),
            f"KL@{k}(smoothing=0)": entropy(TARGET, found),
            "NDKL": float(np.average(each, weights=weights[first:])),
            f"Exposure@{k}(group=south)": found[1],
        }

    @pytest.mark.promise("evaluation")
    @pytest.mark.parametrize("seed", range(8))
    def test_it_is_the_same(self, scan: Groups, seed: int) -> None:
        """Measures of fairness are their formulas, computed a second way."""
        random = np.random.default_rng(seed)
        ids = [*scan.rows, "stranger", "other"]
        # At least one of either group stands in any eight of the ten.
        ranking = [ids[place] for place in random.permutation(len(ids))]
        k = int(random.integers(8, 11))
        wanted = self.by_hand(ranking, k)
        measures = [
            it.with_values(unknown="exclude", attribute="place") for it in parse_measures([*wanted])
        ]
        run, qrels = run_of(q=[ranking]), {"q": {"f1": 1}}
        target = "place=north:0.4,south:0.6"
        found = evaluate(run, qrels, measures, groups=scan, target=target)
        assert [*found.mean.values()] == pytest.approx([*wanted.values()])
        # AWRF is 1 exactly where the exposure is the target.
        south = wanted[f"Exposure@{k}(group=south)"]
        target = f"place=north:{1 - south},south:{south}"
        own = evaluate(run, qrels, measures[:2], groups=scan, target=target)
        assert [*own.mean.values()] == pytest.approx([1, 1])


THIRD = 1 / math.log2(3)
FEMALE = 0.5 * 0.25 + 0.5 * 0.75 * 0.5
TREC = (FEMALE, 0.75 - FEMALE, 0.25)
"""By hand: a quarter unknown stays; of the rest half by relevance, half by population."""


class TestTargets:
    """What exposure is held against."""

    @pytest.mark.promise("evaluation")
    def test_it_is_the_distance_that_scipy_has(self, scan: Groups) -> None:
        """Distances from a target are those that scipy computes."""
        for target, measure, exposed, wanted in (
            # Of the relevant with a label one in three is a woman, of the corpus three in six.
            ("relevance:1", "", (1, THIRD + 0.5), (1, 2)),
            ("relevance:0.5,population:0.5", "", (1, THIRD + 0.5), (5, 7)),
            ("corpus:1", "", (1, THIRD + 0.5), (1, 1)),
            (["gender=female:0.3,male:0.7"], "", (1, THIRD + 0.5), (3, 7)),
            ("uniform:1", "", (1, THIRD + 0.5), (1, 1)),
            ("relevance:1", "(convention=trec2022)", (1, 1 + THIRD, 0), TREC),
            ("trec2022", "(unknown=group,discount=trec)", (1, 1 + THIRD, 0), TREC),
            ("trec2022", "(discount=trec)", (1, 1 + THIRD, 0), TREC),
        ):
            run = run_of(q=[["f1", "m1", "m2"]])
            qrels = {"q": {"m1": 1, "m2": 1, "f1": 1, "u1": 1, "f2": 0, "f3": 0}}
            asked = [f"AWRF@3{measure}", "EE-D@3"]
            found = evaluate(run, qrels, asked, groups=scan, target=target, attributes="gender")
            awrf, _ = found.mean.values()
            assert awrf == pytest.approx(1 - jensenshannon(exposed, wanted) ** 2)
            # The policy of the track is for what is held against its target.
            assert "EE-D@3" in found.results

    def test_loss_by_group_as_the_track_has_it(self, scan: Groups) -> None:
        """Relevant documents only; averaged over rankings; the target times all exposure."""
        found = evaluate(
            run_of(q=[["f1", "m3", "u1"], ["u2", "m1", "f2"]]),
            {"q": {"m1": 1, "m2": 1, "f1": 1, "u1": 1}},
            [f"EE-{it}@3(attribute=gender,convention=trec2022)" for it in "LDR"],
            groups=scan,
        )
        system = np.array([1.0, 1.0, THIRD]) / 2
        target = np.array(TREC) * (2 + THIRD)
        wanted = [((system - target) ** 2).sum(), (system**2).sum(), (system * target).sum()]
        assert [*found.mean.values()] == pytest.approx(wanted)


def test_the_product_of_attributes(scan: Groups) -> None:
    """By hand: f1 is female × north, m3 a quarter male × north; places may be unknown."""
    shares = {"female × north": 1.0, "male × north": 0.25 / math.log2(3)}
    shares |= {"male × south": 0.75 / math.log2(3), "female × unknown": 0}
    measures = [f"Exposure@2(attribute=gender×place,group={group})" for group in shares]
    found = evaluate(run_of(q=[["f1", "m3"]]), None, measures, groups=scan)
    wanted = [share / sum(shares.values()) for share in shares.values()]
    assert [*found.mean.values()] == pytest.approx(wanted)


@pytest.mark.parametrize("policy", ["exclude", "group"])
def test_an_engine_knows_what_the_file_does(
    people: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: UnknownPolicy
) -> None:
    """A source is asked for the groups of these documents, by its file or as an object.

    Documents without a label are told from those that the engine lacks.
    """
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    corpus = Corpus(people.path, schema_with_unknown(people.schema, policy), tmp_path)
    data = {"name": "people", "engine": "tantivy", "documents": str(people.path)}
    data |= corpus.schema.model_dump(mode="json")
    path = tmp_path / "people.source.yaml"
    path.write_text(yaml.safe_dump(data))
    options: Any = {"attributes": ["gender", "place", "gender×place"]}
    by_object, by_file, read = (
        evaluate(RUN, QRELS, [*TARGETED, *ITEMS], groups=groups, **options).as_json(by_query=True)
        for groups in (Source.model_validate(data), path, corpus)
    )
    assert by_object == by_file == read


AT_10 = [measure @ 10 for measure in (ir_measures.nDCG, ir_measures.R, ir_measures.AP)]
MEASURES = [*AT_10, ir_measures.nDCG, ir_measures.AP, ir_measures.RR]
MEASURES += [ir_measures.P @ 5, ir_measures.P @ 40]
"""A kept library's measures, which ours are read from."""

Case = tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]


@st.composite
def judged_runs(draw: st.DrawFn) -> Case:
    """Runs with distinct scores, and judgements with at least one relevant document a query."""
    run, qrels = {}, {}
    for query in range(draw(st.integers(1, 4))):
        ids = [f"d{number}" for number in range(30)]
        ranked = draw(st.permutations(ids))[: draw(st.integers(1, 25))]
        grades = st.dictionaries(st.sampled_from(ids), st.integers(0, 3), min_size=1, max_size=20)
        judged = draw(grades)
        judged[draw(st.sampled_from(sorted(judged)))] = 1
        run[f"q{query}"] = {id_: float(-place) for place, id_ in enumerate(ranked)}
        qrels[f"q{query}"] = judged
    return run, qrels


@pytest.mark.promise("evaluation")
@settings(max_examples=40)
@given(judged_runs())
def test_they_agree_with_ir_measures(case: Case) -> None:
    """Measures of relevance agree with ir_measures.

    For each query, on runs without ties and judgements with a relevant document.
    """
    run, qrels = case
    ours = evaluate(run, qrels, MEASURES)
    theirs = list(ir_measures.iter_calc(MEASURES, qrels, run))
    assert len(theirs) == len(MEASURES) * len(qrels)
    for query, measure, value in theirs:
        assert ours.results[str(measure)].values[query] == pytest.approx(value, abs=1e-9), measure
