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
from fairqr.retrieval.sources.label_values import as_text, values_of
from fairqr.retrieval.sources.labels import MAX_VALUES, LabelReader
from fairqr.retrieval.sources.schema import UNKNOWN, Schema, load_schema

BUILT_IN = {"notables": Path(__file__).parents[1] / "corpora" / "notables"}
"""The corpora that come with fairqr, by name."""

DOCUMENTS = ("documents.jsonl", "documents.jsonl.gz")
SCHEMA = "schema.yaml"
DOCUMENTS_AT_ONCE = 500
SECONDS_OF_DOUBT = 1.0


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
        states = [(path, _readable(path).stat()) for path in self._paths()]
        if any(time.time() - it.st_mtime < SECONDS_OF_DOUBT for _, it in states):
            return ""
        found = [(str(path.absolute()), it.st_size, it.st_mtime_ns) for path, it in states]
        schema = hashlib.sha256(self.schema.model_dump_json().encode()).hexdigest()
        return json.dumps([*found, schema])

    def fingerprint(self) -> str:
        """Return a hash of the content of all files and of the schema.

        Raises:
            CorpusError: A file is missing.
        """
        hashes = [sha256_of(_readable(path)) for path in self._paths()]
        content = "".join(hashes) + self.schema.model_dump_json()
        return hashlib.sha256(content.encode()).hexdigest()

    def _paths(self) -> list[Path]:
        labels = [a.labels for a in self.schema.attributes.values() if a.labels]
        return [self.path, *(self.labels_folder / name for name in labels)]


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
        found = [path / name for name in DOCUMENTS if (path / name).is_file()]
        if not found:
            raise CorpusError(f"The folder {path} has no {DOCUMENTS[0]}; give the file itself.")
        path = found[0]
    if not path.is_file():
        raise CorpusError(f"There is no corpus at {path}; give a JSON Lines file or its folder.")
    if schema is None:
        stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
        beside = [path.parent / f"{stem}.{SCHEMA}", path.parent / SCHEMA]
        schema = next((candidate for candidate in beside if candidate.is_file()), None)
        if schema is None:
            problem = f"The corpus {path} has no schema"
            raise SchemaError(f"{problem}; put a file {beside[0].name} beside it.")
    return Corpus(path, load_schema(schema), schema.parent)


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
    """

    schema: Schema
    documents: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    without_group: dict[str, dict[str, int]] = field(default_factory=dict)


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
    for name, of_file in labels.reports_of_files().items():
        found = {it.value: it.documents for it in of_file.without_group if it.value != UNKNOWN}
        report.without_group[name] = found
    attributes = labels.schema.attributes
    totals: dict[str, dict[str, float]] = {}
    for name, attribute in attributes.items():
        totals[name] = dict.fromkeys(attribute.listed, 0.0)
    for some in chunks(_valid_documents(corpus, report), DOCUMENTS_AT_ONCE):
        report.documents += len(some)
        in_fields = labels.in_fields(some)
        memberships = labels.memberships([document.id for document in some], in_fields)
        _count_without_group(labels, in_fields, report)
        for name, rows in memberships.items():
            for group, total in totals_by_group(attributes[name], rows).items():
                totals[name][group] = totals[name].get(group, 0.0) + total
    for name, by_group in totals.items():
        ordered = largest_first(by_group) if attributes[name].open else by_group
        documents = max(1, report.documents)
        report.shares[name] = {group: by_group[group] / documents for group in ordered}
    return report


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
        if (first := first_line.setdefault(document.id, number)) != number:
            repeated = f"the id '{document.id}' is already used in line {first}"
            report.problems.append((number, repeated))
        else:
            yield document
