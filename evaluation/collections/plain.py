"""Importing files that are nearly in the standard layout: anyone's JSON Lines, and the subset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairqr.base.errors import CorpusError, one_line
from fairqr.base.files import write_beside
from fairqr.evaluation.collections.building import DocumentWriter, ImportReport, write_judgements
from fairqr.evaluation.collections.collection import (
    About,
    missing_files,
    read_about,
    read_topics,
    splits_of,
    write_topics,
)
from fairqr.evaluation.qrels import read_qrels
from fairqr.retrieval.sources.corpus import DOCUMENTS, SCHEMA, Corpus
from fairqr.retrieval.sources.documents import (
    ProgressFunction,
    numbered_lines,
    parse_document,
    parse_line,
)
from fairqr.retrieval.sources.schema import load_schema

SUBSET_SCHEMA = Path(__file__).parent / "schemas" / "trec2022-subset.yaml"
SUBSET = About(
    title="TREC Fair 2022, a joined subset",
    source="Training topics of the TREC 2022 Fair Ranking Track, joined by page id with Pantheon "
    "1.0 (doi:10.7910/DVN/28201)",
    licence="The texts are CC BY-SA, as Wikipedia's.",
    note="Biographies only; gender is binary, continent is that of birth and mostly unknown. Not "
    "comparable with published scores of the track.",
    loader="trec2022-subset",
)
_Files = tuple[Path, Path, Mapping[str | None, Path], Mapping[str | None, Path]]


def is_subset(folder: Path) -> bool:
    """Return whether a folder has the joined subset of TREC Fair 2022."""
    if missing_files(folder) != [SCHEMA]:
        return False
    for _, line in numbered_lines(_documents_in(folder)):
        try:
            first = json.loads(line)
        except ValueError:
            return False
        return isinstance(first, dict) and {"id", "gender", "continent"} <= set(first)
    return False


def import_subset(
    paths: Sequence[Path], folder: Path, progress: ProgressFunction | None = None
) -> ImportReport:
    """Write the joined subset of TREC Fair 2022 in the standard layout; one folder is given.

    Raises:
        CorpusError: It is another folder, or a line of a file is wrong.
    """
    if len(paths) != 1 or not paths[0].is_dir() or not is_subset(paths[0]):
        raise CorpusError(
            "trec2022-subset imports one folder with documents.jsonl.gz, topics.jsonl and "
            "qrels.txt, whose documents have gender and continent."
        )
    source = paths[0]
    topics: dict[str | None, Path] = {None: source / "topics.jsonl"}
    files = (_documents_in(source), SUBSET_SCHEMA, topics, splits_of(source))
    return _write(files, SUBSET, folder, progress)


def import_jsonl(
    paths: Sequence[Path], folder: Path, progress: ProgressFunction | None = None
) -> ImportReport:
    """Write documents, a schema, topics and judgements in the standard layout, and check them.

    Args:
        paths: One folder in the standard layout, or the files: the schema ends in ``.yaml``,
            judgements in ``.txt`` or ``.qrels``, topics have "topics" or "queries" in their name,
            and what remains are the documents.
        folder: Where to, empty.
        progress: Called now and then with the number of documents written.

    Raises:
        CorpusError: A file is missing or there are too many, or a line is wrong; it is named.
        SchemaError: The schema is wrong.
    """
    about = About()
    if len(paths) == 1 and paths[0].is_dir():
        source = paths[0]
        if missing := missing_files(source):
            raise CorpusError(f"The folder {source} lacks {', '.join(missing)}; add it.")
        schema = next(p for p in (source / f"documents.{SCHEMA}", source / SCHEMA) if p.is_file())
        topics = {
            (None if path.stem == "topics" else path.stem.removeprefix("topics-")): path
            for path in sorted(source.glob("topics*.jsonl"))
        }
        files: _Files = (_documents_in(source), schema, topics, splits_of(source))
        about = read_about(source)
    else:
        files = _sorted(paths)
    return _write(files, about.model_copy(update={"loader": "jsonl"}), folder, progress)


def _documents_in(folder: Path) -> Path:
    return next(folder / name for name in DOCUMENTS if (folder / name).is_file())


def _sorted(paths: Sequence[Path]) -> _Files:
    """Tell the files apart by their names."""
    kinds: dict[str, list[Path]] = {"documents": [], "schema": [], "topics": [], "qrels": []}
    for path in paths:
        name = path.name.lower()
        if not path.is_file():
            raise CorpusError(f"There is no file {path}; name documents, schema, topics and qrels.")
        if name.endswith((".yaml", ".yml")):
            kinds["schema"].append(path)
        elif name.endswith((".txt", ".qrels")):
            kinds["qrels"].append(path)
        elif "topics" in name or "queries" in name:
            kinds["topics"].append(path)
        else:
            kinds["documents"].append(path)
    for kind, found in kinds.items():
        if len(found) != 1:
            named = ", ".join(path.name for path in found) or "none"
            raise CorpusError(
                f"jsonl imports one file of {kind}, and these are {named}: a schema ends in "
                ".yaml, judgements in .txt or .qrels, topics have 'topics' in their name."
            )
    return (
        kinds["documents"][0],
        kinds["schema"][0],
        {None: kinds["topics"][0]},
        {None: kinds["qrels"][0]},
    )


def _write(
    files: _Files, about: About, folder: Path, progress: ProgressFunction | None
) -> ImportReport:
    documents, schema_path, topics, qrels = files
    report = ImportReport()
    schema = load_schema(schema_path)
    write_beside(folder / SCHEMA, schema_path.read_bytes())
    for split, path in topics.items():
        name = "topics.jsonl" if split is None else f"topics-{split}.jsonl"
        found = read_topics(path)
        write_topics(folder / name, found)
        report.topics[split] = len(found)
    judged = {split: read_qrels(path) for split, path in qrels.items()}
    with DocumentWriter(folder, progress) as writer:
        _copy_documents(Corpus(documents, schema), writer)
        report.documents = writer.count
        for split, judgements in judged.items():
            report.topics.setdefault(split, len(judgements))
            write_judgements(folder, split, judgements, writer, report)
    # A file of topics without judgements of its own name is used by several sets of them.
    report.topics = {split: report.topics[split] for split in judged}
    about.model_copy(update={"documents": report.documents}).write(folder)
    return report


def _copy_documents(corpus: Corpus, writer: DocumentWriter) -> None:
    """Write the documents of a corpus.

    Raises:
        CorpusError: A line is not a document, two have the same id, or there are none.
    """
    for number, line in numbered_lines(corpus.path):
        try:
            document = parse_document(line, corpus.schema)
        except ValueError as error:
            raise CorpusError(f"{corpus.path}, line {number}: {error}; fix the line.") from None
        if not writer.write(document.id, document.title, document.text, document.fields):
            first = next(
                n for n, line in numbered_lines(corpus.path) if parse_line(line).id == document.id
            )
            raise CorpusError(
                f"{corpus.path}, line {number}: the id '{one_line(document.id)}' is in line "
                f"{first} already; each document needs its own id."
            )
    if not writer.count:
        raise CorpusError(f"The documents {corpus.path} are empty; there must be one at least.")
