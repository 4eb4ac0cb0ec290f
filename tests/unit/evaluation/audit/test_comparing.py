"""Comparing two audits: settings first, pairs of queries, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.audit.comparing import compare
from fairqr.evaluation.audit.finishing import Audit
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.records import Observation
from fairqr.evaluation.experiments.folder import versions
from fairqr.retrieval.sources.schema import Attribute
from tests.unit.evaluation.audit.examples import (
    SCHEMA,
    made,
    observations_of,
    queries_of,
    sealed,
    spec_of,
)

QUERIES = queries_of(30)
ENGINE = {"name": "a made-up engine", "retriever": "own", "state": ""}

Made = Callable[..., Audit]


def renamed(found: Observation, prefix: str) -> Observation:
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
        lean: float = 0.5,
        failed: tuple[str, ...] = (),
        **manifest: Any,
    ) -> Audit:
        key = repr((queries, spec, observed.__name__, lean, failed, manifest))
        if key not in held:
            found = observations_of(queries, lean=lean, failed=failed)
            # A document has the same groups in all queries, so each query has its own.
            own = [observed(renamed(it, it.query)) for it in found]
            said = {"engine": ENGINE, "versions": versions(), "reported": False, **manifest}
            asked, folder = spec_of(mend=0, **spec), tmp_path_factory.mktemp("audit")
            held[key] = sealed(folder / "out", queries, own, spec=asked, **said)
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
    return {**SCHEMA.attributes, "gender": SCHEMA.attribute("gender").model_copy(update=values)}


POPULATION: dict[str, Any] = {"spec": {"target": "population:1"}}
OTHERS = {"relevance": "judged", "observed": judged_otherwise}
LOST = with_gender(population={"female": 0.1, "male": 0.9})


@pytest.mark.parametrize(
    ("first", "second", "named", "said"),
    [
        (
            POPULATION,
            POPULATION | {"attributes": LOST},
            "population of gender",
            '"female": 0.5, "male": 0.5}, then {"female": 0.1',
        ),
        ({}, POPULATION, "target", "relevance:1, then population:1"),
        ({}, {"spec": {"k": 5}}, "k", "10, then 5"),
        (
            {"relevance": "judged", "inputs": {"judgements": "0" * 64}},
            {**OTHERS, "inputs": {"judgements": "1" * 64}},
            "judgements",
            "00000000, then 11111111",
        ),
        ({}, {"relevance": "judged"}, "relevance", "estimated, then judged"),
        ({}, {"versions": versions() | {"fairqr": "0.9"}}, "fairqr", ", then 0.9"),
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
    before, state = audit(lean=0.0), f"none, then {'b' * 8}"
    engine = ENGINE | {"retriever": "dense", "state": "b" * 64}
    after = audit(lean=1.0, engine=engine, source={"attributes": {"gender": 1}, "key": {"a": 0}})
    comparison = compare(before, after)
    assert (comparison.queries, comparison.settings) == (30, {})
    assert comparison.engine == {"retriever": "own, then dense", "state": state}
    of_women = {it.figure: it for it in comparison.changes if it.group == "female"}
    found = of_women["lean"]
    one, two = (it.figures.by_query[0].leans()[0][:, 0] for it in (before, after))
    weights = before.figures.by_query[0].weights()
    assert found.change.value == pytest.approx(np.average(two - one, weights=weights))
    assert found.change.value == pytest.approx(found.after - found.before)
    assert found.change.low < found.change.value < found.change.high
    assert (found.change.p or 1) < 0.05
    assert (found.direction, of_women["exposure"].direction) == ("up", "down")
    sentences = comparison.sentences()
    assert sentences[2] == f"The engine differs: retriever (own, then dense); state ({state})."
    assert any("the lean of female went up" in it for it in sentences)
    # Another target is no change of the engine: the settings of the second audit measure both.
    other = compare(audit(lean=0.0, **POPULATION), audit(lean=1.0))
    assert other.settings == {"target": "population:1, then relevance:1"}
    assert other.changes == compare(before, audit(lean=1.0)).changes
    assert other.sentences()[1].startswith("Settings differ: target (")
    assert any("the lean of female went up" in it for it in other.sentences()[2:])


def test_queries_are_the_same_by_their_texts_and_labels_by_what_they_say(audit: Made) -> None:
    """Ids that are numbers name other queries in another file, and a file of labels may move."""
    texts = [it.text for it in QUERIES.queries]

    def asked(*named: str) -> Queries:
        held = zip(QUERIES.queries, named, strict=True)
        return replace(QUERIES, queries=tuple(replace(it, text=text) for it, text in held))

    def elsewhere(found: Observation) -> Observation:
        return renamed(found, "new ")

    here, moved = (
        {"attributes": with_gender(field="", labels=name)}
        for name in ("labels.csv", "moved/labels.csv")
    )
    comparison = compare(audit(**here), audit(asked(*texts[1:], texts[0]), **moved))
    assert list(comparison.settings) == ["queries"]
    assert (comparison.queries, comparison.same) == (30, 0)
    twice = asked(*["one"] * 30)
    assert compare(audit(twice), audit(twice)).same == 30, "equal texts go by their ids"
    settings = compare(audit(**here), audit(observed=elsewhere, **moved)).settings
    assert "labels of gender" in settings, "no document tells whether they are others"
    with pytest.raises(InputError, match="no query that is the same"):
        compare(audit(**here), audit(asked(*(f"other {number}" for number in range(30)))))


def test_an_audit_that_gives_no_verdict_is_named_and_what_cannot_be_compared_refused(
    audit: Made,
) -> None:
    comparison = compare(audit(), audit(failed=tuple(f"q{number}" for number in range(20, 31))))
    assert comparison.too_many_failed == ["second"]
    assert "So many queries of the second audit failed" in comparison.sentences()[1]
    second = audit(spec={"k": 40, "depth": 50})
    with pytest.raises(InputError, match="first audit looked at 30 results, and the second counts"):
        compare(audit(), second)
    with pytest.raises(InputError, match="Redacted queries cannot be paired"):
        compare(audit(), made(audit(), redacted=True))
