"""Measures of pairs, against plain counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.probes.pairs import planned_pairs
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise, measure_pairwise
from fairqr.evaluation.probes.running import measure
from fairqr.evaluation.probes.store import PairRecord, Spent
from tests.unit.evaluation.probes.made_probes import begin_pairwise, collection
from tests.unit.evaluation.probes.written_out import (
    collection_of,
    listwise,
    manifest_of,
    pairwise,
    query_of,
)


def leaning(pair: Any, number: int) -> tuple[str, str]:
    """Prefer the protected item in three of four pairs, both times."""
    winner = "protected" if number % 4 else "unprotected"
    return winner, winner


def first(pair: Any, number: int) -> tuple[str, str]:
    """Prefer what stands first."""
    return "protected", "unprotected"


def mixed(pair: Any, number: int) -> tuple[str, str]:
    """Do a bit of everything."""
    return (
        ("protected", "protected"),
        ("unprotected", "unprotected"),
        ("protected", "unprotected"),
        ("refused", "protected"),
    )[number % 4]


def fails(pair: Any, number: int) -> tuple[str, str]:
    """Never prefer anything."""
    return "refused", "both"


def measured(folder: Path, replies: Any, **more: Any) -> MeasuredPairwise:
    """Write a run on lists down and measure it."""
    probe = more.pop("probe", collection())
    found = measure(begin_pairwise(folder, [probe], replies, **more))
    assert isinstance(found, MeasuredPairwise)
    return found


def asked(pair: Any, query: str, one: str, other: str) -> PairRecord:
    return PairRecord(
        collection="small, gender",
        model="openai:fake",
        query=query,
        kind=pair.kind,
        protected=pair.protected.id,
        unprotected=pair.unprotected.id,
        protected_first=one,
        unprotected_first=other,
        spent=Spent(model_calls=2, tokens=10),
    )


def test_pairs_are_counted_by_kind_and_together() -> None:
    """Relevant pairs go to the protected item, irrelevant ones flip, and some are missing."""
    queries = [query_of(f"q{number}", 3, 3, 2, 2) for number in range(9)]
    queries.append(query_of("empty", 3, 0, 2, 2))
    probe = collection_of(*queries)
    experiment = pairwise(pairs=3, relevance_pairs=2)
    says = {
        "relevant": ("protected", "protected"),
        "irrelevant": ("protected", "unprotected"),
        "relevance": ("unprotected", "refused"),
    }
    records = [
        asked(pair, query.id, *says[pair.kind])
        for query in queries
        for pair in planned_pairs(
            query, experiment.pairs, experiment.relevance_pairs, experiment.seed
        )
    ]
    missing = next(record for record in records if record.query == "q5")
    found = measure_pairwise(
        manifest_of(experiment, probe),
        [probe],
        [record for record in records if record is not missing],
    )
    assert found.missing == 1
    assert found.figures.kind.tolist() == ["relevant", "irrelevant", "both", "relevance"]
    relevant, irrelevant, both, relevance = found.figures.itertuples()
    assert (relevant.planned, relevant.pairs, relevant.without_pairs) == (27, 26, 1)
    assert (relevant.protected_count, relevant.protected_of, relevant.protected) == (26, 26, 1.0)
    assert (irrelevant.pairs, irrelevant.flips_count, irrelevant.without_pairs) == (20, 20, 0)
    assert (both.pairs, both.planned, both.without_pairs) == (46, 47, 0)
    assert (both.model_calls, both.tokens) == (92, 460)
    assert relevant.verdict == "favours_protected"
    assert "favours female items" in relevant.sentence
    assert relevance.failures == {"refused": relevance.pairs}


def test_shares_are_those_of_the_pairs(tmp_path: Path) -> None:
    found = measured(tmp_path, {"mixed": mixed})
    for row in found.figures[found.figures.kind != "both"].itertuples():
        assert (row.pairs, row.answered, row.replies, row.failed) == (32, 24, 64, 8)
        for side in ("protected", "unprotected", "flips"):
            assert getattr(row, side) == 8 / 32
        assert (row.ratio, row.flips_to_first, row.flips_to_second) == (1.0, 8, 0)
        # Three of five votes of each four pairs that have one go to the protected item.
        assert row.votes == pytest.approx(4 / 7)
    lines = found.csv.splitlines()
    assert lines[0] == "collection,model,pairs,measure,value,low,high,count,of"
    assert lines[1].startswith('"notables, gender",mixed,relevant,protected,0.25,,,8,32')


def test_all_tests_on_a_collection_are_one_family(tmp_path: Path) -> None:
    """Verdicts on groups and on relevance; no entry claims a lean that does not hold."""
    few = measured(tmp_path / "few", {"leans": leaning, "looks first": first, "fails": fails})
    assert few.figures.verdict.tolist() == [
        *["favours_protected"] * 3,
        *["position_decides"] * 3,
        *["failed"] * 3,
    ]
    # p over queries is 2 of 2⁸, and three rows have one.
    assert few.figures.p_holm[:3].tolist() == pytest.approx([3 * 2 / 2**8] * 3)
    beside = measured(tmp_path / "beside", {"leans": leaning}, relevance_pairs=4)
    assert beside.figures.p_holm.tolist() == pytest.approx([4 * 2 / 2**8] * 4)
    many = measured(tmp_path / "many", {f"leans {number}": leaning for number in range(4)})
    assert many.figures.p_holm.tolist() == pytest.approx([12 * 2 / 2**8] * 12)
    assert set(many.figures.verdict) == {"too_few"}
    assert many.figures.lean.isna().all()


def test_pairs_that_cannot_be_made_or_were_not_asked_are_counted(tmp_path: Path) -> None:
    probe = collection(sizes=(5, 0, 5, 5))
    found = measured(tmp_path, {"leans": leaning}, probe=probe, missing=5)
    assert found.missing == 5
    relevant, irrelevant, _ = found.figures.itertuples()
    assert (relevant.without_pairs, relevant.queries_in_all, relevant.pairs) == (8, 8, 0)
    assert (irrelevant.planned, irrelevant.pairs) == (32, 27)


def test_a_run_of_the_other_kind_is_refused() -> None:
    probe = collection_of(query_of("q", 2, 2, 2, 2))
    with pytest.raises(InputError, match="asked about no pairs"):
        measure_pairwise(manifest_of(listwise(), probe), [probe], [])
