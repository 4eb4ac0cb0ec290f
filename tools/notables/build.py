"""Makes the corpus from the facts: PYTHONPATH=tools python -m notables.build TSV OUT_DIR.

Writes documents.jsonl.gz, topics.jsonl and qrels.txt. The same table gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from notables.collection import Collection
from notables.facts import FactsError, Person, read_people
from notables.occupations import DOMAINS, INDUSTRIES, OCCUPATIONS
from notables.texts import write
from notables.topics import TOPICS, judge

DOCUMENTS = "documents.jsonl.gz"
TOPICS_FILE = "topics.jsonl"
QRELS = "qrels.txt"


def document(person: Person, people: Collection) -> dict[str, str | int | None]:
    """A person as a document: id, title, text, and the facts as fields beside them."""
    return {
        "id": person.id,
        "title": person.name,
        "text": write(person, people),
        "gender": person.gender,
        "continent": person.continent,
        "country": person.country.label if person.country else None,
        "birth_year": person.birth_year,
        "occupation": OCCUPATIONS[person.occupation].noun,
        "industry": INDUSTRIES[person.industry],
        "domain": DOMAINS[person.domain],
        "languages": person.languages,
        "page_views": person.page_views,
    }


def _json_lines(rows: Iterable[dict[str, str | int | None]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _compressed(content: bytes) -> bytes:
    """Gzip without time or file name, so that equal content gives equal bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()


def build(table: Path, directory: Path) -> int:
    """Writes the files into the directory and returns the number of documents."""
    people = read_people(table)
    collection = Collection(people)
    rows = [document(person, collection) for person in people]
    judged = judge(people)
    qrels = "".join(f"{topic} 0 {id_} 1\n" for topic, ids in judged.items() for id_ in ids)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / DOCUMENTS).write_bytes(_compressed(_json_lines(rows)))
    (directory / TOPICS_FILE).write_bytes(
        _json_lines(
            {"id": topic.id, "title": topic.title, "description": topic.description}
            for topic in TOPICS
        )
    )
    (directory / QRELS).write_bytes(qrels.encode())
    return len(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 if the files are written, 2 with one sentence if they cannot be."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 2:
        sys.stderr.write("Give two paths: the Pantheon table (TSV) and the output directory.\n")
        return 2
    table, directory = Path(given[0]), Path(given[1])
    try:
        count = build(table, directory)
    except FactsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"{directory} cannot be written: {error.strerror}.\n")
        return 2
    sys.stdout.write(f"{count} documents and {len(TOPICS)} topics written to {directory}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
