"""Makes the corpus from the facts: PYTHONPATH=tools python -m notables.build TSV FOLDER.

Writes documents.jsonl.gz, topics.jsonl and qrels.txt. The same table gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from notables.facts import company_of, read_people
from notables.grammar import HERE
from notables.texts import OCCUPATIONS, PersonText

TOPICS: list[dict[str, Any]] = yaml.safe_load((HERE / "topics.yaml").read_text(encoding="utf-8"))
FILES = DOCUMENTS, TOPICS_FILE, QRELS = "documents.jsonl.gz", "topics.jsonl", "qrels.txt"


def build(table: Path, folder: Path) -> int:
    """Write the files into the folder, and return the number of documents."""
    people = read_people(table)
    company = company_of(people)
    topics = [{key: topic[key] for key in ("id", "title", "description")} for topic in TOPICS]
    qrels = [f"{topic['id']} 0 {id_} 1\n" for topic in TOPICS for id_ in relevant(people, topic)]
    told = pd.DataFrame({"id": people["id"].map(str), "title": people["name"]})
    told["text"] = [
        PersonText(person, company).write() for person in people.itertuples(index=False)
    ]
    told = told.join(people[["gender", "continent", "country", "birth_year"]])
    told["occupation"] = people["occupation"].map(lambda key: OCCUPATIONS[key]["noun"])
    told["industry"], told["domain"] = people["industry_name"], people["domain_name"]
    told = told.join(people[["languages", "page_views"]])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DOCUMENTS).open("wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(_lines(told.to_dict("records")))
    (folder / TOPICS_FILE).write_bytes(_lines(topics))
    (folder / QRELS).write_text("".join(qrels))
    return len(told)


def relevant(people: pd.DataFrame, facts: dict[str, Any]) -> list[Any]:
    """Return the ids of those who have all facts of a topic; the unknown fits none."""
    fits = pd.Series(data=True, index=people.index)
    for column in facts.keys() & {*people} - {"id"}:
        first, last = facts[column][0], facts[column][-1]
        is_span = column == "birth_year"
        fits &= people[column].isin(range(first, last + 1) if is_span else facts[column])
    return [*people.index[fits]]


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])), "documents")  # noqa: T201
