"""What changed between two audits: first their settings, then what the engine answered."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.concentration import gini_change
from fairqr.evaluation.audit.exposures import Choices
from fairqr.evaluation.audit.figures import ALPHA, QueryFigures
from fairqr.evaluation.audit.finishing import Audit, measured
from fairqr.evaluation.audit.measuring import AllGroups, Sizes, largest_groups, sizes_of_groups
from fairqr.evaluation.estimates import Estimate, as_data, differences, p_of_means
from fairqr.evaluation.reports.writer import paragraphs, write_report
from fairqr.retrieval.fairness.dimension import TIMES, Dimension
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import Schema

ENGINE = ("name", "engine", "location", "retriever", "state", "server", "documents", "source")
"""What is known of the engine."""

GAP_ONLY = {"fairqr", "relevance", "encoder", "judgements", "depth", "widen"}
"""Settings that change which documents count as relevant, and so the gap, not the exposure."""


@dataclass(slots=True)
class Change:
    """How a figure of a group changed.

    Attributes:
        attribute: The attribute.
        group: The group.
        figure: ``gap``, which was tested, or ``exposure``.
        before: In the first audit, over the queries of both.
        after: In the second one.
        change: After − before. Its p is corrected for all tests of the comparison.
        direction: ``up`` or ``down`` if the test says so and only the engine can be the reason;
            ``settings`` if these may be the reason, too; ``same_answers`` if the engine cannot be;
            else ``too_few`` or ``cannot_tell``.
    """

    attribute: str
    group: str
    figure: str
    before: float
    after: float
    change: Estimate
    direction: str = ""


@dataclass(slots=True)
class ConcentrationChange:
    """How it changed whether exposure follows the target over all groups of an open attribute.

    Attributes:
        attribute: The attribute.
        before: The figures of the first audit, as its ``audit.json`` has them as ``concentration``,
            but over the queries whose target is known in both audits.
        after: The same of the second one.
        change: The Gini index after − before, with its interval. It has no p.
        direction: As that of :class:`Change`, by whether the interval holds 0.
    """

    attribute: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    change: Estimate
    direction: str = ""


@dataclass(frozen=True, slots=True)
class AuditComparison:
    """What changed between two audits.

    Attributes:
        audits: Of the earlier and the later one, the engine's name, the beginning, and the digest.
        settings: By the name of each setting that differs, both values, or how much differs.
        engine: The same of what is known of the engine.
        queries: How many queries both answered.
        same: To how many of them the engine gave the same documents in the same order.
        changes: By attribute, group and figure; of an attribute whose groups nobody lists, those of
            the groups that are largest in both audits together.
        concentrations: By attribute whose groups nobody lists, the change over all of them.
        too_many_failed: Which of both audits, ``first`` or ``second``, give no verdict, since too
            many of their queries failed.
    """

    audits: Sequence[tuple[str, str, str]]
    settings: Mapping[str, str]
    engine: Mapping[str, str]
    queries: int
    same: int
    changes: Sequence[Change]
    concentrations: Sequence[ConcentrationChange]
    too_many_failed: Sequence[str]

    def sentences(self) -> list[str]:
        """Return what changed, in plain words."""
        return paragraphs("audit_comparison", {"it": self})


def compare(first: Audit, second: Audit) -> AuditComparison:
    """Compare two audits query by query, both measured by the spec and populations of the second.

    Queries are the same if they have the same text, whatever their ids and segments are; those of
    one text are paired in the order of their ids. A query weighs what it weighs in both, each
    weight as a share of its audit.

    Args:
        first: The earlier audit.
        second: The later one.

    Raises:
        InputError: Their queries are redacted, the first one saw fewer results than the second one
            counts as shown, or they share no attribute or no query.
    """
    if first.manifest.redacted or second.manifest.redacted:
        raise InputError("Redacted queries cannot be paired; compare audits without --redact.")
    if first.spec.depth < second.spec.k:
        why = f"looked at {first.spec.depth} results, and the second counts {second.spec.k}"
        raise InputError(f"The first audit {why}; make one with another k or depth.")
    depth = min(first.spec.depth, second.spec.depth)
    (answers, labels), (others, other_labels) = (_observed(it, depth) for it in (first, second))
    earlier, later = _ids(first), _ids(second)
    pairs = [(earlier[it], later[it]) for it in earlier if it in later]
    common = [(one, two) for one, two in pairs if one in answers and two in others]
    if not common:
        raise InputError("The audits answered no query that is the same in both.")
    same = sum(answers[one] == others[two] for one, two in common)
    relabelled = Counter(it[0] for it, held in labels.items() if other_labels.get(it, held) != held)
    one, two = _settings(first), _settings(second)
    settings = {it: f"{was}, then {two[it]}" for it, was in one.items() if was != two.get(it, was)}
    settings |= {it: "" for it in settings if it.startswith("source: ")}
    settings |= {f"labels of {it}": f"other for {n:,} documents" for it, n in relabelled.items()}
    # Labels that both audits have of the same documents, and have alike, are no others.
    for name in {name for name, _ in labels.keys() & other_labels.keys()} - relabelled.keys():
        settings.pop(f"labels of {name}", None)
    is_same = same == len(common)
    alike = _measured_alike(first, second)
    changes = [it for pair in alike for it in changes_of(*pair, common)]
    for change, p in zip(changes, corrected_by_holm([it.change.p for it in changes]), strict=True):
        change.change = replace(change.change, p=p)
        change.direction = "same_answers" if is_same else _direction(change, settings)
    concentrations = _concentration_changes(first, second, common, _weights_of(*alike[0], common))
    for moved in concentrations:
        moved.direction = "same_answers" if is_same else _direction_of_gini(moved, settings)
    both = {"first": first, "second": second}
    return AuditComparison(
        audits=[
            (it.manifest.engine["name"], it.manifest.started, it.digest) for it in both.values()
        ],
        engine={it: settings.pop(it) for it in [*settings] if it.startswith(ENGINE)},
        settings=settings,
        queries=len(common),
        same=same,
        changes=changes,
        concentrations=concentrations,
        too_many_failed=[name for name, it in both.items() if it.figures.too_many_failed],
    )


def _observed(audit: Audit, depth: int) -> tuple[dict[str, int], dict[tuple[str, str], object]]:
    """Return a hash of each query's answer, and the groups of documents by attribute and id."""
    answers, labels = dict[str, int](), dict[tuple[str, str], object]()
    for it in AuditFolder(audit.folder).observed([it.id for it in audit.queries.queries]):
        if it.status == "ok":
            answers[it.query] = hash(it.ids[:depth])
        for name, coded in it.groups.items():
            for id_, row in zip(it.pool, coded["rows"], strict=True):
                labels[name, id_] = coded["patterns"][row]
    return answers, labels


def _ids(audit: Audit) -> dict[tuple[str, int], str]:
    """Return the ids of queries by their texts, and by the places of those with the same text."""
    ordered = sorted(audit.queries.queries, key=lambda it: (it.text, it.id))
    alike = (enumerate(held) for _, held in groupby(ordered, lambda it: it.text))
    return {(it.text, place): it.id for held in alike for place, it in held}


def _settings(audit: Audit) -> dict[str, str]:
    """Return what an audit was made with and of, by names for sentences."""
    manifest, count = audit.manifest, len(audit.queries.queries)
    found = dict(audit.spec) | manifest.engine
    found |= manifest.model_dump(include={"relevance", "encoder", "documents"})
    # Labels are settings, and a hash of run files holds theirs; what runs answer is compared.
    found |= {f"source: {it}": of for it, of in manifest.source.items() if it != "attributes"}
    is_run = manifest.engine.get("engine") == "run"
    found["state"] = "" if is_run else manifest.engine.get("state", "")[:8]
    found |= {name: manifest.versions.get(name) for name in ("server", "fairqr")}
    # Fingerprints only say that something differs.
    found["queries"] = f"{count:,} with fingerprint {manifest.queries[:8]}"
    found["judgements"] = manifest.inputs.get("judgements", "")[:8]
    found["attributes"] = list(manifest.attributes)
    for name, attribute in manifest.attributes.items():
        found |= {f"{what} of {name}": value for what, value in attribute.model_dump().items()}
    said = ((name, "none" if it in (None, "", [], {}, ()) else it) for name, it in found.items())
    return {name: json.dumps(it, default=str).strip('"') for name, it in said}


def _measured_alike(first: Audit, second: Audit) -> list[tuple[QueryFigures, QueryFigures]]:
    """Measure the first audit by the settings of the second, in what has the same groups in both.

    Without this a change of the target would look like one of the engine.
    """
    later = {_listed_groups(it.dimension) for it in second.figures.by_query}
    dimensions = [it.dimension for it in first.figures.by_query]
    names = [it.name for it in dimensions if _listed_groups(it) in later]
    if not names:
        raise InputError("The audits have no attribute with the same groups in both.")
    spec = second.manifest.spec | {"attributes": names, "intersections": False, "rerank": 0}
    asked = {"spec": spec, "relevance": first.manifest.relevance}
    largest = _largest_of_both(first, second, names)
    manifest = second.manifest.model_copy(update=asked)
    before = measured(AuditFolder(first.folder), manifest, largest).figures
    after = second.figures
    if largest:
        manifest = second.manifest.model_copy(update={"spec": spec})
        after = measured(AuditFolder(second.folder), manifest, largest).figures
    by_name = {it.dimension.name: it for it in after.by_query}
    return [(it, by_name[it.dimension.name]) for it in before.by_query]


def _listed_groups(dimension: Dimension) -> tuple[str, tuple[tuple[str, ...] | None, ...]]:
    """Return a dimension's name, and of each attribute the groups, or None if nobody lists them."""
    return dimension.name, tuple(None if it.is_found else it.universe for it in dimension.factors)


def _largest_of_both(first: Audit, second: Audit, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the groups of open attributes to compare: the largest in both audits together."""
    sizes: Sizes = {}
    dimensions = [Dimension.named(_schema_of(second), name) for name in names]
    for audit in (first, second):
        queries = {query.id: query for query in audit.queries.queries}
        own = sizes_of_groups(dimensions, queries, AuditFolder(audit.folder).observed)
        for name, by_group in own.items():
            together = sizes.setdefault(name, defaultdict(float))
            for group, size in by_group.items():
                together[group] += size
    return largest_groups(sizes)


def _schema_of(audit: Audit) -> Schema:
    return Schema(attributes=audit.manifest.attributes)


def _concentration_changes(
    first: Audit, second: Audit, common: Sequence[tuple[str, str]], weights: FloatArray
) -> list[ConcentrationChange]:
    """Return what changed over all groups of each open attribute that both audits measured."""
    names = {it.attribute for it in first.figures.concentrations}
    names &= {it.attribute for it in second.figures.concentrations}
    changes = [
        _concentration_change(name, first, second, common, weights) for name in sorted(names)
    ]
    return [change for change in changes if change is not None]


def _concentration_change(
    name: str,
    first: Audit,
    second: Audit,
    common: Sequence[tuple[str, str]],
    weights: FloatArray,
) -> ConcentrationChange | None:
    """Return what changed over all groups of an open attribute; None if no target is known."""
    before, after = (_gatherer(name, second, it.manifest.relevance) for it in (first, second))
    earlier, later = zip(*common, strict=True)
    answers = zip(
        weights.tolist(),
        AuditFolder(first.folder).observed(earlier),
        AuditFolder(second.folder).observed(later),
        strict=True,
    )
    for weight, was, is_ in answers:
        found = before.found(was)
        found_later = after.found(is_)
        if found is not None and found_later is not None:
            before.add(weight, found)
            after.add(weight, found_later)
    one = before.totals.concentration()
    other = after.totals.concentration()
    if one is None or other is None:
        return None
    change = gini_change(before.totals, after.totals)
    return ConcentrationChange(name, one.as_data(), other.as_data(), change)


def _gatherer(name: str, audit: Audit, relevance: str) -> AllGroups:
    """Return what gathers all groups of an attribute, by the settings of an audit."""
    spec = audit.spec
    choices = Choices(spec.k, spec.discount, spec.target, relevance=relevance)
    return AllGroups(Dimension.named(_schema_of(audit), name), choices, spec.seed)


def _weights_of(
    first: QueryFigures, second: QueryFigures, common: Sequence[tuple[str, str]]
) -> FloatArray:
    """Return the weights of common queries: the sum of what each has of both audits."""
    weights = np.zeros(len(common))
    for figures, queries in zip((first, second), zip(*common, strict=True), strict=True):
        weights += figures.weights()[_rows_of(figures, queries)] / figures.weights().sum()
    return weights


def _rows_of(figures: QueryFigures, queries: Sequence[str]) -> list[int]:
    rows = {query: row for row, query in enumerate(figures.queries)}
    return [rows[query] for query in queries]


def changes_of(
    first: QueryFigures, second: QueryFigures, common: Sequence[tuple[str, str]]
) -> Iterator[Change]:
    """Yield the change of each figure and group over common queries, with an uncorrected p."""
    dimension = first.dimension
    weights = _weights_of(first, second, common)
    sides = []
    for it, asked in zip((first, second), zip(*common, strict=True), strict=True):
        rows = _rows_of(it, asked)
        sides.append((it.tested_gaps()[0][rows], it.exposures(it.array)[rows]))
    for figure, was, is_ in zip(("gap", "exposure"), *sides, strict=True):
        known = ~np.isnan(was + is_).any(axis=1)
        was, is_, seen, by = was[known], is_[known], sides[1][1][known], weights[known]
        if not len(by):
            continue
        tests = p_of_means(is_ - was, by, stream(0, f"comparison {dimension.name} {figure}"))
        # A gap changes mostly by the exposure, a share, whose interval is the more exact one.
        less = ((is_ - was + seen).clip(0, 1), seen) if figure == "gap" else (is_, was)
        mean = [np.average(it, axis=0, weights=by).tolist() for it in (was, is_)]
        found = zip(dimension.groups, *mean, differences(*less, by), tests, strict=True)
        for group, one, two, moved, p in found:
            changed = replace(moved, value=round(two - one, 10), p=p)
            yield Change(dimension.name, group, figure, one, two, changed)


def _direction(change: Change, settings: Mapping[str, str]) -> str:
    """Say which way a figure went, if the test is clear and only the engine can be the reason."""
    p = change.change.p
    if p is None or p > ALPHA:
        return "too_few" if p is None else "cannot_tell"
    if _may_explain(settings, change.attribute, has_target=change.figure == "gap"):
        return "settings"
    return "up" if change.change.value > 0 else "down"


def _direction_of_gini(change: ConcentrationChange, settings: Mapping[str, str]) -> str:
    """Say which way an index went, if its interval leaves out 0 and only the engine can be why."""
    it = change.change
    if math.isnan(it.low):
        return "too_few"
    if it.low <= 0 <= it.high:
        return "cannot_tell"
    if _may_explain(settings, change.attribute, has_target=True):
        return "settings"
    return "up" if it.value > 0 else "down"


def _may_explain(settings: Mapping[str, str], attribute: str, *, has_target: bool) -> bool:
    """Return whether settings that differ may have changed a figure of an attribute.

    Args:
        settings: Those that differ.
        attribute: The attribute.
        has_target: Whether the target counts in the figure, too.
    """
    names = attribute.split(TIMES)
    others = {f"{what} of {name}" for what in ("labels", "field", "values") for name in names}
    return bool(settings.keys() & (others | GAP_ONLY if has_target else others))


def write_comparison(comparison: AuditComparison, folder: Path) -> None:
    """Write ``comparison.json`` and the report.

    Raises:
        InputError: The folder holds an audit.
    """
    if AuditFolder(folder).exists():
        raise InputError(f"The folder {folder} holds an audit; choose another.")
    write_beside(folder / "comparison.json", json.dumps(as_data(comparison), indent=1) + "\n")
    values = {"title": "What changed between two audits", "about": "", "comparison": comparison}
    write_report(folder, "audit_comparison", values, [])
