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


def renamed(observation: Observation, prefix: str = "new ") -> Observation:
    """Give the documents other ids."""
    ids = tuple(prefix + id_ for id_ in observation.ids)
    others = tuple(prefix + id_ for id_ in observation.others)
    return observation.model_copy(update={"ids": ids, "others": others})


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes audits of a made-up engine, each in a folder of its own; equal ones are made once."""
    held: dict[str, Audit] = {}

    def make(
        queries: Queries = QUERIES,
        spec: Mapping[str, Any] = {},
        observed: Callable[[Observation], Observation] = lambda observation: observation,
        bias: float = 0.5,
        failed: tuple[str, ...] = (),
        **manifest: Any,
    ) -> Audit:
        key = repr((queries, spec, observed.__name__, bias, failed, manifest))
        if key not in held:
            # A document has the same groups in all queries, so each query has its own.
            observations = [
                observed(renamed(observation, observation.query))
                for observation in examples.observations_of(queries, bias=bias, failed=failed)
            ]
            options = {"engine": ENGINE, "versions": {"fairqr": "0.8"}, "reported": False}
            options |= {"spec": examples.spec_of(rerank=0, **spec)} | manifest
            folder = tmp_path_factory.mktemp("audit") / "out"
            held[key] = examples.sealed(folder, queries, observations, **options)
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

    What is printed of each kind of difference stays as it was read once.
    """
    lines = list[str]()
    for name, (first, second) in CASES.items():
        comparison = compare(audit(**first), audit(**second))
        changes = comparison.changes
        directions = {change.direction for change in changes}
        is_same = comparison.same == comparison.queries
        assert is_same == (directions == {"same_answers"})
        sentences = comparison.sentences()
        assert ("up" in directions) == any("went up" in sentence for sentence in sentences)
        summary = (f"{it.group}, {it.figure}: {it.direction}" for it in changes)
        lines += [f"## {name}", *sentences, "; ".join(summary)]
    check_text("audit_comparisons.md", "\n\n".join(lines))


@pytest.mark.promise("audit")
def test_a_greater_gap_is_the_difference_of_paired_means(audit: Made) -> None:
    """Where the engine answers differently, a comparison gives the change of a gap, query by query,
    with its interval.
    """
    before, after = audit(**FAIR), audit(**BIASED)
    comparison = compare(before, after)
    (gap,) = (it for it in comparison.changes if (it.group, it.figure) == ("female", "gap"))
    first = before.figures.by_query[0]
    second = after.figures.by_query[0]
    differences = second.tested_gaps()[0][:, 0] - first.tested_gaps()[0][:, 0]
    assert gap.change.value == pytest.approx(np.average(differences, weights=first.weights()))
    assert gap.change.value == pytest.approx(gap.after - gap.before)
    assert gap.change.low < gap.change.value < gap.change.high
    assert (gap.change.p or 1) < 0.05


def test_the_settings_of_the_second_audit_measure_both(audit: Made) -> None:
    """Another target is no change of the engine."""
    after = audit(**BIASED)
    comparison = compare(audit(**FAIR), after)

    assert compare(audit(**FAIR, **POPULATION), after).changes == comparison.changes


@pytest.mark.promise("audit")
def test_a_redacted_audit_is_not_compared(audit: Made) -> None:
    """A redacted audit cannot be compared query by query."""
    with pytest.raises(InputError, match="Redacted queries cannot be paired"):
        compare(audit(), examples.made(audit(), redacted=True))


def test_another_depth_is_not_compared(audit: Made) -> None:
    with pytest.raises(InputError, match="first audit looked at 30 results, and the"):
        compare(audit(), audit(spec={"k": 40, "depth": 50}))


def test_other_queries_are_not_compared(audit: Made) -> None:
    others = asked(*(f"other {number}" for number in range(30)))

    with pytest.raises(InputError, match="no query that is the same"):
        compare(audit(), audit(others))
