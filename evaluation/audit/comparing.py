"""What changed between two audits: first their settings, then what the engine answered."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairqr.base.errors import InputError
from fairqr.base.files import write_beside
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.changes import (
    Common,
    ConcentrationChange,
    FigureChange,
    concentration_changes,
    corrected_changes,
    schema_of,
    weights_of,
)
from fairqr.evaluation.audit.dimensions import Sizes, largest_groups, sizes_of_groups
from fairqr.evaluation.audit.finishing import Audit, measured
from fairqr.evaluation.audit.query_figures import QueryFigures
from fairqr.evaluation.audit.wording import paragraph
from fairqr.evaluation.estimates import as_data
from fairqr.evaluation.reports.writer import write_report
from fairqr.retrieval.fairness.dimension import Dimension

ENGINE = ("name", "engine", "location", "retriever", "state", "server", "documents", "source")
"""What is known of the engine."""

SOURCE = "source: "
"""How the names of settings begin that a source file has."""

CLEAR = ("up", "down", "settings")
"""The directions of changes that are no chance."""


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
    changes: Sequence[FigureChange]
    concentrations: Sequence[ConcentrationChange]
    too_many_failed: Sequence[str]

    def sentences(self) -> list[str]:
        """Return what changed, in plain words: first the settings, then the engine's answers."""
        sentences = [f"Compared over {self.queries:,} queries that both audits answered."]
        for audit in self.too_many_failed:
            sentences.append(
                f"So many queries of the {audit} audit failed that it gives no verdict."
            )
        sentences += self._on_settings()
        is_same = self.same == self.queries
        number = "all" if is_same else f"{self.same:,}"
        reason = ""
        if is_same and self.settings:
            reason = ", so any difference comes from the settings"
        sentences.append(f"The engine answered {number} of these queries the same{reason}.")
        for concentration in self.concentrations:
            if concentration.direction in CLEAR:
                sentences.append(_on_gini(concentration))
        clear = [change for change in self.changes if change.direction in CLEAR]
        sentences += [_on_group(change) for change in clear] or self._without_clear_change()
        return [words for sentence in sentences for words in paragraph([sentence])]

    def _on_settings(self) -> list[str]:
        """Say which settings differ, and what is known of the engine."""
        sentences = ["Both audits have the same settings."]
        if self.settings:
            sentences = [
                f"Settings differ: {_differences(self.settings)}. Here both audits have the "
                "target, population, k and discount of the second."
            ]
        if self.engine:
            sentences.append(f"The engine differs: {_differences(self.engine)}.")
        return sentences

    def _without_clear_change(self) -> list[str]:
        """Say what it means that no group changed clearly."""
        directions = {change.direction for change in self.changes}
        if directions == {"too_few"}:
            return ["There are too few common queries to tell what changed."]
        if directions == {"same_answers"}:
            return []
        has_other_change = any(change.direction in CLEAR for change in self.concentrations)
        alone = " of a group alone" if has_other_change else ""
        return [f"We found no clear change{alone}. This does not show that there is none."]


def _differences(settings: Mapping[str, str]) -> str:
    """List settings that differ, with both values where these are known."""
    names = [f"{name} ({detail})" if detail else name for name, detail in settings.items()]
    return "; ".join(names)


def _in_words(direction: str) -> str:
    return "differs, but by other settings, too" if direction == "settings" else f"went {direction}"


def _on_group(change: FigureChange) -> str:
    """Say how a figure of a group changed."""
    figure = change.figure.replace("_", " ")
    return (
        f"{change.attribute}: the {figure} of {change.group} {_in_words(change.direction)}: "
        f"{change.before:.3f}, then {change.after:.3f}."
    )


def _on_gini(change: ConcentrationChange) -> str:
    """Say how the Gini index over all groups changed."""
    before = change.before
    after = change.after
    interval = change.change
    sentence = (
        f"{change.attribute}: the Gini index over all groups {_in_words(change.direction)}: "
        f"{before['gini'].value:.2f}, then {after['gini'].value:.2f} "
        f"({interval.low:+.2f} to {interval.high:+.2f})."
    )
    if not math.isnan(before["gini_by_lot"]):
        sentence += (
            f" Lists drawn by lot would have {before['gini_by_lot']:.2f}, then "
            f"{after['gini_by_lot']:.2f}."
        )
    return sentence


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
        raise InputError(
            f"The first audit looked at {first.spec.depth} results, and the second counts "
            f"{second.spec.k}; make one with another k or depth."
        )
    depth = min(first.spec.depth, second.spec.depth)
    before = _observed(first, depth)
    after = _observed(second, depth)
    common = _common_queries(first, second, before, after)
    same = sum(before.answers[earlier] == after.answers[later] for earlier, later in common)
    is_same = same == len(common)
    differing = _settings_that_differ(first, second, before, after)
    tables = _measured_alike(first, second)
    weights = weights_of(*tables[0], common)
    audits = {"first": first, "second": second}
    return AuditComparison(
        audits=[
            (audit.manifest.engine["name"], audit.manifest.started, audit.digest)
            for audit in audits.values()
        ],
        settings={
            name: values for name, values in differing.items() if not name.startswith(ENGINE)
        },
        engine={name: values for name, values in differing.items() if name.startswith(ENGINE)},
        queries=len(common),
        same=same,
        changes=corrected_changes(tables, common, differing, is_same=is_same),
        concentrations=concentration_changes(
            first, second, common, weights, differing, is_same=is_same
        ),
        too_many_failed=[name for name, audit in audits.items() if audit.figures.too_many_failed],
    )


class _ObservedAudit(NamedTuple):
    """What was observed of an audit.

    Attributes:
        answers: A hash of each query's answer, by the id of the query.
        labels: The groups of documents, by attribute and id.
    """

    answers: dict[str, int]
    labels: dict[tuple[str, str], object]


def _observed(audit: Audit, depth: int) -> _ObservedAudit:
    """Return what was observed, of answers the first documents alone."""
    observed = _ObservedAudit({}, {})
    ids = [query.id for query in audit.queries.queries]
    for observation in AuditFolder(audit.folder).observed(ids):
        if observation.status == "ok":
            observed.answers[observation.query] = hash(observation.ids[:depth])
        for name, coded in observation.groups.items():
            for id_, row in zip(observation.pool, coded["rows"], strict=True):
                observed.labels[name, id_] = coded["patterns"][row]
    return observed


def _common_queries(
    first: Audit, second: Audit, before: _ObservedAudit, after: _ObservedAudit
) -> Common:
    """Return the queries that both audits answered, by their ids in each of them.

    Raises:
        InputError: There are none.
    """
    later = _ids(second)
    common = []
    for key, earlier_id in _ids(first).items():
        later_id = later.get(key)
        if later_id is None:
            continue
        if earlier_id in before.answers and later_id in after.answers:
            common.append((earlier_id, later_id))
    if not common:
        raise InputError("The audits answered no query that is the same in both.")
    return common


def _ids(audit: Audit) -> dict[tuple[str, int], str]:
    """Return the ids of queries by their texts, and by the positions of those of the same text."""
    ids: dict[tuple[str, int], str] = {}
    counts = Counter[str]()
    for query in sorted(audit.queries.queries, key=lambda query: (query.text, query.id)):
        ids[query.text, counts[query.text]] = query.id
        counts[query.text] += 1
    return ids


def _settings_that_differ(
    first: Audit, second: Audit, before: _ObservedAudit, after: _ObservedAudit
) -> dict[str, str]:
    """Return both values of each setting that differs, or how much differs, by its name."""
    earlier = _settings(first)
    later = _settings(second)
    differing: dict[str, str] = {}
    for name, value in earlier.items():
        if value != later.get(name, value):
            is_long = name.startswith(SOURCE)
            differing[name] = "" if is_long else f"{value}, then {later[name]}"
    relabelled = Counter[str]()
    for (name, id_), groups in before.labels.items():
        if after.labels.get((name, id_), groups) != groups:
            relabelled[name] += 1
    for name, count in relabelled.items():
        differing[f"labels of {name}"] = f"other for {count:,} documents"
    # Labels that both audits have of the same documents, and have alike, are no others.
    in_both = {name for name, _ in before.labels.keys() & after.labels.keys()}
    for name in in_both - relabelled.keys():
        differing.pop(f"labels of {name}", None)
    return differing


def _settings(audit: Audit) -> dict[str, str]:
    """Return what an audit was made with and of, by names for sentences."""
    manifest = audit.manifest
    settings: dict[str, Any] = dict(audit.spec)
    settings |= manifest.engine
    settings |= manifest.model_dump(include={"relevance", "encoder", "documents"})
    for name, value in manifest.source.items():
        if name != "attributes":
            settings[f"{SOURCE}{name}"] = value
    # Labels are settings, and a hash of run files holds theirs; what runs answer is compared.
    is_run = manifest.engine.get("engine") == "run"
    settings["state"] = "" if is_run else manifest.engine.get("state", "")[:8]
    settings["server"] = manifest.versions.get("server")
    settings["fairqr"] = manifest.versions.get("fairqr")
    # Fingerprints only say that something differs.
    count = len(audit.queries.queries)
    settings["queries"] = f"{count:,} with fingerprint {manifest.queries[:8]}"
    settings["judgements"] = manifest.inputs.get("judgements", "")[:8]
    settings["attributes"] = list(manifest.attributes)
    for name, attribute in manifest.attributes.items():
        for key, value in attribute.model_dump().items():
            settings[f"{key} of {name}"] = value
    return {name: _written(value) for name, value in settings.items()}


def _written(value: object) -> str:
    """Write a setting for a sentence."""
    if value in (None, "", [], {}, ()):
        return "none"
    return json.dumps(value, default=str).strip('"')


def _measured_alike(first: Audit, second: Audit) -> list[tuple[QueryFigures, QueryFigures]]:
    """Measure the first audit by the settings of the second, in what has the same groups in both.

    Without this a change of the target would look like one of the engine.
    """
    later = {_groups_listed(table.dimension) for table in second.figures.by_query}
    dimensions = [table.dimension for table in first.figures.by_query]
    names = [dimension.name for dimension in dimensions if _groups_listed(dimension) in later]
    if not names:
        raise InputError("The audits have no attribute with the same groups in both.")
    spec = second.manifest.spec | {"attributes": names, "intersections": False, "rerank": 0}
    largest = _largest_of_both(first, second, names)
    manifest = second.manifest.model_copy(update={"spec": spec})
    of_first = manifest.model_copy(update={"relevance": first.manifest.relevance})
    before = measured(AuditFolder(first.folder), of_first, largest).figures
    after = second.figures
    if largest:
        after = measured(AuditFolder(second.folder), manifest, largest).figures
    tables = {table.dimension.name: table for table in after.by_query}
    return [(table, tables[table.dimension.name]) for table in before.by_query]


def _groups_listed(dimension: Dimension) -> tuple[str, tuple[tuple[str, ...] | None, ...]]:
    """Return a dimension's name, and of each attribute the groups, or None if nobody lists them."""
    groups = tuple(None if factor.is_found else factor.universe for factor in dimension.factors)
    return dimension.name, groups


def _largest_of_both(first: Audit, second: Audit, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the groups of open attributes to compare: the largest in both audits together."""
    schema = schema_of(second)
    dimensions = [Dimension.named(schema, name) for name in names]
    sizes: Sizes = {}
    for audit in (first, second):
        queries = {query.id: query for query in audit.queries.queries}
        observed = AuditFolder(audit.folder).observed
        for name, by_group in sizes_of_groups(dimensions, queries, observed).items():
            together = sizes.setdefault(name, defaultdict(float))
            for group, size in by_group.items():
                together[group] += size
    return largest_groups(sizes)


def write_comparison(comparison: AuditComparison, folder: Path) -> None:
    """Write ``comparison.json`` and the report.

    Raises:
        InputError: The folder holds an audit.
    """
    if AuditFolder(folder).exists():
        raise InputError(f"The folder {folder} holds an audit; choose another.")
    content = json.dumps(as_data(comparison), indent=1) + "\n"
    write_beside(folder / "comparison.json", content)
    values = {"title": "What changed between two audits", "about": "", "comparison": comparison}
    write_report(folder, "audit_comparison", values, [])
