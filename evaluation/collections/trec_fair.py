"""Importing TREC Fair 2021 and 2022 from the official files.

Articles and metadata are joined by page id through a table on disk, so that memory does not grow
with their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairqr.base.errors import CorpusError
from fairqr.evaluation.collections.building import DiskTable, DocumentWriter, ImportReport
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
from fairqr.evaluation.collections.trec_labels import Year, labels_of
from fairqr.evaluation.qrels import write_qrels
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.files import write_beside

__all__ = ["ABOUT", "import_trec_fair", "is_trec_fair", "write_schema", "write_topic_sets"]

SCHEMAS = Path(__file__).parent / "schemas"
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
        progress: Told now and then how many documents were written.

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
    write_schema(folder, year)
    with DiskTable(folder / ".metadata") as table, DocumentWriter(folder, progress) as writer:
        _store_metadata(files, table, report)
        for id_, title, text, url in _articles(files.corpus):
            fields = table.get(id_)
            labels = {} if fields is None else json.loads(fields)
            if not writer.write(id_, title, text, {"url": url, **labels}):
                report.duplicates += 1
            elif fields is None:
                report.unlabelled += 1
        report.documents = writer.count
        write_topic_sets(folder, sets, writer, report)
    ABOUT[year].model_copy(update={"documents": report.documents}).write(folder)
    return report


def write_schema(folder: Path, year: Year) -> None:
    """Write the attributes of a year, with the populations of the track."""
    write_beside(folder / "schema.yaml", (SCHEMAS / f"trec-fair-{year}.yaml").read_bytes())


def write_topic_sets(
    folder: Path, sets: Mapping[str, TopicSet], writer: DocumentWriter, report: ImportReport
) -> None:
    """Write topics and judgements by their split; those without judgements are left out."""
    for split, found in sets.items():
        if not any(found.relevant.values()):
            report.left_out.append(f"{split}: topics without judgements were left out")
            continue
        report.topics[split] = len(found.topics)
        report.judgements[split] = sum(map(len, found.relevant.values()))
        judged = {id_ for ids in found.relevant.values() for id_ in ids}
        report.missing[split] = sum(not writer.has(id_) for id_ in judged)
        write_topics(folder / f"topics-{split}.jsonl", found.topics)
        qrels = {topic: dict.fromkeys(ids, 1) for topic, ids in found.relevant.items()}
        write_qrels(folder / f"qrels-{split}.txt", qrels)


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


def _articles(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield id, title, text and address of each article."""
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
        yield id_, title, text or "", str(record.get("url") or "")


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
