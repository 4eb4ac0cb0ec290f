"""What changed between two audits: first their settings, then what the engine answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.base.statistics import corrected_by_holm, stream
from fairqr.evaluation.audit.bundle import HASH, AuditFolder
from fairqr.evaluation.audit.estimates import Estimate, differences, means, p_of_means
from fairqr.evaluation.audit.figures import ALPHA, Gathered
from fairqr.evaluation.audit.finishing import Audit, measured
from fairqr.evaluation.audit.outcomes import as_data
from fairqr.evaluation.reports.writer import paragraphs, write_report
from fairqr.retrieval.dimension import TIMES

ENGINE = ("name", "engine", "location", "retriever", "state", "server", "documents", "source")
"""What is known of the engine."""

LEAN_ONLY = ("relevance", "encoder", "judgements", "depth", "widen")
"""Settings that change which documents count as relevant, and so the lean, not the exposure."""

Direction = Literal["up", "down", "settings", "cannot_tell", "too_few", "same_answers"]


@dataclass(frozen=True, slots=True)
class Change:
    """How a figure of a group changed.

    Attributes:
        attribute: The attribute.
        group: The group.
        figure: ``lean`` or ``exposure``.
        before: In the first audit, over the queries of both.
        after: In the second one.
        change: After − before. Its p is corrected for all tests of the comparison.
        direction: ``up`` or ``down`` if the test says so and only the engine can be the reason;
            ``settings`` if these may be the reason, too; ``same_answers`` if the engine cannot be.
    """

    attribute: str
    group: str
    figure: str
    before: float
    after: float
    change: Estimate
    direction: Direction = "cannot_tell"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two audits.

    Attributes:
        audits: Of the earlier and the later one, the engine's name, the beginning, and the digest.
        settings: By the name of each setting that differs, both values, or how much differs.
        engine: The same of what is known of the engine.
        queries: How many queries both answered.
        same: To how many of them the engine gave the same documents in the same order.
        changes: By attribute, group and figure.
        too_many_failed: Which of both audits, ``first`` or ``second``, give no verdict, since too
            many of their queries failed.
    """

    audits: tuple[tuple[str, str, str], ...]
    settings: Mapping[str, str]
    engine: Mapping[str, str]
    queries: int
    same: int
    changes: tuple[Change, ...]
    too_many_failed: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return what changed, in plain words."""
        return paragraphs("audit_comparison", {"it": self})


def compare(first: Audit, second: Audit) -> Comparison:
    """Compare two audits query by query, both measured by the spec and populations of the second.

    A query weighs what it weighs in both, each weight as a share of its audit.

    Args:
        first: The earlier audit.
        second: The later one.

    Raises:
        InputError: Their queries are redacted, the first one saw fewer results than the second one
            counts as shown, or they share no attribute or no query.
    """
    audits = {"first": first, "second": second}
    if redacted := [which for which, it in audits.items() if it.manifest.redacted]:
        raise InputError(
            f"The {redacted[0]} audit has redacted queries, so nobody can pair them; compare "
            "audits that were made without --redact."
        )
    if first.spec.depth < second.spec.k:
        raise InputError(
            f"The first audit looked at {first.spec.depth} results of each query, and the second "
            f"counts {second.spec.k} as shown; make one with another k or depth."
        )
    later = {it.dimension.name: it for it in second.figures.by_query}
    sides = [(it, later[it.dimension.name]) for it in _measured_by(first, second)]
    depth = min(first.spec.depth, second.spec.depth)
    (answers, labels), (others, other_labels) = (_observed(it, depth) for it in audits.values())
    common = [query for query in answers if query in others]
    if not common:
        raise InputError("The audits answered no query that is the same in both.")
    same = sum(answers[query] == others[query] for query in common)
    settings = _different(_settings(first), _settings(second))
    if first.manifest.queries != second.manifest.queries:
        ids = [{query.id for query in it.queries.queries} for it in audits.values()]
        only = f"{len(ids[0] - ids[1]):,} only in the first, {len(ids[1] - ids[0]):,} in the second"
        settings["queries"] = only if ids[0] != ids[1] else "other texts or weights"
    for name in sorted(labels.keys() & other_labels.keys()):
        one, two = labels[name], other_labels[name]
        both = one.keys() & two.keys()
        other = sum(one[id_] != two[id_] for id_ in both)
        if other or f"labels of {name}" in settings:
            settings[f"labels of {name}"] = f"other for {other:,} of {len(both):,} documents"
    changes = [it for side in sides for it in _changes(side, common, first.spec.seed)]
    corrected = corrected_by_holm([it.change.p for it in changes])
    return Comparison(
        audits=tuple(
            (it.manifest.engine.name, it.manifest.started, it.digest) for it in audits.values()
        ),
        settings=settings,
        engine={name: settings.pop(name) for name in ENGINE if name in settings},
        queries=len(common),
        same=same,
        changes=tuple(
            _judged(it, p, settings, same_answers=same == len(common))
            for it, p in zip(changes, corrected, strict=True)
        ),
        too_many_failed=tuple(n for n, it in audits.items() if it.figures.too_many_failed),
    )


def _measured_by(first: Audit, second: Audit) -> list[Gathered]:
    """Measure the first audit by the settings of the second, in what has the same groups in both.

    Without this a change of the target would look like one of the engine.
    """
    groups = {it.dimension.name: it.dimension.groups for it in second.figures.by_query}
    dimensions = [it.dimension for it in first.figures.by_query]
    shared = [it.name for it in dimensions if groups.get(it.name) == it.groups]
    if not shared:
        raise InputError("The audits have no attribute with the same groups in both.")
    spec = second.manifest.spec | {"attributes": shared, "intersections": False, "mend": 0}
    asked = {"spec": spec, "relevance": first.manifest.relevance}
    manifest = second.manifest.model_copy(update=asked)
    return measured(AuditFolder(first.folder), manifest).figures.by_query


def _observed(audit: Audit, depth: int) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
    """Return a hash of each query's answer, and the memberships of documents by attribute."""
    answers: dict[str, int] = {}
    labels: dict[str, dict[str, Any]] = {}
    for it in AuditFolder(audit.folder).observations.read():
        if it.status == "ok":
            answers[it.query] = hash(it.ids[:depth])
        for name, coded in it.groups.items():
            held = [coded["patterns"][row] for row in coded["rows"]]
            labels.setdefault(name, {}).update(zip(it.pool, held, strict=True))
    return answers, labels


def _settings(audit: Audit) -> dict[str, Any]:
    """Return what an audit was made with and of, by names for sentences, but for its queries."""
    manifest = audit.manifest
    found = dict(audit.spec) | dict(manifest.engine)
    for name in ("relevance", "encoder", "server", "documents", "source"):
        found[name] = getattr(manifest, name)
    found["attributes"] = ", ".join(manifest.attributes)
    found["judgements"] = manifest.inputs.get("judgements", "")
    found["fairqr"] = manifest.versions["fairqr"]
    for name, it in manifest.attributes.items():
        shares = [f"{group} {share:g}" for group, share in (it.population or {}).items()]
        found[f"population of {name}"] = ", ".join(shares)
        found[f"groups of {name}"] = ", ".join(it.groups)
        found[f"labels of {name}"] = it.model_dump(exclude={"population", "groups"})
    return found


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the values that differ, with both values where these can be read."""
    found = {}
    for name in before:
        if name in after and before[name] != after[name]:
            both = before[name], after[name]
            is_long = any(isinstance(it, Mapping) or HASH.fullmatch(str(it)) for it in both)
            found[name] = "" if is_long else f"{both[0] or 'none'}, then {both[1] or 'none'}"
    return found


def _changes(
    sides: tuple[Gathered, Gathered], common: Sequence[str], seed: int
) -> Iterator[Change]:
    dimension = sides[0].dimension
    by_id = [{query: place for place, query in enumerate(it.queries)} for it in sides]
    rows = [[held[query] for query in common] for held in by_id]
    parts = [it.weights() / it.weights().sum() for it in sides]
    weights = parts[0][rows[0]] + parts[1][rows[1]]
    for figure in ("lean", "exposure"):
        one, two = (
            (it.leans()[0] if figure == "lean" else it.array(figure))[at]
            for it, at in zip(sides, rows, strict=True)
        )
        known = ~np.isnan(one + two).any(axis=1)
        if not known.any():
            continue
        one, two, by = one[known], two[known], weights[known]
        tests = p_of_means(two - one, by, stream(seed, f"comparison {dimension.name} {figure}"))
        totals = [by @ values / by.sum() for values in (one, two)]
        changed = differences(two, one, by) if figure == "exposure" else means(two - one, by)
        for group, was, is_, it, p in zip(dimension.groups, *totals, changed, tests, strict=True):
            estimate = replace(it, p=p)
            yield Change(dimension.name, group, figure, was.item(), is_.item(), estimate)


def _judged(
    change: Change, p: float | None, settings: Mapping[str, str], *, same_answers: bool
) -> Change:
    others = {f"labels of {name}" for name in change.attribute.split(TIMES)}
    others |= set(LEAN_ONLY if change.figure == "lean" else ())
    direction: Direction = "cannot_tell"
    if same_answers:
        direction = "same_answers"
    elif p is None:
        direction = "too_few"
    elif p <= ALPHA and others & settings.keys():
        direction = "settings"
    elif p <= ALPHA:
        direction = "up" if change.change.value > 0 else "down"
    return replace(change, change=replace(change.change, p=p), direction=direction)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``comparison.json`` and the report, and return the files.

    Raises:
        InputError: The folder holds an audit.
    """
    if AuditFolder(folder).exists():
        raise InputError(f"The folder {folder} holds an audit; choose another.")
    content = folder / "comparison.json"
    write_beside(content, json.dumps(as_data(comparison), indent=1) + "\n")
    values = {
        "title": "What changed between two audits",
        "about": "",
        "comparison": comparison,
    }
    return [content, *write_report(folder, "audit_comparison", values, [])]
