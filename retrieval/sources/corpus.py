"""A corpus on disk: where its documents and its schema are, and what is wrong with it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairqr.base.errors import CorpusError, SchemaError
from fairqr.base.files import sha256_of
from fairqr.retrieval.fairness.table import largest_first, totals_by_group
from fairqr.retrieval.sources.documents import (
    Document,
    chunks,
    document_lines,
    parse_document,
    read_documents,
)
from fairqr.retrieval.sources.label_rows import MAX_VALUES
from fairqr.retrieval.sources.label_values import as_text, values_of
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import UNKNOWN, Schema, load_schema

BUILT_IN = {"notables": Path(__file__).parents[1] / "corpora" / "notables"}
"""The corpora that come with fairqr, by name."""

DOCUMENTS = ("documents.jsonl", "documents.jsonl.gz")
SCHEMA = "schema.yaml"
TABLES = frozenset([".csv", ".tsv", ".xlsx", ".parquet"])
"""How names of files end that hold tables."""
DOCUMENTS_AT_ONCE = 500
"""How many documents the check labels together."""
SECONDS_OF_DOUBT = 1.0
"""A file that was changed this recently may change again without a new time."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A JSON Lines file of documents, and the schema of their attributes.

    Attributes:
        path: The file. We unpack it while reading if its name ends in ``.gz``.
        schema: The attributes.
        labels_folder: Paths of label files are relative to this.
    """

    path: Path
    schema: Schema
    labels_folder: Path

    def documents(self) -> Iterator[Document]:
        """Yield the documents, one at a time; see :func:`read_documents`."""
        return read_documents(self.path, self.schema)

    def files(self) -> str:
        """Return the sizes and times of all files and the schema as one string.

        It is empty if a file is so new that it may still change without a new time.

        Raises:
            CorpusError: A file is missing.
        """
        files: list[object] = []
        is_settled = True
        for path in self._paths():
            status = _readable(path).stat()
            files.append((str(path.absolute()), status.st_size, status.st_mtime_ns))
            if time.time() - status.st_mtime < SECONDS_OF_DOUBT:
                is_settled = False
        if not is_settled:
            return ""
        schema = hashlib.sha256(self.schema.model_dump_json().encode()).hexdigest()
        return json.dumps([*files, schema])

    def fingerprint(self) -> str:
        """Return a hash of the content of all files and of the schema.

        Raises:
            CorpusError: A file is missing.
        """
        hashes = [sha256_of(_readable(path)) for path in self._paths()]
        content = "".join(hashes) + self.schema.model_dump_json()
        return hashlib.sha256(content.encode()).hexdigest()

    def _paths(self) -> list[Path]:
        """Return the file of documents and the files of labels."""
        paths = [self.path]
        for attribute in self.schema.attributes.values():
            if attribute.labels:
                paths.append(self.labels_folder / attribute.labels)
        return paths


def holds_documents(path: Path) -> bool:
    """Return whether a path is a folder that contains a corpus."""
    return path.is_dir() and any((path / name).is_file() for name in DOCUMENTS)


def find_corpus(path: Path, schema: Path | None = None) -> Corpus:
    """Find the documents and the schema of a corpus.

    Args:
        path: A file ``people.jsonl`` or ``people.jsonl.gz``, with ``people.schema.yaml`` or
            ``schema.yaml`` beside it; or a folder with ``documents.jsonl`` and ``schema.yaml``.
        schema: The path of the schema, if it is somewhere else.

    Raises:
        CorpusError: There is no such file.
        SchemaError: There is no schema, or it is wrong.
    """
    if path.is_dir():
        path = _documents_in(path)
    if not path.is_file():
        raise CorpusError(f"There is no corpus at {path}; give a JSON Lines file or its folder.")
    if path.suffix.lower() in TABLES:
        raise CorpusError(
            f"{path} is a table, and a corpus is a JSON Lines file: write each row as an object "
            'on a line of its own, such as {"id": "1", "text": "…", "gender": "female"}.'
        )
    if schema is None:
        schema = _schema_beside(path)
    return Corpus(path, load_schema(schema), schema.parent)


def _documents_in(folder: Path) -> Path:
    """Return the file of documents in a folder.

    Raises:
        CorpusError: There is no such file.
    """
    for name in DOCUMENTS:
        if (folder / name).is_file():
            return folder / name
    raise CorpusError(f"The folder {folder} has no {DOCUMENTS[0]}; give the file itself.")


def stem_of(documents: Path) -> str:
    """Return the name of a file of documents without its endings."""
    return documents.name.removesuffix(".gz").removesuffix(".jsonl")


def _schema_beside(documents: Path) -> Path:
    """Return the file of the schema beside a file of documents.

    Raises:
        SchemaError: There is no such file.
    """
    stem = stem_of(documents)
    named = documents.parent / f"{stem}.{SCHEMA}"
    for path in (named, documents.parent / SCHEMA):
        if path.is_file():
            return path
    problem = f"The corpus {documents} has no schema"
    raise SchemaError(f"{problem}; put a file {named.name} beside it.")


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise CorpusError(f"The corpus needs the file {path}, which does not exist.")
    return path


@dataclass(slots=True)
class CorpusReport:
    """What a check of a corpus found.

    Attributes:
        schema: The attributes, with the groups that label files name.
        documents: How many lines are documents.
        problems: The number of each wrong line, and what is wrong there.
        shares: For each attribute the mean membership over the documents, by group; those of an
            open attribute from the largest down.
        without_group: For each attribute the values that belong to no group and count as unknown,
            with the number of documents; at most 1,000 values.
        fields: The names of the documents' fields beside id, title and text.
        absent: The attributes whose field none of these documents has.
    """

    schema: Schema
    documents: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    without_group: dict[str, dict[str, int]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)


async def check_corpus(corpus: Corpus) -> CorpusReport:
    """Read a whole corpus; report what is wrong with each line and how large each group is.

    Raises:
        CorpusError: The file cannot be read.
        SourceError: A label file cannot be read.
    """
    labels = await LabelReader.open(corpus.schema.attributes, corpus.labels_folder)
    return await asyncio.to_thread(_check, corpus, labels)


def _check(corpus: Corpus, labels: LabelReader) -> CorpusReport:
    report = CorpusReport(labels.schema)
    for name, report_of_file in labels.reports_of_files().items():
        report.without_group[name] = {
            count.value: count.documents
            for count in report_of_file.without_group
            if count.value != UNKNOWN
        }

    attributes = labels.schema.attributes
    totals: dict[str, dict[str, float]] = {}
    for name, attribute in attributes.items():
        totals[name] = dict.fromkeys(attribute.listed, 0.0)
    report.absent = {attribute.name for attribute in labels.field_attributes}
    for documents in chunks(_valid_documents(corpus, report), DOCUMENTS_AT_ONCE):
        report.documents += len(documents)
        in_fields = labels.in_fields(documents)
        _note_fields(documents, in_fields, report)
        _count_without_group(labels, in_fields, report)
        memberships = labels.memberships([document.id for document in documents], in_fields)
        for name, rows in memberships.items():
            for group, total in totals_by_group(attributes[name], rows).items():
                totals[name][group] = totals[name].get(group, 0.0) + total

    for name, total_by_group in totals.items():
        is_open = attributes[name].open
        groups = largest_first(total_by_group) if is_open else list(total_by_group)
        report.shares[name] = {
            group: total_by_group[group] / max(1, report.documents) for group in groups
        }
    return report


def _note_fields(
    documents: Sequence[Document], in_fields: Mapping[str, Sequence[object]], report: CorpusReport
) -> None:
    """Note which fields some documents have, and which attributes are not absent."""
    for document in documents:
        report.fields.update(document.fields)
    for name, labels in in_fields.items():
        if any(label is not None for label in labels):
            report.absent.discard(name)


def _count_without_group(
    labels: LabelReader, in_fields: Mapping[str, Sequence[object]], report: CorpusReport
) -> None:
    """Count the values of some documents that belong to no group."""
    for attribute in labels.field_attributes:
        counts = report.without_group.setdefault(attribute.name, {})
        for label in in_fields[attribute.name]:
            values = {as_text(value) for value in values_of(label) if not attribute.group_of(value)}
            for value in values - {UNKNOWN}:
                if value in counts or len(counts) < MAX_VALUES:
                    counts[value] = counts.get(value, 0) + 1


def _valid_documents(corpus: Corpus, report: CorpusReport) -> Iterator[Document]:
    """Yield the documents of the valid lines, and report what is wrong with the others."""
    first_line: dict[str, int] = {}
    for number, line in document_lines(corpus.path):
        try:
            document = parse_document(line, corpus.schema)
        except ValueError as error:
            report.problems.append((number, str(error)))
            continue
        first = first_line.setdefault(document.id, number)
        if first != number:
            problem = f"the id '{document.id}' is already used in line {first}"
            report.problems.append((number, problem))
        else:
            yield document
