"""A finished audit: its figures, computed from what its folder keeps, its files and its report.

``audit_sentences.txt.j2`` has the words of the sentences; what is chosen here is who is spoken of.
The queries are people's words. Those that were asked rarely may tell who asked, so that they are
printed nowhere: neither their text nor their id, which a default makes from the text.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairqr.agents.statistics import too_few
from fairqr.base import notebook
from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.base.files import write_beside
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.audit.bundle import QUERIES, REDACTED, TITLES, AuditFolder, AuditManifest
from fairqr.evaluation.audit.concentration import CURVE_AT
from fairqr.evaluation.audit.figures import ALPHA, FEW_CANDIDATES, REASONS, GroupFigures
from fairqr.evaluation.audit.lists import SEEN, SeenSearches, figures_of_lists
from fairqr.evaluation.audit.measuring import AuditFigures, Contribution, measure
from fairqr.evaluation.audit.pairs import PairwiseAudit, VersionComparison, compare_versions
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.estimates import DIGITS, Estimate, as_data
from fairqr.evaluation.experiments.folder import LOCK
from fairqr.evaluation.reports import text
from fairqr.evaluation.reports.plots import BLUE, GREY, VERMILION, Bar, draw_bars, draw_lines
from fairqr.evaluation.reports.writer import Figure, paragraphs, write_report
from fairqr.evaluation.user_clicks import CLICKS, ClickFigures
from fairqr.retrieval.fairness.dimension import TIMES
from fairqr.retrieval.fairness.exposure import LOG2
from fairqr.retrieval.sources.schema import Schema

if TYPE_CHECKING:
    from pandas import DataFrame

FORMAT = 2
"""The format of ``audit.json``; it changes when a name or the meaning of a figure does."""

DIGITS_BY_QUERY = 6

QUERY_COLUMNS = (
    *("number", "query", "text", "segment", "weight", "status", "attribute", "group"),
    *("exposure", "target", "gap", "unlabelled"),
)

ALL_GROUPS_COLUMNS = ("attribute", "group", "exposure", "target", "gap")


MOST_GROUPS, MOST_BARS = 40, 12
"""So many groups of one attribute stand in a table, and are drawn; ``results.csv`` has all."""

MOST_LISTS, MOST_QUERIES, MOST_DOCUMENTS = 12, 5, 5
"""So many groups with their queries, queries of a group, and documents of a query are shown."""

VERDICTS = {"less": "gets less", "more": "gets more"}
VERDICTS |= {name: f"cannot tell: {why}" for name, why in REASONS.items()}
"""How the verdict on a group is told; the verdict that leads a report stands first."""

T = TypeVar("T")

BY_LOT = "lists drawn by lot"
"""What the curve is compared with."""

COLOURS = {"less": VERMILION, "more": BLUE}
"""The colours of the bars of groups that surely get less or more."""


LAYOUTS = ("plain", "ll144", "dsa", "ai-act")
"""The orders in which a report can stand: its own, and those that legal texts ask for. A layout is
a YAML file in ``files``. It changes no figure, names the articles that its parts go with, and says
what of the text an audit does not cover. None says that a law is met."""

Layout = dict[str, Any]
"""The ``title`` of the legal text and what the layout is ``about``, empty if there is none; its
``parts``; what of the text is ``not_covered``; and ``small_category``, the share of the candidates
below which groups are marked. A part has its ``heading``, with the article that it goes with; the
``text`` on what the article asks for and what stands here; the ``sections`` of figures; and is
``folded`` if the page shows its heading alone at first."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Audit:
    """A finished audit: what came out of it, and the folder that keeps it.

    Attributes:
        folder: Where its files are. If the audit was given none, they are removed together with
            this object, and :meth:`write` keeps them.
        manifest: What it was made with. Its date is only in the report, so that the figures of
            equal audits are equal.
        spec: What was asked and measured.
        queries: All that were to be asked. Where they are redacted, ids are pseudonyms.
        figures: The figures of these queries.
        titles: The titles of documents, by id, as far as they are known and may be shown.
        pairs: What the versions of documents say; None if none were given.
        seen: What a proxy saw of these searches; None if it is no audit of a log.
        clicks: What clicks say; None if none were given.
    """

    folder: Path
    manifest: AuditManifest
    spec: AuditSpec
    queries: Queries
    figures: AuditFigures
    titles: Mapping[str, str] = field(default_factory=dict)
    pairs: PairwiseAudit | None = None
    seen: SeenSearches | None = None
    clicks: ClickFigures | None = None

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """The figures of two lists of each query, if a proxy saw both."""
        return figures_of_lists(self.seen.lists if self.seen else ())

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest; whoever knows it can check the whole audit."""
        return self.manifest.digest

    @property
    def findings(self) -> list[str]:
        """The verdict, who gets less, how sure it is, what re-ranking would cost, and the test."""
        found = findings_of(self)
        verdict, *test = found["verdict"]
        return [verdict, *found["sentences"], *test, *found["notes"]]

    @property
    def frames(self) -> dict[str, DataFrame]:
        """All figures as DataFrames; what has no value is NaN.

        ``results``, ``queries`` and, if there are any, ``all_groups`` and ``pairs`` are the tables
        in the files of these names.

        Raises:
            InputError: pandas is not installed.
        """
        figures, pairs = self.figures, self.pairs
        frames = {
            "results": text.frame(map(_flat, (*figures.groups, *figures.segments))),
            "queries": text.frame(_query_rows(self), QUERY_COLUMNS),
        }
        if figures.concentrations:
            frames["all_groups"] = text.frame(_rows_of_all_groups(self), ALL_GROUPS_COLUMNS)
        return frames | ({"pairs": text.frame(map(_flat, pairs.comparisons))} if pairs else {})

    def _repr_html_(self) -> str:
        """Return the findings and the figures of each group as a table, for a notebook."""
        rows = [
            [
                it.attribute,
                it.group,
                it.exposure.value,
                it.target.value,
                VERDICTS.get(it.verdict, "cannot tell"),
            ]
            for it in self.figures.groups
        ]
        heads = ["attribute", "group", "exposure", "target", "verdict"]
        return notebook.paragraphs(self.findings) + notebook.table(heads, rows)

    def to_frame(self) -> DataFrame:
        """Return the figures as a DataFrame with one row for each attribute, group and segment."""
        return self.frames["results"]

    def plot(self) -> Figure:
        """Draw who gets seen; a notebook shows it.

        Raises:
            InputError: matplotlib is not installed.
        """
        return draw_exposure(self)

    def write(self, folder: Path | str) -> Path:
        """Copy all files of the audit, with the report, into a folder, and return it.

        Raises:
            InputError: The folder is not empty.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"The folder {folder} is not empty; choose another.")
        without = shutil.ignore_patterns(LOCK)
        shutil.copytree(self.folder, folder, ignore=without, dirs_exist_ok=True)
        return folder

    def printed(self) -> dict[str, dict[str, Any]]:
        """Return what may be printed of each query, by its id.

        That is its place in the list as ``number``, from 1 on; its id as ``query``, None if it was
        asked rarely; and its ``text``, None also if texts are withheld.
        """
        # It looks at all queries, so it is asked once.
        rare = self.spec.rare if self.queries.say_how_often else 0
        return {
            it.id: {
                "number": number,
                "query": None if it.asks < rare else it.id,
                "text": None if it.asks < rare or self.manifest.redacted else it.text,
            }
            for number, it in enumerate(self.queries.queries, start=1)
        }


def audit_json(audit: Audit) -> bytes:
    """Return ``audit.json``; equal outcomes give equal bytes.

    Names are sorted, numbers have 12 significant digits, and what has no value is null.
    """
    figures, queries, printed = audit.figures, audit.queries, audit.printed()
    counts, pairs = as_data(figures.counts), as_data(audit.pairs)
    corrected = {"correction": "Holm", "alpha": ALPHA}
    if pairs:
        ps = [it["difference"]["p"] for it in pairs["comparisons"]]
        pairs["tests"] = {"family": len(ps) - ps.count(None), **corrected}
    found = {
        "format": FORMAT,
        "kind": "fairqr audit",
        "spec": audit.spec.model_dump(mode="json")
        | {"discount": str(audit.spec.discount), "target": str(audit.spec.target)},
        "engine": audit.manifest.engine,
        "relevance": counts.pop("relevance"),
        "queries": {it: getattr(queries, it) for it in ("design", "lines", "weight")}
        | {"too_many_failed": figures.too_many_failed}
        | counts,
        "tests": {"family": figures.tests, **corrected},
        "attributes": [
            {
                "attribute": it.dimension.name,
                "unlabelled_exposure": it.unknown(),
                "unlabelled_candidates": it.unlabelled(),
            }
            for it in figures.by_query
        ],
        "groups": figures.groups,
        "segments": figures.segments,
        "calibration": figures.calibration,
        "fair_reranking": [
            {"attribute": name} | as_data(it) for name, it in figures.fair_reranking.items()
        ],
        "contributions": [as_data(it) | printed[it.query] for it in figures.contributions],
        "pairs": pairs,
    }
    if figures.concentrations:
        found["concentration"] = [it.as_data() for it in figures.concentrations]
    if audit.seen is not None:
        found["lists"] = audit.lists
        found["coverage"] = audit.seen.coverage()
    if audit.clicks is not None:
        found["clicks"] = audit.clicks.model_dump(mode="json")
    data = json.dumps(as_data(found), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Half of a pair of surrogates, as a JSON of documents may hold, becomes an escape of JSON.
    return f"{data}\n".encode(errors="backslashreplace")


def files_of(audit: Audit) -> dict[str, bytes]:
    """Return the files of figures: ``audit.json``, and the tables.

    ``results.csv`` has a row for each attribute, group and segment, and ``queries.csv`` one for
    each query, attribute and group; a query that found nothing or failed has one without an
    attribute. ``all_groups.csv`` has one for each group that nobody lists, if there are any.

    Raises:
        InputError: pandas is not installed.
    """
    tables = {
        f"{name}.csv": text.csv_of(table, DIGITS_BY_QUERY if name == "queries" else DIGITS)
        for name, table in audit.frames.items()
    }
    return {"audit.json": audit_json(audit)} | tables


def _flat(figures: GroupFigures | VersionComparison) -> dict[str, Any]:
    """Return figures as the row of a table, with a column for each end of an estimate."""
    row: dict[str, Any] = {}
    for name, held in asdict(figures).items():
        parts = held if isinstance(held, dict) else {"value": held}
        columns = {f"{name}_{part}".removesuffix("_value"): it for part, it in parts.items()}
        columns.pop(f"{name}_p", None)  # There is one test a row.
        row |= columns
    if isinstance(figures, VersionComparison):
        return row | {"p": figures.difference.p}
    row["gap_least"], row["gap_greatest"] = row.pop("gap_bounds")
    return row | {"p": figures.test.p}


def _query_rows(audit: Audit) -> Iterator[tuple[object, ...]]:
    printed = audit.printed()
    asked = {
        it.id: (*printed[it.id].values(), it.segment, it.weight) for it in audit.queries.queries
    }
    for part in audit.figures.by_query:
        arrays = [*map(part.array, ("exposure", "target")), part.tested_gaps()[0]]
        table = np.stack([*arrays, part.by_label("unknown")], axis=2).tolist()
        for query, rows in zip(part.queries, table, strict=True):
            for group, values in zip(part.dimension.groups, rows, strict=True):
                yield (*asked[query], "ok", part.dimension.name, group, *values)
    for query, status in audit.figures.unanswered.items():
        yield (*asked[query], status, *[None] * 6)


def _rows_of_all_groups(audit: Audit) -> Iterator[tuple[object, ...]]:
    for it in audit.figures.concentrations:
        figures = np.stack([it.exposure, it.target, it.gaps], axis=1).round(10)
        for group, values in zip(it.groups, figures.tolist(), strict=True):
            yield it.attribute, group, *values


def write_audit(folder: Path, audit: Audit, layout: str = LAYOUTS[0]) -> None:
    """Write ``audit.json``, the tables as CSV, and the report.

    Args:
        folder: The folder of the audit.
        audit: What came out.
        layout: The order of the report, one of :data:`fairqr.evaluation.audit.LAYOUTS`.

    Raises:
        InputError: There is no such layout; or the report needs an extra that is not installed.
            All other files are written by then.
    """
    arranged = load_layout(layout)
    for name, content in files_of(audit).items():
        write_beside(folder / name, content)
    drawn = figures_to_draw(audit)
    folded = {part["heading"] for part in arranged["parts"] if part["folded"]}
    write_report(folder, "audit", values_of(audit, arranged), drawn, folded)


def read_audit(folder: AuditFolder) -> Audit:
    """Read a finished audit, and compute all figures from what its folder keeps.

    Raises:
        InputError: The folder holds no audit, one that is not finished, or a damaged one.
    """
    manifest = folder.manifest()
    if not manifest.finished:
        raise InputError(f"The audit in {folder.folder} is not finished; run it again to resume.")
    try:
        return measured(folder, manifest)
    except FairqrError:
        raise
    except (LookupError, ValueError) as error:  # whatever forged observations may lead to
        raise InputError(
            f"What the audit in {folder.folder} keeps is damaged, or of another version "
            f"({one_line(error, 200)}); fetch it again, or make it again."
        ) from None


def make_again(folder: Path, into: Path) -> None:
    """Write all files that follow from ``raw/`` and the manifest of an audit into another folder.

    Raises:
        InputError: A file is missing or damaged, or an extra is not installed.
    """
    kept = AuditFolder(folder)
    audit = read_audit(kept)
    if kept.observations.done() - {(it.id,) for it in audit.queries.queries}:
        raise InputError("raw/ has an answer to a query that was not asked.")
    if not audit.manifest.redacted and audit.queries.fingerprint != audit.manifest.queries:
        raise InputError("raw/queries.json has other queries than the manifest.")
    write_audit(into, audit, audit.manifest.layout)


def measured(
    folder: AuditFolder,
    manifest: AuditManifest,
    largest: Mapping[str, Sequence[str]] | None = None,
) -> Audit:
    """Compute all figures of what was observed, by the settings of a manifest; this blocks.

    Args:
        folder: The folder of the audit.
        manifest: Its settings.
        largest: See :func:`fairqr.evaluation.audit.measuring.measure`.
    """
    spec = AuditSpec.model_validate(manifest.spec)
    queries, scores = folder.read(QUERIES, Queries), folder.pairs.read()
    figures = measure(
        spec,
        Schema(attributes=manifest.attributes),
        {query.id: query for query in queries.queries},
        folder.observed,
        corpus_shares={name: np.array(held) for name, held in manifest.corpus_shares.items()},
        relevance=manifest.relevance,
        largest=largest,
    )
    titles = folder.read(TITLES, dict[str, str])
    pairs = compare_versions(manifest.pairs_by, scores, spec.seed) if scores else None
    return Audit(
        folder.folder,
        manifest,
        spec,
        queries,
        figures,
        titles,
        pairs,
        seen=_read_if_there(folder, SEEN, SeenSearches),
        clicks=_read_if_there(folder, CLICKS, ClickFigures),
    )


def _read_if_there(folder: AuditFolder, name: str, kind: type[T]) -> T | None:
    """Return the content of a file that not every audit has."""
    return folder.read(name, kind) if (folder.folder / name).exists() else None


def finish(audit: Audit, folder: AuditFolder, layout: str) -> Audit:
    """Write all files of an audit, and seal its folder; this blocks."""
    folder.write(TITLES, audit.titles)
    write_audit(folder.folder, audit, layout)
    sealed = folder.seal(layout=layout, **(REDACTED if audit.manifest.redacted else {}))
    return replace(audit, manifest=sealed)


def least_queries(tests: int = 1) -> int:
    """Return the fewest queries of equal weight for an interval, or for one of so many tests."""
    return next(number for number in count(1) if not too_few(number, ALPHA / max(tests, 1)))


def findings_of(audit: Audit) -> dict[str, list[str]]:
    """Return the ``verdict`` with its threshold, up to three ``sentences``, and ``notes``.

    The sentences say who is affected and by how much, how sure that is, and what fair re-ranking
    would cost; one more, for each attribute whose groups nobody lists, what all its groups get. The
    notes what else a reader has to know.

    Raises:
        InputError: Jinja is not installed.
    """
    # Attributes come before their combinations, and then the greatest differences.
    ordered = sorted(
        audit.figures.groups,
        key=lambda it: (TIMES in it.attribute, -np.nan_to_num(difference_of(it)[0].value)),
    )
    plain = [it for it in ordered if TIMES not in it.attribute] or ordered
    sure = [it for it in plain if it.is_sure] or ordered
    values = {
        "audit": audit,
        "lists": audit.lists,
        "coverage": audit.seen.coverage() if audit.seen else None,
        "ordered": ordered,
        "plain": plain,
        "foremost": next(name for name in VERDICTS if any(it.verdict == name for it in sure)),
        "difference": difference_of,
        "in_points": _points,
        "listing": _listed,
        "alpha": ALPHA,
        "least_queries": least_queries(audit.figures.tests),
        # Of so many, nearly all audits would show a group that other queries show alone.
        "queries_that_show": lambda share: math.ceil(math.log(ALPHA / 2) / math.log1p(-share)),
    }
    return {
        part: paragraphs("audit_sentences", {**values, "part": part})
        for part in ("verdict", "sentences", "notes")
    }


def difference_of(it: GroupFigures) -> tuple[Estimate, str]:
    """Return how much ``less`` or ``more`` than its target share a group gets, as it was tested.

    The difference is not above 0 where the group gets something between its attainable exposure
    and its target.
    """
    test = it.test
    if not test.value < 0:
        return test, "less"
    if it.tested == "ranking_gap":
        return replace(it.excess, p=test.p), "more"
    return replace(test, value=-test.value, low=-test.high, high=-test.low), "more"


def _listed(texts: Sequence[str], most: int = 5) -> str:
    """Return the first texts as a sentence lists them, and how many others there are."""
    rest = len(texts) - most
    named = [*texts[:most], f"{rest:,} other{'s' * (rest > 1)}"] if rest > 0 else texts
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def load_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        InputError: There is none of this name.
    """
    if name not in LAYOUTS:
        raise InputError(f"There is no layout '{one_line(name)}'; choose {', '.join(LAYOUTS)}.")
    held: Layout = load_yaml(Path(__file__).parent / "files" / f"{name}.yaml", "layout")
    parts = [{"text": "", "sections": [], "folded": False} | part for part in held["parts"]]
    return held | {"parts": parts}


def values_of(audit: Audit, layout: Layout) -> dict[str, Any]:
    """Return what the template shows."""
    notes: list[str] = []

    def noted(said: str, it: Estimate, interval: text.Markdown) -> text.Markdown:
        """Write a figure with its interval, and keep that for the count of too few queries."""
        lacks = said != text.NOTHING and math.isnan(it.low)
        notes.append("too few" if lacks else interval)
        return text.cell(said, notes[-1])

    def ratio(it: Estimate) -> text.Markdown:
        said = text.NOTHING if math.isnan(it.value) else f"{it.value:.2f}"
        return noted(said, it, text.span(it))

    return {
        "title": f"Who gets seen in the results of {audit.manifest.engine['name']}",
        "about": "",
        "layout": layout,
        "audit": audit,
        "lists": audit.lists,
        "coverage": audit.seen.coverage() if audit.seen else None,
        "findings": findings_of(audit),
        "attributes": {name: _first(groups) for name, groups in audit.figures.by_attribute.items()},
        "examples": _examples(audit),
        "rankings": _rankings,
        "verdicts": VERDICTS,
        "difference": difference_of,
        "least_queries": least_queries(),
        "few_candidates": FEW_CANDIDATES,
        "most_groups": MOST_GROUPS,
        "most_documents": MOST_DOCUMENTS,
        "notes": notes,
        "share": lambda it: noted(text.percent(it.value), it, text.percent_span(it)),
        "ratio": ratio,
        "points_of": lambda it, side: noted(_points(it.value, side), it, text.points_span(it)),
        "in_points": _points,
        "log2": LOG2.weights(audit.spec.k).tolist(),
        "small_points": lambda gap: text.Markdown(f"{100 * gap:+.3f}".replace("-", text.MINUS)),
        "number": lambda it: f"{it:,.0f}" if it == round(it) else f"{it:,.1f}",
    }


def _first(groups: Sequence[GroupFigures], most: int = MOST_GROUPS) -> list[GroupFigures]:
    """Return the groups to show: all, or those with the greatest gaps, in the order given."""
    ranked = sorted(groups, key=lambda it: (not it.is_sure, -abs(np.nan_to_num(it.test.value))))
    kept = {it.group for it in ranked[:most]}
    return [it for it in groups if it.group in kept]


def _points(amount: float, side: str = "") -> text.Markdown:
    """Write how many points, and whether it is less or more than the target share."""
    if side and not amount > 0:
        return text.Markdown(text.NOTHING)
    return text.Markdown(f"{text.percent(amount).rstrip('%')} {side}".strip())


def _examples(audit: Audit) -> dict[tuple[str, str], list[Contribution]]:
    """Return the queries that add most by attribute and group, those of attributes first."""
    ordered = sorted(audit.figures.contributions, key=lambda it: TIMES in it.attribute)
    by_group = groupby(ordered, lambda it: (it.attribute, it.group))
    return {key: list(islice(found, MOST_QUERIES)) for key, found in islice(by_group, MOST_LISTS)}


def _rankings(it: Contribution) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return what a query shows today, and what would come in, as ranks and ids."""
    today = list(enumerate(it.shown, start=1))
    return today, [held for held in enumerate(it.fair, start=1) if held[1] not in it.shown]


def documents_to_name(audit: Audit) -> list[str]:
    """Return the ids of the documents whose titles the report would show.

    They stand beside queries that may be printed: the titles of what a query finds show what was
    asked.
    """
    printed = audit.printed()
    rankings = [
        ranked[:MOST_DOCUMENTS]
        for it in chain.from_iterable(_examples(audit).values())
        if printed[it.query]["text"] is not None
        for ranked in _rankings(it)
    ]
    return list(dict.fromkeys(id_ for _, id_ in chain.from_iterable(rankings)))


def figures_to_draw(audit: Audit) -> list[Figure]:
    """Draw what the report shows.

    Raises:
        InputError: matplotlib is not installed.
    """
    drawn = [draw_exposure(audit)] if audit.figures.counts.answered else []
    return drawn + ([draw_lorenz(audit)] if audit.figures.concentrations else [])


def draw_lorenz(audit: Audit) -> Figure:
    """Draw the Lorenz curve of each attribute whose groups nobody lists.

    Raises:
        InputError: matplotlib is not installed.
    """
    panels = {}
    told = []
    for it in audit.figures.concentrations:
        curves = {
            "this engine": it.exposure_of_worst(CURVE_AT),
            BY_LOT: it.exposure_of_worst_by_lot(CURVE_AT),
        }
        points = []
        for name, heights in curves.items():
            points += [(name, *point) for point in zip(CURVE_AT, heights, strict=False)]
        title = f"{it.attribute}, {len(it.groups):,} groups"
        panels[title] = text.frame(points, ("line", "x", "y"))
        (half,) = it.exposure_of_worst([0.5])
        told.append(
            f"{it.attribute}: half of the target, of the groups served worst, gets "
            f"{text.percent(half)} of the exposure"
        )
    drawn = draw_lines(
        panels,
        "share of the target, groups that are served worst first",
        "share of the exposure",
        styles={"this engine": (BLUE, ""), BY_LOT: (GREY, "")},
        diagonal=True,
    )
    return Figure("lorenz", f"Lorenz curves of exposure. {'; '.join(told)}.", drawn)


def draw_exposure(audit: Audit) -> Figure:
    """Draw who gets seen, by the groups of each attribute.

    Raises:
        InputError: matplotlib is not installed.
    """
    panels, told = {}, []
    attributes = audit.figures.by_attribute
    for attribute in [name for name in attributes if TIMES not in name] or attributes:
        groups, bars = attributes[attribute], []
        for it in _first(groups, MOST_BARS):
            words, target = VERDICTS[it.verdict], it.target.value
            dot = (it.exposure.value, it.exposure.low, it.exposure.high)
            marks = {
                "target": target,
                "attainable": it.attainable.value,
                "if re-ranked": it.exposure_if_reranked,
            }
            bars.append(Bar(it.group, dot, words.split(":")[0], marks))  # the table has the reason
            seen, aim = text.percent(it.exposure.value), text.percent(target)
            told.append(f"{attribute}, {it.group}: {seen} of the exposure, target {aim}, {words}")
        cut = f", the {MOST_BARS} groups of {len(groups):,} with the greatest gaps"
        panels[attribute + cut * (len(groups) > MOST_BARS)] = bars
    colours = {it.split(":")[0]: COLOURS.get(name, GREY) for name, it in VERDICTS.items()}
    drawn = draw_bars(panels, colours, "share of the exposure")
    return Figure("exposure", f"Bars of exposure by group. {'; '.join(told)}.", drawn)
