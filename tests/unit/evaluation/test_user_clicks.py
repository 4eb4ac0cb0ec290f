"""What searches showed and what was clicked: the forms of rows, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.user_clicks import (
    LEAST_QUERIES,
    MeasuredDiscount,
    measured,
    measured_discount,
    read_clicks,
)

TRUE = np.array([1.0, 0.65, 0.45, 0.32])
"""How likely the made users look at each rank."""

Rows = list[dict[str, Any]]


def search(id_: str, ids: list[str], words: str = "opera", **more: Any) -> dict[str, Any]:
    """Return a row of ``ubi_queries``."""
    told = {"application": "shop", "client_id": "c", "timestamp": "2026-11-30T10:00:00Z"}
    return {**told, "query_id": id_, "user_query": words, "query_response_hit_ids": ids, **more}


def event(id_: str, document: str, action: str = "click", rank: int = 2) -> dict[str, Any]:
    """Return a row of ``ubi_events``."""
    attributes = {
        "object": {"object_id": document, "object_id_field": "id"},
        "position": {"ordinal": rank},
    }
    return {"query_id": id_, "action_name": action, "event_attributes": attributes}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([search("1", ["a", "b"]), event("1", "b")], id="searches and events"),
        pytest.param([event("1", "b"), search("1", ["a", "b"])], id="events first"),
        pytest.param(
            [
                {"_id": "x", "_source": search("1", ["a", "b"])},
                {"_source": event("1", "b")},
            ],
            id="hits",
        ),
        pytest.param(
            [search("1", ["a", "b"]), event("1", "b", "product_click"), event("1", "a", "hover")],
            id="other names of actions",
        ),
        pytest.param(
            [
                event("1", "a", "impression", 1),
                event("1", "b", "impression", 2),
                event("1", "b"),
            ],
            id="impressions",
        ),
        pytest.param(
            [
                {"query_id": "1", "user_query": "opera"},
                event("1", "a", "impression", 1),
                event("1", "b", "impression", 2),
                event("1", "b"),
            ],
            id="impressions of a search without hits",
        ),
        pytest.param([search("1", ["a", "b"]), {"query": "1", "document": "b"}], id="clicks"),
        pytest.param(
            [
                search("1", ["a", "b"]),
                {"action_name": "login", "client_id": "c"},
                {"action_name": "button_click", "query_id": None, "event_attributes": {}},
                event("1", "b"),
            ],
            id="events of no search",
        ),
        pytest.param([search("1", ["a", "b"]), event("1", "isbn of b")], id="by rank"),
        pytest.param(
            [search("1", ["a", "b"]), search("1", ["b", "a"]), event("1", "b")],
            id="first counts",
        ),
        pytest.param(
            [
                search("1", ["a", "b"]),
                search("2", ["c"], query='{"from": 10}'),
                event("1", "b"),
            ],
            id="further page",
        ),
    ],
)
def test_every_form_says_the_same(rows: Rows, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for given in (rows, [file]):
        (found,) = read_clicks(given).values()
        assert (found.ranks, found.clicked) == ({"a": 1, "b": 2}, {"b"})


def test_clicks_may_be_a_table(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("query_id,document\n1,b\n")
    (found,) = read_clicks([file, search("1", ["a", "b"])]).values()
    assert found.clicked == {"b"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "opera"}], "Row 1 of the clicks is no search, event or click"),
        ([event("1", "a", "impression", 0)], "Nothing says what was shown"),
        (
            [{"action_name": "click", "query_id": "1", "event_attributes": {"object": 3}}],
            "Row 1 of",
        ),
        ([event("1", "a")], "Nothing says what was shown"),
        ([search("1", ["a"]), event("2", "a")], "No search has the id of any click, such as '2'"),
        ([search("1", ["a", "b"])], f"Only 0 queries .* and {LEAST_QUERIES} are needed"),
    ],
)
def test_what_says_nothing_is_an_error(rows: Rows, said: str) -> None:
    with pytest.raises(InputError, match=said):
        measured(read_clicks(rows), 10)


def users(lists: int, swaps: float, moves: float, seed: int = 64) -> Rows:
    """Let made users look and click; the engine puts first what attracts."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    attraction = {}
    for number in range(lists):
        query = f"q{number % 200}"
        ids = ["a", "b", "c", "d"]
        if rng.random() < moves:
            rng.shuffle(ids)
        swap = int(rng.integers(2, 5)) if rng.random() < swaps else 0
        if swap and rng.random() < 0.5:
            ids[0], ids[swap - 1] = ids[swap - 1], ids[0]
        rows.append(search(f"{number}", ids, query, swap=swap))
        for rank, document in enumerate(ids, start=1):
            attracts = attraction.setdefault((query, document), rng.beta(4, 4) / ord(document) * 97)
            if rng.random() < TRUE[rank - 1] * attracts:
                rows.append(event(f"{number}", document, rank=rank))
    return rows


@pytest.mark.parametrize(
    ("swaps", "moves", "by"),
    [(0.5, 0.0, "intervention"), (0.0, 0.5, "regression"), (0.002, 0.5, "regression")],
    ids=["by intervention", "by regression", "too few swaps"],
)
def test_rows_of_made_users_give_their_discount(swaps: float, moves: float, by: str) -> None:
    """Over 1,000 runs it is tested in test_clicks.py, without rows."""
    found = measured_discount(read_clicks(users(6_000, swaps, moves)), 10)
    assert found.by == by
    low = np.array(found.low)
    high = np.array(found.high)
    widths = np.log(high / low)
    middle = np.log(np.array(found.values) / TRUE)
    assert (np.abs(middle) <= widths).all()  # twice as far as the interval reaches
    assert (widths[1:] < 0.5).all()


def test_ranks_end_where_clicks_do() -> None:
    rows = users(6_000, 0.0, 0.5)
    kept = [
        row for row in rows if row.get("event_attributes", {}).get("position") != {"ordinal": 3}
    ]
    assert len(measured_discount(read_clicks(kept), 10).values) == 2
    assert len(measured_discount(read_clicks(rows), 3).values) == 3


def test_a_discount_never_rises() -> None:
    ends = {"low": (1, 0.4, 0.5, 0.2), "high": (1, 0.6, 0.7, 0.4)}
    found = MeasuredDiscount(
        by="regression", searches=9, clicks=9, values=(1, 0.5, 0.6, 0.3), **ends
    )
    first, second, third, last = found.discount.weights(4)
    assert (first, last) == (1, 0.3)
    assert second == third
    assert 0.55 < second < 0.6  # nearer to the one that is known better


def arms(queries: int, rates: tuple[float, float], share: float = 0.5) -> Rows:
    rng = np.random.default_rng(1)
    rows: Rows = []
    for number in range(queries):
        is_fair = rng.random() < share
        arm = {"arm": "fair" if is_fair else "engine", "share": share}
        rows.append(search(f"{number}", ["a", "b"], f"q{number}", **arm))
        rows.append(search(f"{number} again", ["a", "b"], f"q{number}", **arm))
        rows.append({"query_id": f"{number} again", "document": "a"})
        if rng.random() < rates[is_fair]:
            rows.append({"query_id": f"{number}", "document": "a"})
    return rows


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("queries", "rates", "decision"),
    [
        (100, (0.3, 0.3), "go on"),
        (100, (0.0, 0.0), "go on"),
        (4_000, (0.2, 0.4), "differs"),
        (60_000, (0.1, 0.1), "alike"),
    ],
)
def test_a_trial_says_when_to_stop(queries: int, rates: tuple[float, float], decision: str) -> None:
    """A report on the log says when to stop comparing the arms of a trial.

    Each query counts by its first search, so what later ones clicked is in no figure.
    """
    found = measured(read_clicks(arms(queries, rates)), 10)
    assert "by regression: Only" in found.why_not
    assert found.trial is not None
    assert found.trial.decision == decision
    assert sum(found.trial.queries.values()) == queries
    assert found.trial.rates["engine"] == pytest.approx(rates[0], abs=0.15)
    assert found.trial.low <= rates[1] - rates[0] <= found.trial.high


def test_swapped_lists_and_arms_without_chance_are_in_no_trial() -> None:
    rows = arms(50, (0.5, 0.5))
    for changes in ({"swap": 2}, {"share": 1.0}):
        changed = [{**row, **changes} if "arm" in row else row for row in rows]
        with pytest.raises(InputError, match="do not say how likely"):
            measured(read_clicks(changed), 10)
