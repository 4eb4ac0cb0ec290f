"""The report: its numbers are the results' own, and nothing in it becomes markup."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.measuring import Measured, measure_experiment, write_results
from fairqr.evaluation.experiments.report import figures, numbers, write_report, writing
from fairqr.evaluation.experiments.report.markdown import to_markdown
from fairqr.evaluation.experiments.report.parts import Cell, Items, Paragraph, Report, Table, plain
from fairqr.evaluation.experiments.report.writing import build_report
from fairqr.evaluation.experiments.store import Record, Store
from tests.unit.evaluation.experiments.pages import Page, read
from tests.unit.evaluation.experiments.small import (
    SYSTEMS,
    fill,
    plan_of,
    records_of,
    write_collection,
)

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = '<script>alert(1)</script> <img src="//evil.example/x.png"> | `x` *y* $\\frac{ & &lt; ]]>'


def _measured(
    collection: Collection,
    folder: Path,
    change: Any = lambda record: record,
    **changes: Any,
) -> tuple[Store, Measured]:
    plan = plan_of(collection, folder, **changes)
    store = Store(folder / "run")
    records = [changed for r in records_of(plan, collection) if (changed := change(r))]
    fill(store, plan, records)
    return store, measure_experiment(store, collection)


def _tables(measured: Measured, beginning: str) -> list[Table]:
    blocks = build_report(measured).blocks
    return [b for b in blocks if isinstance(b, Table) and b.caption.startswith(beginning)]


def test_every_mean_is_the_mean_of_the_values_that_were_written(
    collection: Collection, tmp_path: Path
) -> None:
    """Recomputed from measures.csv, which another reader would use."""
    store, measured = _measured(collection, tmp_path)
    write_results(store, measured)
    rows = list(csv.DictReader((store.folder / "measures.csv").read_text().splitlines()))
    table = _tables(measured, "gender, queries: title: the mean")[0]
    assert table.header[:4] == ("system", "nDCG@5", "AWRF@5(unit=bits)", "nDCG@5×AWRF@5(unit=bits)")
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    means = np.zeros((len(SYSTEMS), 3))
    for line, row in enumerate(table.rows):
        for column, measure in enumerate(measures):
            values = [
                float(r["value"])
                for r in rows
                if (r["system"], r["measure"]) == (row[0].text, measure)
            ]
            means[line, column] = np.mean(values)
            assert row[column + 1].text == f"{np.mean(values):.4f}"
            assert row[column + 1].note.endswith(f"n={len(values)}")
            if np.ptp(values) and len(values) > 5:  # else there is no interval
                low, high = map(float, re.findall(r"[0-9.]+", row[column + 1].note)[:2])
                assert low <= np.mean(values) + 5e-4
                assert high >= np.mean(values) - 5e-4
    for column in range(3):
        best = [row[column + 1].best for row in table.rows]
        assert best == list(np.isclose(means[:, column], means[:, column].max()))


def test_differences_are_of_the_means(collection: Collection, tmp_path: Path) -> None:
    _, measured = _measured(collection, tmp_path)
    means = _tables(measured, "gender, queries: title: the mean")[0]
    differences = _tables(measured, "gender, queries: title: differences from BM25")[0]
    base = float(means.rows[0][3].text)
    for mean, difference in zip(means.rows[1:], differences.rows, strict=True):
        assert mean[0] == difference[0]
        product = float(mean[3].text)
        change = float(difference[1].text.strip("%").replace("−", "-"))
        assert change == pytest.approx(100 * (product - base) / base, abs=0.1)
        assert difference[1].note in ("holds", "does not hold")
        assert float(difference[4].text.replace("−", "-")) == pytest.approx(
            product - base, abs=2e-4
        )
        assert "n=4" in difference[4].note
    assert "all 9 comparisons" in differences.caption


def test_means_over_different_topics_are_given_again_over_the_same_ones(
    collection: Collection, tmp_path: Path
) -> None:
    """One system finds nothing for a topic: relevance counts it as 0, fairness has no value."""

    def without(record: Record) -> Record:
        if (record.system, record.topic) != ("ours", "t0"):
            return record
        return record.model_copy(update={"ids": [], "rounds": [], "error": "Nothing found."})

    _, measured = _measured(collection, tmp_path, without)
    first = _tables(measured, "gender, queries: title: the mean")[0]
    assert first.rows[3][1].note.endswith("n=4")
    assert first.rows[3][2].note.endswith("n=3")
    assert not any(cell.best for row in first.rows for cell in row)
    # The product of a search that found nothing is 0, so the best product is over all topics.
    assert re.search(
        r"has the best mean of [^,]+, [0-9.]+ over 4 topics",
        to_markdown(build_report(measured), "figures"),
    )
    second = _tables(measured, "gender, queries: title: the same over the 3 topics")[0]
    own = measured.tables[0].evaluations["BM25"].results["nDCG@5"].values
    expected = np.mean([own[topic] for topic in ("t1", "t2", "t3")])
    assert second.rows[0][1].text == f"{expected:.4f}"
    assert all(cell.note.endswith("n=3") for row in second.rows for cell in row[1:])
    for column in (1, 2, 3):
        assert any(row[column].best for row in second.rows)
    ended = _tables(measured, "How searches ended")[0]
    assert [(row[0].text, row[3].text) for row in ended.rows][-1] == ("ours", "1")


def test_equal_topics_have_one_table(collection: Collection, tmp_path: Path) -> None:
    _, measured = _measured(collection, tmp_path)
    assert not _tables(measured, "gender, queries: title: the same over")


def test_how_many_documents_have_a_label_is_counted(collection: Collection, tmp_path: Path) -> None:
    """Two of four occupations have a place, so half of the documents that are ranked."""
    _, measured = _measured(collection, tmp_path, attributes=["place"])
    table = _tables(measured, "place, queries: title: the mean")[0]
    assert table.header[-1] == "place known in the top 5"
    known = {d.id for d in collection.corpus.documents() if d.fields.get("place")}
    for row in table.rows:
        records = measured.tables[0].records[row[0].text]
        counts = [sum(id_ in known for id_ in record.ids) for record in records]
        assert row[-1].text == f"{np.mean(counts):.1f} of 5.0"
    report = build_report(measured)
    assert any(
        "is over these documents only" in getattr(block, "text", "") for block in report.blocks
    )


def test_rounds_count_searches_that_never_began_as_0(
    collection: Collection, tmp_path: Path
) -> None:
    def shortened(record: Record) -> Record:
        keep = {"t3": 1}.get(record.topic, len(record.rounds))
        return record.model_copy(update={"rounds": record.rounds[:keep]})

    _, measured = _measured(collection, tmp_path, shortened)
    table = _tables(measured, "gender, queries: title: rounds of refinement used")[0]
    # Two rounds for t0, one for t1 and t2, none for t3.
    row = [cell.text for cell in table.rows[-1]]
    assert row[:5] == ["ours", "4", "1.00", "1.25", "2"]
    assert "a mean of 2, a 75th percentile of 4 and a maximum of 5" in table.caption


def test_drift_compares_a_round_with_round_0_of_the_same_topics(
    collection: Collection, tmp_path: Path
) -> None:
    _, measured = _measured(collection, tmp_path)
    table = _tables(measured, "gender, queries: title: nDCG@5 of each round")[0]
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    assert {key: row[2].text for key, row in rows.items() if key[0] == "ours"} == {
        ("ours", "1"): "4",
        ("ours", "2"): "1",
    }
    record = next(r for r in measured.tables[0].records["ours"] if r.topic == "t0")

    def ndcg(ids: list[str]) -> float:
        judged = measured.qrels["t0"]
        gains = [float(judged.get(id_, 0) > 0) for id_ in ids]
        ideal = [1.0] * min(5, len(judged))
        discounts = 1 / np.log2(np.arange(2, 7))
        return float(gains @ discounts / (ideal @ discounts[: len(ideal)]))

    assert rows["ours", "2"][3].text == f"{ndcg(record.rounds[2].ids):.4f}"
    assert rows["ours", "2"][4].text == f"{ndcg(record.rounds[0].ids):.4f}"


def test_costs_are_means_medians_and_percentiles(collection: Collection, tmp_path: Path) -> None:
    _, measured = _measured(collection, tmp_path)
    table = _tables(measured, "gender, queries: title: cost of a search")[0]
    costs = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    # Made up: 10 to 13 ms; two calls for the first topic, one for the others.
    assert costs["BM25"] == ["4", "0 / 0 / 0", "0 / 0 / 0", "11.5 / 11.5 / 12.8"]
    assert costs["ours"][:3] == ["4", "1.25 / 1.00 / 1.85", "125 / 100 / 185"]


def test_what_the_model_adds_is_said_with_its_sign(collection: Collection, tmp_path: Path) -> None:
    """Relevant documents are put first, or last, by the one system that asks a model."""

    def with_gain(best_first: bool) -> Any:
        def changed(record: Record) -> Record:
            if record.system != "ours":
                return record
            judged = collection.qrels[record.topic]
            ids = list(judged)[:5] if best_first else [f"d{n:02}" for n in range(0, 25, 5)]
            return record.model_copy(update={"ids": ids})

        return changed

    for best_first, sign in ((True, "+"), (False, "−")):
        folder = tmp_path / str(best_first)
        folder.mkdir()
        _, measured = _measured(collection, folder, with_gain(best_first))
        text = to_markdown(build_report(measured), "figures")
        said = re.findall(r"the language model of 'ours' changes \S+ by (\S)", text)
        assert said == [sign, sign]
        assert "over no refinement at all ('ours, no refinement')" in text
        assert "over feedback, which asks no model ('ours, feedback')" in text
        best = re.search(r"of 4 systems '([^']+)' has the best mean", text)
        assert best
        assert (best[1] == "ours") == best_first


def test_without_ours_nothing_is_said_of_ours(collection: Collection, tmp_path: Path) -> None:
    systems = [SYSTEMS[0], {"name": "FA*IR", "method": "fa-ir"}]
    _, measured = _measured(collection, tmp_path, systems=systems)
    assert "In short" not in to_markdown(build_report(measured), "figures")


def test_unfinished_systems_are_named_and_left_out(collection: Collection, tmp_path: Path) -> None:
    away = {"name": "away", "method": "plain", "corpus": "people-elsewhere"}

    def some(record: Record) -> Record | None:
        gone = record.system == "away" or (record.system, record.topic) == ("ours", "t2")
        return None if gone else record

    _, measured = _measured(collection, tmp_path, some, systems=[*SYSTEMS, away])
    text = to_markdown(build_report(measured), "figures")
    assert "'ours' is left out of all tables and means: 1 search still to be done" in text
    assert (
        "'away' is left out of all tables and means: nothing was searched for. It needs the "
        "corpus 'people-elsewhere'; attach it"
    ) in text
    table = _tables(measured, "gender, queries: title: the mean")[0]
    assert [row[0].text for row in table.rows] == ["BM25", "ours, no refinement", "ours, feedback"]


def test_the_paper_s_numbers_stand_apart(collection: Collection, tmp_path: Path) -> None:
    _, measured = _measured(collection, tmp_path)
    table = _tables(measured, "As published")[0]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["BM25", "0.6638", "0.8857", "", "0.7895"],
        ["vector search", "0.4771", "", "", ""],
        ["FAIR-QR", "0.6530", "", "0.6083", "0.7661"],
        ["FAIR-QR without re-ranking", "0.6423", "", "", ""],
    ]
    text = to_markdown(build_report(measured), "figures")
    assert "are not comparable with them" in text
    assert "nothing is claimed from either" in text
    assert not any(cell.best for row in table.rows for cell in row)


@pytest.fixture
def written(collection: Collection, tmp_path: Path) -> tuple[Store, list[Path]]:
    store, measured = _measured(collection, tmp_path)
    return store, write_report(store, measured)


def _page(store: Store) -> Page:
    return read((store.folder / "report.html").read_text())


def test_the_page_is_whole_and_asks_nobody_for_anything(
    written: tuple[Store, list[Path]],
) -> None:
    store, _ = written
    text = (store.folder / "report.html").read_text()
    page = _page(store)
    assert not {"script", "link", "img", "iframe", "object", "form"} & {t for t, _ in page.tags}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), tag
            if name in ("href", "src", "xlink:href"):
                assert value.startswith("#"), (tag, value)
        assert not re.search(r"url\((?!#)", attributes.get("style", ""))
    assert "//" not in re.sub(r"<style>.*?</style>|://|https?", "", "".join(page.text.split()))
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text
    policy = [m["content"] for m in page.named("meta") if "http-equiv" in m]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_can_be_read_by_all(written: tuple[Store, list[Path]]) -> None:
    page = _page(written[0])
    assert page.named("html")[0]["lang"] == "en"
    assert page.named("meta")[2]["content"].startswith("width=device-width")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for link in page.named("a"):
        assert link["href"].removeprefix("#") in ids
    for shape in page.named("svg"):
        assert shape["role"] == "img"
        assert len(shape["aria-label"]) > 40
    assert len(page.named("caption")) == len(page.named("table")) > 5
    assert all(header.get("scope") in ("row", "col") for header in page.named("th"))
    for region in page.named("div"):
        assert region["tabindex"] == "0"
        assert "aria-label" in region or region["aria-labelledby"] in ids
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert "color-scheme: light dark" in (written[0].folder / "report.html").read_text()


def test_both_reports_have_the_same_numbers(written: tuple[Store, list[Path]]) -> None:
    """One model, two renderers: each cell of the page is a cell of the Markdown."""
    store, _ = written
    markdown = (store.folder / "report.md").read_text()
    rows = [line for line in markdown.splitlines() if line.startswith("| ") and "---" not in line]
    plain = [re.sub(r"\*\*|\\|&#\d+;", "", row) for row in rows]
    cells = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in plain]
    page = [[c.replace(" (best)", "").strip() for c in row] for row in _page(store).cells]
    assert len(page) == len(cells)
    for on_page, in_markdown in zip(page, plain, strict=True):
        for cell in on_page:
            assert re.sub(r"[*\\]", "", cell) in in_markdown.replace("*", "")


def test_figures_are_files_whole_and_named_in_the_markdown(
    written: tuple[Store, list[Path]],
) -> None:
    store, paths = written
    markdown = (store.folder / "report.md").read_text()
    named = re.findall(r"^!\[(.+)\]\((figures/[^)]+)\)$", markdown, re.MULTILINE)
    assert [store.folder / path for _, path in named] == paths[2:]
    assert len(named) == 4
    for alt, path in named:
        assert len(alt) > 40
        text = (store.folder / path).read_text()
        root = ET.fromstring(text)
        words = "".join(root.itertext())
        assert "round" in words or "nDCG@5" in words
        assert "ours, feedback" in words, "text is text, not shapes"
        assert "<!DOCTYPE" not in text
        assert not re.search(r"(href|src)=\"(?!#)", text)


def test_equal_results_give_equal_files(
    written: tuple[Store, list[Path]], collection: Collection
) -> None:
    store, paths = written
    before = [path.read_bytes() for path in paths]
    assert write_report(store, measure_experiment(store, collection)) == paths
    assert [path.read_bytes() for path in paths] == before


def test_what_anybody_named_is_text_and_never_markup(tmp_path: Path) -> None:
    """Titles, names of systems, notes, and what models and documents say in warnings."""
    collection = write_collection(tmp_path / "collection", note=HOSTILE)

    def warned(record: Record) -> Record:
        return record.model_copy(update={"warnings": [HOSTILE, "a\x00b\u202ec\x1b[31m"]})

    systems = [SYSTEMS[0], {"name": f"ours {HOSTILE[:70]}"}, {"name": "_x_ $y$ [z](//evil)"}]
    store, measured = _measured(
        collection,
        tmp_path,
        warned,
        title=HOSTILE,
        about=f"# {HOSTILE}\n\n- {HOSTILE}",
        systems=systems,
    )
    paths = write_report(store, measured)
    page = _page(store)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") > 3
    assert "\x00" not in page.text
    assert "\u202e" not in page.text
    markdown = (store.folder / "report.md").read_text()
    kinds, images = _kinds(markdown)
    assert kinds <= {"text", "text_special", "strong_open", "strong_close", "image"}
    assert images == [f"figures/{path.name}" for path in paths[2:]]
    for path in paths[2:]:
        root = ET.parse(path).getroot()
        assert not [e for e in root.iter() if e.tag.endswith(("script", "img", "image"))]


def _kinds(markdown: str) -> tuple[set[str], list[str]]:
    """Return what a reader of Markdown finds besides blocks, and where images come from."""
    tokens = READER.parse(markdown)
    assert not [token for token in tokens if token.type in ("html_block", "fence", "code_block")]
    found = [child for token in tokens for child in token.children or ()]
    images = [str(child.attrs["src"]) for child in found if child.type == "image"]
    return {child.type for child in found}, images


SIGNS = st.sampled_from([*"\\`*_[]()<>|~$#!&;:/.+-=1a \t\n\"'{}\u202e\x00", "www.", "://"])


@given(st.lists(SIGNS, min_size=1, max_size=30).map("".join))
def test_markdown_shows_any_text_as_it_stands(text: str) -> None:
    """As a paragraph, as a heading, in a list, and in a cell."""
    shown = plain(text).strip()
    if not shown:
        return
    report = Report(text, (Paragraph(text), Items((text,)), Table("c", ("h",), ((Cell(text),),))))
    inline = [t for t in READER.parse(to_markdown(report, "f")) if t.type == "inline"]
    said = ["".join(child.content for child in token.children or ()) for token in inline]
    assert [said[0], said[1], said[2], said[5]] == [shown] * 4
    kinds = {child.type for token in inline for child in token.children or ()}
    assert kinds <= {"text", "text_special"}


def test_without_matplotlib_the_reports_are_written_and_the_sentence_says_so(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (figures, writing):
        monkeypatch.setattr(module, "can_draw", lambda: False)
    store, measured = _measured(collection, tmp_path)
    with pytest.raises(InputError, match=r"need matplotlib; install it with: pip install 'fairqr"):
        write_report(store, measured)
    markdown = (store.folder / "report.md").read_text()
    assert "There are no plots: matplotlib was not installed." in markdown
    assert "![" not in markdown
    assert "| BM25 |" in markdown
    assert not _page(store).named("svg")
    assert not (store.folder / "figures").exists()


def test_an_experiment_without_relevance_or_with_one_system_still_has_a_report(
    collection: Collection, tmp_path: Path
) -> None:
    store, measured = _measured(
        collection, tmp_path, systems=[SYSTEMS[0]], measures=["JS@5", "KL@5"]
    )
    write_report(store, measured)
    text = (store.folder / "report.md").read_text()
    assert "There is no plot of relevance against fairness" in text
    assert "Nothing is compared with the baseline 'BM25'" in text
    table = _tables(measured, "gender, queries: title: the mean")[0]
    assert table.rows[0][1].best, "the lower the better, and the only one"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0000"), (-0.00001, "0.0000"), (0.0123, "+0.0123"), (-0.5, "−0.5000"), (None, "–")],
)
def test_differences_have_a_sign_unless_they_are_nothing(number: float | None, text: str) -> None:
    assert numbers.difference(number) == text
