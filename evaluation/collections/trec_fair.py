"""Importing TREC Fair 2021 and 2022 from the official files.

Articles and metadata are joined by page id through a table on disk, so that memory does not grow
with their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairqr.base.errors import CorpusError
from fairqr.base.files import write_beside
from fairqr.evaluation.collections.building import (
    DiskTable,
    DocumentWriter,
    ImportReport,
    write_judgements,
)
from fairqr.evaluation.collections.collection import About
from fairqr.evaluation.collections.topics import write_topics
from fairqr.evaluation.collections.trec_files import (
    TEXTS,
    TopicSet,
    TrecFiles,
    json_lines,
    read_topic_sets,
    sort_files,
)
from fairqr.evaluation.collections.trec_labels import Year, labels_of, schema_of
from fairqr.retrieval.corpus import SCHEMA
from fairqr.retrieval.documents import Progress

__all__ = ["Page", "import_trec_fair", "is_trec_fair", "write_pages"]

Page = tuple[str, str, str, str, dict[str, Any] | None]
"""Id, title, text, address, and the labels; None for a page that the metadata lack."""

ABOUT: dict[Year, About] = {
    2021: About(
        title="TREC Fair Ranking 2021",
        source="The TREC 2021 Fair Ranking Track, fair-trec.github.io/2021: English Wikipedia",
        licence="The articles are CC BY-SA, as Wikipedia's.",
        note="Labels as in the track's evaluation code; the text is wiki markup.",
        target="trec2021",
        loader="trec-fair-2021",
    ),
    2022: About(
        title="TREC Fair Ranking 2022",
        source="The TREC 2022 Fair Ranking Track, fair-trec.github.io: English Wikipedia",
        licence="The articles are CC BY-SA, as Wikipedia's.",
        note="Labels as in the track's evaluation code; most pages have no gender.",
        target="trec2022",
        loader="trec-fair-2022",
    ),
}


def is_trec_fair(folder: Path, year: Year) -> bool:
    """Return whether a folder has the official files of a year."""
    try:
        return sort_files([folder]).year == year
    except CorpusError:
        return False


def import_trec_fair(
    year: Year, paths: Sequence[Path], folder: Path, progress: Progress | None = None
) -> ImportReport:
    """Write the official files in the standard layout.

    Of articles with the same id the first is kept. A page that the metadata lack is all unknown.
    Judgements of pages that the corpus lacks are kept, and counted.

    Args:
        year: Of the track.
        paths: The files, or folders with them.
        folder: Where to, empty.
        progress: Called now and then with the number of documents written.

    Raises:
        CorpusError: A file is missing or of the other year, or a line is wrong; the line is named.
    """
    files = sort_files(paths)
    if files.year != year:
        raise CorpusError(
            f"{files.metadata} is of {files.year}; import it with trec-fair-{files.year}."
        )
    report = ImportReport(left_out=list(files.left_out))
    sets = read_topic_sets(files.topics)
    if not any(any(found.relevant.values()) for found in sets.values()):
        raise CorpusError(
            "The topics have no relevant documents; add the file that has their rel_docs."
        )
    with DiskTable(folder / ".metadata") as table:
        _store_metadata(files, table, report)
        write_pages(folder, year, _pages(files.corpus, table), sets, report, progress)
    return report


def write_pages(
    folder: Path,
    year: Year,
    pages: Iterable[Page],
    sets: Mapping[str, TopicSet],
    report: ImportReport,
    progress: Progress | None,
) -> None:
    """Write pages, topics and judgements in the standard layout, with the schema of the year.

    Of pages with the same id the first is kept; topics without judgements are left out.

    Args:
        folder: Where to, empty.
        year: Of the track.
        pages: The documents.
        sets: Topics and judgements by split.
        report: Counts what is written.
        progress: Called now and then with the number of documents written.
    """
    write_beside(folder / SCHEMA, schema_of(year).read_bytes())
    with DocumentWriter(folder, progress) as writer:
        for id_, title, text, url, labels in pages:
            if not writer.write(id_, title, text, {"url": url, **(labels or {})}):
                report.duplicates += 1
            elif labels is None:
                report.unlabelled += 1
        report.documents = writer.count
        for split, found in sets.items():
            if not any(found.relevant.values()):
                report.left_out.append(f"{split}: topics without judgements were left out")
                continue
            report.topics[split] = len(found.topics)
            write_topics(folder / f"topics-{split}.jsonl", found.topics)
            qrels = {topic: dict.fromkeys(ids, 1) for topic, ids in found.relevant.items()}
            write_judgements(folder, split, qrels, writer, report)
    ABOUT[year].model_copy(update={"documents": report.documents}).write(folder)


def _store_metadata(files: TrecFiles, table: DiskTable, report: ImportReport) -> None:
    """Put the labels of each page into the table; of pages that stand twice the first counts."""
    for number, record in json_lines(files.metadata):
        try:
            page = str(_page(record["page_id"]))
            labels = labels_of(record, files.year, report.unrecognised)
        except KeyError:
            raise _bad(files.metadata, number, "it has no page_id") from None
        except ValueError as error:
            raise _bad(files.metadata, number, str(error)) from None
        table.put(page, json.dumps(labels))


def _pages(path: Path, table: DiskTable) -> Iterator[Page]:
    """Yield the articles with their labels, as JSON in the table."""
    for number, record in json_lines(path):
        try:
            id_ = str(_page(record.get("id")))
        except ValueError as error:
            raise _bad(path, number, str(error)) from None
        title = record.get("title")
        text = next((record[name] for name in TEXTS if name in record), "")
        if not isinstance(title, str) or not title.strip():
            raise _bad(path, number, "it has no title")
        if not isinstance(text, str | None):
            raise _bad(path, number, "its text is not text")
        labels = table.get(id_)
        address = str(record.get("url") or "")
        yield id_, title, text or "", address, None if labels is None else json.loads(labels)


def _page(value: Any) -> int:
    try:
        page = int(value)
    except (TypeError, ValueError, OverflowError):
        page = None
    if page is None or isinstance(value, bool) or (isinstance(value, float) and page != value):
        raise ValueError("its page id is no whole number")
    return page


def _bad(path: Path, number: int, what: str) -> CorpusError:
    return CorpusError(f"{path}, line {number}: {what}; fetch the file again.")
