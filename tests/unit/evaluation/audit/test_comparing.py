"""Comparing two audits: settings first, pairs of queries, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.comparing import compare
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.queries import Queries
from fairqr.retrieval.sources.schema import Attribute
from tests.golden.reports import check_text
from tests.unit.evaluation.audit import examples
from tests.unit.evaluation.audit.examples import queries_of

QUERIES = queries_of(30)
TEXTS = [it.text for it in QUERIES.queries]
ENGINE = {"name": "a made-up engine", "retriever": "own", "state": ""}

Made = Callable[..., Audit]


def renamed(found: Observation, prefix: str = "new ") -> Observation:
    ids, others = (tuple(prefix + id_ for id_ in it) for it in (found.ids, found.others))
    return found.model_copy(update={"ids": ids, "others": others})


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes audits of a made-up engine, each in a folder of its own; equal ones are made once."""
    held: dict[str, Audit] = {}

    def make(
        queries: Queries = QUERIES,
        spec: Mapping[str, Any] = {},
        observed: Callable[[Observation], Observation] = lambda it: it,
        bias: float = 0.5,
        failed: tuple[str, ...] = (),
        **manifest: Any,
    ) -> Audit:
        key = repr((queries, spec, observed.__name__, bias, failed, manifest))
        if key not in held:
            found = examples.observations_of(queries, bias=bias, failed=failed)
            # A document has the same groups in all queries, so each query has its own.
            own = [observed(renamed(it, it.query)) for it in found]
            said = {"engine": ENGINE, "versions": {"fairqr": "0.8"}, "reported": False, **manifest}
            asked, folder = examples.spec_of(rerank=0, **spec), tmp_path_factory.mktemp("audit")
            held[key] = examples.sealed(folder / "out", queries, own, spec=asked, **said)
        return held[key]

    return make


def relabelled(found: Observation) -> Observation:
    """Swap the genders."""
    gender = found.groups["gender"]
    swapped = {**gender, "patterns": [pattern[::-1] for pattern in gender["patterns"]]}
    return found.model_copy(update={"groups": {**found.groups, "gender": swapped}})


def judged_otherwise(found: Observation) -> Observation:
    """Take women for relevant, and nobody else."""
    gender = found.groups["gender"]
    relevance = tuple(float(gender["patterns"][row][0]) for row in gender["rows"])
    return found.model_copy(update={"relevance": relevance})


def with_gender(**values: Any) -> Mapping[str, Attribute]:
    held = examples.SCHEMA.attributes
    return {**held, "gender": held["gender"].model_copy(update=values)}


def asked(*texts: str) -> Queries:
    held = zip(QUERIES.queries, texts, strict=True)
    return replace(QUERIES, queries=tuple(replace(it, text=text) for it, text in held))


POPULATION: dict[str, Any] = {"spec": {"target": "population:1"}}
FAIR, BIASED = {"bias": 0.0}, {"bias": 1.0}
JUDGED, OTHERS = (
    {"relevance": "judged", "inputs": {"judgements": it * 64}, **how}
    for it, how in (("0", {}), ("1", {"observed": judged_otherwise}))
)
HERE, MOVED = (
    {"attributes": with_gender(field="", labels=name)}
    for name in ("labels.csv", "moved/labels.csv")
)
TWICE = {"queries": asked(*["one"] * 30)}
BETTER = {
    "engine": ENGINE | {"retriever": "dense", "state": "b" * 64},
    "source": {"attributes": {"gender": 1}, "key": {"a": 0}},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another population": (
        POPULATION,
        POPULATION | {"attributes": with_gender(population={"female": 0.1, "male": 0.9})},
    ),
    "another target": ({}, POPULATION),
    "another k": ({}, {"spec": {"k": 5}}),
    "other judgements": (JUDGED, OTHERS),
    "judgements in place of estimates": ({}, {"relevance": "judged"}),
    "another version": ({}, {"versions": {"fairqr": "0.9"}}),
    "other labels": ({}, {"observed": relabelled}),
    "fewer queries": ({}, {"queries": queries_of(20)}),
    "a segment": ({}, {"queries": queries_of(30, segments=["all"])}),
    "a bias, and other labels": (FAIR, BIASED | {"observed": relabelled}),
    "a bias, and other judgements": (JUDGED | FAIR, OTHERS | BIASED),
    "a bias": (FAIR, BIASED | BETTER),
    "a bias, and another target": (FAIR | POPULATION, BIASED),
    # Ids that are numbers name other queries in another file, and a file of labels may move.
    "other ids, and labels elsewhere": (HERE, MOVED | {"queries": asked(*TEXTS[1:], TEXTS[0])}),
    "equal texts, which go by their ids": (TWICE, TWICE),
    "other documents, and labels elsewhere": (HERE, MOVED | {"observed": renamed}),
    "many failures": ({}, {"failed": tuple(f"q{number}" for number in range(20, 31))}),
}


@pytest.mark.promise("audit")
def test_only_the_engine_moves_a_gap(audit: Made) -> None:
    """A comparison names the settings that differ first, and no gap goes up or down where the
    engine answers the same, or where labels or judgements may be the reason.

    Where it answers the same no gap moves, and where settings may be the reason none does.
    """
    lines = list[str]()
    for name, (first, second) in CASES.items():
        found = compare(audit(**first), audit(**second))
        directions = {it.direction for it in found.changes}
        assert (found.same == found.queries) == (directions == {"same_answers"})
        sentences = found.sentences()
        assert ("up" in directions) == any("went up" in it for it in sentences)
        told = (f"{it.group}, {it.figure}: {it.direction}" for it in found.changes)
        lines += [f"## {name}", *sentences, "; ".join(told)]
    check_text("audit_comparisons.md", "\n\n".join(lines))


@pytest.mark.promise("audit")
def test_a_greater_gap_is_the_difference_of_paired_means(audit: Made) -> None:
    """Where the engine answers differently, a comparison gives the change of a gap, query by query,
    with its interval.
    """
    before, after = audit(**FAIR), audit(**BIASED)
    comparison = compare(before, after)
    (found,) = (it for it in comparison.changes if (it.group, it.figure) == ("female", "gap"))
    one, two = (it.figures.by_query[0].tested_gaps()[0][:, 0] for it in (before, after))
    weights = before.figures.by_query[0].weights()
    assert found.change.value == pytest.approx(np.average(two - one, weights=weights))
    assert found.change.value == pytest.approx(found.after - found.before)
    assert found.change.low < found.change.value < found.change.high
    assert (found.change.p or 1) < 0.05
    # Another target is no change of the engine: the settings of the second audit measure both.
    assert compare(audit(**FAIR, **POPULATION), after).changes == comparison.changes


@pytest.mark.promise("audit")
def test_what_cannot_be_compared_is_refused(audit: Made) -> None:
    """A redacted audit cannot be compared query by query."""
    for first, second, why in (
        (audit(), audit(spec={"k": 40, "depth": 50}), "first audit looked at 30 results, and the"),
        (audit(), examples.made(audit(), redacted=True), "Redacted queries cannot be paired"),
        (audit(), audit(asked(*(f"other {n}" for n in range(30)))), "no query that is the same"),
    ):
        with pytest.raises(InputError, match=why):
            compare(first, second)
