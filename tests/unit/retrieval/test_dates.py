"""Dates of groups by years, as engines, files and programs write them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.sources.dates import DEFAULT_FORMATS, year_of
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute

CENTURIES = Attribute.model_validate(
    {"name": "century", "field": "born", "groups": {"old": {"lt": 1900}, "new": {"gte": 1900}}}
)
NEW = (0.0, 1.0)
OLD = (1.0, 0.0)
UNKNOWN = (0.0, 0.0)


@pytest.mark.parametrize(
    ("value", "formats"),
    [
        *((it, "") for it in ("1950", 1950, 1950.0, "1950-03", "1950-3-1", "1950-03-01T10:00Z")),
        *((it, "") for it in ("1950-W05", date(1950, 3, 1), datetime(1950, 3, 1, tzinfo=UTC))),
        *((it, "") for it in ("1950/03/01", "1950.03", "1950?", "1950~", "1950/3/1 10:11")),
        *((it, "") for it in ("03/01/1950", "1.3.1950", "01-03-1950 10:11", "03/1950")),
        *(
            (it, "")
            for it in ("1 March 1950", "March 1, 1950", "Mar. 1950", "1. März 1950", "c. 1950")
        ),
        *((it, "basic_date") for it in ("19500301", 19500301, 19500301.0)),
        *((it, DEFAULT_FORMATS) for it in (-631152000000, "-631152000000", "1950", 1950)),
        *(("01.03.1950", it) for it in ("dd.MM.yyyy", "d.M.uuuu", "epoch_millis||dd.MM.yyyy")),
        ("1950/03/01 10:11:12", "yyyy/MM/dd HH:mm:ss"),
        ("Wed Mar 01 10:00:00 +0100 1950", "EEE MMM dd HH:mm:ss Z yyyy"),
        ("March 1, 1950", "MMMM d, yyyy"),
        *((it, "dd.MM.yyyy[ HH:mm]") for it in ("01.03.1950", "01.03.1950 10:11")),
        ("03/01/1950 10:11 a.m.", "MM/dd/yyyy hh:mm a"),
        ("19500301T101112Z", "yyyyMMdd'T'HHmmssX"),
        ("1950060", "basic_ordinal_date"),
        (-631152000, "epoch_second"),
        # The columns of an engine are asked for in ISO's form, whatever the mapping says.
        *(("1950-03-01T00:00:00.000Z", it) for it in ("basic_date", "epoch_millis", "dd.MM.yyyy")),
    ],
)
def test_the_year_of_a_date_is_read(value: object, formats: str) -> None:
    assert year_of(value, formats) == 1950


@pytest.mark.parametrize(
    ("value", "formats"),
    [
        *((it, "") for it in ("20th century", "123/1950", "page 19500", "1950s")),
        *((it, "") for it in ("soon", "", "19500301", 19500301, True, None, "1950x")),
        *((it, "basic_date") for it in ("x9500301", 1e30, "-19500301")),
        *((it, "epoch_millis") for it in ("9" * 40, "NaN", "1950-")),
        ("01.03.1950", "MM-dd"),
    ],
)
def test_what_can_be_no_year_is_none(value: object, formats: str) -> None:
    assert year_of(value, formats) is None


@given(st.text(max_size=20), st.text(max_size=12))
def test_no_text_and_no_format_raises(text: str, formats: str) -> None:
    assert year_of(text, formats) is None or isinstance(year_of(text, formats), int)


@pytest.mark.parametrize(
    ("label", "row"),
    [
        *((it, NEW) for it in (pd.Timestamp("1950-03-01"), np.datetime64("1950-03-01"))),
        *((it, NEW) for it in (np.datetime64("1950-03-01T00:00:00.000000000"), pd.Series([1950]))),
        *((it, NEW) for it in (["1950", None], np.int32(1950), [[1950]], pd.Period("1950-03"))),
        (np.array(["1950-03-01"], dtype="datetime64[ns]"), NEW),
        *((it, OLD) for it in ("1850-01", np.float64(1850), "1850-W01")),
        *((it, UNKNOWN) for it in (pd.NaT, pd.NA, np.datetime64("NaT"), "soon", [])),
    ],
)
def test_values_of_numpy_and_pandas_are_labels(label: Any, row: tuple[float, ...]) -> None:
    assert CENTURIES.membership(label, strict=False) == row


def test_a_number_that_is_no_year_is_unknown_among_dates() -> None:
    dated = CENTURIES.model_copy(update={"dates": "basic_date"})
    assert dated.membership(19500301, strict=False) == NEW
    assert dated.membership(18500301, strict=False) == OLD
    assert dated.membership(7, strict=False) == UNKNOWN
    # Neither where nobody says that they are dates, but all groups are of years.
    for value in (-631152000000, 19500301, "631152000000"):
        assert CENTURIES.membership(value, strict=False) == UNKNOWN
    prices = {"name": "price", "field": "p", "groups": {"low": {"lt": 5}, "high": {"gte": 5}}}
    assert Attribute.model_validate(prices).membership(19500301, strict=False) == NEW


YES_NO = {"name": "living", "field": "l", "groups": {"yes": [True], "no": [False]}}
ONE_ZERO = {"name": "living", "field": "l", "groups": {"yes": [1], "no": [0]}}


@pytest.mark.parametrize("groups", [YES_NO, ONE_ZERO])
@pytest.mark.parametrize(
    ("yes", "no"),
    [(True, False), ("True", "False"), ("true", "false"), (1, 0), ("1", "0"), ("1.0", "0.0")],
)
def test_a_switch_is_the_same_however_it_is_written(groups: Any, yes: Any, no: Any) -> None:
    """By an engine, a table of pandas or a program."""
    attribute = Attribute.model_validate(groups)
    assert attribute.membership(yes, strict=False) == (1.0, 0.0)
    assert attribute.membership([no], strict=False) == (0.0, 1.0)


def test_a_server_is_asked_for_all_that_means_a_value() -> None:
    """So that its filter finds the documents whose labels we read."""
    for groups, spellings in (
        (YES_NO, {"true", "True", "TRUE", "1", "1.0"}),
        (ONE_ZERO, {"true", "True", "TRUE", "1", "1.0"}),
        ({**YES_NO, "groups": {"yes": ["1"], "no": ["true", "x"]}}, {"1", "1.0"}),
        ({**YES_NO, "groups": ["yes", "no"]}, {"yes"}),
        ({**YES_NO, "groups": {"yes": ["5"], "no": ["7"]}}, {"5", "5.0"}),
    ):
        attribute = Attribute.model_validate(groups)
        assert set(attribute.spellings("yes")) == spellings
        assert {attribute.group_of(it) for it in spellings} == {"yes"}


def test_a_listed_value_counts_before_its_other_forms() -> None:
    grades = {"name": "grade", "field": "g", "groups": {"a": ["1", "x "], "b": ["true", "x"]}}
    attribute = Attribute.model_validate(grades)
    for value in (1, 1.0, "1.0", " 1", "x "):
        assert attribute.membership(value) == (1.0, 0.0)
    for value in (True, "True", "x", " x", "x\n"):
        assert attribute.membership(value) == (0.0, 1.0)


def test_a_nested_value_without_a_weight_counts_nothing() -> None:
    sex = Attribute.model_validate({"name": "sex", "field": "s", "groups": ["F", "M"]})
    assert sex.membership({"F": None, "M": 1}) == (0.0, 1.0)
    assert sex.membership({"F": 0.5, "M": float("nan")}) == (1.0, 0.0)
    assert sex.membership({"F": None, "M": None}) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"person": {"sex": "F"}}, "F"),
        ({"person.sex": "F"}, "F"),
        ({"person": [{"sex": "F"}, {"sex": "M"}]}, ["F", "M"]),
        ({"person": [{"sex": ["F", "M"]}, {"age": 7}, {"sex": "M"}]}, ["F", "M", "M"]),
        ({"person": [{"age": 7}]}, None),
        ({"person": "F"}, None),
        ({}, None),
    ],
)
def test_a_field_is_found_in_objects_and_lists_of_them(fields: dict[str, Any], value: Any) -> None:
    assert value_at(fields, "person.sex") == value
