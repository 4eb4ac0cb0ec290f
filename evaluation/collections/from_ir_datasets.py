"""Importing TREC Fair 2021 and 2022 through ir_datasets, which fetches the files itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.evaluation.collections.building import ImportReport
from fairqr.evaluation.collections.topics import Topic
from fairqr.evaluation.collections.trec_fair import Page, write_pages
from fairqr.evaluation.collections.trec_files import TopicSet
from fairqr.evaluation.collections.trec_labels import Year, labels_of
from fairqr.retrieval.documents import Progress

__all__ = ["import_ir_dataset"]

_TEXTS = ("doc_id", "title", "text", "marked_up_text", "url")
_NAME = re.compile(r"trec-fair/(2021|2022)")


def import_ir_dataset(
    paths: Sequence[Path], folder: Path, progress: Progress | None = None
) -> ImportReport:
    """Write a dataset of ir_datasets in the standard layout, with all splits that it has.

    Of articles with the same id the first is kept. What ir_datasets lacks is missing here too: in
    2021 the gender, which came after the training metadata, and in 2022 the evaluation topics.

    Args:
        paths: The id of the dataset alone: ``trec-fair/2021`` or ``trec-fair/2022``.
        folder: Where to, empty.
        progress: Called now and then with the number of documents written.

    Raises:
        InputError: It is another dataset, or ir_datasets is not installed.
        CorpusError: ir_datasets cannot read it; its own message says why.
    """
    name = " ".join(path.as_posix() for path in paths)
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"'{one_line(name)}' is no collection of TREC Fair in ir_datasets; name "
            "trec-fair/2021 or trec-fair/2022."
        )
    year: Year = 2021 if match[1] == "2021" else 2022
    report = ImportReport()
    try:
        sets = {split: _topics(f"{name}/{split}") for split in ("train", "eval")}
        there = {split: found for split, found in sets.items() if found.topics}
        documents = _load(name).docs_iter()
        pages = (_page(document, year, report) for document in documents)
        write_pages(folder, year, pages, there, report, progress)
    except (ImportError, OSError, RuntimeError, LookupError, ValueError) as error:
        raise CorpusError(
            f"ir_datasets cannot give {name}: {one_line(error) or type(error).__name__}; see "
            "ir-datasets.com, or import the official files."
        ) from None
    return report


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise InputError(
            "This import needs ir_datasets; install it with: pip install 'fairqr[evaluation]'"
        ) from None
    return ir_datasets.load(name)


def _topics(name: str) -> TopicSet:
    """Return the topics and judgements of a split; none if ir_datasets has no such split."""
    try:
        dataset = _load(name)
    except KeyError:
        return TopicSet((), {})
    relevant: dict[str, dict[str, None]] = {}
    for judgement in dataset.qrels_iter():
        if judgement.relevance > 0:
            relevant.setdefault(judgement.query_id, {})[judgement.doc_id] = None
    topics = tuple(
        Topic(query.query_id, query.text, tuple(getattr(query, "keywords", ())))
        for query in dataset.queries_iter()
    )
    return TopicSet(topics, {topic.id: list(relevant.get(topic.id, ())) for topic in topics})


def _page(document: Any, year: Year, report: ImportReport) -> Page:
    record = {n: v for n, v in document._asdict().items() if n not in _TEXTS and v is not None}
    labels = labels_of(record, year, report.unrecognised) if record else None
    return document.doc_id, document.title, document.text, document.url, labels
