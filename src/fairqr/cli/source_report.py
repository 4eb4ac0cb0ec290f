"""The check of a source, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.base.errors import one_line
from fairqr.retrieval.engines.report import AttributeReport, SampleHit, SourceReport

VALUES = 20
"""How many values of an attribute are shown; ``--json`` has all that were checked."""

LONGEST_VALUE = 40

ABILITIES = {
    "rescore": "score given documents",
    "document_frequencies": "count matches",
    "corpus_shares": "count groups",
    "within_group": "search within a group",
    "vectors": "search by vectors",
}


def lines_of(report: SourceReport) -> Iterator[str]:
    """Yield the lines of a report; remarks come last, where users see them."""
    version = f" {report.version}" if report.version else ""
    if not version and report.engine in ("elasticsearch", "opensearch"):
        version = " (version not visible)"
    yield f"{report.name}: {report.engine}{version} at {report.location}"
    if report.documents is not None:
        yield f"documents: {report.documents:,}"
    can = [ABILITIES[ability] for ability in ABILITIES if ability in report.capabilities]
    yield f"the engine can: {', '.join(can) or 'only search'}"
    for attribute in report.attributes:
        yield from _attribute(attribute)
    if report.sample_query:
        yield f"sample query '{report.sample_query}': {len(report.sample)} hits"
        for rank, hit in enumerate(report.sample, start=1):
            yield f"  {rank:>2}  {hit.score:8.3f}  {hit.title or hit.id}  [{_groups(hit)}]"
    for remark in report.remarks:
        yield f"note: {remark}"


def _attribute(found: AttributeReport) -> Iterator[str]:
    share = f" ({found.labelled / found.documents:.1%})" if found.documents else ""
    yield (
        f"{found.name}, from {found.origin}: {found.labelled:,} of {found.documents:,} documents "
        f"have a group{share}"
    )
    shown = found.values[:VALUES]
    texts = [one_line(value.value, LONGEST_VALUE) for value in shown]
    width = max(map(len, texts), default=0)
    for text, value in zip(texts, shown, strict=True):
        group = "belongs to no group" if value.group is None else value.group
        yield f"  {text:{width}}  {value.documents:>10,}  {group}"
    if found.more_values or len(found.values) > VALUES:
        yield "  and more values"
    missing = [value for value in found.values[VALUES:] if value.group is None]
    if missing:
        total = sum(value.documents for value in missing)
        yield f"  of those, {len(missing):,} belong to no group, in {total:,} documents"


def _groups(hit: SampleHit) -> str:
    said = [
        "/".join(group if share == 1 else f"{group} {share:.0%}" for group, share in shares.items())
        for shares in hit.groups.values()
    ]
    return ", ".join(one or "unknown" for one in said)
