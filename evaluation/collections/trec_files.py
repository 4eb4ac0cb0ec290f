"""The files of TREC Fair 2021 and 2022: recognising and reading them.

A file is recognised by its first line, not by its name, so that files may be renamed or unpacked.
Only the name says whether topics are for training or for evaluation.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.base.errors import CorpusError
from fairqr.evaluation.collections.topics import Topic, parse_topic
from fairqr.evaluation.collections.trec_labels import Year, year_of
from fairqr.retrieval.documents import numbered_lines, open_text

__all__ = ["TEXTS", "TopicSet", "TrecFiles", "json_lines", "read_topic_sets", "sort_files"]

TEXTS = ("plain", "text", "html")
"""The fields that an article's text stands in, the first one being preferred."""

LONGEST_LINE = 1 << 28
"""How much of a file is read to recognise it. A file of topics has a line of 18 MB."""

SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_EVAL = re.compile(r"(?<![a-z])eval")


@dataclass(frozen=True, slots=True)
class TrecFiles:
    """The official files among some paths.

    Attributes:
        year: Of the metadata.
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
    """Return the object of the first line; an empty one where that is none, or of no such file."""
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
