"""TREC Fair 2021 and 2022: the official files, their labels, and the import of both.

A file is recognised by its first line, not by its name, so that files may be renamed or unpacked.
Only the name says whether topics are for training or for evaluation. Articles and metadata are
joined by page id through a table on disk, so that memory does not grow with their number.

The rules for labels are those of the track's published evaluation code (github.com/fair-trec,
trec2021-fair-public/Alignments.py and trec2022-fair-public/PageAlignments.py), with one difference:
a page of several genders, or in 2021 of several regions, is shared equally among them, where the
track's code counts it in full for each.

ir_datasets, which fetches the files itself, can be imported from instead.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.evaluation.collections.building import (
    DiskTable,
    DocumentWriter,
    ImportReport,
    write_judgements,
)
from fairqr.evaluation.collections.collection import About, Topic, parse_topic, write_topics
from fairqr.retrieval.sources.corpus import SCHEMA
from fairqr.retrieval.sources.documents import ProgressFunction, numbered_lines, open_text
from fairqr.retrieval.sources.schema import UNKNOWN, load_schema

Year = Literal[2021, 2022]

OCEANIA = ("Australia and New Zealand", "Melanesia", "Micronesia", "Polynesia")
"""The sub-regions that the track takes together in 2022."""

# An erroneous gender in the metadata of 2021, which the track's code drops by name.
NO_GENDERS = ("Taira no Kiyomori", UNKNOWN)
_PREFIX = re.compile(r"(?:trans|cis)gender\s+((?:fe)?male)")
_RENAMED = {"qual_cat": "quality", "quality_score_disc": "quality", "pred_qual": "quality_score"}
_MAPPED = ("page_id", "gender", "geographic_locations")
_MAPPED_2022 = ("page_subcont_regions", "source_subcont_regions")

TEXTS = ("plain", "text", "html")
"""The fields that an article's text stands in, the first one being preferred."""

LONGEST_LINE = 1 << 28
"""How much of a file is read to recognise it. A file of topics has a line of 18 MB."""

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_EVAL = re.compile(r"(?<![a-z])eval")
Page = tuple[str, str, str, str, dict[str, Any] | None]
"""Id, title, text, address, and the labels; None for a page that the metadata lack."""

_OF_YEARS: dict[Year, tuple[str, str]] = {
    2021: ("fair-trec.github.io/2021", "the text is wiki markup"),
    2022: ("fair-trec.github.io", "most pages have no gender"),
}
ABOUT = {
    year: About(
        title=f"TREC Fair Ranking {year}",
        source=f"The TREC {year} Fair Ranking Track, {site}: English Wikipedia",
        licence="The articles are CC BY-SA, as Wikipedia's.",
        note=f"Labels as in the track's evaluation code; {noted}.",
        target=f"trec{year}",
        loader=f"trec-fair-{year}",
    )
    for year, (site, noted) in _OF_YEARS.items()
}
_TEXT_FIELDS = ("doc_id", "title", "text", "marked_up_text", "url")
_NAME = re.compile(r"trec-fair/(2021|2022)")


def schema_of(year: Year) -> Path:
    """Return the file with the attributes of a year, and the populations of the track."""
    return Path(__file__).parent / "schemas" / f"trec-fair-{year}.yaml"


@functools.cache
def _regions_of(year: Year) -> frozenset[str]:
    return frozenset(load_schema(schema_of(year)).attribute("geography").groups)


def year_of(metadata: Mapping[str, Any]) -> Year | None:
    """Return the year that a record of metadata is of."""
    if "page_subcont_regions" in metadata:
        return 2022
    return 2021 if "geographic_locations" in metadata else None


def labels_of(
    metadata: Mapping[str, Any], year: Year, unrecognised: dict[str, int]
) -> dict[str, Any]:
    """Return the fields of a document: ``gender``, ``geography``, in 2022 ``source_geography``.

    The rest of the metadata stays as it is, but the class of quality is called ``quality`` and its
    score ``quality_score`` in both years.

    Args:
        metadata: One record.
        year: The year whose rules apply.
        unrecognised: Counts the regions that are none of the track's; they are left out.

    Raises:
        ValueError: A label has a shape that the track's files do not have.
    """
    fields: dict[str, Any] = {"gender": _genders(metadata.get("gender"))}
    if year == 2021:
        regions = _weighted(metadata.get("geographic_locations"))
        fields["geography"] = _regions(regions, year, unrecognised)
    else:
        subject = _weighted(metadata.get("page_subcont_regions"))
        source = _weighted(metadata.get("source_subcont_regions"))
        fields["geography"] = _regions(subject, year, unrecognised)
        fields["source_geography"] = _regions(source, year, unrecognised)
    used = _MAPPED if year == 2021 else (*_MAPPED, *_MAPPED_2022)
    own = ("id", "title", "text", "url", *fields)
    for name, value in metadata.items():
        if name not in used and (name := _RENAMED.get(name, name)) not in own:
            fields[name] = value
    return fields


def _genders(values: Any) -> list[str] | None:
    """Return the groups of a page's genders.

    As in the track, transgender and cisgender women are women and men likewise, and all other
    genders are one group.
    """
    names = [_PREFIX.sub(r"\1", name) for name in _weighted(values) if name not in NO_GENDERS]
    groups = [name if name in ("female", "male") else "non-binary" for name in names]
    return list(dict.fromkeys(groups)) or None


def _regions(
    weights: Mapping[str, float], year: Year, unrecognised: dict[str, int]
) -> dict[str, float] | None:
    """Return the weight of each region of a page, with Oceania taken together."""
    found: dict[str, float] = {}
    for region, weight in weights.items():
        if region == "UNK" or region == UNKNOWN:
            group = UNKNOWN
        else:
            group = "Oceania" if year == 2022 and region in OCEANIA else region
        if group != UNKNOWN and group not in _regions_of(year):
            unrecognised[region] = unrecognised.get(region, 0) + 1
            continue
        found[group] = found.get(group, 0.0) + weight
    return found or None


def _weighted(label: Any) -> dict[str, float]:
    """Return the names in a label with their weights: a list, a mapping, one name, or nothing."""
    if label is None or label == "" or label != label:
        return {}
    if isinstance(label, str):
        return {label: 1.0}
    if isinstance(label, Mapping):
        if not all(_is_weight(weight) for weight in label.values()):
            raise ValueError("a weight in one of its labels is not a number of 0 or more")
        return {str(name): float(weight) for name, weight in label.items()}
    if isinstance(label, Iterable):
        names = list(label)
        if all(isinstance(name, str) for name in names):
            return dict.fromkeys(names, 1.0)
    raise ValueError("a label is neither a list of names nor weights by name")


def _is_weight(weight: object) -> bool:
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return is_number and 0 <= float(weight) < float("inf")  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TrecFiles:
    """The official files among some paths.

    Attributes:
        year: The year of the metadata.
        corpus: The articles.
        metadata: What is known of them.
        topics: Topics and judgements, training and evaluation.
        left_out: Files that are not needed, and why.
    """

    year: Year
    corpus: Path
    metadata: Path
    topics: tuple[Path, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicSet:
    """Topics of one name, ``train`` or ``eval``, with the relevant documents of each."""

    topics: tuple[Topic, ...]
    relevant: dict[str, list[str]]


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line.

    Raises:
        CorpusError: The file cannot be read, or a line is not a JSON object; the message names it.
    """
    for number, line in numbered_lines(path):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise CorpusError(
                f"{path}, line {number}: it is not a JSON object; fetch the file again, "
                "or name the right one."
            )
        yield number, data


def sort_files(paths: Iterable[Path]) -> TrecFiles:
    """Find the official files among paths; folders stand for the JSON files in them.

    Of several corpora the one with plain text is taken. Of several files of metadata the one with
    most fields is, and of equal ones the one that assessors have seen: among the official names
    that is the last by name.

    Raises:
        CorpusError: A file of the track is missing.
    """
    corpora: list[tuple[int, Path]] = []
    metadata: list[tuple[int, str, Path, Year]] = []
    topics: list[Path] = []
    left_out: list[str] = []
    for path in _files(paths):
        first = _first(path)
        text = next((place for place, name in enumerate(TEXTS) if name in first), None)
        if "page_id" in first and (year := year_of(first)):
            metadata.append((len(first), path.name, path, year))
        elif "rel_docs" in first or "keywords" in first:
            topics.append(path)
        elif text is not None and "id" in first:
            corpora.append((text, path))
        else:
            left_out.append(f"{path.name} was left out: it is no file of the track")
    lacking = [
        what
        for what, found in (
            ("articles (trec_corpus…)", corpora),
            ("metadata (trec_metadata… or trec_2022_articles…)", metadata),
            ("topics", topics),
        )
        if not found
    ]
    if lacking:
        raise CorpusError(
            f"These are not all files of TREC Fair: there are no {' and no '.join(lacking)}."
        )
    corpora.sort()
    metadata.sort()
    *others, (_, _, chosen, year) = metadata
    left_out += [f"{path.name} was left out for {corpora[0][1].name}" for _, path in corpora[1:]]
    left_out += [f"{name} was left out for {chosen.name}" for _, name, _, _ in others]
    return TrecFiles(year, corpora[0][1], chosen, tuple(topics), tuple(left_out))


def _first(path: Path) -> dict[str, Any]:
    """Return the object of the first line; an empty one if there is none, or no such file."""
    try:
        with open_text(path) as stream:
            data = json.loads(stream.readline(LONGEST_LINE))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError, CorpusError):
        return {}
    return data if isinstance(data, dict) else {}


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            # The list of all WikiProjects, which the topics of 2022 were chosen from.
            inside = [p for p in sorted(path.iterdir()) if "wikiprojects" not in p.name]
            files += [p for p in inside if p.is_file() and p.name.endswith(SUFFIXES)]
        elif path.is_file():
            files.append(path)
        else:
            raise CorpusError(f"There is no file {path}; name the files, or the folder with them.")
    return files


def read_topic_sets(paths: Sequence[Path]) -> dict[str, TopicSet]:
    """Read topics and judgements; what several files say of a topic is put together.

    Raises:
        CorpusError: A line is not a topic of the track; the message names it.
    """
    topics: dict[str, dict[str, Topic]] = {"train": {}, "eval": {}}
    relevant: dict[str, dict[str, list[str]]] = {"train": {}, "eval": {}}
    for path in paths:
        split = "eval" if _EVAL.search(path.name.lower()) else "train"
        for number, record in _topic_records(path):
            try:
                topic = parse_topic({**record, "keywords": _keywords(record.get("keywords"))})
                documents = _documents(record.get("rel_docs"))
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{path}, line {number}: {error}; fetch it again.") from None
            known = topics[split].get(topic.id)
            if known is None or not known.keywords:
                topics[split][topic.id] = topic
            found = dict.fromkeys(relevant[split].get(topic.id, ()))
            relevant[split][topic.id] = list(found | dict.fromkeys(documents))
    return {
        split: TopicSet(tuple(topics[split].values()), relevant[split])
        for split in topics
        if topics[split]
    }


def _topic_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield one record a topic, also from the files that hold a table by its columns."""
    for number, data in json_lines(path):
        columns = data.get("id")
        if not isinstance(columns, dict):
            yield number, data
            continue
        for row in columns:
            cells = (
                (name, column.get(row)) for name, column in data.items() if isinstance(column, dict)
            )
            yield number, dict(cells)


def _keywords(value: Any) -> Any:
    """Read the keywords; in one file they stand as a text like ``['maize', 'corn']``."""
    if not isinstance(value, str):
        return value
    return [word for word in re.split(r"\s*,\s*", re.sub(r"[\[\]'\"]", "", value)) if word]


def _documents(value: Any) -> list[str]:
    """Read the ids of the relevant documents; in one file they stand as a text."""
    if value is None:
        return []
    ids = json.loads(value) if isinstance(value, str) else value
    if not isinstance(ids, list) or not all(isinstance(id_, int | str) for id_ in ids):
        raise ValueError("its rel_docs are not a list of page ids")
    return [str(id_) for id_ in ids]


def is_trec_fair(folder: Path, year: Year) -> bool:
    """Return whether a folder has the official files of a year."""
    try:
        return sort_files([folder]).year == year
    except CorpusError:
        return False


def import_trec_fair(
    year: Year, paths: Sequence[Path], folder: Path, progress: ProgressFunction | None = None
) -> ImportReport:
    """Write the official files in the standard layout.

    Of articles with the same id the first is kept. A page that the metadata lack is all unknown.
    Judgements of pages that the corpus lacks are kept, and counted.

    Args:
        year: The year of the track.
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
    progress: ProgressFunction | None,
) -> None:
    """Write pages, topics and judgements in the standard layout, with the schema of the year.

    Of pages with the same id the first is kept; topics without judgements are left out.

    Args:
        folder: Where to, empty.
        year: The year of the track.
        pages: The documents.
        sets: Topics and judgements by split.
        report: Counts the documents written.
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
    """Put the labels of each page into the table; of pages that occur twice, the first counts."""
    for number, record in json_lines(files.metadata):
        try:
            page = str(_page_id(record["page_id"]))
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
            id_ = str(_page_id(record.get("id")))
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


def _page_id(value: Any) -> int:
    try:
        page = int(value)
    except (TypeError, ValueError, OverflowError):
        page = None
    if page is None or isinstance(value, bool) or (isinstance(value, float) and page != value):
        raise ValueError("its page id is not a whole number")
    return page


def _bad(path: Path, number: int, what: str) -> CorpusError:
    return CorpusError(f"{path}, line {number}: {what}; fetch the file again.")


def import_ir_dataset(
    paths: Sequence[Path], folder: Path, progress: ProgressFunction | None = None
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
            f"'{one_line(name)}' is not a TREC Fair dataset of ir_datasets; name "
            "trec-fair/2021 or trec-fair/2022."
        )
    year: Year = 2021 if match[1] == "2021" else 2022
    report = ImportReport()
    try:
        sets = {split: _topics(f"{name}/{split}") for split in ("train", "eval")}
        there = {split: found for split, found in sets.items() if found.topics}
        documents = _load(name).docs_iter()
        pages = (_page_of(document, year, report) for document in documents)
        write_pages(folder, year, pages, there, report, progress)
    except (ImportError, OSError, RuntimeError, LookupError, ValueError) as error:
        raise CorpusError(
            f"ir_datasets cannot give {name}: {one_line(error) or type(error).__name__}; see "
            "ir-datasets.com, or import the official files."
        ) from None
    return report


def _load(name: str) -> Any:
    return library("ir_datasets", "This import").load(name)


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


def _page_of(document: Any, year: Year, report: ImportReport) -> Page:
    record = {
        n: v for n, v in document._asdict().items() if n not in _TEXT_FIELDS and v is not None
    }
    labels = labels_of(record, year, report.unrecognised) if record else None
    return document.doc_id, document.title, document.text, document.url, labels
