"""A collection: documents with a schema, topics, and judgements of which documents are relevant.

The standard layout is a folder with ``documents.jsonl`` (or ``.jsonl.gz``), ``schema.yaml``,
``topics.jsonl``, ``qrels.txt`` and optionally ``collection.yaml``. If there are several sets of
judgements, each has a name: ``qrels-train.txt``, and ``topics-train.jsonl`` if its topics have a
file of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from fairqr.base.errors import CorpusError, InputError, first_problem, one_line
from fairqr.base.files import sha256_of, write_beside
from fairqr.base.settings import cache_dir
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.qrels import Qrels, read_qrels
from fairqr.retrieval.sources.corpus import BUILT_IN, SCHEMA, Corpus, find_corpus, holds_documents
from fairqr.retrieval.sources.documents import (
    ProgressFunction,
    in_known_forms,
    numbered_lines,
    wrong_line,
)
from fairqr.retrieval.sources.query_files import IDS
from fairqr.retrieval.sources.schema import validated

ABOUT = "collection.yaml"
TELL_EVERY = 1000
_QRELS = re.compile(r"qrels(?:-(.+))?\.txt")
T = TypeVar("T")
Words = Annotated[str, StringConstraints(strip_whitespace=True)]
Id = Annotated[str, StringConstraints(pattern=r"^\S+$")]


def _without_blanks(value: Any, check: Any) -> tuple[str, ...]:
    """Return checked keywords, without blank ones; none where there is null."""
    keywords = check(() if value is None else value)
    return tuple(filter(None, keywords))


Keywords = Annotated[tuple[Words, ...], WrapValidator(_without_blanks)]


@checked_dataclass(frozen=True, slots=True, config={"coerce_numbers_to_str": True})
class Topic:
    """One topic of a collection.

    Attributes:
        id: As judgements and runs name it; without white space. A whole number counts as its text.
        title: A few words, in TREC's sense of a title.
        keywords: Further words, the most important first; may be empty. Blank ones are dropped.
    """

    id: Id
    title: Annotated[Words, StringConstraints(min_length=1)]
    keywords: Keywords = ()

    def text(self, keywords: int = 10) -> str:
        """Return the query: the title and the first few keywords.

        Args:
            keywords: How many at most; 0 for the title alone.
        """
        return " ".join([self.title, *self.keywords[:keywords]])


def bad_line(path: Path, number: int, error: Exception) -> InputError:
    """Return the error about a line that is not what the file should hold."""
    problem = str(error)
    if isinstance(error, ValidationError):
        place, reason = first_problem(error)
        problem = f"its {place}: {reason}" if place else reason
    return wrong_line(path, number, one_line(problem), "file", CorpusError)


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """Yield what the lines of a JSON Lines file hold.

    Raises:
        CorpusError: The file cannot be read, or a line is not of this kind; it is named.
    """
    reader = TypeAdapter(kind)
    for number, line in numbered_lines(path):
        try:
            yield reader.validate_json(line)
        except ValidationError as error:
            raise bad_line(path, number, error) from None


def _as_topic(record: Any) -> Any:
    """Return a record with the names of a topic, if it has those of BEIR or ir_datasets."""
    if not isinstance(record, Mapping) or {"id", "title"} <= record.keys():
        return record
    id_ = next((record[name] for name in IDS if name in record), None)
    title = record.get("title") or record.get("text") or record.get("query")
    if id_ is None or title is None:
        return record
    topic = {"id": id_, "title": title}
    if "keywords" in record:
        topic["keywords"] = record["keywords"]
    return topic


def read_topics(path: Path) -> tuple[Topic, ...]:
    """Read topics, one JSON object with ``id``, ``title`` and optional ``keywords`` per line.

    They may be called as in BEIR's ``queries.jsonl`` and in those of ir_datasets.

    Raises:
        CorpusError: The file cannot be read or is empty, a line is not a topic, or two topics have
            the same id; the message names the line, or the id.
    """
    topics: dict[str, Topic] = {}
    kind: Any = Annotated[Topic, BeforeValidator(_as_topic)]
    topic: Topic
    for topic in read_lines(path, kind):
        if topics.setdefault(topic.id, topic) is not topic:
            raise CorpusError(f"{path} has two topics with the id '{one_line(topic.id)}'.")
    if not topics:
        raise CorpusError(f"The topics {path} are empty; each line is a topic with id and title.")
    return tuple(topics.values())


def write_topics(path: Path, topics: Iterable[Topic]) -> None:
    """Write topics, whole or not at all."""
    lines = (json.dumps(asdict(topic), ensure_ascii=False) for topic in topics)
    write_beside(path, "".join(f"{line}\n" for line in lines))


def watched(things: Iterable[T], progress: ProgressFunction | None) -> Iterator[T]:
    """Yield things as they come, and tell how many came now and then, and at the end."""
    count = 0
    for count, thing in enumerate(things, start=1):
        yield thing
        if progress and not count % TELL_EVERY:
            progress(count)
    if progress:
        progress(count)


class About(BaseModel, frozen=True, extra="forbid"):
    """The description of a collection in ``collection.yaml``.

    Attributes:
        title: Its name in reports.
        source: Where its files come from.
        licence: The terms of use.
        note: Advice for a reader of its numbers.
        target: The target that its rankings are measured against, as
            :func:`fairqr.evaluation.collections.query_targets.as_target` reads it.
        loader: The loader that imported it, if any.
        documents: The number of documents, if counted.
    """

    title: str = ""
    source: str = ""
    licence: str = ""
    note: str = ""
    target: str = "relevance:0.5,population:0.5"
    loader: str = ""
    documents: int | None = None

    def write(self, folder: Path) -> None:
        """Write it into the folder of a collection."""
        data = self.model_dump(exclude_defaults=True)
        text = yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
        write_beside(folder / ABOUT, text)


def read_about(folder: Path) -> About:
    """Read ``collection.yaml``; without the file, all is empty.

    Raises:
        CorpusError: The file is not valid.
    """
    path = folder / ABOUT
    if not path.is_file():
        return About()
    return validated(About, load_yaml(path, "file", CorpusError) or {}, str(path), CorpusError)


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents, topics and judgements.

    Attributes:
        name: What :func:`fairqr.evaluation.collections.finding.find_collection` finds it by.
        folder: Where it is.
        corpus: The documents and their schema; nothing of them is held in memory.
        topics: In the order of the file.
        qrels: Judgements of these topics; a document above grade 0 is relevant, what is not listed
            is not. Documents that the corpus lacks stay in them, as in trec_eval: they are relevant
            documents that no system finds.
        about: Its title, source and target.
        split: The name of the judgements, if there are several sets.
    """

    name: str
    folder: Path
    corpus: Corpus
    topics: tuple[Topic, ...]
    qrels: Qrels
    about: About
    split: str | None = None

    @property
    def title(self) -> str:
        """Its name in reports."""
        return self.about.title or self.name

    @property
    def corpus_name(self) -> str:
        """The name of the documents in a catalog of indexes: a built-in name, or the file."""
        return self.name if self.name in BUILT_IN else str(self.corpus.path)

    def relevant(self, topic: str) -> list[str]:
        """Return the ids of the documents that are relevant for a topic."""
        return [id_ for id_, grade in self.qrels.get(topic, {}).items() if grade > 0]

    def relevant_documents(self) -> list[str]:
        """Return the ids of the documents that are relevant for any topic, each once."""
        ids: dict[str, None] = {}
        for topic in self.topics:
            ids |= dict.fromkeys(self.relevant(topic.id))
        return list(ids)

    def part(self, topics: Iterable[str], most: int, progress: ProgressFunction) -> str:
        """Return the name of a corpus of documents judged for some topics, and others by chance.

        If the documents are few enough, all of them are in it; a part is kept in the user's cache.
        The choice is by the hashes of the ids, so it is the same each time.

        Args:
            topics: All that is judged for them is in the part.
            most: How many documents it has, unless more are judged.
            progress: Called with the number of documents that are read.

        Raises:
            CorpusError: The documents cannot be read.
        """
        judged: set[str] = set()
        for topic in topics:
            judged.update(self.qrels.get(topic, {}))
        content = json.dumps([self.corpus.fingerprint(), sorted(judged), most])
        name = sha256(content.encode()).hexdigest()[:16]
        path = cache_dir() / "parts" / name / "documents.jsonl"
        if path.exists():
            return str(path)
        ids = {document.id for document in watched(self.corpus.documents(), progress)}
        if len(ids) <= most:
            return self.corpus_name
        judged &= ids
        others = sorted(ids - judged, key=lambda id_: sha256(id_.encode()).digest())
        chosen = judged.union(others[: max(0, most - len(judged))])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_beside(path.with_name(SCHEMA), self._schema_with_paths())
        lines = numbered_lines(self.corpus.path)
        documents = zip(self.corpus.documents(), lines, strict=True)
        kept = [line.strip() for document, (_, line) in documents if document.id in chosen]
        write_beside(path, "".join(f"{line}\n" for line in kept))
        return str(path)

    def _schema_with_paths(self) -> str:
        """Return the schema as YAML for another folder: files of labels by their whole path."""
        schema = self.corpus.schema.model_dump(mode="json")
        folder = self.corpus.labels_folder.absolute()
        for attribute in schema["attributes"].values():
            if attribute["labels"]:
                attribute["labels"] = str(folder / attribute["labels"])
        return yaml.safe_dump(schema, allow_unicode=True)

    def fingerprints(self) -> dict[str, str]:
        """Return the hashes of the documents with their schema, the topics and the judgements."""
        paths = sorted([*self.folder.glob("topics*.jsonl"), *self.folder.glob("qrels*.txt")])
        hashes = {path.name: sha256_of(path) for path in paths}
        return {"corpus": self.corpus.fingerprint(), **hashes}


def splits_of(folder: Path) -> dict[str | None, Path]:
    """Return the files of judgements in a folder by their name; ``qrels.txt`` has the name None."""
    splits: dict[str | None, Path] = {}
    for path in sorted(folder.glob("qrels*.txt")):
        match = _QRELS.fullmatch(path.name)
        if match:
            splits[match[1]] = path
    return splits


def missing_files(folder: Path) -> list[str]:
    """Return the files of the standard layout that a folder lacks."""
    schemas = (folder / SCHEMA, folder / f"documents.{SCHEMA}")
    is_there = {
        "documents.jsonl": holds_documents(folder),
        SCHEMA: any(path.is_file() for path in schemas),
        "topics.jsonl": any(folder.glob("topics*.jsonl")),
        "qrels.txt": bool(splits_of(folder)),
    }
    return [name for name in is_there if not is_there[name]]


def load_collection(folder: Path, name: str | None = None, split: str | None = None) -> Collection:
    """Read the topics and judgements of a folder in the standard layout.

    With several sets of judgements over one file of topics, the topics are those that the chosen
    set judges.

    Args:
        folder: Where it is.
        name: Its name; defaults to the folder's name.
        split: The name of the judgements; defaults to ``qrels.txt``, or else to the only set.

    Raises:
        CorpusError: A file is missing or has a wrong line, the judgements of that name do not
            exist or judge none of the topics, or there are several and none is named.
        SchemaError: The schema is wrong.
    """
    name = name or folder.resolve().name
    missing = missing_files(folder)
    if missing:
        raise CorpusError(
            f"The folder {folder} is not a collection: it lacks {', '.join(missing)}; "
            "docs/how-to/bring-a-collection.md describes the layout."
        )
    splits = splits_of(folder)
    if split is None and len(splits) == 1:
        (split,) = splits
    if split not in splits:
        raise _no_split(name, split, splits)
    topics_of_split = folder / f"topics-{split}.jsonl"
    has_own_topics = topics_of_split.is_file()
    topics = read_topics(topics_of_split if has_own_topics else folder / "topics.jsonl")
    ids = {topic.id for topic in topics}
    judged = in_known_forms(read_qrels(splits[split]), ids)
    qrels = {topic: documents for topic, documents in judged.items() if topic in ids}
    if not any(grade > 0 for grades in qrels.values() for grade in grades.values()):
        raise CorpusError(
            f"{splits[split]} has no relevant document for any topic of the collection '{name}'; "
            "the topics' ids must be those of the topics file, and a grade above 0 is relevant."
        )
    if split is not None and not has_own_topics:
        topics = tuple(topic for topic in topics if topic.id in qrels)
    return Collection(
        name=name,
        folder=folder,
        corpus=find_corpus(folder),
        topics=topics,
        qrels=qrels,
        about=read_about(folder),
        split=split,
    )


def _no_split(name: str, split: str | None, splits: Iterable[str | None]) -> CorpusError:
    """Return the error about judgements that do not exist, or of which none are named."""
    names = ", ".join(filter(None, splits)) or "one set without a name"
    problem = f"no judgements '{one_line(split)}'" if split else "several sets of judgements"
    return CorpusError(f"The collection '{name}' has {problem}; there are {names}: choose one.")
