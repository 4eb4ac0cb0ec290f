"""Comparing two audits: settings first, pairs of queries, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.comparing import compare
from fairqr.evaluation.audit.finishing import Audit, read_audit
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.records import Observation
from fairqr.retrieval.sources.schema import Attribute
from tests.unit.evaluation.audit.examples import SCHEMA, observations_of, queries_of, spec_of
from tests.unit.evaluation.audit.test_bundle import VERSIONS, manifest

IDS = ("ids", "others")

Made = Callable[..., Audit]


@pytest.fixture
def audit(tmp_path: Path) -> Made:
    """Makes audits of a made-up engine, each in a folder of its own."""
    numbers = itertools.count()

    def make(
        queries: Queries | None = None,
        spec: Mapping[str, Any] | None = None,
        observed: Callable[[Observation], Observation] = lambda it: it,
        attributes: Mapping[str, Attribute] = SCHEMA.attributes,
        lean: float = 0.5,
        failed: tuple[str, ...] = (),
        **changes: Any,
    ) -> Audit:
        queries = queries or queries_of(30)
        folder = AuditFolder(tmp_path / str(next(numbers)))
        asked = spec_of(**{"mend": 0, **(spec or {})}).model_dump(mode="json")
        said = {"spec": asked, "queries": queries.fingerprint, "attributes": attributes}
        folder.begin(manifest(**said, **changes))
        with folder.observations.writing():
            for it in observations_of(queries, lean=lean, failed=failed):
                # A document has the same groups in all queries, so each query has its own.
                own = {name: tuple(it.query + id_ for id_ in getattr(it, name)) for name in IDS}
                folder.observations.add(observed(it.model_copy(update=own)))
        folder.settle(queries)
        (folder.folder / "audit.json").write_text("{}")
        folder.seal()
        return read_audit(folder)

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


def with_population(female: float) -> Mapping[str, Attribute]:
    shares = {"population": {"female": female, "male": 1 - female}}
    return {**SCHEMA.attributes, "gender": SCHEMA.attribute("gender").model_copy(update=shares)}


POPULATION = {"target": "population:1"}
OTHERS = {"relevance": "judged", "observed": judged_otherwise}


@pytest.mark.parametrize(
    ("first", "second", "named", "said"),
    [
        (
            {"spec": POPULATION},
            {"spec": POPULATION, "attributes": with_population(0.1)},
            "population of gender",
            '"female": 0.5, "male": 0.5}, then {"female": 0.1',
        ),
        ({}, {"spec": POPULATION}, "target", "relevance:1, then population:1"),
        ({}, {"spec": {"k": 5}}, "k", "10, then 5"),
        (
            {"relevance": "judged", "inputs": {"judgements": "0" * 64}},
            {**OTHERS, "inputs": {"judgements": "1" * 64}},
            "judgements",
            "00000000, then 11111111",
        ),
        ({}, {"relevance": "judged"}, "relevance", "estimated, then judged"),
        ({}, {"versions": VERSIONS | {"fairqr": "0.9"}}, "fairqr", ", then 0.9"),
        ({}, {"observed": relabelled}, "labels of gender", "other for 1,200 documents"),
        ({}, {"queries": queries_of(20)}, "queries", "30 with fingerprint "),
        ({}, {"queries": queries_of(30, segments=["all"])}, "queries", "30 with fingerprint "),
    ],
)
def test_settings_are_named_first_and_no_lean_moves_where_the_engine_answers_the_same(
    audit: Made, first: dict[str, Any], second: dict[str, Any], named: str, said: str
) -> None:
    comparison = compare(audit(**first), audit(**second))
    assert list(comparison.settings) == [named]
    assert said in comparison.settings[named]
    assert comparison.same == comparison.queries
    assert {it.direction for it in comparison.changes} == {"same_answers"}
    assert not comparison.engine
    sentences = comparison.sentences()
    assert named in sentences[1]
    assert "so any difference comes from the settings" in sentences[2]
    assert not any("went " in it for it in sentences)


def test_another_target_is_no_change_of_the_engine_that_changed(audit: Made) -> None:
    """The settings of the second audit measure both, and what is left is the engine's."""
    comparison = compare(audit(lean=0.0, spec=POPULATION), audit(lean=1.0))
    assert comparison.settings == {"target": "population:1, then relevance:1"}
    assert comparison.changes == compare(audit(lean=0.0), audit(lean=1.0)).changes
    assert comparison.sentences()[1].startswith("Settings differ: target (")
    assert any("the lean of female went up" in it for it in comparison.sentences()[2:])


@pytest.mark.parametrize(
    ("how", "figures"), [({"observed": relabelled}, {"lean", "exposure"}), (OTHERS, {"lean"})]
)
def test_what_settings_may_have_changed_too_is_not_ascribed_to_the_engine(
    audit: Made, how: dict[str, Any], figures: set[str]
) -> None:
    comparison = compare(audit(lean=0.0), audit(lean=1.0, **how))
    assert comparison.same < comparison.queries
    genders = [it for it in comparison.changes if it.attribute == "gender"]
    assert {it.figure for it in genders if it.direction == "settings"} == figures
    assert {it.figure for it in genders if it.direction in ("up", "down")}.isdisjoint(figures)
    assert any("differs, but by other settings, too" in it for it in comparison.sentences())


def test_a_greater_lean_is_found_and_is_the_difference_of_paired_means(audit: Made) -> None:
    before = audit(lean=0.0)
    dense = before.manifest.engine | {"retriever": "dense", "state": "b" * 64}
    after = audit(lean=1.0, engine=dense, source={"attributes": {"gender": 1}, "key": {"a": 0}})
    comparison = compare(before, after)
    assert (comparison.queries, comparison.settings) == (30, {})
    state = f"none, then {'b' * 8}"
    assert comparison.engine == {"retriever": "own, then dense", "state": state}
    of_women = {it.figure: it for it in comparison.changes if it.group == "female"}
    found = of_women["lean"]
    one, two = (it.figures.by_query[0].leans()[0][:, 0] for it in (before, after))
    weights = before.figures.by_query[0].weights()
    assert found.change.value == pytest.approx(np.average(two - one, weights=weights))
    assert found.change.value == pytest.approx(found.after - found.before)
    assert found.change.low < found.change.value < found.change.high
    assert found.change.p is not None
    assert found.change.p < 0.05
    assert (found.direction, of_women["exposure"].direction) == ("up", "down")
    sentences = comparison.sentences()
    assert sentences[2] == f"The engine differs: retriever (own, then dense); state ({state})."
    assert any("the lean of female went up" in it for it in sentences)


def test_queries_are_the_same_by_their_texts_and_labels_by_what_they_say(audit: Made) -> None:
    """Ids that are numbers name other queries in another file, and a file of labels may move."""
    queries = queries_of(30).queries
    turned = tuple(
        replace(it, text=other.text)
        for it, other in zip(queries, queries[1:] + queries[:1], strict=True)
    )
    gender = SCHEMA.attribute("gender").model_copy(update={"field": ""})
    here, there = (
        {**SCHEMA.attributes, "gender": gender.model_copy(update={"labels": name})}
        for name in ("labels.csv", "moved/labels.csv")
    )
    before = audit(attributes=here)
    after = audit(replace(queries_of(30), queries=turned), attributes=there)
    comparison = compare(before, after)
    assert list(comparison.settings) == ["queries"]
    assert (comparison.queries, comparison.same) == (30, 0)
    twice = replace(queries_of(30), queries=tuple(replace(it, text="one") for it in queries))
    assert compare(audit(twice), audit(twice)).same == 30, "equal texts go by their ids"

    def renamed(it: Observation) -> Observation:
        return it.model_copy(
            update={name: tuple(f"new {id_}" for id_ in getattr(it, name)) for name in IDS}
        )

    moved = compare(before, audit(attributes=there, observed=renamed))
    assert "labels of gender" in moved.settings, "no document tells whether they are others"
    with pytest.raises(InputError, match="no query that is the same"):
        compare(before, audit(queries_of(30, texts=[f"other {number}" for number in range(30)])))


def test_an_audit_that_gives_no_verdict_is_named(audit: Made) -> None:
    failing = audit(failed=tuple(f"q{number}" for number in range(20, 31)))
    comparison = compare(audit(), failing)
    assert comparison.too_many_failed == ["second"]
    assert "So many queries of the second audit failed" in comparison.sentences()[1]


def test_what_cannot_be_compared_is_refused(audit: Made) -> None:
    first, second = audit(), audit(spec={"k": 40, "depth": 50})
    with pytest.raises(InputError, match="first audit looked at 30 results, and the second counts"):
        compare(first, second)
    with pytest.raises(InputError, match="Redacted queries cannot be paired"):
        compare(first, replace(second, manifest=manifest(redacted=True)))
