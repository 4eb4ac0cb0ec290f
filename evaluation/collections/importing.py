"""Importing files as a collection: anyone's JSON Lines, and the official files of TREC Fair.

Files are told apart by their names. Articles of TREC Fair and their metadata are joined by page id
through a table on disk, so that memory does not grow with their number. ``schemas`` has the groups
by the rules of the track's published evaluation code (github.com/fair-trec, Alignments.py of
trec2021-fair-public and PageAlignments.py of trec2022-fair-public), with one difference: a page of
several genders, or in 2021 of several continents, is shared equally among them, where the track's
code counts it in full for each.

We read the files ourselves, since ir_datasets holds all metadata in memory and has no topics for
the evaluation.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AliasChoices, BaseModel, Field, NonNegativeFloat

from fairqr.base.errors import CorpusError
from fairqr.base.files import open_beside, write_beside
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.collections import collection as standard
from fairqr.evaluation.qrels import Qrels, read_qrels, write_qrels
from fairqr.retrieval.sources import documents as lines
from fairqr.retrieval.sources.corpus import SCHEMA
from fairqr.retrieval.sources.schema import UNKNOWN, load_schema

Qrel = dict[str, int]
SCHEMAS = Path(__file__).parent / "schemas"
SUBSET = "trec2022-subset"
COMPRESSION = 1
"""Fast rather than small: at higher levels, compression takes longer than the rest of an import."""

_JSON = r".*\.jsonl?(\.gz)?$"
OWN = {
    "schema": r"\.ya?ml$",
    "qrels": r"^(?!.*(topics|queries)).*\.(txt|qrels|tsv)$",
    "topics": "topics|queries",
    "documents": "",
}
TREC = {
    "articles": f"corpus{_JSON}",
    "metadata": f"(metadata|articles){_JSON}",
    "topics": f"(topics|reldocs){_JSON}",
}
"""What the name of a file has in it, by the kind of the file; the first that matches counts."""

TEXTS = ("plain", "text", "html")
"""The fields that an article's text stands in, the first one being preferred."""
NO_GENDERS = (UNKNOWN, "Taira no Kiyomori")
"""What stands among the genders and is none; the track's code of 2021 drops the person by name."""

_RENAMED = {"qual_cat": "quality", "quality_score_disc": "quality", "pred_qual": "quality_score"}


@dataclass(slots=True)
class CollectionParts:
    """What the files of a collection hold.

    Attributes:
        schema: The content of ``schema.yaml``.
        documents: The documents; they are read once, while they are written.
        topics: The topics by the name of their judgements.
        qrels: The judgements by their name.
        about: The description.
        notes: What of the files was not imported, and why. Reading the documents may add to it.
    """

    schema: bytes
    documents: Iterable[lines.Document]
    topics: Mapping[str | None, Sequence[standard.Topic]]
    qrels: Mapping[str | None, Qrels]
    about: standard.About
    notes: list[str] = field(default_factory=list)


def sort_files(paths: Iterable[Path], patterns: Mapping[str, str]) -> dict[str, list[Path]]:
    """Return the files of each kind by their names; the rest is of the kind "".

    Args:
        paths: Files, or folders that stand for the files in them.
        patterns: :data:`OWN` or :data:`TREC`.

    Raises:
        CorpusError: There is no file of a kind.
    """
    by_kind: dict[str, list[Path]] = {kind: [] for kind in (*patterns, "")}
    files: list[Path] = []
    for path in paths:
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    for path in files:
        if not path.is_dir():
            by_kind[_kind_of(path, patterns)].append(path)
    missing = [kind for kind in patterns if not by_kind[kind]]
    if missing:
        raise CorpusError(
            f"The files have no {' and no '.join(missing)}; files are told apart by their names, "
            "which docs/how-to/bring-a-collection.md lists."
        )
    return by_kind


def _kind_of(path: Path, patterns: Mapping[str, str]) -> str:
    """Return the first kind whose pattern the name of a file has; empty if there is none."""
    name = path.name.lower()
    for kind, pattern in patterns.items():
        if re.search(pattern, name):
            return kind
    return ""


def read_own(paths: Sequence[Path], _: Path) -> CollectionParts:
    """Read documents, a schema, topics and judgements.

    Args:
        paths: The schema ends in ``.yaml``, topics have "topics" or "queries" in their name,
            judgements end in ``.txt``, ``.tsv`` or ``.qrels``, and what remains are the documents.

    Raises:
        CorpusError: A file is missing or there are too many, or a line is wrong; it is named.
        SchemaError: The schema is wrong.
    """
    files = {}
    for kind, of_kind in sort_files(paths, OWN).items():
        files[kind] = {_split(path): path for path in of_kind}
        if len(files[kind]) < len(of_kind):
            names = ", ".join(path.name for path in of_kind)
            raise CorpusError(f"The files {names} all seem to be {kind}; give one of them.")
    schema = files["schema"][None]
    return CollectionParts(
        schema=schema.read_bytes(),
        documents=lines.read_documents(files["documents"][None], load_schema(schema)),
        topics={split: standard.read_topics(path) for split, path in files["topics"].items()},
        qrels={split: read_qrels(path) for split, path in files["qrels"].items()},
        about=standard.About(),
    )


def _split(path: Path) -> str | None:
    match = re.fullmatch(r"(?:topics|qrels)-(.+)\.(?:jsonl|txt|tsv)", path.name)
    return match and match[1]


def read_subset(paths: Sequence[Path], work: Path) -> CollectionParts:
    """Read the joined subset of TREC Fair 2022, a folder that only lacks a schema."""
    files = [path for path in paths[0].iterdir() if re.match("documents|topics|qrels", path.name)]
    parts = read_own([*files, SCHEMAS / SUBSET / SCHEMA], work)
    parts.about = standard.read_about(SCHEMAS / SUBSET)
    return parts


class _Article(BaseModel):
    id: int
    title: Annotated[str, Field(pattern=r"\S")]
    text: str | None = Field("", validation_alias=AliasChoices(*TEXTS))
    url: str | None = ""


class _Metadata(BaseModel, extra="allow"):
    page_id: int
    gender: list[str] | None = None
    occupations: list[str] | None = None
    geographic_locations: list[str] | None = None
    page_subcont_regions: list[str] | None = None
    source_subcont_regions: dict[str, NonNegativeFloat] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the document.

        Transgender and cisgender women are women and men likewise, and all other genders are one
        group, as in the track.
        """
        genders = [name for name in self.gender or () if name not in NO_GENDERS]
        plain = [re.sub(r"(?:trans|cis)gender\s+((?:fe)?male)", r"\1", name) for name in genders]
        groups = [name if name in ("female", "male") else "non-binary" for name in plain]
        # The article has its own id, title, text and address.
        content = self.model_dump(exclude_unset=True, exclude={"page_id", *_Article.model_fields})
        fields = {_RENAMED.get(name, name): value for name, value in content.items()}
        return fields | {"gender": list(dict.fromkeys(groups)) or None}


def read_trec_fair(
    paths: Sequence[Path], work: Path, *, year: int = 2022, everything: bool = False
) -> CollectionParts:
    """Read the official files of a year.

    Of several corpora the one with plain text is taken, and of several files of metadata the last
    by name, which is the one that assessors have seen. Of articles with the same id the first is
    kept. A page that the metadata lack is all unknown. Judgements of pages that the corpus lacks
    are kept.

    Args:
        paths: The files, or folders with them.
        work: A folder for the table of the metadata.
        year: 2021 or 2022.
        everything: Whether the schema has the attributes without a population too, in 2022:
            occupation, alphabet, age, popularity and languages.

    Raises:
        CorpusError: A file is missing or of the other year, or a line is wrong; the line is named.
    """
    files = sort_files(paths, TREC)
    corpus = min(files["articles"], key=lambda path: [text not in path.name for text in TEXTS])
    metadata = max(files["metadata"])
    actual_year = 2022 if "articles" in metadata.name else 2021
    if actual_year != year:
        raise CorpusError(
            f"{metadata} is of {actual_year}; import it with trec-fair-{actual_year}."
        )
    unused = {*files["articles"], *files["metadata"], *files[""]} - {corpus, metadata}
    notes = [f"{path.name} was left out" for path in sorted(unused)]
    topics, qrels = _read_trec_topics(files["topics"])
    for split in list(topics):
        if not any(qrels[split].values()):
            notes.append(f"{split}: topics without judgements were left out")
            del topics[split]
            del qrels[split]
    if not topics:
        raise CorpusError("The topics have no relevant documents; add the file with rel_docs.")
    home = SCHEMAS / f"trec-fair-{year}"
    attributes = load_yaml(home / SCHEMA, "schema")["attributes"]
    if not everything:
        attributes = {
            name: attribute for name, attribute in attributes.items() if "population" in attribute
        }
    return CollectionParts(
        schema=yaml.safe_dump({"attributes": attributes}, sort_keys=False).encode(),
        documents=_articles(corpus, metadata, work, notes),
        topics={split: list(by_id.values()) for split, by_id in topics.items()},
        qrels=qrels,
        about=standard.read_about(home),
        notes=notes,
    )


def _read_trec_topics(
    paths: Iterable[Path],
) -> tuple[dict[str | None, dict[str, standard.Topic]], dict[str | None, dict[str, Qrel]]]:
    """Read topics and judgements; what several files say of a topic is put together."""
    topics: dict[str | None, dict[str, standard.Topic]] = {}
    qrels: dict[str | None, dict[str, Qrel]] = {}
    for path in paths:
        split = "eval" if re.search(r"(?<![a-z])eval", path.name.lower()) else "train"
        for number, line in lines.numbered_lines(path):
            try:
                for topic, relevant in map(_topic, _records(lines.parse_object(line))):
                    earlier = topics.setdefault(split, {}).get(topic.id)
                    if earlier is None or not earlier.keywords:
                        topics[split][topic.id] = topic
                    qrels.setdefault(split, {}).setdefault(topic.id, {}).update(relevant)
            except (ValueError, TypeError) as error:
                raise standard.bad_line(path, number, error) from None
    return topics, qrels


def _records(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records in a line; one file holds a table by its columns."""
    if not isinstance(data.get("id"), dict):
        return [data]
    columns = {name: column for name, column in data.items() if isinstance(column, dict)}
    return [{name: columns[name].get(row) for name in columns} for row in data["id"]]


def _topic(record: dict[str, Any]) -> tuple[standard.Topic, Qrel]:
    """Return the topic in a record, and its relevant documents."""
    relevant = _as_list(record.get("rel_docs"))
    values: dict[str, Any] = {
        "id": record.get("id"),
        "title": record.get("title"),
        "keywords": _as_list(record.get("keywords")),
    }
    return standard.Topic(**values), {str(int(page)): 1 for page in relevant}


def _as_list(value: Any) -> Any:
    """Return a list; in one file they stand as a text like ``['maize', 'corn']``."""
    if not isinstance(value, str):
        return value or ()
    plain = re.sub(r"[\[\]'\"]", "", value)
    return [word for word in re.split(r"\s*,\s*", plain) if word]


def _articles(
    corpus: Path, metadata: Path, work: Path, notes: list[str]
) -> Iterator[lines.Document]:
    """Yield the articles with their metadata; of pages that stand twice, the first counts."""
    unlabelled = 0
    with open_table(work / "metadata") as table:
        for page in standard.read_lines(metadata, _Metadata):
            put(table, str(page.page_id), json.dumps(page.fields()))
        for article in standard.read_lines(corpus, _Article):
            id_ = str(article.id)
            fields = get(table, id_)
            unlabelled += fields is None
            content = {"url": article.url or "", **json.loads(fields or "{}")}
            yield lines.Document(id_, article.title, article.text or "", content)
    if unlabelled:
        notes.append(f"{unlabelled:,} without metadata: all their labels are unknown")


LOADERS: dict[str, Callable[[Sequence[Path], Path], CollectionParts]] = {
    "trec-fair-2021": partial(read_trec_fair, year=2021),
    "trec-fair-2022": read_trec_fair,
    "trec-fair-2022-all": partial(read_trec_fair, everything=True),
    SUBSET: read_subset,
    "jsonl": read_own,
}
"""The reader of each format that the command names; it may write into the folder it is given."""


@contextlib.contextmanager
def open_table(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a new table of values by key, on disk: for joins and duplicates in bounded memory."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as table:
        # It does not outlive the import, so it need not survive a crash.
        table.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;"
            "CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID; BEGIN"
        )
        yield table


def put(table: sqlite3.Connection, key: str, value: str) -> bool:
    """Store a value and return True; return False if the key exists."""
    return table.execute("INSERT OR IGNORE INTO entries VALUES (?, ?)", (key, value)).rowcount > 0


def get(table: sqlite3.Connection, key: str) -> str | None:
    """Return the value of a key."""
    row = table.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
    return row and str(row[0])


def write_collection(
    parts: CollectionParts, folder: Path, work: Path, progress: lines.ProgressFunction | None
) -> list[str]:
    """Write a collection into an empty folder; the same parts give the same bytes.

    Args:
        parts: What the collection holds.
        folder: Where to.
        work: A folder for a table of the ids.
        progress: Called now and then with the number of documents read.

    Returns:
        Lines on what it holds, and what was left out.

    Raises:
        CorpusError: There is no document.
    """
    write_beside(folder / SCHEMA, parts.schema)
    with open_table(work / "ids") as ids:
        written, twice = _write_documents(parts, folder, ids, progress)
        sentences = [f"{written:,} documents"]
        if twice:
            sentences.append(f"{twice:,} left out, whose id had come before")
        for split, topics in parts.topics.items():
            standard.write_topics(folder / _file_of("topics", split, ".jsonl"), topics)
        for split, qrels in parts.qrels.items():
            write_qrels(folder / _file_of("qrels", split, ".txt"), qrels)
            prefix = f"{split}: " if split else ""
            count = len(parts.topics.get(split, qrels))
            judgements = sum(map(len, qrels.values()))
            sentences.append(f"{prefix}{count:,} topics, {judgements:,} judgements")
            judged = set(itertools.chain.from_iterable(qrels.values()))
            missing = sum(get(ids, id_) is None for id_ in judged)
            if missing:
                sentences.append(
                    f"{prefix}{missing:,} judged documents are not among the documents; "
                    "their judgements are kept"
                )
    parts.about.model_copy(update={"documents": written}).write(folder)
    return sentences + parts.notes


def _file_of(kind: str, split: str | None, ending: str) -> str:
    """Return the name of a file of topics or judgements."""
    return f"{kind}-{split}{ending}" if split else f"{kind}{ending}"


def _write_documents(
    parts: CollectionParts,
    folder: Path,
    ids: sqlite3.Connection,
    progress: lines.ProgressFunction | None,
) -> tuple[int, int]:
    """Return how many documents were written, and how many were left out as duplicates."""
    written = 0
    twice = 0
    with (
        open_beside(folder / "documents.jsonl.gz") as file,
        gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as stream,
    ):
        for document in standard.watched(parts.documents, progress):
            if not put(ids, document.id, ""):
                twice += 1
                continue
            head = {"id": document.id, "title": document.title, "text": document.text}
            # The head stands first, and no field of the same name replaces it.
            line = json.dumps({**head, **document.fields, **head}, ensure_ascii=False)
            stream.write(line.encode("utf-8", "replace") + b"\n")
            written += 1
    if not written:
        raise CorpusError("The documents are empty; there must be one at least.")
    return written, twice
