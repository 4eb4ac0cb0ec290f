"""Measures as text: read as they are written, and wrong ones refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.measures.kinds import CHOICES, KINDS, PRODUCT
from fairqr.evaluation.measures.measure import Measure, parse_measure, parse_measures
from fairqr.retrieval.fairness.exposure import Discount

VALUES = {
    "attribute": st.sampled_from(["gender", "gender×continent"]),
    "discount": st.one_of(
        st.sampled_from([Discount(), Discount("trec"), Discount("inverse_log")]),
        st.floats(0.01, 0.99).map(lambda p: Discount("rbp", p)),
        st.integers(1, 99).map(lambda k: Discount("top_k", k)),
    ),
    "smoothing": st.floats(0, 0.999),
    "group": st.text(st.characters(exclude_categories=["C"]), min_size=1).filter(str.strip),
} | {name: st.sampled_from(words) for name, words in CHOICES.items()}


@st.composite
def measures(draw: st.DrawFn) -> Measure:
    """A kind with a cut-off and some of its parameters; those that exclude others are tried below.

    Whatever a group is called: names with commas, quotes and parentheses are quoted.
    """
    kind = draw(st.sampled_from([*KINDS.values()]))
    excluded = draw(st.sampled_from([{"convention"}, {"discount", "gains", "unit", "unknown"}]))
    names = [name for name in kind.takes if name in VALUES and name not in excluded]
    required = {"group", "attribute"} if kind is not KINDS.get(kind.name) else {"group"}
    chosen = {n for n in names if n in required or draw(st.booleans())}
    parameters = [(name, draw(VALUES[name])) for name in names if name in chosen]
    k = draw(st.integers(1, 1000)) if kind.needs_cutoff or draw(st.booleans()) else None
    measure = Measure(kind.name, k, tuple(parameters))
    several = draw(st.booleans()) and kind.higher_is_better and not kind.by_query
    return Measure(PRODUCT.name, factors=(measure, parse_measure("RR"))) if several else measure


@given(st.lists(measures(), min_size=1))
def test_measures_are_read_as_they_are_written(several: list[Measure]) -> None:
    """Alone, and in a list, which is split at its own commas."""
    for measure in several:
        assert parse_measure(str(measure)) == measure
        assert str(parse_measure(str(measure))) == str(measure)
    unique = list(dict.fromkeys(several))
    assert parse_measures(",".join(map(str, several))) == unique
    assert parse_measures([*map(str, several), several[0]]) == unique


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param("nDCG(discount=trec)@20", "nDCG@20(discount=trec)", id="cut-off at the end"),
        pytest.param("MAP", "AP", id="MAP"),
        pytest.param("MRR@10", "RR@10", id="MRR"),
        pytest.param(
            " AWRF@20 ( unit = bits , attribute = gender * continent ) ",
            "AWRF@20(attribute=gender×continent,unit=bits)",
            id="spaces",
        ),
        pytest.param("nDCG@20*AWRF@20", "nDCG@20×AWRF@20", id="a product"),
        pytest.param("EE-D@5(discount=top_k)", "EE-D@5(discount=top_k(5))", id="the first ranks"),
    ],
)
def test_other_ways_to_write_a_measure_are_understood(text: str, canonical: str) -> None:
    assert str(parse_measure(text)) == canonical


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "nDGC@20",
            "There is no measure 'nDGC@20'; the measures are nDCG, P,",
            id="unknown measure",
        ),
        pytest.param(
            "AWRF@x",
            "'AWRF@x' is not a measure; write nDCG@20 or AWRF@20(unit=bits)",
            id="cut-off is no number",
        ),
        pytest.param("P", "P needs a cut-off; write P@20", id="no cut-off"),
        pytest.param(
            "AWRF@20(unit=bit)", "AWRF has no unit 'bit'; choose nats or bits", id="unknown unit"
        ),
        pytest.param(
            "AWRF@20(k=5)",
            "AWRF has no parameter 'k'; it has attribute, unknown, discount",
            id="unknown parameter",
        ),
        pytest.param(
            "AWRF@20(convention=trec2022,unit=bits)",
            "sets the unit; leave it out",
            id="a unit too many",
        ),
        pytest.param(
            "KL@20(smoothing=nan)",
            "smoothing must be at least 0 and below 1, not nan",
            id="smoothing is no number",
        ),
        pytest.param("Exposure@20(attribute=gender)", "Exposure needs a group", id="no group"),
        pytest.param(
            "EE-L@20(attribute=a,normalization=none)",
            "EE-L has no parameter 'normalization'",
            id="no normalization",
        ),
        pytest.param("nDCG@20×KL@20", "KL@20 cannot be a factor", id="no factor"),
        pytest.param('Exposure(group="a)', "an unmatched parenthesis or quote", id="an open quote"),
        pytest.param(" , ", "No measure is named", id="no measure"),
    ],
)
def test_what_is_wrong_with_a_measure_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_measures(text)

    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
