"""The sentences about a result: what groups lacked and why, and what the model brought."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.graph.search.explanation import explain
from fairqr.graph.search.result import (
    Baseline,
    Gaps,
    Iteration,
    Objective,
    RankedDocument,
    SearchResult,
    WithoutModel,
)
from fairqr.graph.steps import UsageReport

SHARES = {"gender": {"female": 0.12, "male": 0.88}}
MEASURED = {"exposure": SHARES, "divergence": 0.1, "divergences": {"gender": 0.1}}
GAPS = Gaps(
    supply={"gender": {"female": 0.07, "male": 0.0}},
    ranking={"gender": {"female": 0.09, "male": 0.004}},
)


def result(
    baseline: dict[str, object] | None = None,
    ranking: Sequence[RankedDocument] = (),
    **fields: object,
) -> SearchResult:
    """A search in which women have 12 % of the exposure, and should have 28 %."""
    return SearchResult(
        query="physicist",
        corpus="people",
        method="fairqr",
        model=None,
        prompt=None,
        attributes=["gender"],
        target={"gender": {"female": 0.28, "male": 0.72}},
        iterations=[Iteration(index=0, queries=["physicist"], refinements=[], **MEASURED)],
        best_iteration=0,
        stop_reason="little_to_gain",
        ranking=list(ranking),
        unknown={"gender": 0.0},
        baseline=Baseline(ranking=[], **MEASURED, **(baseline or {})),
        usage=UsageReport(
            model_calls=0, cached_calls=0, prompt_tokens=0, completion_tokens=0, milliseconds=1.0
        ),
        **MEASURED,
        **fields,
    )


def place(relevance: float | None) -> RankedDocument:
    return RankedDocument(
        rank=1, id="a", title="A", score=1.0, groups={"gender": {}}, relevance=relevance
    )


BEFORE = Objective(relevance=0.97, fairness=0.81, value=0.97 * 0.81)
AFTER = Objective(relevance=0.9, fairness=0.96, value=0.9 * 0.96)
WITHOUT = Objective(relevance=0.88, fairness=0.97, value=0.88 * 0.97)


def test_a_result_is_explained_in_sentences() -> None:
    """Both gaps of each group, relevance and fairness before and after, and the model's share."""
    found = result(
        {"gaps": GAPS, "relevance": 0.75, "objective": BEFORE},
        ranking=[place(0.7)],
        relevance=0.7,
        objective=AFTER,
        without_model=WithoutModel(divergence=0.02, relevance=0.71, objective=WITHOUT, documents=1),
    )
    assert explain(found) == [
        "female: 12% of the exposure before, target 28%. 9 points were withheld by the ranking; "
        "for 7 points, too few documents were found that are likely to be relevant.",
        "Expected relevance: 0.90 of what is possible; before, it was 0.97. Fairness: 0.96; "
        "before, 0.81.",
        "The model's queries brought 1 document into this ranking: +0.020 of expected relevance, "
        "-0.010 of fairness.",
    ]


def test_a_weight_of_fairness_other_than_one_is_named() -> None:
    for weight, shown in ((4.0, "4"), (0.5, "0.5")):
        objective = AFTER.model_copy(update={"weight": weight})
        found = result(
            {"objective": BEFORE}, ranking=[place(0.7)], relevance=0.7, objective=objective
        )
        assert explain(found)[-1] == f"The weight of fairness was {shown}."


def test_without_estimates_one_sentence_says_what_that_means() -> None:
    plain = result(ranking=[place(None)])
    unchecked = (
        "We moved documents up without checking that they are relevant: bm25 does not estimate "
        "that; the retriever 'hybrid' does."
    )
    assert explain(plain) == [unchecked]
    ranked = result({"objective": BEFORE}, ranking=[place(None)], objective=AFTER)
    assert explain(ranked) == [
        unchecked,
        "Relevance by rank: 0.90 of what is possible; before, it was 0.97. Fairness: 0.96; before, "
        "0.81.",
    ]
    assert explain(plain.model_copy(update={"method": "fair-qr"})) == []
    assert explain(result(relevance=0.7)) == []
    # The mean is unknown where a document that a refined query found has no estimate.
    for ranking in ([place(0.7), place(None)], []):
        assert explain(result(ranking=ranking)) == []


def test_gaps_below_a_point_are_left_out_and_a_reason_begins_a_sentence() -> None:
    for supply, ranking, said in (
        (0.009, 0.011, "1 point was withheld by the ranking."),
        (0.07, 0.0, "For 7 points, too few documents were found that are likely to be relevant."),
    ):
        missing = {"supply": supply, "ranking": ranking}
        gaps = Gaps(**{it: {"gender": {"female": n, "male": 0.0}} for it, n in missing.items()})
        (sentence,) = explain(result({"gaps": gaps}))
        assert sentence == f"female: 12% of the exposure before, target 28%. {said}"
