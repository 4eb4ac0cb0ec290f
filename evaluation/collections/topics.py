"""Topics: what is asked of a collection."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.base.files import write_beside
from fairqr.retrieval.documents import numbered_lines

__all__ = ["Topic", "parse_topic", "read_topics", "write_topics"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of a collection.

    Attributes:
        id: As judgements and runs name it; without white space.
        title: A few words, in TREC's sense of a title.
        keywords: Further words, the most important first; may be empty.
    """

    id: str
    title: str
    keywords: tuple[str, ...] = ()

    def text(self, keywords: int = 10) -> str:
        """Return the query: the title and the first few keywords.

        Args:
            keywords: How many of them at the most; 0 for the title alone.

        Raises:
            InputError: The number is negative.
        """
        if keywords < 0:
            raise InputError(f"The number of keywords must be 0 or more, not {keywords}.")
        return " ".join([self.title, *self.keywords[:keywords]])


def parse_topic(data: Any) -> Topic:
    """Make a topic of what JSON gave.

    Raises:
        ValueError: It is not an object with ``id`` and ``title``, or the keywords are not a list.
    """
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    id_ = data.get("id")
    if isinstance(id_, int) and not isinstance(id_, bool):
        id_ = str(id_)
    if not isinstance(id_, str) or not id_:
        raise ValueError("it has no id (a text or a whole number)")
    if len(id_.split()) != 1 or id_ != id_.strip():
        raise ValueError(f"its id '{one_line(id_)}' has white space, which no qrels file can name")
    title = data.get("title")
    if not isinstance(title, str) or not title.strip():
        raise ValueError("it has no title")
    keywords = data.get("keywords") or []
    if not isinstance(keywords, list) or not all(isinstance(word, str) for word in keywords):
        raise ValueError("its keywords are not a list of texts")
    for text in (id_, title, *keywords):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("a text of it has half a surrogate pair") from None
    return Topic(id_, title.strip(), tuple(word.strip() for word in keywords if word.strip()))


def read_topics(path: Path) -> tuple[Topic, ...]:
    """Read topics, one JSON object with ``id``, ``title`` and optional ``keywords`` per line.

    Raises:
        CorpusError: The file cannot be read or is empty, a line is not a topic, or two topics have
            the same id; the message names the line.
    """
    topics: dict[str, Topic] = {}
    lines: dict[str, int] = {}
    for number, line in numbered_lines(path):
        try:
            topic = parse_topic(json.loads(line))
            if (first := lines.setdefault(topic.id, number)) != number:
                raise ValueError(f"the id '{one_line(topic.id)}' is in line {first} already")
        except (ValueError, RecursionError) as error:
            # Invalid JSON and invalid UTF-8 raise a ValueError too.
            what = "it is not valid JSON" if _is_json(error) else str(error)
            raise CorpusError(f"{path}, line {number}: {what}; mend the topic.") from None
        topics[topic.id] = topic
    if not topics:
        raise CorpusError(f"The topics {path} are empty; each line is a topic with id and title.")
    return tuple(topics.values())


def _is_json(error: Exception) -> bool:
    return isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError)


def write_topics(path: Path, topics: Iterable[Topic]) -> None:
    """Write topics, whole or not at all."""
    lines = (
        json.dumps(
            {"id": topic.id, "title": topic.title, "keywords": list(topic.keywords)},
            ensure_ascii=False,
        )
        for topic in topics
    )
    write_beside(path, "".join(f"{line}\n" for line in lines))
