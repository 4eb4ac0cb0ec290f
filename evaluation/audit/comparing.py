"""What changed between two audits: first their settings, then what the engine answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.figures import ALPHA, QueryFigures
from fairqr.evaluation.audit.finishing import Audit, measured
from fairqr.evaluation.estimates import Estimate, as_data, differences, p_of_means
from fairqr.evaluation.reports.writer import paragraphs, write_report
from fairqr.retrieval.fairness.dimension import TIMES

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


@dataclass(frozen=True, slots=True)
class AuditComparison:
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

    audits: Sequence[tuple[str, str, str]]
    settings: Mapping[str, str]
    engine: Mapping[str, str]
    queries: int
    same: int
    changes: Sequence[Change]
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
    changes = [it for pair in _measured_alike(first, second) for it in changes_of(*pair, common)]
    for change, p in zip(changes, corrected_by_holm([it.change.p for it in changes]), strict=True):
        change.change = replace(change.change, p=p)
        change.direction = _direction(change, settings) if same < len(common) else "same_answers"
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
        found |= {f"{what} of {name}": value for what, value in attribute}
    said = ((name, "none" if it in (None, "", [], {}, ()) else it) for name, it in found.items())
    return {name: json.dumps(it, default=str).strip('"') for name, it in said}


def _measured_alike(first: Audit, second: Audit) -> list[tuple[QueryFigures, QueryFigures]]:
    """Measure the first audit by the settings of the second, in what has the same groups in both.

    Without this a change of the target would look like one of the engine.
    """
    later = {(it.dimension.name, it.dimension.groups): it for it in second.figures.by_query}
    dimensions = [it.dimension for it in first.figures.by_query]
    shared = [it.name for it in dimensions if (it.name, it.groups) in later]
    if not shared:
        raise InputError("The audits have no attribute with the same groups in both.")
    spec = second.manifest.spec | {"attributes": shared, "intersections": False, "rerank": 0}
    asked = {"spec": spec, "relevance": first.manifest.relevance}
    again = measured(AuditFolder(first.folder), second.manifest.model_copy(update=asked)).figures
    return [(it, later[it.dimension.name, it.dimension.groups]) for it in again.by_query]


def changes_of(
    first: QueryFigures, second: QueryFigures, common: Sequence[tuple[str, str]]
) -> Iterator[Change]:
    """Yield the change of each figure and group over common queries, with an uncorrected p."""
    dimension, sides, weights = first.dimension, [], np.zeros(len(common))
    for it, asked in zip((first, second), zip(*common, strict=True), strict=True):
        places = {query: place for place, query in enumerate(it.queries)}
        rows = [places[query] for query in asked]
        weights += it.weights()[rows] / it.weights().sum()
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
    p, names = change.change.p, change.attribute.split(TIMES)
    if p is None or p > ALPHA:
        return "too_few" if p is None else "cannot_tell"
    others = {f"{what} of {name}" for what in ("labels", "field", "values") for name in names}
    if settings.keys() & (others | GAP_ONLY if change.figure == "gap" else others):
        return "settings"
    return "up" if change.change.value > 0 else "down"


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
