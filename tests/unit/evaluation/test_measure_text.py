"""Measures as text: read as they are written, and wrong ones refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.measures.base import Measure, Need
from fairqr.evaluation.measures.expected import EED, EEL, EER
from fairqr.evaluation.measures.groups import AWRF, JS, KL, NDKL, Exposure, ExposureRatio
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.relevance import AP, NDCG, RR, Precision, Recall
from fairqr.evaluation.measures.text import MEASURES, parse_measure, parse_measures
from fairqr.retrieval.fairness.exposure import Discount

cutoffs = st.integers(1, 1000)
maybe = st.one_of(st.none(), cutoffs)
names = st.text(st.characters(exclude_categories=["C"]), min_size=1).filter(lambda t: t.strip())
attributes = st.sampled_from(["gender", "gender×continent"])
discounts = st.one_of(
    st.sampled_from([Discount(), Discount("trec"), Discount("inverse_log")]),
    st.floats(0.01, 0.99).map(lambda p: Discount("rbp", p)),
    st.integers(1, 99).map(lambda k: Discount("top_k", k)),
)
smoothings = st.floats(0, 0.999)
unknowns = st.sampled_from([None, "exclude", "group"])
measures: st.SearchStrategy[Measure] = st.one_of(
    st.builds(NDCG, k=maybe, discount=discounts, gains=st.sampled_from(["binary", "graded"])),
    st.builds(NDCG, k=maybe, convention=st.just("trec2022")),
    st.builds(Precision, k=cutoffs),
    st.builds(Recall, k=cutoffs),
    st.builds(AP, k=maybe),
    st.builds(RR, k=maybe),
    st.builds(
        AWRF,
        k=maybe,
        attribute=st.one_of(st.none(), attributes),
        unit=st.sampled_from(["nats", "bits"]),
        unknown=unknowns,
        discount=discounts,
    ),
    st.builds(JS, k=maybe, attribute=attributes, discount=discounts),
    st.builds(KL, k=maybe, attribute=attributes, smoothing=smoothings),
    st.builds(NDKL, k=maybe, attribute=attributes, smoothing=smoothings),
    st.builds(Exposure, k=maybe, attribute=attributes, group=names, discount=discounts),
    st.builds(ExposureRatio, k=maybe, attribute=attributes, group=names),
    st.builds(EED, k=maybe, discount=discounts, items=st.sampled_from([None, "pool", "corpus"])),
    st.builds(EED, k=cutoffs, normalization=st.just("fair-rag"), estimator=st.just("unbiased")),
    st.builds(EER, k=cutoffs, attribute=attributes, convention=st.just("trec2022")),
    st.builds(EEL, k=cutoffs, attribute=attributes, documents=st.just("all")),
    st.just(Product(factors=(NDCG(k=20), AWRF(k=20, attribute="gender×continent")))),
)


@given(measures)
def test_a_measure_is_read_as_it_is_written(measure: Measure) -> None:
    """Whatever a group is called: names with commas, quotes and parentheses are quoted."""
    assert parse_measure(str(measure)) == measure
    assert str(parse_measure(str(measure))) == str(measure)


@given(st.lists(measures, min_size=1, max_size=4, unique=True))
def test_lists_of_measures_are_split_at_their_own_commas(several: list[Measure]) -> None:
    assert parse_measures(",".join(map(str, several))) == several
    assert parse_measures([",".join(map(str, several)), several[0]]) == several


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ndcg@20", "nDCG@20"),
        ("nDCG(discount=trec)@20", "nDCG@20(discount=trec)"),
        ("nDCG@20(discount=log2)", "nDCG@20"),
        ("MAP", "AP"),
        ("MRR@10", "RR@10"),
        ("Recall@100", "R@100"),
        (
            " AWRF@20 ( unit = bits , attribute = gender * continent ) ",
            "AWRF@20(attribute=gender×continent,unit=bits)",
        ),
        ("nDCG@20*AWRF@20", "nDCG@20×AWRF@20"),
        ("EE-D@5(discount=top_k)", "EE-D@5(discount=top_k(5))"),
        (
            "Exposure@9(attribute=place,group=North America)",
            "Exposure@9(attribute=place,group=North America)",
        ),
    ],
)
def test_other_ways_to_write_it_are_understood(text: str, canonical: str) -> None:
    assert str(parse_measure(text)) == canonical


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nDGC@20", "There is no measure 'nDGC'; did you mean nDCG? The measures are nDCG, P,"),
        ("AWRF@x", "cut-off of 'AWRF@x' is not a whole number; write AWRF@20"),
        ("AWRF@", "is not a whole number"),
        ("AWRF@-1", "is not a whole number"),
        ("AWRF@²", "is not a whole number"),
        ("AWRF@0", "must be a whole number from 1 to 1,000,000, not 0"),
        ("AWRF@1000001", "must be a whole number from 1 to 1,000,000, not 1000001"),
        ("P", "P needs a cut-off; write P@20"),
        ("AWRF@20(unit=bit)", "AWRF has no unit 'bit'; choose nats or bits"),
        ("AWRF@20(bits)", "'bits' in 'AWRF@20(bits)' is not a parameter; write name=value"),
        ("AWRF@20(unit=)", "is not a parameter"),
        ("AWRF@20(k=5)", "AWRF has no parameter 'k'; it has attribute, unknown, discount"),
        ("AP(unit=bits)", "AP has no parameter 'unit'; it has none"),
        ("AWRF@20(unit=bits,unit=nats)", "has the parameter unit twice"),
        ("AWRF(unit=bits)@20(unknown=group)", "has two lists of parameters"),
        ("AWRF@20(unknown=maybe)", "AWRF has no unknown 'maybe'"),
        ("AWRF@20(convention=trec2021)", "choose trec2022"),
        ("AWRF@20(convention=trec2022,unit=bits)", "sets the unit; leave it out"),
        ("nDCG@20(convention=trec2022,discount=rbp(0.5))", "sets the discount; leave it out"),
        ("nDCG@20(discount=linear)", "There is no discount 'linear'"),
        ("nDCG(discount=top_k)", "top_k(k) with a whole k"),
        ("KL@20(smoothing=1)", "smoothing must be at least 0 and below 1, not 1"),
        ("KL@20(smoothing=nan)", "smoothing must be"),
        ("KL@20(smoothing=little)", "the smoothing is not a number"),
        ("NDKL(discount=trec)", "NDKL has no parameter 'discount'"),
        ("Exposure@20(attribute=gender)", "Exposure needs a group"),
        ("ExposureRatio(group=a,against=a)", "compares two groups"),
        ("EE-L@5(normalization=fair-rag)", "normalises EE-D and EE-R only"),
        ("EE-D(normalization=fair-rag)", "write EE-D@5(normalization=fair-rag)"),
        ("EE-D@5(normalization=fair-rag,discount=log2)", "has the discount top_k(5)"),
        ("EE-L(attribute=gender)", "EE-L by group needs a cut-off"),
        ("EE-L@20(attribute=gender,normalization=bounds)", "takes normalization by item only"),
        ("EE-L@20(documents=all)", "takes documents by group only"),
        ("EE-R@20(estimator=unbiased)", "EE-R has no parameter 'estimator'"),
        ("nDCG@20×KL@20", "KL@20 cannot be a factor"),
        ("nDCG@20×", "'' is not a measure"),
        ("AWRF@20(unit=bits", "an unmatched parenthesis"),
        ("AWRF@20)", "an unmatched parenthesis"),
        ('Exposure(group="a)', "an unmatched quote"),
        ("", "No measure is named"),
        (" , ", "No measure is named"),
        ("nDCG@20;P@5", "is no"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_measures(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_measure_or_refused(text: str) -> None:
    """Nothing else escapes."""
    try:
        found = parse_measures(text)
    except InputError:
        return
    assert parse_measures(",".join(map(str, found))) == found


@pytest.mark.parametrize("measure", [*MEASURES, Product])
def test_each_says_what_it_is(measure: type[Measure]) -> None:
    """Its example can be read, and its docstring says more than its summary."""
    example = parse_measure(measure.example)
    assert isinstance(example, measure)
    assert example.needs
    assert measure.__doc__
    assert len(measure.summary) > 10
    assert (measure.higher_is_better is None) == (measure in (Exposure, ExposureRatio))


def test_needs_follow_from_the_parameters() -> None:
    needs = {
        "nDCG@20": {Need.QRELS},
        "AWRF@20(attribute=a)": {Need.GROUPS, Need.TARGET},
        "nDCG@20×AWRF@20": {Need.QRELS, Need.GROUPS, Need.TARGET},
        "Exposure(attribute=a,group=b)": {Need.GROUPS},
        "EE-D@5": {Need.QRELS},
        "EE-D@5(items=corpus)": {Need.QRELS, Need.GROUPS},
        "EE-D@5(estimator=unbiased)": {Need.QRELS, Need.SAMPLES},
        "EE-L@20(attribute=a)": {Need.QRELS, Need.GROUPS, Need.TARGET},
        "EE-L@20(attribute=a,documents=all)": {Need.GROUPS, Need.TARGET},
    }
    for text, wanted in needs.items():
        assert parse_measure(text).needs == wanted, text
