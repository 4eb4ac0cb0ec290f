"""Comparing two audits: pairs of queries, changes by definition, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.comparing import Comparison, compare, write_comparison
from fairqr.evaluation.audit.finishing import Audit
from tests.unit.evaluation.audit.examples import outcome_of, spec_of
from tests.unit.evaluation.audit.test_bundle import manifest


def audit(count: int = 30, **changes: Any) -> Audit:
    outcome = outcome_of(count, **changes)
    return Audit(
        folder=Path(),
        manifest=manifest(),
        digest="",
        spec=outcome.spec,
        queries=outcome.queries,
        figures=outcome.figures,
    )


def change(comparison: Comparison, figure: str, group: str) -> Any:
    (found,) = [
        it
        for it in comparison.changes
        if (it.attribute, it.group, it.figure) == ("gender", group, figure)
    ]
    return found


def test_an_audit_does_not_differ_from_itself() -> None:
    comparison = compare(audit(), audit())
    assert {it.change.value for it in comparison.changes if it.change.value == it.change.value} == {
        0
    }
    assert {it.direction for it in comparison.changes} == {"cannot_tell"}
    assert "No change could be told from chance" in comparison.sentences()[1]


def test_an_audit_that_gives_no_verdict_is_named() -> None:
    failing = audit(failed=tuple(f"q{number}" for number in range(20, 31)))
    assert failing.figures.too_many_failed
    comparison = compare(audit(), failing)
    assert comparison.too_many_failed == ("second",)
    assert "So many queries of the second audit failed" in comparison.sentences()[1]
    assert compare(audit(), audit()).too_many_failed == ()


def test_a_greater_lean_is_found_and_is_the_difference_of_paired_means(tmp_path: Path) -> None:
    before, after = audit(lean=0.0), audit(lean=1.0)
    comparison = compare(before, after)
    assert (comparison.queries, comparison.only_first, comparison.only_second) == (30, 0, 0)
    found = change(comparison, "lean", "female")
    one, two = (it.figures.by_query[0].leans()[0][:, 0] for it in (before, after))
    weights = before.figures.by_query[0].weights()
    assert found.change.value == pytest.approx(np.average(two - one, weights=weights))
    assert found.direction == "up"
    assert found.change.low < found.change.value < found.change.high
    assert found.change.p < 0.05
    assert change(comparison, "exposure", "female").direction == "down"
    ratio = change(comparison, "impact_ratio", "female")
    assert ratio.after < ratio.before
    assert ratio.change.p is None
    assert any("the lean of female went up" in it for it in comparison.sentences())
    files = write_comparison(comparison, tmp_path / "drift")
    assert {path.name for path in files} == {"comparison.json", "report.md", "report.html"}


def test_only_common_queries_count() -> None:
    comparison = compare(audit(30), audit(20, lean=1.0))
    assert (comparison.queries, comparison.only_first, comparison.only_second) == (20, 10, 0)


def test_what_cannot_be_compared_is_refused() -> None:
    first, second = audit(), audit()
    other = replace(second, spec=second.spec.model_copy(update={"k": first.spec.k + 1}))
    with pytest.raises(InputError, match="measure differently \\(k\\)"):
        compare(first, other)
    with pytest.raises(InputError, match="measure differently \\(depth\\)"):
        compare(audit(), audit(spec=spec_of(depth=25)))
    with pytest.raises(InputError, match="measure differently \\(relevance\\)"):
        compare(first, replace(second, manifest=manifest(relevance="judged")))
    with pytest.raises(InputError, match="second audit has redacted queries"):
        compare(first, replace(second, manifest=manifest(redacted=True)))
